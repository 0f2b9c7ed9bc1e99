//! PyTorch in processes that are selected by something other than their id are traced as if the id
//! had been given.

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, SimulatedGpu, TorchAllocator};

#[test(alone)]
fn process_selected_by_script_name_has_its_pytorch_traced() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let words = ["keeps_tensors.py", "--seconds", "2"];
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &words);
    let watch = AttributionWatch::of(gpu.memwatch(&[
        "--no-agent",
        "report",
        "--only",
        "profile",
        "--json",
        "keeps_tensors.py",
    ]));
    job.go_on();
    let trained = job.next_checkpoint().expect("it trains to its end");
    let report = watch.interrupt();
    let processes = report["data"]["profile"]["processes"].as_array().expect("a list");
    assert_eq!(processes.len(), 1, "{report:#}");
    let (row, statistics) = (&processes[0]["gpus"][0], &trained["devices"][0]["memory_stats"]);
    assert_eq!(row["allocated"]["peak_bytes"], statistics["allocated_bytes.all.peak"], "{row:#}");
    assert_eq!(row["reserved"]["peak_bytes"], statistics["reserved_bytes.all.peak"], "{row:#}");
}

#[test(alone)]
fn program_started_after_selection_by_name_misses_no_allocation() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&["--name", "grow_free.py"]);
    let words = ["grow_free.py", "--tensors", "50"];
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &words);
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.settled();
        let process = report.process(job.tgid()).unwrap_or_else(|| panic!("at {checkpoint}: {report:#?}"));
        let (own, statistics) = (&process.0["tensor"]["gpus"][0], &checkpoint["devices"][0]["memory_stats"]);
        for (field, key) in [("allocations", "allocated"), ("frees", "freed")] {
            assert_eq!(own[field], statistics[format!("allocation.all.{key}")], "{field} at {checkpoint}: {own:#}");
        }
        let placed = &process.0["tensor"]["attribution"][0];
        assert_eq!(placed["attributed_bytes"], statistics["allocated_bytes.all.current"], "{placed:#}");
        job.go_on();
    }
}
