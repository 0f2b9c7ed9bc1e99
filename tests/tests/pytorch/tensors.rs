//! PyTorch's own statistics, and attribution by code, read from outside real, unmodified PyTorch on
//! the simulated GPU.

use memwatch_tests::places::{AttributedBytes, AttributionWatch, assert_agreement, by_phase, measured, seen};
use memwatch_tests::statistics::{assert_all_exact, compare_statistics, held_job, stats_of};
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, RunningWatch, SimulatedGpu, TorchAllocator};
use serde_json::Value;

fn statistics_are_pytorchs_own(version: &str, allocator: TorchAllocator, words: &[&str]) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = held_job(&gpu, version, allocator, words);
    let mut watch = stats_of(&gpu, &[&job]);
    job.go_on();
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.next_fresh();
        compare_statistics(&report, &checkpoint, job.tgid());
        assert_all_exact(&report, &checkpoint, job.tgid());
        checkpoints += 1;
        job.go_on();
    }
    assert!(checkpoints >= 2, "only {checkpoints} checkpoints");
}

macro_rules! statistics_are_those_of_memory_stats {
    ($($name:ident: $version:literal, $allocator:ident, $words:expr;)*) => {$(
        #[test]
        fn $name() {
            statistics_are_pytorchs_own($version, TorchAllocator::$allocator, &$words);
        }
    )*};
}

const TRANSFORMER: [&str; 7] = ["transformer.py", "--steps", "3", "--layers", "4", "--dim", "256"];

statistics_are_those_of_memory_stats! {
    every_statistic_of_training_on_2_15: "2.15", Native, TRANSFORMER;
    every_statistic_of_training_on_2_15_with_expandable_segments: "2.15", Expandable, TRANSFORMER;
    every_statistic_of_training_on_2_8: "2.8", Native, TRANSFORMER;
    every_statistic_of_training_on_2_8_with_expandable_segments: "2.8", Expandable, TRANSFORMER;
    every_statistic_of_growing_and_freeing_on_2_15: "2.15", Native, ["grow_free.py"];
    every_statistic_of_growing_and_freeing_on_2_8_with_expandable_segments: "2.8", Expandable, ["grow_free.py"];
}

#[test]
fn late_attach_to_a_training_gives_pytorch_statistics() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    for version in ["2.15", "2.8"] {
        let mut job = gpu.torch(version, TorchAllocator::Native, &TRANSFORMER);
        let label = |checkpoint: &Value| checkpoint["label"].as_str().unwrap_or_default().to_owned();
        while job.next_checkpoint().is_some_and(|checkpoint| label(&checkpoint) != "step 1") {
            job.go_on();
        }
        let mut watch = stats_of(&gpu, &[&job]);
        job.go_on();
        let mut exact = 0;
        while let Some(checkpoint) = job.next_checkpoint() {
            let report = watch.next_fresh();
            exact = exact.max(compare_statistics(&report, &checkpoint, job.tgid()));
            job.go_on();
        }
        assert!(exact > 60, "{version}: of late attach only {exact} fields are exact");
    }
}

#[test]
fn peaks_that_are_reset_with_each_report_are_those_of_its_interval() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &TRANSFORMER);
    let tgid = job.tgid();
    let mut watch =
        RunningWatch::start(gpu.memwatch(&["--no-agent", "stats", "--reset-peaks", "--pid", &tgid.to_string()]));
    watch.until(|report| report.process(tgid).is_some());
    job.go_on();
    let mut step = job.next_checkpoint().expect("a training has steps");
    while step["label"] != "step 2" {
        job.go_on();
        step = job.next_checkpoint().expect("it has three");
    }
    let stated = &step["devices"][0]["memory_stats"];
    let (peak, current) = (&stated["allocated_bytes.all.peak"], &stated["allocated_bytes.all.current"]);
    assert_ne!(peak, current, "a step takes more than it leaves");
    // The interval of the first report after the job became idle contains the end of the step; that
    // of the next is empty.
    watch.next_fresh();
    let report = watch.next_fresh();
    let device = &report.process(tgid).expect("it runs").0["devices"][0];
    assert_eq!(&device["statistics"]["allocated_bytes.all.peak"], current);
    assert!(device["peaks_since"].is_string());
    assert_eq!(device["statistics"]["allocated_bytes.all.allocated"], stated["allocated_bytes.all.allocated"]);
}

