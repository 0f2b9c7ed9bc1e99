//! Late attach to an idle program: its allocator state is read from its memory and equals PyTorch's
//! in every field.

use std::process::Command;

use memwatch_tests::report::ReportLine;
use memwatch_tests::statistics::{compare_statistics, stats_of};
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningWatch, SimulatedGpu, TorchAllocator, TorchJob};
use serde_json::Value;

/// The states of `late_allocator_state.py` that differ most.
const STATES: [&str; 4] = ["pool", "pending", "holes", "emptied"];

/// Lets the job continue to a state of `late_allocator_state.py`.
pub(crate) fn at_state(job: &mut TorchJob, label: &str) -> Value {
    loop {
        let checkpoint = job.next_checkpoint().expect("the state is on the way");
        if checkpoint["label"] == label {
            return checkpoint;
        }
        job.go_on();
    }
}

/// Compares a snapshot with a checkpoint by a script that needs no PyTorch.
pub(super) fn compared(snapshot: &str, checkpoint: &str) -> Value {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads/same_books.py");
    let output = Command::new("python3").args([script, snapshot, checkpoint]).output().expect("Python is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("it prints JSON")
}

/// Runs a command for a second, and for longer while its outcome is not as expected: on a busy
/// machine a second may be too short to find PyTorch in a process.
pub(crate) fn run_until(
    gpu: &SimulatedGpu,
    words: &[&str],
    is_there: impl Fn(&CommandOutcome) -> bool,
) -> CommandOutcome {
    let mut durations = ["1s", "2s", "4s", "8s", "16s"].into_iter();
    loop {
        let duration = durations.next();
        let ended = gpu.run_memwatch(&[words, &["--duration", duration.unwrap_or("16s")]].concat());
        if duration.is_none() || is_there(&ended) {
            return ended;
        }
    }
}

fn allocator_state_are_pytorchs_own(version: &str, allocator: TorchAllocator, gpus: u32) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_DEVICES", &gpus);
    let mut job = gpu.torch(version, allocator, &["late_books.py", "--gpus", &gpus.to_string()]);
    let tgid = job.tgid().to_string();
    for label in STATES {
        let checkpoint = at_state(&mut job, label);
        let [snapshot, truth] =
            ["late.pickle", "late.json"].map(|name| gpu.directory().join(name).display().to_string());
        std::fs::write(&truth, checkpoint.to_string()).expect("a file in the temporary directory");
        let words = ["--no-agent", "snapshot", &tgid, "--force", "-o", &snapshot];
        // The job is idle: every reading gives the same result once PyTorch is found within that
        // second.
        let found = |ended: &CommandOutcome| ended.code == 0 && compared(&snapshot, &truth)["differ"] == 0;
        let ended = run_until(&gpu, &words, found);
        ended.assert_ended_with(0, &["is written"]);
        let compared = compared(&snapshot, &truth);
        assert_eq!(compared["differ"], 0, "{version} {allocator:?} at {label}: {compared:#}");
        assert!(compared["fields"].as_u64() > Some(20), "{compared}");
        job.go_on();
    }
}

#[test]
fn segments_and_blocks_of_2_6_are_read_as_it_has_them() {
    allocator_state_are_pytorchs_own("2.6", TorchAllocator::Native, 1);
    allocator_state_are_pytorchs_own("2.6", TorchAllocator::Expandable, 1);
}

#[test]
fn segments_and_blocks_of_2_8_are_read_as_it_has_them() {
    allocator_state_are_pytorchs_own("2.8", TorchAllocator::Native, 1);
    allocator_state_are_pytorchs_own("2.8", TorchAllocator::Expandable, 1);
}

#[test]
fn segments_and_blocks_of_2_9_2_10_and_2_11_are_read_as_they_have_them() {
    for version in ["2.9", "2.10", "2.11"] {
        allocator_state_are_pytorchs_own(version, TorchAllocator::Native, 1);
    }
}

#[test]
fn segments_and_blocks_of_2_15_are_read_as_it_has_them() {
    allocator_state_are_pytorchs_own("2.15", TorchAllocator::Native, 1);
    allocator_state_are_pytorchs_own("2.15", TorchAllocator::Expandable, 1);
}

#[test]
fn segments_and_blocks_on_two_gpus_are_read_as_they_are() {
    allocator_state_are_pytorchs_own("2.8", TorchAllocator::Native, 2);
}

/// Returns the last report of a memwatch that has exited.
fn last(ended: &CommandOutcome) -> ReportLine {
    ReportLine::parse(ended.stdout.lines().last().expect("it has reported"))
}

