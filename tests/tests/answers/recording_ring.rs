//! Recordings that keep the newest events: never above their size limit, always readable, and with
//! the totals of the whole recording time.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use memwatch_tests::mounts::SmallDisk;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningProgram, SimulatedGpu, TorchAllocator, until};
use serde_json::Value;

const LIMIT: u64 = 1 << 20;
const NEWEST: [&str; 4] = ["--max-size", "1M", "--keep", "newest"];

fn record(gpu: &SimulatedGpu, job: &RunningProgram, file: &Path, more: &[&str]) -> RunningProgram {
    let (tgid, path) = (job.tgid().to_string(), file.display().to_string());
    let mut command = gpu.memwatch(&["record", "--tensors=modules", "--json", "--pid", &tgid, "-o", &path]);
    command.args(more);
    RunningProgram::start(command)
}

fn asked(gpu: &SimulatedGpu, words: &[&str], file: &Path) -> CommandOutcome {
    let mut command = Command::new(gpu.memwatch(&[]).get_program());
    command.args(words).arg(file);
    CommandOutcome::of(command)
}

/// Starts a program that becomes `job`, with these commands as its input, once a file named `go`
/// exists.
fn held(gpu: &SimulatedGpu, job: &Command, orders: &str) -> RunningProgram {
    let (input, go) = (gpu.directory().join("orders"), gpu.directory().join("go"));
    std::fs::write(&input, orders).expect("the directory is ours");
    let mut command = Command::new("sh");
    gpu.apply(&mut command);
    command.envs(job.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.args(["-c", "while [ ! -e \"$0\" ]; do sleep 0.05; done; input=$1; shift; exec \"$@\" < \"$input\""]);
    command.arg(go).arg(input).arg(job.get_program()).args(job.get_args());
    RunningProgram::start(command)
}

fn let_go(gpu: &SimulatedGpu) {
    std::fs::write(gpu.directory().join("go"), "").expect("the directory is ours");
}

/// Returns the lengths of the file and of the copy that is being made of it.
fn lengths(file: &Path) -> [u64; 2] {
    let name = file.file_name().expect("it has a name").to_string_lossy();
    let copy = file.with_file_name(format!(".{name}.new"));
    [file, &copy].map(|path| std::fs::metadata(path).map_or(0, |metadata| metadata.len()))
}

/// Waits until the recorder has seen the program.
fn until_seen(gpu: &SimulatedGpu, job: &RunningProgram, file: &Path) {
    until("the program", || {
        let outcome = asked(gpu, &["report", "--json"], file);
        (outcome.code == 0 && ReportLine::parse(&outcome.stdout).process(job.tgid()).is_some()).then_some(())
    });
}

/// Collects the values that do not depend on the clock.
fn sums(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| sums(value, &format!("{path}.{name}"), found)),
        Value::Array(items) => {
            (0..).zip(items).for_each(|(index, item): (u32, _)| sums(item, &format!("{path}.{index}"), found));
        }
        // Each recorder has read the allocator at a different time.
        _ if ["_ns", "time", "per_second", "readout"].iter().any(|word| path.contains(word)) => {}
        value => found.push(format!("{path} {value}")),
    }
}

fn sums_of(gpu: &SimulatedGpu, command: &[&str], file: &Path) -> Vec<String> {
    let outcome = asked(gpu, &[command, &["--json", "--in"]].concat(), file);
    outcome.assert_ended_with(0, &[]);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("it is JSON");
    let process = &report["data"]["processes"][0];
    let parts = ["gpus", "devices", "lines", "phases"].map(|part| (part, &process[part]));
    let mut found = Vec::new();
    for (part, value) in parts {
        sums(value, part, &mut found);
    }
    found
}