/// Runs a training. Returns its last checkpoint and memwatch's report at that time.
fn watched_training(gpu: &SimulatedGpu, version: &str, list: &str, training: &str) -> (Value, Value) {
    let mut job = held_job(gpu, version, TorchAllocator::Native, &["stages_truth.py", training]);
    let watch = AttributionWatch::start(gpu, list, &[&job]);
    job.go_on();
    while let Some(checkpoint) = job.next_checkpoint() {
        if checkpoint["label"] == "trained" {
            // Module names are read from the model, which the job drops right after this
            // checkpoint.
            return (checkpoint, watch.interrupt());
        }
        job.go_on();
    }
    panic!("the training has ended without its last checkpoint");
}

/// Returns the bytes that hooks in the program measured.
fn truth(gpu: &SimulatedGpu, version: &str, training: &str) -> AttributedBytes {
    let mut job = gpu.torch(version, TorchAllocator::Native, &["stages_truth.py", training, "--control"]);
    let mut shares = AttributedBytes::new();
    while let Some(checkpoint) = job.next_checkpoint() {
        shares.extend(measured(&checkpoint["truth"]));
        job.go_on();
    }
    shares
}

fn places_agree_with_hooks(version: &str, training: &str) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let truth = truth(&gpu, version, training);
    let (last, report) = watched_training(&gpu, version, "module", training);
    let seen = seen(&report, last["pid"].as_u64().and_then(|tgid| u32::try_from(tgid).ok()).expect("a process id"), 0);
    assert_agreement("phases", &by_phase(&truth), &by_phase(&seen));
    assert_agreement("modules", &truth, &seen);
}

macro_rules! phases_and_modules_are_those_of_hooks {
    ($($name:ident: $version:literal, $training:literal;)*) => {$(
        #[test]
        fn $name() {
            places_agree_with_hooks($version, $training);
        }
    )*};
}

phases_and_modules_are_those_of_hooks! {
    who_allocates_in_a_transformer_on_2_15: "2.15", "transformer";
    who_allocates_in_a_transformer_on_2_8: "2.8", "transformer";
    who_allocates_in_a_convolutional_net: "2.15", "convnet";
    who_allocates_in_an_lstm: "2.8", "lstm";
    who_allocates_with_recomputation: "2.15", "checkpointing";
    who_allocates_with_reentrant_recomputation: "2.8", "reentrant";
    who_allocates_with_accumulated_gradients: "2.8", "accumulation";
    who_allocates_in_two_models: "2.15", "two-models";
    who_allocates_with_a_data_loader: "2.8", "loader";
    who_allocates_in_a_compiled_model: "2.15", "compiled";
}

/// The total of each report equals the allocator's granted bytes.
#[test]
fn sites_phases_and_modules_each_add_up_to_what_was_granted() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    for (by, list) in [("line", "lines"), ("phase", "phases"), ("module", "modules")] {
        let (last, report) = watched_training(&gpu, "2.15", by, "transformer");
        let device = &report["data"]["processes"][0]["devices"][0];
        let stats = &last["devices"][0]["memory_stats"];
        let rows = device[list].as_array().expect("a list");
        let total: u64 = rows.iter().filter_map(|row| row["total_bytes"].as_u64()).sum();
        assert_eq!(Some(total), stats["allocated_bytes.all.allocated"].as_u64(), "{list}");
        let allocations: u64 = rows.iter().filter_map(|row| row["allocations"].as_u64()).sum();
        assert_eq!(Some(allocations), stats["allocation.all.allocated"].as_u64(), "{list}");
    }
}

