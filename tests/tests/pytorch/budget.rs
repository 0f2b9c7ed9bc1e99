//! The overhead of tracing a program's tensors is predicted before tracing starts, and by default
//! no more is traced than the budget allows.
//!
//! The two rates are so far apart that the machine's speed does not change the result: some hundred
//! tensors per second, and as many as the processor can make.

use std::process::Command;

use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{
    CommandOutcome, PrologueShape, RunningProgram, RunningWatch, SimulatedGpu, TorchAllocator, TorchJob, until,
};
use serde_json::Value;

const CALM: &str = "200";
const FAST: &str = "0";

/// Events per second that exceed 2 % at every level of tracing.
const HOT: u64 = 10_000;

/// Starts a job, which begins with the first of these rates.
fn job(gpu: &SimulatedGpu, words: &[&str]) -> TorchJob {
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &[&["decode_loop.py"], words].concat());
    let begun = job.next_checkpoint().expect("it begins with the first rate");
    assert_eq!(begun["label"], format!("rate {}", words[0]));
    job
}

/// Lets the job continue to the end of a part or the beginning of the next.
fn next(job: &mut TorchJob, label: &str) -> Value {
    job.go_on();
    let checkpoint = job.next_checkpoint().expect("it goes on");
    assert_eq!(checkpoint["label"], label);
    checkpoint
}

fn level(report: &ReportLine, job: &TorchJob) -> Value {
    report.process(job.tgid()).map_or(Value::Null, |process| process.0["tensor_level"].clone())
}

fn is_at(report: &ReportLine, job: &TorchJob, chosen: &str) -> bool {
    level(report, job)["chosen"] == chosen
}

/// Returns the totals of the allocator of the job's only device.
fn sums(report: &ReportLine, job: &TorchJob) -> Value {
    report.process(job.tgid()).map_or(Value::Null, |process| process.0["tensor"]["gpus"][0].clone())
}

/// Returns the number of allocations seen.
fn allocations(report: &ReportLine, job: &TorchJob) -> Option<u64> {
    sums(report, job)["allocations"].as_u64()
}

fn has_tensors(report: &ReportLine, job: &TorchJob) -> bool {
    sums(report, job).is_object()
}

/// Returns whether the line that makes the tensors is among the call sites.
fn has_lines(report: &ReportLine, job: &TorchJob) -> bool {
    let Some(process) = report.process(job.tgid()) else { return false };
    let sites = process.0["tensor"]["attribution"][0]["lines"].as_array().map_or(&[][..], Vec::as_slice);
    let is_counted = |site: &&Value| site["function"] == "run" && site["allocations"].as_u64() > Some(0);
    sites.iter().any(|site| is_counted(&site))
}

/// Waits until memwatch's totals, peaks and counts equal PyTorch's at the checkpoint at which the
/// job waits.
fn until_equal(watch: &mut RunningWatch, job: &TorchJob, checkpoint: &Value) -> ReportLine {
    let stats = &checkpoint["devices"][0]["memory_stats"];
    let keys = [
        ("allocated_bytes", "allocated_bytes.all.current"),
        ("reserved_bytes", "reserved_bytes.all.current"),
        ("active_bytes", "active_bytes.all.current"),
        ("requested_bytes", "requested_bytes.all.current"),
        ("peak_allocated_bytes", "allocated_bytes.all.peak"),
        ("peak_reserved_bytes", "reserved_bytes.all.peak"),
        ("allocations", "allocation.all.allocated"),
        ("frees", "allocation.all.freed"),
    ];
    watch.until(|report| {
        let ours = sums(report, job);
        keys.iter().all(|(own, theirs)| stats[theirs].is_u64() && ours[own] == stats[theirs])
    })
}

