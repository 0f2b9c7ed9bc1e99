//! Processes that held the memory when an allocation failed: a recording of the whole machine has
//! all of them.

use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{MIB, PrologueShape, RunningProgram, SimulatedGpu, until};
use serde_json::json;

#[test(alone)]
fn oom_names_other_gpu_users_if_the_whole_machine_was_recorded() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &4_000);
    let (mut other, mut job) = (gpu.workload(), gpu.workload());
    let file = gpu.directory().join("node.mwr").display().to_string();
    let mut recorder = RunningProgram::start(gpu.memwatch(&["record", "-o", &file]));
    let is_seen = |tgid: u32| {
        let read = gpu.run_memwatch(&["ps", "--json", "--in", &file]);
        read.code == 0
            && ReportLine::parse(&read.stdout)
                .process(tgid)
                .is_some_and(|process| process.0["gpus"][0]["used_bytes"].is_u64())
    };
    for workload in [&mut other, &mut job] {
        workload.run(&["device 0", "alloc first 1048576"]);
    }
    other.run(&["alloc held 1610612736"]);
    until("both are seen", || (is_seen(other.tgid()) && is_seen(job.tgid())).then_some(()));
    assert_eq!(job.ask("alloc wanted 1610612736")["result"], 2);
    recorder.signal(libc::SIGINT);
    assert_eq!(recorder.end(), 0);
    let outcome = gpu.run_memwatch(&["oom", "--json", "--in", &file]);
    outcome.assert_ended_with(0, &[]);
    let report = ReportLine::parse(&outcome.stdout);
    let failures = report.json()["data"]["failures"].as_array().expect("a list");
    let [failure] = failures.as_slice() else { panic!("{failures:#?}") };
    assert_eq!((&failure["level"], &failure["symbol"]), (&"driver".into(), &"cuMemAlloc_v2".into()), "{failure:#}");
    assert_eq!(failure["holders"][0]["pid"], other.tgid(), "{failure:#}");
    let refused = &failure["refused"][0];
    assert_eq!((&refused["function"], &refused["asked_bytes"]), (&"cuMemAlloc_v2".into(), &(1536 * MIB).into()));
    assert_eq!(report.json()["data"]["survived"], json!([]));
    let advice = failure["advice"][0].as_str().expect("a sentence");
    assert!(advice.contains("other processes held") && advice.contains(&format!("PID {}", other.tgid())), "{advice}");
}
