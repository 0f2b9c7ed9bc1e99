//! Compares PyTorch's own statistics at a checkpoint with those of `memwatch stats`.

use serde_json::Value;

use crate::gpu::SimulatedGpu;
use crate::report::{ReportLine, ReportedProcess};
use crate::torch_job::{TorchAllocator, TorchJob};
use crate::watch::RunningWatch;

/// Starts a job that waits before its first allocation.
///
/// # Panics
/// When the job does not start.
pub fn held_job(gpu: &SimulatedGpu, version: &str, allocator: TorchAllocator, words: &[&str]) -> TorchJob {
    let mut job = gpu.torch(version, allocator, &[words, &["--hold"]].concat());
    let begun = job.next_checkpoint().expect("a job that is held says so");
    assert_eq!(begun["label"], "begun");
    job
}

/// Starts `memwatch stats` and waits until it has found the jobs' PyTorch.
pub fn stats_of(gpu: &SimulatedGpu, jobs: &[&TorchJob]) -> RunningWatch {
    let mut command = gpu.memwatch(&["--no-agent", "stats"]);
    for job in jobs {
        command.arg("--pid").arg(job.tgid().to_string());
    }
    let mut watch = RunningWatch::start(command);
    watch.until(|report| jobs.iter().all(|job| report.process(job.tgid()).is_some()));
    watch
}

/// Asserts that memwatch agrees with PyTorch's checkpoint in every field of every device that it
/// calls exact. Returns the number of these fields.
///
/// # Panics
/// When a field differs or records were lost.
pub fn compare_statistics(report: &ReportLine, checkpoint: &Value, tgid: u32) -> usize {
    let process = report.process(tgid).unwrap_or_else(|| panic!("not reported at {checkpoint}: {report:#?}"));
    let mut exact = 0;
    let mut wrong = Vec::new();
    for (device, key, value) in stated(&process, checkpoint) {
        if device["certainty"][key] == "exact" {
            exact += 1;
            if &device["statistics"][key] != value {
                wrong.push(format!(
                    "device {}, {key}: {value}, memwatch {}",
                    device["device"], device["statistics"][key]
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "at {}: {wrong:#?}", checkpoint["label"]);
    assert!(report.is_complete(), "lost records at {checkpoint}: {report:#?}");
    exact
}

/// Counters of 2.15 that no function reports. memwatch shows their values from its last reading of
/// the allocator's own numbers.
const AS_READ: [&str; 1] = ["num_oom_rejections"];

/// Asserts that every other field is exact.
///
/// # Panics
/// When a field is not exact.
pub fn assert_all_exact(report: &ReportLine, checkpoint: &Value, tgid: u32) {
    let process = report.process(tgid).expect("it was compared");
    let doubtful: Vec<String> = stated(&process, checkpoint)
        .filter(|(device, key, _)| device["certainty"][key] != "exact" && !AS_READ.contains(key))
        .map(|(device, key, _)| format!("{key}: {} {}", device["certainty"][key], device["reasons"][key]))
        .collect();
    assert!(doubtful.is_empty(), "at {}: {doubtful:#?}", checkpoint["label"]);
}

/// Returns the statistics of a checkpoint: memwatch's entry for the device, PyTorch's key, and
/// PyTorch's value.
fn stated<'a>(
    process: &ReportedProcess<'a>,
    checkpoint: &'a Value,
) -> impl Iterator<Item = (&'a Value, &'a str, &'a Value)> {
    let ours = process.0["devices"].as_array().expect("a list of devices");
    checkpoint["devices"].as_array().into_iter().flatten().flat_map(|theirs| {
        let number = &theirs["device"];
        let own =
            ours.iter().find(|own| &own["device"] == number).unwrap_or_else(|| panic!("device {number} is not seen"));
        let stats = theirs["memory_stats"].as_object().expect("a checkpoint has all statistics");
        stats.iter().map(move |(key, value)| (own, key.as_str(), value))
    })
}
