//! A program whose tensors come and go too fast for full tracing is traced in windows, and the
//! allocations of each line are estimated from them.

use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, RunningWatch, SimulatedGpu, TorchAllocator};
use serde_json::Value;

/// Returns a report's entry on the process's PyTorch.
fn tensor(report: &ReportLine, tgid: u32) -> &Value {
    report.process(tgid).map_or(&Value::Null, |process| &process.0["tensor"])
}

/// Returns the workload's line that ends with a comment of this name.
fn line_of(name: &str) -> u64 {
    let text = include_str!("../../workloads/two_lines.py");
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| line.ends_with(&format!("# {name}")));
    lines.next().expect("it is marked").0
}

/// Returns the estimated bytes that a line has allocated, and the standard error.
fn estimate(report: &ReportLine, tgid: u32, name: &str) -> (u64, u64) {
    let rows = tensor(report, tgid)["attribution"][0]["lines"].as_array().expect("there are lines");
    let row = rows.iter().find(|row| row["line"] == line_of(name)).unwrap_or_else(|| panic!("{rows:#?}"));
    let number = |key: &str| row["sampled"][key].as_u64().unwrap_or_else(|| panic!("{row:#}"));
    (number("total_bytes"), number("standard_error_bytes"))
}

#[test]
fn windowed_lines_are_sampled_with_exact_pytorch_totals() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["two_lines.py"]);
    job.next_checkpoint().expect("it has begun");
    let tgid = job.tgid();
    let mut watch = RunningWatch::start(gpu.memwatch(&["--no-agent", "--budget", "10%", "--pid", &tgid.to_string()]));
    watch.until(|report| tensor(report, tgid)["gpus"][0]["allocated_bytes"] == 1 << 20);
    job.go_on();
    let windows = |report: &ReportLine| tensor(report, tgid)["windows"]["windows"].as_u64();
    // The duration of a window depends on the cost of a probe on this machine: each half has its
    // own time limit.
    watch.until(|report| windows(report) >= Some(3));
    let report = watch.until(|report| windows(report) >= Some(6));
    let process = report.process(tgid).expect("it runs");
    assert_eq!(process.0["tensor_level"]["chosen"], "read", "{:#}", process.0["tensor_level"]);
    let ((three, three_error), (one, one_error)) = (estimate(&report, tgid, "three"), estimate(&report, tgid, "one"));
    let most = 3 * (three_error + 3 * one_error) + three / 50;
    assert!(
        three > 0 && three.abs_diff(3 * one) <= most,
        "{three} ± {three_error} and three times {one} ± {one_error}"
    );
    job.go_on();
    let looped = job.next_checkpoint().expect("it loops to its end");
    let statistics = &looped["devices"][0]["memory_stats"];
    let is_its_own = |report: &ReportLine| {
        let read = &tensor(report, tgid)["gpus"][0];
        [
            ("allocated_bytes", "allocated_bytes.all.current"),
            ("reserved_bytes", "reserved_bytes.all.current"),
            ("peak_allocated_bytes", "allocated_bytes.all.peak"),
            ("peak_reserved_bytes", "reserved_bytes.all.peak"),
            ("allocations", "allocation.all.allocated"),
            ("frees", "allocation.all.freed"),
        ]
        .into_iter()
        .all(|(own, key)| read[own] == statistics[key])
    };
    watch.until(is_its_own);
}
