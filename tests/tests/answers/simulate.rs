//! Simulated settings predict the peak of the same program when it is run with that setting on real
//! PyTorch.

use std::collections::BTreeMap;
use std::process::Command;

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::report::ReportLine;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{
    CONTEXT_BYTES, CommandOutcome, MIB, PrologueShape, SimulatedGpu, TorchAllocator, TorchJob, until,
};
use serde_json::Value;

/// Largest accepted deviation of a simulation, in thousandths.
const OFF_PER_MILLE: u64 = 10;

/// The program's own limit is not a setting in 2.8. In both versions the program takes it on its
/// command line.
const LIMIT: &str = "per_process_memory_fraction:";

/// Shell script that runs two ranks, each with its own device, as one job.
const RANKS: &str = "RANK=0 \"$@\" & RANK=1 \"$@\" & wait";

/// Returns PyTorch's peak of reserved memory by device.
fn stated_peaks(outcome: &CommandOutcome) -> BTreeMap<u64, u64> {
    let mut peaks = BTreeMap::new();
    for checkpoint in outcome.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        for device in checkpoint["devices"].as_array().into_iter().flatten() {
            let number = device["device"].as_u64().expect("a number");
            peaks.insert(number, device["max_memory_reserved"].as_u64().expect("bytes"));
        }
    }
    assert!(!peaks.is_empty(), "no checkpoint in {} {}", outcome.stdout, outcome.stderr);
    peaks
}

/// Returns the job's command with this value of `PYTORCH_CUDA_ALLOC_CONF`.
fn with(mut job: Command, setting: &str) -> Command {
    let (limits, others): (Vec<&str>, Vec<&str>) = setting.split(',').partition(|part| part.starts_with(LIMIT));
    job.args(limits.iter().flat_map(|limit| ["--fraction", &limit[LIMIT.len()..]]));
    job.env("PYTORCH_CUDA_ALLOC_CONF", others.join(","));
    job
}

/// Returns the devices of a report of `memwatch simulate`.
fn all_simulated(gpu: &SimulatedGpu, file: &str, more: &[&str]) -> Vec<Value> {
    let outcome = gpu.run_memwatch(&[&["simulate", "--json", "--in", file], more].concat());
    outcome.assert_ended_with(0, &[]);
    let report = ReportLine::parse(&outcome.stdout);
    report.json()["data"]["devices"].as_array().expect("a list").clone()
}

/// Returns the only device of a report of `memwatch simulate`.
fn simulated(gpu: &SimulatedGpu, file: &str, more: &[&str]) -> Value {
    let devices = all_simulated(gpu, file, more);
    assert_eq!(devices.len(), 1, "{devices:#?}");
    devices.into_iter().next().expect("there is one")
}

fn policy<'a>(device: &'a Value, setting: &str) -> &'a Value {
    let policies = device["policies"].as_array().expect("a list");
    let found = policies.iter().find(|policy| policy["setting"] == setting);
    found.unwrap_or_else(|| panic!("{setting:?} was not simulated: {device:#}"))
}

/// Records a script with one setting, runs it with each of the others, and asserts that the
/// recording predicts the peak of each run.
fn assert_predicted(gpu: &SimulatedGpu, version: &str, words: &[&str], settings: (&str, &[&str])) {
    assert_job_predicted(gpu, || gpu.torch_command(version, TorchAllocator::Native, words), settings);
}