/// Reads a recording, while it is written, until its report fulfils a condition.
fn until_recorded(gpu: &SimulatedGpu, path: &str, holds: impl Fn(&ReportLine) -> bool) {
    until("the recording is as expected", || {
        let outcome = gpu.run_memwatch(&["report", "--json", path]);
        (outcome.code == 0 && holds(&ReportLine::parse(&outcome.stdout))).then_some(())
    });
}

#[test]
fn a_calm_program_is_traced_with_modules_and_lines() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = job(&gpu, &[CALM]);
    let mut watch = gpu.watch(&["--no-agent", "--pid", &job.tgid().to_string()]);
    let report = watch.until(|report| has_lines(report, &job));
    let chosen = level(&report, &job);
    assert_eq!((&chosen["asked"], &chosen["chosen"]), (&"modules".into(), &"modules".into()), "{chosen}");
    let (price, budget) = (&chosen["predicted_seconds_per_second"], &chosen["budget_seconds_per_second"]);
    assert!(price.as_f64() < Some(0.02) && price.as_f64() > Some(0.0) && budget == 0.02, "{chosen}");
}

/// The full sequence of rates: calm, hot, calm again.
#[test]
fn budget_level_falls_to_read_while_busy_and_rises_with_exact_totals() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = job(&gpu, &[CALM, FAST, CALM, "--rest"]);
    let mut watch = gpu.watch(&["--no-agent", "--pid", &job.tgid().to_string()]);
    watch.until(|report| is_at(report, &job, "modules") && has_lines(report, &job));
    let calm = next(&mut job, &format!("rest after {CALM}"));
    until_equal(&mut watch, &job, &calm);
    next(&mut job, &format!("rate {FAST}"));
    let lowered = level(&watch.until(|report| is_at(report, &job, "read")), &job);
    assert!(lowered["tensor_events_per_second"].as_u64() > Some(HOT), "{lowered}");
    let (price, asked) = (&lowered["predicted_seconds_per_second"], &lowered["predicted_seconds_per_second_asked"]);
    assert!(price == 0.0 && asked.as_f64() > Some(0.02) && lowered["asked"] == "modules", "{lowered}");
    // While the program is hot, the level stays low and the totals keep counting.
    let mut counts = Vec::new();
    for _ in 0..20 {
        let report = watch.next_report();
        assert!(is_at(&report, &job, "read"), "{report:#?}");
        counts.extend(allocations(&report, &job));
    }
    assert!(counts.is_sorted() && counts.first() < counts.last(), "{counts:?}");
    let hot = next(&mut job, &format!("rest after {FAST}"));
    let equal = until_equal(&mut watch, &job, &hot);
    assert_eq!(sums(&equal, &job)["observed_by"], "numbers");
    next(&mut job, &format!("rate {CALM}"));
    let raised = watch.until(|report| is_at(report, &job, "modules"));
    assert_eq!(level(&raised, &job)["asked"], "modules");
    let before = allocations(&raised, &job);
    let again = watch.until(|report| has_lines(report, &job) && allocations(report, &job) > before);
    assert!(is_at(&again, &job, "modules"), "{again:#?}");
    let end = next(&mut job, &format!("rest after {CALM}"));
    until_equal(&mut watch, &job, &end);
}

