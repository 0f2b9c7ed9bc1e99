//! Comparison of two training runs: the growth equals PyTorch's, and the exit code reports it.

use std::path::{Path, PathBuf};

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator};
use serde_json::Value;

/// Records a training with `modules` layers. Returns the recording and PyTorch's peak.
fn recorded(gpu: &SimulatedGpu, modules: &str) -> (PathBuf, u64) {
    let words = ["transformer.py", "--steps", "2", "--layers", modules, "--dim", "128"];
    let job = gpu.torch_command("2.15", TorchAllocator::Native, &words);
    let file = gpu.directory().join(format!("layers-{modules}.mwr"));
    let outcome = CommandOutcome::of(gpu.memwatch_run(&["-o", &file.display().to_string()], &job));
    outcome.assert_ended_with(0, &["is written"]);
    let last = outcome.stdout.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
    let statistics = last.expect("the job says what it has")["devices"][0]["memory_stats"].clone();
    (file, statistics["allocated_bytes.all.peak"].as_u64().expect("a number"))
}

#[test]
fn diff_of_an_added_module_equals_the_pytorch_peak_difference() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let (two, peak_of_two) = recorded(&gpu, "2");
    let (three, peak_of_three) = recorded(&gpu, "3");
    let diff = |words: &[&str], files: [&PathBuf; 2]| {
        let mut command = gpu.memwatch(&["diff"]);
        command.args(files).args(words);
        CommandOutcome::of(command)
    };
    let outcome = diff(&["--json"], [&two, &three]);
    outcome.assert_ended_with(0, &[]);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let tensors = &report["data"]["tensors"];
    assert_eq!(tensors["before"]["peak_bytes"], peak_of_two);
    assert_eq!(tensors["after"]["peak_bytes"], peak_of_three);
    let grown = i64::try_from(peak_of_three).expect("it fits") - i64::try_from(peak_of_two).expect("it fits");
    assert_eq!(tensors["change"]["peak_bytes"], grown);
    let phases = report["data"]["phases"].as_array().expect("stages");
    let total: i64 = phases.iter().filter_map(|phase| phase["change"]["total_bytes"].as_i64()).sum();
    assert_eq!(tensors["change"]["total_bytes"], total, "stages add up: {phases:#?}");
    diff(&["--fail-on", "10%"], [&two, &three]).assert_ended_with(3, &[]);
    diff(&["--fail-on", "10%"], [&three, &two]).assert_ended_with(0, &[]);
    diff(&["--fail-on", "0%"], [&two, &two]).assert_ended_with(0, &[]);
    let text = diff(&["-n", "50"], [&three, &two]);
    text.assert_ended_with(0, &[]);
    assert!(text.stdout.contains("PyTorch  peak ") && text.stdout.contains("forward"), "{}", text.stdout);
    two_times_of_one(&gpu, &two);
    a_watch(&gpu, &two, peak_of_three);
    diff(&["--fail-on", "much"], [&two, &two]).assert_ended_with(2, &["growth is a part"]);
}

/// Compares a recording at two times: what is allocated at the first time exists at the second too.
fn two_times_of_one(gpu: &SimulatedGpu, file: &PathBuf) {
    let diff = |words: &[&str]| {
        let mut command = gpu.memwatch(&["diff", "--json"]);
        command.arg(file).args(words);
        CommandOutcome::of(command)
    };
    let outcome = diff(&["--from", "1s"]);
    outcome.assert_ended_with(0, &[]);
    let data = serde_json::from_str::<Value>(&outcome.stdout).expect("JSON")["data"].clone();
    assert_eq!(data["before"]["file"], data["after"]["file"]);
    let [before, after] = ["before", "after"].map(|side| data[side]["time"].as_str().expect("a time").to_owned());
    assert!(before < after, "{before} {after}");
    let total = |side: &str| data["driver"][side]["total_bytes"].as_u64();
    assert!(total("before") <= total("after") && total("after") > Some(0), "{data:#}");
    diff(&["--from", "100ms", "--until", "1s"]).assert_ended_with(1, &["--from names the earlier time"]);
    diff(&[]).assert_ended_with(2, &["AFTER"]);
}

/// Compares a recording with a run that is watched from before its first allocation.
fn a_watch(gpu: &SimulatedGpu, before: &Path, peak_after: u64) {
    let words = ["transformer.py", "--steps", "2", "--layers", "3", "--dim", "128"];
    let mut job = held_job(gpu, "2.15", TorchAllocator::Native, &words);
    let mut command = gpu.memwatch(&["--no-agent", "diff", "--json", "--fail-on", "10%", "-d", "10m"]);
    command.arg(before).arg("--pid").arg(job.tgid().to_string());
    let watch = AttributionWatch::of(command);
    job.go_on();
    while job.next_checkpoint().is_some() {
        job.go_on();
    }
    let report = watch.interrupt_with(3);
    let data = &report["data"];
    assert!(data["after"]["file"].is_null() && data["before"]["file"].is_string(), "{data:#}");
    assert_eq!(data["tensors"]["after"]["peak_bytes"], peak_after);
}