#[test]
fn modules_have_rounding_durations_and_overhead() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &["stages_truth.py", "transformer"]);
    let tgid = job.tgid().to_string();
    let words = ["--no-agent", "where", "--by", "module", "--fragmentation", "--json", "--duration", "10m"];
    let watch = AttributionWatch::of(gpu.memwatch(&[&words[..], &["--top", "100000", "--pid", &tgid]].concat()));
    job.go_on();
    let mut last = job.next_checkpoint().expect("a training has checkpoints");
    while last["label"] != "trained" {
        job.go_on();
        last = job.next_checkpoint().expect("it ends with the training");
    }
    let report = watch.interrupt();
    let process = &report["data"]["processes"][0];
    let modules = process["devices"][0]["modules"].as_array().expect("a list");
    let stated = |key: &str| last["devices"][0]["memory_stats"][key].as_u64().expect("a statistic");
    let rounding: u64 =
        modules.iter().map(|module| module["total_rounding_bytes"].as_u64().expect("all is seen")).sum();
    assert_eq!(rounding, stated("allocated_bytes.all.allocated") - stated("requested_bytes.all.allocated"));
    let is_module = |module: &&Value| module["kind"] == "module";
    let is_timed = |module: &Value| module["host_duration_seconds"].as_f64().is_some_and(|seconds| seconds > 0.0);
    assert!(modules.iter().filter(is_module).any(is_timed), "no module has a duration");
    let nearby = modules.iter().filter_map(|module| module["nearby_split_bytes"].as_u64()).max();
    assert!(nearby.is_some_and(|bytes| bytes <= stated("inactive_split_bytes.all.current")), "{nearby:?}");
    let overhead = &process["overhead"];
    assert_eq!((&overhead["estimated"], &overhead["stacks_left_out"]), (&true.into(), &0.into()));
    assert!(overhead["events"].as_u64() > Some(stated("allocation.all.allocated")), "{overhead}");
}

#[test]
fn snapshot_is_read_by_pytorch_tools_with_the_expected_segments() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = held_job(
        &gpu,
        "2.15",
        TorchAllocator::Native,
        &["transformer.py", "--steps", "2", "--layers", "2", "--dim", "128"],
    );
    let pickle = gpu.directory().join("snapshot.pickle");
    let (tgid, path) = (job.tgid().to_string(), pickle.display().to_string());
    let words = ["--no-agent", "snapshot", "--pid", &tgid, "--duration", "10m", "-o", &path];
    let watch = AttributionWatch::of(gpu.memwatch(&words));
    job.go_on();
    let mut segments = None;
    while let Some(checkpoint) = job.next_checkpoint() {
        if checkpoint["label"] == "step 2" {
            segments = checkpoint["devices"][0]["memory_stats"]["segment.all.allocated"].as_u64();
        }
        job.go_on();
    }
    watch.wait();
    let mut reader = gpu.torch_command("2.15", TorchAllocator::Native, &["read_snapshot.py", &path, "transformer.py"]);
    let stated = reader.output().expect("Python starts");
    assert!(stated.status.success(), "{}", String::from_utf8_lossy(&stated.stderr));
    let segments = segments.expect("the training has two steps");
    assert_eq!(String::from_utf8_lossy(&stated.stdout).trim(), format!("{segments} True"));
}

#[test]
fn the_log_has_a_line_for_each_module_and_phase_of_a_step() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = held_job(&gpu, "2.8", TorchAllocator::Native, &["stages_truth.py", "accumulation", "--steps", "2"]);
    let (tgid, pattern) = (job.tgid().to_string(), gpu.directory().join("trace_{rank}.log").display().to_string());
    let mut watch = RunningWatch::start(gpu.memwatch(&["--no-agent", "--pid", &tgid, "--log", &pattern]));
    watch.until(|report| report.process(job.tgid()).is_some_and(|process| !process.0["tensor"].is_null()));
    // The phases' probes are attached a moment later: their library is large.
    watch.settled();
    job.go_on();
    while job.next_checkpoint().is_some() {
        job.go_on();
    }
    watch.finish();
    let log = std::fs::read_to_string(gpu.directory().join(format!("trace_pid{tgid}.log"))).expect("the log is there");
    let mut lines = log.lines();
    assert_eq!(lines.next(), Some("step\tmodule\tstage\tallocated\tcached\tmax_allocated\tmax_cached\ttime"));
    let phases: std::collections::BTreeSet<&str> = lines.clone().filter_map(|line| line.split('\t').nth(2)).collect();
    for phase in ["forward", "backward", "optimizer"] {
        assert!(phases.contains(phase), "no {phase} in {phases:?}");
    }
    assert!(lines.all(|line| line.split('\t').count() == 8), "{log}");
}
