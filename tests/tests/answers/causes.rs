//! Causes in real programs: where a known cause applies, it is listed first; where the program only
//! looks similar, it is not listed first.

use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator};
use serde_json::Value;

fn first(causes: &Value) -> Option<&str> {
    causes.as_array().unwrap_or_else(|| panic!("no list: {causes}")).first()?["kind"].as_str()
}

#[test]
fn causes_of_held_memory_are_found_without_false_positives() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["causes.py", "held"]);
    let tgid = job.tgid().to_string();
    let mut situations = 0;
    while let Some(checkpoint) = job.next_checkpoint().filter(|checkpoint| checkpoint["label"] == "held") {
        let ended = gpu.run_memwatch(&["--json", "holdings", "--pid", &tgid]);
        ended.assert_ended_with(0, &[]);
        assert!(!ended.stderr.contains("contradicts itself"), "{}", ended.stderr);
        let report: Value = serde_json::from_str(&ended.stdout).expect("it prints JSON");
        let process = &report["data"]["processes"][0];
        let (found, expected) = (first(&process["causes"]), checkpoint["expected"].as_str());
        let is_right = (found == expected) == (checkpoint["is_it"] == true);
        assert!(is_right, "{expected:?}, {}: {:#} of {:#}", checkpoint["is_it"], process["causes"], process["groups"]);
        situations += 1;
        job.go_on();
    }
    assert_eq!(situations, 20);
}

#[test]
fn causes_of_a_failed_allocation_begin_with_the_expected_one() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &2_100);
    let job = gpu.torch_command("2.8", TorchAllocator::Native, &["causes.py", "failed"]);
    let ended = CommandOutcome::of(gpu.memwatch_run(&["--json"], &job));
    ended.assert_ended_with(0, &[]);
    assert!(!ended.stderr.contains("contradicts itself"), "{}", ended.stderr);
    let stated: Value = ended.stdout.lines().find_map(|line| serde_json::from_str(line).ok()).expect("what has failed");
    let report: Value = serde_json::from_str(ended.stderr.lines().last().expect("a report")).expect("it prints JSON");
    let causes = report["data"]["causes"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    for (tgid, expected) in stated["expected"].as_object().expect("processes") {
        let own: Vec<_> = causes.iter().filter(|cause| cause["pid"].as_u64() == tgid.parse().ok()).collect();
        assert_eq!(own.first().map(|cause| &cause["kind"]), Some(expected), "{own:#?}");
    }
}
