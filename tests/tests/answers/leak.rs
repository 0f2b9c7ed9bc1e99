//! Growing memory is found by its line, in a watch and in its recording; memory that does not grow
//! is not reported.

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::report::ReportLine;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningProgram, SimulatedGpu, TorchAllocator};
use serde_json::Value;

/// Returns the number of the workload's line that ends with this comment.
fn line_of(name: &str) -> u64 {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads/keeps_tensors.py");
    let text = std::fs::read_to_string(script).expect("the workload is in the tree");
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| line.ends_with(&format!("# {name}")));
    lines.next().unwrap_or_else(|| panic!("no line is called {name}")).0
}

/// Returns line and verdict of each finding on tensors.
fn verdicts(report: &Value) -> Vec<(Option<u64>, String)> {
    let findings = report["data"]["processes"][0]["findings"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    let of_tensors = findings.iter().filter(|finding| finding["level"] == "tensor");
    of_tensors
        .map(|finding| (finding["line"].as_u64(), finding["verdict"].as_str().expect("a word").to_owned()))
        .collect()
}

/// Asserts that the leak is the only finding of growth, and that the cache has levelled off.
fn assert_reported(report: &Value) {
    let verdicts = verdicts(report);
    let leaks: Vec<_> = verdicts.iter().filter(|(_, verdict)| verdict == "leak" || verdict == "slow").collect();
    assert_eq!(leaks, [&(Some(line_of("leak")), "leak".to_owned())], "{report:#}");
    assert!(verdicts.contains(&(Some(line_of("cache")), "levelled_off".to_owned())), "{report:#}");
    let leak = &report["data"]["processes"][0]["findings"][0];
    // About one MiB per 50 ms plus the duration of a step.
    let per_minute = leak["bytes_per_minute"].as_f64().expect("a number");
    assert!((60.0..1_300.0).contains(&(per_minute / 1_048_576.0)), "{leak}");
    assert!(leak["p"].as_f64() < Some(0.01), "{leak}");
    assert!(leak["reason"].as_str().is_some_and(|reason| reason.contains("and still grows")), "{leak}");
    // The job is idle by then, so its memory shows the retainer of every tensor.
    let retainers = leak["retainers"].as_array().expect("a list");
    assert_eq!(retainers.len(), 1, "{leak}");
    assert_eq!(
        (&retainers[0]["name"], &retainers[0]["class"]),
        (&"keeps_tensors.py:main: trainer.kept[*]".into(), &"tensor".into())
    );
    assert!(
        retainers[0]["bytes"].as_u64() >= leak["last_bytes"].as_u64() && retainers[0]["newest"].is_string(),
        "{leak}"
    );
    // After twenty seconds, the retained tensors have all ages.
    assert!(leak["replaced_seconds"].is_null(), "{leak}");
    let ages = leak["ages"].as_array().unwrap_or_else(|| panic!("it runs still: {leak}"));
    let bytes = |age: &Value| age["bytes"].as_u64().expect("bytes");
    assert!(ages.iter().map(bytes).sum::<u64>() >= leak["last_bytes"].as_u64().expect("bytes"), "{leak}");
    assert!(ages[2]["below_seconds"] == 60.0 && bytes(&ages[2]) > 0, "{leak}");
}

#[test]
fn leak_finds_the_line_keeping_tensors_and_not_a_cache() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let words = ["keeps_tensors.py", "--seconds", "20"];
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &words);
    let (tgid, file) = (job.tgid().to_string(), gpu.directory().join("job.mwr").display().to_string());
    let recorder =
        AttributionWatch::of(gpu.memwatch(&["record", "--tensors=modules", "--json", "--pid", &tgid, "-o", &file]));
    let leak = ["--no-agent", "leak", "--json", "--duration", "10m", "--fail-on", "leak", "--pid", &tgid];
    let watch = AttributionWatch::of(gpu.memwatch(&leak));
    job.go_on();
    let trained = job.next_checkpoint().expect("it trains to its end");
    assert_eq!(trained["label"], "trained");
    let live = watch.interrupt_with(3);
    assert_reported(&live);
    recorder.interrupt();
    let reading = |words: &[&str]| CommandOutcome::of(gpu.memwatch(&[words, &["--in", &file]].concat()));
    let replayed = reading(&["leak", "--json"]);
    replayed.assert_ended_with(0, &[]);
    assert_reported(ReportLine::parse(&replayed.stdout).json());
    let text = reading(&["leak", "--fail-on", "slow"]);
    text.assert_ended_with(3, &[]);
    let leaking = format!("keeps_tensors.py:{} Trainer.step", line_of("leak"));
    assert!(text.stdout.contains("1 leaking") && text.stdout.contains(&leaking), "{}", text.stdout);
    let kept = "; kept by keeps_tensors.py:main: trainer.kept[*] (";
    assert!(text.stdout.contains(kept) && text.stdout.contains("; newest trainer.kept["), "{}", text.stdout);
}

#[test]
fn memory_of_the_driver_that_grows_is_found_without_pytorch() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.workload();
    job.run(&["device 0", "alloc held 268435456"]);
    let (tgid, file) = (job.tgid_word(), gpu.directory().join("job.mwr").display().to_string());
    let mut recorder =
        RunningProgram::start(gpu.memwatch(&["record", "--tensors=modules", "--pid", &tgid, "-o", &file]));
    for number in 0..28 {
        job.run(&[&format!("alloc grown{number} 8388608"), "alloc passing 67108864", "free passing"]);
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    recorder.signal(libc::SIGINT);
    assert_eq!(recorder.end(), 0);
    let outcome = CommandOutcome::of(gpu.memwatch(&["leak", "--json", "--in", &file]));
    outcome.assert_ended_with(0, &[]);
    let report = ReportLine::parse(&outcome.stdout);
    let findings = &report.json()["data"]["processes"][0]["findings"];
    assert_eq!((&findings[0]["verdict"], &findings[0]["level"]), (&"leak".into(), &"driver".into()), "{findings:#}");
    assert_eq!(
        (&findings[1]["verdict"], &findings[1]["level"]),
        (&"steady".into(), &"pinned_host".into()),
        "{findings:#}"
    );
}