#[test]
fn budget_level_changes_are_one_line_each_and_recorded() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = job(&gpu, &[CALM, FAST, CALM]);
    let (tgid, path) = (job.tgid(), gpu.directory().join("job.mwr").display().to_string());
    let words = ["record", "--json", "--pid", &tgid.to_string(), "-o", &path];
    let mut recorder = RunningProgram::start_with_errors(gpu.memwatch(&words));
    until_recorded(&gpu, &path, |report| is_at(report, &job, "modules") && has_tensors(report, &job));
    next(&mut job, &format!("rate {FAST}"));
    // The level is lowered by the predicted or by the measured overhead.
    let line = recorder.until_line_with("To trace anyway: --budget none");
    let rests = [format!("would slow PID {tgid} by about "), format!("tracing all slows PID {tgid} by ")];
    assert!(line.contains("tensor events/s") && rests.iter().any(|rest| line.contains(rest)), "{line}");
    until_recorded(&gpu, &path, |report| is_at(report, &job, "read"));
    next(&mut job, &format!("rate {CALM}"));
    // The level is raised by the predicted or by the measured overhead.
    let again = [
        format!("memwatch: tensors, lines and modules of PID {tgid} are traced again"),
        format!("memwatch: all of PID {tgid} is traced: that slows it by"),
    ];
    loop {
        let line = recorder.until_line_with(" traced");
        if again.iter().any(|start| line.starts_with(start)) {
            break;
        }
    }
    until_recorded(&gpu, &path, |report| is_at(report, &job, "modules"));
    recorder.signal(libc::SIGINT);
    assert_eq!(recorder.end(), 0);
}

#[test]
fn budget_recording_of_a_busy_program_replays_its_final_report() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = job(&gpu, &[CALM, FAST]);
    let (tgid, path) = (job.tgid().to_string(), gpu.directory().join("job.mwr").display().to_string());
    let mut recorder = RunningProgram::start(gpu.memwatch(&["record", "--json", "--pid", &tgid, "-o", &path]));
    until_recorded(&gpu, &path, |report| is_at(report, &job, "modules") && has_tensors(report, &job));
    next(&mut job, &format!("rate {FAST}"));
    until_recorded(&gpu, &path, |report| is_at(report, &job, "read"));
    recorder.signal(libc::SIGINT);
    let reported = recorder.next_line().expect("it says what it has");
    assert_eq!(recorder.end(), 0, "{reported}");
    let replayed = CommandOutcome::of(gpu.memwatch(&["report", "--only", "where", "--json", &path]));
    assert_eq!(replayed.stdout.trim_end(), reported);
    let report = ReportLine::parse(&reported);
    assert!(has_tensors(&report, &job), "what was traced by then is there");
    assert_eq!(level(&report, &job)["asked"], "modules");
}

#[test]
fn without_a_limit_a_hot_program_is_traced_and_its_price_is_known() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = job(&gpu, &[FAST]);
    let mut watch = gpu.watch(&["--no-agent", "--budget=none", "--pid", &job.tgid().to_string()]);
    let chosen = level(&watch.until(|report| has_lines(report, &job)), &job);
    assert_eq!((&chosen["asked"], &chosen["chosen"]), (&"modules".into(), &"modules".into()), "{chosen}");
    assert!(chosen["budget_seconds_per_second"].is_null(), "{chosen}");
    assert!(chosen["predicted_seconds_per_second"].as_f64() > Some(0.02), "{chosen}");
}

#[test]
fn a_level_that_is_asked_for_is_obeyed_and_its_price_is_printed_first() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = job(&gpu, &[FAST]);
    let tgid = job.tgid().to_string();
    let mut watch = gpu.watch(&["--no-agent", "--tensors=lines", "--pid", &tgid]);
    let chosen = level(&watch.until(|report| has_lines(report, &job)), &job);
    assert_eq!((&chosen["asked"], &chosen["chosen"]), (&"lines".into(), &"lines".into()), "{chosen}");
    assert!(chosen["predicted_seconds_per_second"].as_f64() > Some(0.02), "{chosen}");
    drop(watch);
    for words in [&["--json", "--tensors=lines"][..], &["where", "--duration", "10m"]] {
        let mut program =
            RunningProgram::start_with_errors(gpu.memwatch(&[words, &["--no-agent", "--pid", &tgid]].concat()));
        let price = program.until_line_with("tensor events/s");
        assert!(price.contains(&format!("tracing PID {tgid} takes about ")), "{price}");
    }
}

