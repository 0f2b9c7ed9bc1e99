//! The cause of a failed allocation is reported with the numbers of that moment, in a watch and in
//! its recording.

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::report::ReportLine;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, MIB, PrologueShape, SimulatedGpu, TorchAllocator};
use serde_json::{Value, json};

fn in_recording(gpu: &SimulatedGpu, words: &[&str], file: &str) -> CommandOutcome {
    CommandOutcome::of(gpu.memwatch(&[words, &["--in", file]].concat()))
}

/// Returns the only failure of a report.
fn failure(report: &Value) -> &Value {
    let failures = report["data"]["failures"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(failures.len(), 1, "{report:#}");
    &failures[0]
}

#[test]
fn oom_by_fragmentation_is_the_cause_and_recommends_simulate() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &2_100);
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &["fragments.py"]);
    let (tgid, file) = (job.tgid().to_string(), gpu.directory().join("job.mwr").display().to_string());
    let recorder =
        AttributionWatch::of(gpu.memwatch(&["record", "--tensors=modules", "--json", "--pid", &tgid, "-o", &file]));
    let oom = ["--no-agent", "oom", "--json", "--duration", "10m", "--fail-on-oom", "--pid", &tgid];
    let watch = AttributionWatch::of(gpu.memwatch(&oom));
    job.go_on();
    let pieces = job.next_checkpoint().expect("it comes so far");
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("it survives")["label"], "refused");
    let live = watch.interrupt_with(3);
    recorder.interrupt();
    let replayed = in_recording(&gpu, &["oom", "--json"], &file);
    replayed.assert_ended_with(0, &[]);
    let stated = &pieces["devices"][0]["memory_stats"];
    for report in [&live, ReportLine::parse(&replayed.stdout).json()] {
        assert_eq!(report["data"]["causes"][0]["kind"], "fragmentation", "{report:#}");
        let failure = failure(report);
        assert_eq!(
            (&failure["level"], &failure["wanted_bytes"]),
            (&"tensor".into(), &(512 * MIB).into()),
            "{failure:#}"
        );
        assert_eq!(failure["cache"]["split_bytes"], stated["inactive_split_bytes.all.current"], "{failure:#}");
        assert_eq!(failure["cache"]["reserved_bytes"], stated["reserved_bytes.all.current"], "{failure:#}");
        assert_eq!(failure["cache"]["largest_free_bytes"], 9 * MIB, "{failure:#}");
        assert_eq!(failure["holders"][0]["pid"].to_string(), tgid, "{failure:#}");
        let refused = &failure["refused"][0];
        assert_eq!((&refused["function"], &refused["asked_bytes"]), (&"cuMemAlloc_v2".into(), &(512 * MIB).into()));
        let site = failure["attributed_to"]["call_site"]["name"].as_str().expect("the line is known");
        assert!(site.contains("fragments.py:"), "{site}");
        let advice = failure["advice"][0].as_str().expect("a sentence");
        assert!(advice.contains("memwatch simulate"), "{advice}");
    }
    let text = in_recording(&gpu, &["oom"], &file);
    text.assert_ended_with(0, &[]);
    assert!(text.stdout.contains("CUDA OUT OF MEMORY  ") && text.stdout.contains("\n  top "), "{}", text.stdout);
}

#[test]
fn oom_lists_a_refusal_recovered_by_pytorch_as_survived() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    // The context makes 17 requests; the failing one is for the second segment.
    let gpu = gpu.with("GPUSIM_RM_FAIL", &"status51:19");
    let mut job = held_job(&gpu, "2.8", TorchAllocator::Native, &["idle_hold.py"]);
    let tgid = job.tgid();
    let oom = ["--no-agent", "oom", "--json", "--duration", "10m", "--fail-on-oom", "--pid", &tgid.to_string()];
    let watch = AttributionWatch::of(gpu.memwatch(&oom));
    job.go_on();
    while job.next_checkpoint().is_some() {
        job.go_on();
    }
    let report = watch.ended();
    assert_eq!(report["data"]["failures"], json!([]), "{report:#}");
    let survived = report["data"]["survived"].as_array().expect("a list");
    assert_eq!(survived.len(), 1, "{report:#}");
    let expected = [("pid", json!(tgid)), ("status", json!(2)), ("function", json!("cuMemAlloc_v2"))];
    for (field, value) in expected {
        assert_eq!(survived[0][field], value, "{report:#}");
    }
    assert!(survived[0]["asked_bytes"].as_u64() >= Some(2 * MIB), "{report:#}");
}
