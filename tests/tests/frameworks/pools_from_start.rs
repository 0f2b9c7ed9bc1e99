//! The pools of RAPIDS' memory manager and of CuPy from their first block on, in programs that
//! start while memwatch watches the machine: live and from a recording. The real packages require a
//! real driver, so the programs use libraries with the same names and layout.

use memwatch_tests::pools::{CUPY, PoolLibrary, RMM, agree, job, pools};
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, RunningProgram, SimulatedGpu};
use serde_json::Value;

/// Returns the live bytes over all call sites of a process.
fn live_bytes(report: &ReportLine, tgid: u32) -> u64 {
    let sites =
        report.process(tgid).map_or(Value::Null, |process| process.0["tensor"]["attribution"][0]["lines"].clone());
    sites.as_array().into_iter().flatten().filter_map(|site| site["allocated_bytes"].as_u64()).sum()
}

/// Compares all kinds of pools of a job from the first block on.
fn from_the_start((source, what): (PoolLibrary, &str), checkpoints: usize, functions: &[&str]) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let recording = gpu.directory().join("pools.mwr").display().to_string();
    let recorder = RunningProgram::start(gpu.memwatch(&["record", "--tensors=modules", "--json", "-o", &recording]));
    gpu.until_recorded(&recording, |_| true);
    let mut watch = gpu.watch(&["--no-agent", "--tensors=modules"]);
    let mut job = job(&gpu, source, what);
    let tgid = job.tgid();
    assert_eq!(job.next_checkpoint().expect("its library is there")["label"], "library");
    gpu.until_recorded(&recording, |report| pools(report, tgid).is_array());
    watch.until(|report| pools(report, tgid).is_array());
    let mut seen = 0;
    job.go_on();
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.until(|report| agree(&pools(report, tgid), &checkpoint));
        gpu.until_recorded(&recording, |report| agree(&pools(report, tgid), &checkpoint));
        let in_use = |pool: &Value| {
            pool["bytes_in_use"].as_u64().expect("a number") - pool["divided_bytes"].as_u64().expect("a number")
        };
        let all: u64 = pools(&report, tgid).as_array().expect("a list").iter().map(in_use).sum();
        assert_eq!(live_bytes(&report, tgid), all, "each byte is in one line: {checkpoint:#}");
        seen += 1;
        job.go_on();
    }
    assert_eq!(seen, checkpoints);
    drop(recorder);
    let lines = gpu.run_memwatch(&["where", "--in", &recording]);
    for function in functions {
        assert!(lines.stdout.contains("pools.py:") && lines.stdout.contains(function), "{}", lines.stdout);
    }
}

#[test(alone)]
fn rmm_pools_match_live_and_recorded_from_the_start_despite_exceptions() {
    from_the_start((RMM, "pools"), 5, &["take"]);
}

#[test(alone)]
fn cupy_pool_matches_live_and_recorded_from_the_first_chunk() {
    from_the_start((CUPY, "cupy"), 3, &["take"]);
}

#[test(alone)]
fn pytorch_inside_an_rmm_pool_is_counted_once_on_both_levels() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&["--no-agent", "--tensors=modules"]);
    let mut job = job(&gpu, RMM, "torch");
    let tgid = job.tgid();
    job.next_checkpoint().expect("the libraries");
    watch.until(|report| pools(report, tgid).is_array());
    job.go_on();
    let checkpoint = job.next_checkpoint().expect("tensors within a pool");
    let (torch, columns) = (&checkpoint["torch"], checkpoint["columns"].as_u64().expect("a size"));
    let report = watch.until(|report| {
        let allocators = report.process(tgid).map_or(Value::Null, |process| process.0["tensor"]["gpus"].clone());
        agree(&pools(report, tgid), &checkpoint) && allocators[0]["allocated_bytes"] == torch["allocated"]
    });
    let allocated = torch["allocated"].as_u64().expect("a size");
    assert_eq!(live_bytes(&report, tgid), allocated + columns, "{:#}", report.json());
    assert!(checkpoint["divided"].as_u64().is_some_and(|divided| divided > 0), "{checkpoint:#}");
}