/// `memwatch stats` and `where` of a process that is idle during the whole command.
#[test]
fn a_resting_process_says_at_once_what_it_holds() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["late_books.py"]);
    let checkpoint = at_state(&mut job, "holes");
    let tgid = job.tgid();
    let named = tgid.to_string();
    let has_read = |ended: &CommandOutcome| {
        let report = ended.stdout.lines().last().map(ReportLine::parse);
        report.is_some_and(|report| {
            report.process(tgid).is_some_and(|one| one.0["devices"][0]["counted_from"] == "readout")
        })
    };
    let stats = run_until(&gpu, &["--no-agent", "--json", "stats", "--pid", &named], has_read);
    stats.assert_ended_with(0, &[]);
    let exact = compare_statistics(&last(&stats), &checkpoint, tgid);
    assert!(exact > 100, "{exact} fields of {} are exact", checkpoint["devices"][0]["memory_stats"]);
    // Without a duration, its memory is read and nothing is attached.
    let read = gpu.run_memwatch(&["--no-agent", "--json", "stats", "--pid", &named]);
    read.assert_ended_with(0, &[]);
    assert_eq!(last(&read).json()["coverage"]["mechanism"], "none");
    assert!(compare_statistics(&last(&read), &checkpoint, tgid) > 100, "{read:#?}");
    let has_places = |ended: &CommandOutcome| ended.code == 0 && ended.stdout.contains("allocated_bytes");
    let words = ["--no-agent", "--json", "where", "--pid", &named];
    let places = run_until(&gpu, &words, has_places);
    let report = last(&places);
    let device = &report.json()["data"]["processes"][0]["devices"][0];
    assert_eq!(device["allocated_bytes"], checkpoint["devices"][0]["memory_allocated"]);
    assert_eq!(device["unplaced_bytes"], 0, "{device:#}");
    let is_mapped = |ended: &CommandOutcome| ended.stdout.contains("SEGMENTS");
    let fragments = run_until(&gpu, &["--no-agent", "fragment", "--pid", &named], is_mapped);
    assert!(fragments.stdout.contains("torch.cuda.empty_cache() would release 20"), "{fragments:#?}");
    // The rest of the cached memory is in a private pool.
    assert!(fragments.stdout.contains("22.0 MiB are free in 1 private pool"), "{fragments:#?}");
}

/// Events after the reading are added to what was read: a program that continues is followed to its
/// end.
#[test]
fn allocator_state_and_later_events_form_one_ledger() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["late_books.py"]);
    at_state(&mut job, "pool");
    let tgid = job.tgid();
    let mut watch = stats_of(&gpu, &[&job]);
    let read = |report: &ReportLine| {
        report.process(tgid).is_some_and(|process| process.0["devices"][0]["counted_from"] == "readout")
    };
    watch.until(read);
    for label in ["pending", "holes", "emptied"] {
        job.go_on();
        let checkpoint = at_state(&mut job, label);
        let exact = compare_statistics(&watch.next_fresh(), &checkpoint, tgid);
        assert!(exact > 90, "{exact} fields are exact at {label}");
    }
}

/// A training that makes about ten thousand allocations a second is never idle: its blocks are read
/// while they change, and corrected with the events of that time.
#[test]
fn blocks_of_a_program_that_never_rests_are_all_known() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["late_books.py", "--training"]);
    at_state(&mut job, "training");
    let tgid = job.tgid();
    let mut command = gpu.memwatch(&["--no-agent", "stats"]);
    command.arg("--pid").arg(tgid.to_string());
    let mut watch = RunningWatch::start(command);
    let knows_all = |report: &ReportLine| {
        report.process(tgid).is_some_and(|process| {
            let device = &process.0["devices"][0];
            device["allocated_bytes"].as_u64() > Some(0) && device["known_block_bytes"] == device["allocated_bytes"]
        })
    };
    let report = watch.until(knows_all);
    let device = &report.process(tgid).expect("it is reported").0["devices"][0];
    assert!(device["preexisting_bytes"].as_u64() > Some(0), "its model is older than the watch: {device:#}");
    job.go_on();
    let stopped = at_state(&mut job, "stopped");
    compare_statistics(&watch.until(|report| report.is_complete() && knows_all(report)), &stopped, tgid);
}

#[test]
fn an_allocator_that_keeps_other_allocator_state_is_named() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Async, &["idle_hold.py"]);
    job.next_checkpoint().expect("it holds something");
    let sentence = "CudaMallocAsyncAllocator, which is not supported";
    let words = ["--no-agent", "stats", "--pid", &job.tgid().to_string()];
    let stats = run_until(&gpu, &words, |ended| ended.stdout.contains(sentence));
    assert!(stats.stdout.contains(sentence), "{stats:#?}");
}

/// Without probes, memory that stays unchanged has its name while everything else is allocated and
/// freed.
#[test]
fn busy_training_has_names_for_its_unchanged_blocks() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["late_books.py", "--training"]);
    at_state(&mut job, "training");
    let holdings = gpu.run_memwatch(&["--no-agent", "--json", "holdings", "--pid", &job.tgid().to_string()]);
    holdings.assert_ended_with(0, &[]);
    let report: Value = serde_json::from_str(&holdings.stdout).expect("it prints JSON");
    let process = &report["data"]["processes"][0];
    // On a busy machine the program may be unchanged for long enough to be read as a whole.
    let (device, changing) = (&process["devices"][0], &process["devices"][0]["changing_bytes"]);
    assert!(changing.is_u64() || changing.is_null(), "{device:#}");
    let names = |class: &str| {
        let blocks = process["blocks"].as_array().expect("a list").iter();
        blocks.filter(|block| block["class"] == class).filter_map(|block| block["name"].as_str()).count()
    };
    // Each of four layers has twelve parameters. Small parameters do not share blocks.
    assert_eq!((names("parameter"), names("optimizer_state")), (48, 96), "{:#}", process["classes"]);
}
