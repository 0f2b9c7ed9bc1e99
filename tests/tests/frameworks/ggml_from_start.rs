//! ggml's buffers from the first one on, in a program that starts while memwatch watches the
//! machine: live and from a recording.

use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{FrameworkRelease, PrologueShape, RunningProgram, SimulatedGpu, TorchJob};
use serde_json::Value;

/// Fields that both ggml's own functions and memwatch report for all buffers of the device.
const FIELDS: [&str; 4] = ["buffers", "num_buffers", "bytes_in_use", "peak_bytes_in_use"];
const USAGES: [&str; 5] = ["weights", "compute", "kv_cache", "scratch", "other"];

/// Returns whether all buffers are reported with ggml's numbers.
fn agrees(buffers: &Value, checkpoint: &Value) -> bool {
    let (device, stats) = (&buffers["devices"][0], &checkpoint["stats"]);
    let of_usage = |usage: &str| {
        let rows = device["usages"].as_array();
        let row = rows.and_then(|rows| rows.iter().find(|row| row["usage"] == usage));
        row.map_or(0, |row| row["bytes"].as_u64().expect("a size"))
    };
    buffers["exact"] == true
        && buffers["devices"].as_array().is_some_and(|devices| devices.len() == 1)
        && FIELDS.iter().all(|field| device[field] == stats[field])
        && USAGES.iter().all(|usage| stats[format!("{usage}_bytes")] == of_usage(usage))
        && tensors(device) == checkpoint["tensors"]
}

/// Returns the tensors' bytes by name. They are ggml's sizes, since these tensors need no padding.
fn tensors(device: &Value) -> Value {
    let rows = device["tensors"].as_array().into_iter().flatten();
    rows.map(|row| (row["name"].as_str().expect("a name").to_owned(), row["bytes"].clone())).collect()
}

/// Returns the buffers of a process in a report of the machine, or null if its ggml is not watched.
fn buffers(report: &ReportLine, tgid: u32) -> Value {
    report.process(tgid).map_or(Value::Null, |process| process.0["tensor"]["buffers"].clone())
}

#[test(alone)]
fn from_the_first_buffer_on_live_and_recorded_numbers_are_ggmls_own() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.ggml_command(FrameworkRelease::Newest, &["ggml_job.py", "--early"]);
    let recording = gpu.directory().join("ggml.mwr").display().to_string();
    let recorder = RunningProgram::start(gpu.memwatch(&["record", "--tensors=modules", "--json", "-o", &recording]));
    gpu.until_recorded(&recording, |_| true);
    let mut watch = gpu.watch(&["--no-agent", "--tensors=modules"]);
    let mut job = TorchJob::start(command);
    let tgid = job.tgid();
    assert_eq!(job.next_checkpoint().expect("its library is there")["label"], "library");
    gpu.until_recorded(&recording, |report| buffers(report, tgid)["scratch_traced"] == true);
    watch.until(|report| buffers(report, tgid)["scratch_traced"] == true);
    let mut checkpoints = 0;
    job.go_on();
    while let Some(checkpoint) = job.next_checkpoint() {
        watch.until(|report| agrees(&buffers(report, tgid), &checkpoint));
        gpu.until_recorded(&recording, |report| agrees(&buffers(report, tgid), &checkpoint));
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 6);
    drop(recorder);
    let lines = gpu.run_memwatch(&["where", "--in", &recording]);
    for function in ["with_tensors", "plain", "use"] {
        assert!(lines.stdout.contains("ggml_job.py:") && lines.stdout.contains(function), "{}", lines.stdout);
    }
    let stats = gpu.run_memwatch(&["stats", "--in", &recording]);
    assert!(!stats.stdout.contains("TENSOR"), "all buffers are gone at its end: {}", stats.stdout);
}