#[test]
fn ring_recording_of_a_training_has_all_sums_within_its_size_limit() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = gpu.torch_command("2.15", TorchAllocator::Native, &["busy_step.py"]);
    let mut job = held(&gpu, &job, "run 700\n");
    let [all, newest] = ["all.mwr", "newest.mwr"].map(|name| gpu.directory().join(name));
    let mut recorders = [record(&gpu, &job, &all, &[]), record(&gpu, &job, &newest, &NEWEST)];
    for file in [&all, &newest] {
        until_seen(&gpu, &job, file);
    }
    let_go(&gpu);
    let mut largest = 0;
    // The recorder ends when no target is left.
    let watched = std::thread::scope(|scope| {
        let ended = scope.spawn(|| job.end());
        while !ended.is_finished() {
            largest = largest.max(lengths(&newest).iter().sum::<u64>());
            std::thread::sleep(Duration::from_millis(1));
        }
        ended.join().expect("it ends")
    });
    assert_eq!(watched, 0);
    let words = recorders.each_mut().map(|recorder| recorder.next_line().expect("it says what it has"));
    for recorder in &mut recorders {
        assert_eq!(recorder.end(), 0);
    }
    let length = lengths(&newest)[0];
    assert!(largest.max(length) <= LIMIT && length > LIMIT / 4, "{largest} and {length} of {LIMIT}");
    // The other recording is longer than the limit, however full the newest is when the job ends.
    assert!(lengths(&all)[0] > LIMIT + LIMIT / 2, "{} against {length}", lengths(&all)[0]);
    assert_eq!(asked(&gpu, &["report", "--only", "where", "--json"], &newest).stdout.trim_end(), words[1]);
    let report = ReportLine::parse(&words[1]);
    assert!(report.is_complete(), "{report:#?}");
    assert!(report.json()["data"]["recording"]["events_since"].is_string(), "{report:#?}");
    for command in [&["ps"][..], &["stats"], &["where"], &["where", "--by", "phase"]] {
        let (all, newest) = (sums_of(&gpu, command, &all), sums_of(&gpu, command, &newest));
        assert!(all.len() > 5, "{command:?}: {all:?}");
        assert_eq!(all, newest, "{command:?}");
    }
    let text = asked(&gpu, &["report"], &newest);
    assert!(text.stdout.contains("keeps the newest: events from"), "{}", text.stdout);
    // A query for an earlier time, which the recording may lack.
    asked(&gpu, &["ps", "--until", "1ms", "--in"], &newest).assert_ended_with(0, &[]);
    asked(&gpu, &["ps", "--until", "300d", "--in"], &newest)
        .assert_ended_with(1, &["it starts at", "after the requested time"]);
    let earlier = asked(&gpu, &["where", "--json", "--until", "1500ms", "--in"], &all);
    earlier.assert_ended_with(0, &[]);
    let steps =
        |text: &str| ReportLine::parse(text).json()["data"]["processes"][0]["devices"][0]["total"]["frees"].as_u64();
    let whole = asked(&gpu, &["where", "--json", "--in"], &all);
    assert!(steps(&earlier.stdout) <= steps(&whole.stdout), "{} {}", earlier.stdout, whole.stdout);
}

/// Starts a program that uses only the driver and allocates and frees without end.
fn churning(gpu: &SimulatedGpu) -> RunningProgram {
    let job = Command::new(gpu.workload_program());
    held(gpu, &job, "device 0\nchurn 2 200000000 4096\n")
}

#[test]
fn a_recorder_that_is_killed_at_any_moment_leaves_what_can_be_read() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = churning(&gpu);
    let_go(&gpu);
    let file = gpu.directory().join("job.mwr");
    for round in 0..6 {
        // A file of this length is of this round, not of the round before.
        drop(std::fs::remove_file(&file));
        let mut recorder = record(&gpu, &job, &file, &NEWEST);
        until("a full file", || (lengths(&file)[0] > LIMIT / 3).then_some(()));
        std::thread::sleep(Duration::from_millis(37 * round));
        recorder.signal(libc::SIGKILL);
        assert_eq!(recorder.end(), -1, "a signal has ended it");
        let [length, copy] = lengths(&file);
        assert!(length + copy <= LIMIT, "{length} and {copy}");
        let replayed = asked(&gpu, &["report", "--json"], &file);
        replayed.assert_ended_with(0, &["is incomplete: its recorder was killed"]);
        let report = ReportLine::parse(&replayed.stdout);
        assert_eq!(report.json()["data"]["recording"]["ending"], "cut");
        let process = report.process(job.tgid()).expect("it is in it");
        assert!(process.0["gpus"][0]["kinds"]["device"]["total_bytes"].as_u64() > Some(0), "{process:?}");
    }
    job.signal(libc::SIGKILL);
    job.end();
}

#[test]
fn ring_recording_ends_on_a_full_disk_and_stays_readable() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let disk = SmallDisk::mount(&gpu.directory().join("disk"), "2m");
    let mut job = churning(&gpu);
    let file: PathBuf = disk.path().join("job.mwr");
    let mut recorder = record(&gpu, &job, &file, &NEWEST);
    until_seen(&gpu, &job, &file);
    disk.fill();
    let_go(&gpu);
    let stated = recorder.next_line().expect("it says what it has");
    assert_eq!(recorder.end(), 1, "{stated}");
    assert_eq!(lengths(&file)[1], 0, "no copy is left");
    let replayed = asked(&gpu, &["report", "--json"], &file);
    replayed.assert_ended_with(0, &["is incomplete"]);
    assert!(ReportLine::parse(&replayed.stdout).process(job.tgid()).is_some());
    job.signal(libc::SIGKILL);
    job.end();
}

#[test]
fn ring_recording_with_unusable_options_is_refused_at_the_start() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let path = gpu.directory().join("job.mwr").display().to_string();
    let started =
        |more: &[&str]| CommandOutcome::of(gpu.memwatch(&[&["record", "--keep", "newest", "-o"], more].concat()));
    started(&[&path]).assert_ended_with(2, &["--max-size"]);
    started(&[&path, "--max-size", "64K"]).assert_ended_with(1, &["needs a --max-size of 1M or more"]);
    let nowhere = started(&["/dev/null", "--force", "--max-size", "2M"]);
    nowhere.assert_ended_with(1, &["/dev/null", "not a regular file"]);
}
