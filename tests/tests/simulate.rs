//! What another setting would have taken is what it takes: the same program, run with it on real PyTorch.

use std::process::Command;

use memwatch_tests::places::PlacesWatch;
use memwatch_tests::report::Report;
use memwatch_tests::statistics::held_job;
use memwatch_tests::{Allocator, Gpu, Outcome, Shape};
use serde_json::Value;

/// A setting may be simulated as much off as this, of a thousand.
const OFF_PER_MILLE: u64 = 10;

/// The last checkpoint that a job has printed.
fn last_checkpoint(outcome: &Outcome) -> Value {
    let mut lines = outcome.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let last = lines.rfind(|line| line["label"].is_string());
    last.unwrap_or_else(|| panic!("no checkpoint in {} {}", outcome.stdout, outcome.stderr))
}

/// The most that PyTorch itself says it had of the driver.
fn said_peak(outcome: &Outcome) -> u64 {
    last_checkpoint(outcome)["devices"][0]["max_memory_reserved"].as_u64().expect("bytes")
}

/// The job with a value of `PYTORCH_CUDA_ALLOC_CONF`.
fn with(mut job: Command, setting: &str) -> Command {
    job.env("PYTORCH_CUDA_ALLOC_CONF", setting);
    job
}

/// The only device of a report of `memwatch simulate`.
fn simulated(gpu: &Gpu, file: &str, more: &[&str]) -> Value {
    let outcome = gpu.run_memwatch(&[&["simulate", "--json", "--in", file], more].concat());
    outcome.assert_ended_with(0, &[]);
    let report = Report::parse(&outcome.stdout);
    let devices = report.json()["data"]["devices"].as_array().expect("a list").clone();
    assert_eq!(devices.len(), 1, "{devices:#?}");
    devices.into_iter().next().expect("there is one")
}

fn policy<'a>(device: &'a Value, setting: &str) -> &'a Value {
    let policies = device["policies"].as_array().expect("a list");
    let found = policies.iter().find(|policy| policy["setting"] == setting);
    found.unwrap_or_else(|| panic!("{setting:?} was not simulated: {device:#}"))
}

/// Records a job with one setting, and runs it with each of the others: what that takes is what the recording says it takes.
fn assert_foretold(gpu: &Gpu, version: &str, words: &[&str], (recorded, others): (&str, &[&str])) {
    let job = || gpu.torch_command(version, Allocator::Native, words);
    let Some(first) = job() else { return };
    let file = gpu.directory().join("job.mwr").display().to_string();
    let own = Outcome::of(gpu.memwatch_run(&["--force", "-o", &file], &with(first, recorded)));
    own.assert_ended_with(0, &[]);
    let settings: Vec<&str> = others.iter().flat_map(|setting| ["--setting", setting]).collect();
    let typed = [&["--setting", recorded], &settings[..]].concat();
    let device = simulated(gpu, &file, &typed);
    assert_eq!(
        (&device["older_reserved_bytes"], &device["lost"], &device["traced"]),
        (&0.into(), &0.into(), &true.into()),
        "{device:#}"
    );
    assert_eq!(device["measured"]["peak_reserved_bytes"], said_peak(&own), "{device:#}");
    for setting in [&[recorded], others].concat() {
        let real = if setting == recorded {
            said_peak(&own)
        } else {
            let outcome = Outcome::of(with(job().expect("it ran before"), setting));
            assert_eq!(outcome.code, 0, "{}", outcome.stderr);
            said_peak(&outcome)
        };
        let foretold = policy(&device, setting)["peak_reserved_bytes"].as_u64().expect("bytes");
        let off = real.abs_diff(foretold) * 1000;
        assert!(off <= real * OFF_PER_MILLE, "{setting:?} takes {real}, and {foretold} was foretold: {device:#}");
    }
}

#[test]
fn a_transformer_takes_with_other_settings_what_its_recording_says() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let words = ["transformer.py", "--steps", "4", "--layers", "4", "--dim", "512"];
    let others = ["expandable_segments:True", "max_split_size_mb:32,roundup_power2_divisions:4"];
    assert_foretold(&gpu, "2.15", &words, ("", &others));
}

#[test]
fn memory_that_comes_and_goes_takes_on_the_older_pytorch_what_a_recording_with_another_setting_says() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let others = ["", "max_split_size_mb:32"];
    assert_foretold(&gpu, "2.8", &["grow_free.py", "--tensors", "300"], ("expandable_segments:True", &others));
}

#[test]
fn a_request_that_failed_is_told_to_fail_with_another_setting_and_to_succeed_with_the_one_with_which_it_does() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &2_100);
    assert_foretold(&gpu, "2.15", &["fragments.py"], ("", &["expandable_segments:True"]));
    let file = gpu.directory().join("job.mwr").display().to_string();
    let Some(job) = gpu.torch_command("2.15", Allocator::Native, &["fragments.py"]) else { return };
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
    // It says so itself, where the device gives what it has no room for otherwise.
    let granted = Outcome::of(with(job, "roundup_power2_divisions:4"));
    assert!(granted.stderr.contains("the device gave"), "{} {}", granted.stdout, granted.stderr);
    let small = simulated(&gpu, &file, &["--capacity", "1G"]);
    let failure = &policy(&small, "")["failure"];
    assert!(failure["reserved_bytes"].as_u64() <= Some(1 << 30), "{small:#}");
    assert_eq!(failure["wanted_bytes"], 9 << 20, "{small:#}");
}

#[test]
fn what_is_older_than_a_watch_is_told_and_not_guessed() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(mut job) = held_job(&gpu, "2.15", Allocator::Native, &["grow_free.py"]) else { return };
    job.go_on();
    let grown = job.next_checkpoint().expect("it grows");
    let tgid = job.tgid().to_string();
    let watch = PlacesWatch::of(gpu.memwatch(&["--no-agent", "simulate", "--json", "--pid", &tgid]));
    while let Some(checkpoint) = {
        job.go_on();
        job.next_checkpoint()
    } {
        if checkpoint["label"] == "all freed" {
            break;
        }
    }
    let report = watch.interrupt();
    let device = &report["data"]["devices"][0];
    let held = &grown["devices"][0];
    assert_eq!(device["older_reserved_bytes"], held["memory_reserved"], "{device:#}");
    assert_eq!(device["older_allocated_bytes"], held["memory_allocated"], "{device:#}");
    let sentences = device["advice"].to_string();
    assert!(sentences.contains("before the watch"), "{sentences}");
}