fn assert_job_predicted(gpu: &SimulatedGpu, job: impl Fn() -> Command, (recorded, others): (&str, &[&str])) {
    let first = job();
    let file = gpu.directory().join("job.mwr").display().to_string();
    let own = CommandOutcome::of(gpu.memwatch_run(&["--force", "-o", &file], &with(first, recorded)));
    own.assert_ended_with(0, &[]);
    let typed: Vec<&str> =
        [&[recorded], others].concat().into_iter().flat_map(|setting| ["--setting", setting]).collect();
    let devices = all_simulated(gpu, &file, &typed);
    let own_peaks = stated_peaks(&own);
    assert_eq!(devices.len(), own_peaks.len(), "{devices:#?}");
    for device in &devices {
        assert_eq!(
            (&device["older_reserved_bytes"], &device["lost"], &device["traced"]),
            (&0.into(), &0.into(), &true.into()),
            "{device:#}"
        );
        let peak = own_peaks[&device["device"].as_u64().expect("a number")];
        assert_eq!(device["measured"]["peak_reserved_bytes"], peak, "{device:#}");
        assert_peak(device, recorded, peak);
    }
    for setting in others {
        let outcome = CommandOutcome::of(with(job(), setting));
        let is_out_of_memory = outcome.stdout.contains("\"out of memory\"");
        assert!(outcome.code == 0 || is_out_of_memory, "{}", outcome.stderr);
        let peaks = stated_peaks(&outcome);
        for device in &devices {
            assert_peak(device, setting, peaks[&device["device"].as_u64().expect("a number")]);
            assert_eq!(!policy(device, setting)["failure"].is_null(), is_out_of_memory, "{setting:?}: {device:#}");
        }
    }
}

fn assert_peak(device: &Value, setting: &str, real: u64) {
    let predicted = policy(device, setting)["peak_reserved_bytes"].as_u64().expect("bytes");
    let off = real.abs_diff(predicted) * 1000;
    assert!(off <= real * OFF_PER_MILLE, "{setting:?} takes {real}, and {predicted} was predicted: {device:#}");
}

#[test]
fn a_transformer_takes_with_other_settings_what_its_recording_says() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &4_096);
    let words = ["transformer.py", "--steps", "4", "--layers", "4", "--dim", "512"];
    let others = [
        "expandable_segments:True",
        "max_split_size_mb:40,large_segment_size_mb:33,roundup_power2_divisions:4",
        // The program needs 548 MiB. Collecting above 287 MiB reduces that to 540 MiB.
        "garbage_collection_threshold:0.5,per_process_memory_fraction:0.14",
    ];
    assert_predicted(&gpu, "2.15", &words, ("", &others));
}

#[test]
fn simulate_predicts_private_pools_and_capture_failures_of_graphs() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &4_096);
    // 142 MiB of the 158 MiB that the graphs need.
    let limited = "expandable_segments:True,per_process_memory_fraction:0.034717";
    assert_predicted(&gpu, "2.8", &["graphs.py"], ("", &[limited]));
}

#[test]
fn simulate_predicts_expandable_segments_of_two_ranks() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_DEVICES", &2);
    let ranks = || {
        let store = gpu.directory().join("store");
        // Left behind by the previous run.
        drop(std::fs::remove_file(&store));
        let words = ["two_ranks.py", "fsdp", "--store", &store.display().to_string()];
        let rank = gpu.torch_command("2.15", TorchAllocator::Native, &words);
        let mut both = Command::new("sh");
        both.args(["-c", RANKS, "sh"]).arg(rank.get_program()).args(rank.get_args());
        both.envs(rank.get_envs().filter_map(|(name, value)| Some((name, value?))));
        both
    };
    assert_job_predicted(&gpu, ranks, ("", &["expandable_segments:True"]));
}

#[test]
fn simulate_predicts_transient_memory_on_the_older_pytorch() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    assert_predicted(&gpu, "2.8", &["grow_free.py", "--tensors", "300"], ("expandable_segments:True", &[""]));
}