#[test]
fn budget_in_a_report_limits_tracing_and_states_what_is_left_out() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = job(&gpu, &[FAST]);
    let tgid = job.tgid().to_string();
    for words in ["where", "leak"] {
        let command = gpu.memwatch(&["--no-agent", words, "--budget", "2%", "--duration", "10m", "--pid", &tgid]);
        let mut program = RunningProgram::start_with_errors(command);
        let line = program.until_line_with("tensor events/s");
        assert!(line.contains(" (budget 2 %)") && line.ends_with("To trace anyway: --budget none"), "{line}");
    }
}

#[test]
fn a_budget_that_is_none_is_refused_with_2() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    for wrong in ["-1", "abc", "-2%", "101", "2%%"] {
        let sentence = "a budget is a part of one processor from 0 to 100 percent, such as 2%, or none for no limit";
        let budget = format!("--budget={wrong}");
        for words in [&[&*budget][..], &["doctor", "--pid", "1", &budget]] {
            let outcome = gpu.run_memwatch(words);
            outcome.assert_ended_with(2, &[sentence, wrong]);
            assert_eq!(outcome.stdout, "", "{wrong}");
        }
    }
}

/// Returns the doctor's predictions for processes, in JSON.
fn prices(gpu: &SimulatedGpu, words: &[&str]) -> Value {
    let outcome = gpu.run_memwatch(&[&["doctor", "--json"], words].concat());
    outcome.assert_ended_with(0, &[]);
    ReportLine::parse(&outcome.stdout).json()["data"]["prices"].clone()
}

/// Returns the levels that fit the budget, after checking that each has an overhead.
fn fitting(process: &Value) -> Vec<&str> {
    let levels = process["levels"].as_array().expect("a list of levels");
    let price = |level: &&Value| level["predicted_seconds_per_second"].as_f64();
    assert!(levels.len() == 4 && levels.iter().collect::<Vec<_>>().is_sorted_by_key(price), "{process:#}");
    levels.iter().filter(|level| level["fits_budget"] == true).filter_map(|level| level["level"].as_str()).collect()
}

#[test]
fn the_doctor_predicts_the_price_of_each_level_and_says_which_is_chosen() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let (calm, hot) = (job(&gpu, &[CALM]), job(&gpu, &[FAST]));
    let mut stranger = Command::new("sleep");
    stranger.arg("1000");
    let mut stranger = RunningProgram::start(stranger);
    let named = [calm.tgid(), hot.tgid(), stranger.tgid()].map(|tgid| tgid.to_string());
    let words = ["--pid", &named[0], "--pid", &named[1], "--pid", &named[2]];
    let report = prices(&gpu, &words);
    assert_eq!((&report["budget_seconds_per_second"], &report["probe_measured"]), (&0.02.into(), &true.into()));
    assert!(report["probe_ns"].as_u64() > Some(0), "{report:#}");
    let [first, second, third] = [0, 1, 2].map(|index| &report["processes"][index]);
    assert_eq!((fitting(first), &first["chosen"]), (vec!["read", "blocks", "lines", "modules"], &"modules".into()));
    assert_eq!((fitting(second), &second["chosen"]), (vec!["read"], &"read".into()), "{second:#}");
    assert!(second["tensor_events_per_second"].as_u64() > Some(HOT), "{second:#}");
    assert!(third["reason"].as_str().is_some_and(|why| why.contains("PyTorch with CUDA is not loaded")), "{third:#}");
    let unlimited = prices(&gpu, &["--budget=none", "--pid", &named[1]]);
    assert_eq!(unlimited["processes"][0]["chosen"], "modules");
    let text = gpu.run_memwatch(&["doctor", "--pid", &named[1]]);
    text.assert_ended_with(0, &[]);
    assert!(text.stdout.contains("without --tensors it is traced at level read"), "{text:#?}");
    stranger.signal(libc::SIGKILL);
    assert_eq!(stranger.end(), -1);
    gpu.run_memwatch(&["doctor", "--pid", &named[2]])
        .assert_ended_with(6, &[&format!("there is no process {}", named[2])]);
}