#[test]
fn simulate_predicts_which_setting_grants_a_failed_request() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &2_100);
    assert_predicted(&gpu, "2.15", &["fragments.py"], ("", &["expandable_segments:True"]));
    let file = gpu.directory().join("job.mwr").display().to_string();
    let job = gpu.torch_command("2.15", TorchAllocator::Native, &["fragments.py"]);
    let device = simulated(&gpu, &file, &[]);
    let fates = |setting| {
        let policy = policy(&device, setting);
        (policy["refused"].as_u64(), policy["granted_refused"].as_u64())
    };
    assert_eq!(fates(""), (Some(1), Some(0)), "{device:#}");
    assert_eq!(fates("expandable_segments:True"), (Some(1), Some(0)), "{device:#}");
    assert_eq!(fates("roundup_power2_divisions:4"), (Some(0), Some(1)), "{device:#}");
    let advice = device["advice"][0].as_str().expect("a sentence");
    assert!(advice.contains("roundup_power2_divisions:4 would have had room for 1 request"), "{advice}");
    // The program itself reports a grant for which the device would otherwise have had no memory.
    let granted = CommandOutcome::of(with(job, "roundup_power2_divisions:4"));
    assert!(granted.stderr.contains("the device gave"), "{} {}", granted.stdout, granted.stderr);
}

#[test]
fn simulate_on_a_smaller_card_deducts_the_measured_context() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &2_100);
    let file = gpu.directory().join("job.mwr").display().to_string();
    let job = gpu.torch_command("2.15", TorchAllocator::Native, &["fragments.py"]);
    // The program waits at its checkpoints, so that NVML is read while it holds its memory.
    let mut job = TorchJob::start(gpu.memwatch_run(&["-o", &file], &job));
    while job.next_checkpoint().expect("it fills the device")["label"] != "in pieces" {
        job.go_on();
    }
    until("a reading at rest in the recording", || {
        let outcome = gpu.run_memwatch(&["simulate", "--json", "--in", &file]);
        let report: Value = serde_json::from_str(&outcome.stdout).unwrap_or_default();
        (!report["data"]["devices"][0]["context_bytes"].is_null()).then_some(())
    });
    job.go_on();
    while job.next_checkpoint().is_some() {
        job.go_on();
    }
    let small = simulated(&gpu, &file, &["--capacity", "1G"]);
    let failure = &policy(&small, "")["failure"];
    // The context is allocated before the first segment.
    assert_eq!(small["context_bytes"], CONTEXT_BYTES, "{small:#}");
    let room = small["available_bytes"].as_u64().expect("bytes");
    assert_eq!(room, 1024 * MIB - CONTEXT_BYTES, "{small:#}");
    let reserved = failure["reserved_bytes"].as_u64().expect("bytes");
    assert!(reserved <= room && reserved + 20 * MIB > room, "{small:#}");
    assert_eq!(failure["wanted_bytes"], 9 << 20, "{small:#}");
}

#[test]
fn simulate_of_a_late_attach_reports_older_memory_without_guessing() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &["grow_free.py"]);
    job.go_on();
    let grown = job.next_checkpoint().expect("it grows");
    let tgid = job.tgid().to_string();
    let watch = AttributionWatch::of(gpu.memwatch(&["--no-agent", "simulate", "--json", "--pid", &tgid]));
    let mut rests = vec![grown.clone()];
    while let Some(checkpoint) = {
        job.go_on();
        job.next_checkpoint()
    } {
        let is_last = checkpoint["label"] == "all freed";
        rests.push(checkpoint);
        if is_last {
            break;
        }
    }
    let report = watch.interrupt();
    let device = &report["data"]["devices"][0];
    let sentences = device["advice"].to_string();
    // memwatch reads the program while it is idle. If the program continues too soon, it is read at
    // its next idle time, or never.
    if let Some(begun) = device["begun_with_bytes"].as_u64() {
        assert!(rests.iter().any(|rest| rest["devices"][0]["memory_reserved"] == begun), "{device:#}");
        assert_eq!(device["older_reserved_bytes"], 0, "{device:#}");
        assert!(sentences.contains("all rows begin with"), "{sentences}");
        return;
    }
    let held = &grown["devices"][0];
    assert_eq!(device["older_reserved_bytes"], held["memory_reserved"], "{device:#}");
    assert_eq!(device["older_allocated_bytes"], held["memory_allocated"], "{device:#}");
    assert!(sentences.contains("pre-existing"), "{sentences}");
}
