//! Recordings made with real uprobes: they contain what the watch reported, however the recorder
//! ended.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use memwatch_tests::mounts::SmallDisk;
use memwatch_tests::report::ReportLine;
use memwatch_tests::statistics::{compare_statistics, held_job};
use memwatch_tests::test;
use memwatch_tests::{
    CommandOutcome, MIB, PrologueShape, RunningProgram, SimulatedGpu, SimulatedWorkload, TIMEOUT, TorchAllocator,
};
use serde_json::Value;

/// A running recorder.
struct Recorder {
    program: RunningProgram,
    file: PathBuf,
}

impl Recorder {
    fn start(gpu: &SimulatedGpu, tgid: u32, file: PathBuf, more: &[&str]) -> Self {
        let (tgid, path) = (tgid.to_string(), file.display().to_string());
        let mut command = gpu.memwatch(&["record", "--tensors=modules", "--json", "--pid", &tgid, "-o", &path]);
        command.args(more);
        Self { program: RunningProgram::start(command), file }
    }

    /// Interrupts the recorder and returns its last line.
    fn interrupt(mut self) -> String {
        self.program.signal(libc::SIGINT);
        let stated = self.program.next_line().expect("it says what it has");
        assert_eq!(self.program.end(), 0, "{stated}");
        stated
    }

    /// Reads the recording, while it is written, until its report fulfils a condition.
    fn until(&self, gpu: &SimulatedGpu, holds: impl Fn(&ReportLine) -> bool) -> ReportLine {
        let begin = Instant::now();
        let mut last = None;
        while begin.elapsed() < TIMEOUT {
            // The file does not exist at first, and then has no header yet.
            let outcome = reading(gpu, &["report", "--json"], &self.file);
            if outcome.code == 0 {
                let report = ReportLine::parse(&outcome.stdout);
                if holds(&report) {
                    return report;
                }
                last = Some(report);
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        panic!("the recording was never as expected; last: {last:#?}")
    }
}

/// Runs a command on a recording.
fn reading(gpu: &SimulatedGpu, words: &[&str], file: &Path) -> CommandOutcome {
    let mut command = Command::new(gpu.memwatch(&[]).get_program());
    command.args(words).arg(file);
    CommandOutcome::of(command)
}

fn live_bytes(report: &ReportLine, tgid: u32) -> Option<u64> {
    report.process(tgid)?.0["gpus"][0]["driver_allocated_bytes"].as_u64()
}

fn recorder(gpu: &SimulatedGpu, job: &SimulatedWorkload, more: &[&str]) -> Recorder {
    Recorder::start(gpu, job.tgid(), gpu.directory().join("job.mwr"), more)
}

#[test]
fn a_recording_says_to_the_byte_what_its_recorder_stated() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.workload();
    job.run(&["device 0"]);
    let recorder = recorder(&gpu, &job, &[]);
    recorder.until(&gpu, |report| report.process(job.tgid()).is_some());
    job.run(&["alloc a 3145728", "async b 1048576", "alloc c 4096", "free c"]);
    assert_eq!(job.ask("alloc huge 200000000000")["result"], 2);
    recorder.until(&gpu, |report| live_bytes(report, job.tgid()) == Some(4 * MIB));
    let file = recorder.file.clone();
    let stated = recorder.interrupt();
    let replayed = reading(&gpu, &["report", "--only", "where", "--json"], &file);
    replayed.assert_ended_with(0, &[]);
    assert_eq!(replayed.stdout.trim_end(), stated);
    assert!(replayed.stderr.is_empty(), "{}", replayed.stderr);
    let report = ReportLine::parse(&stated);
    assert_eq!(report.json()["schema"], "memwatch.report/3");
    assert_eq!(report.json()["data"]["recording"]["ending"], "whole");
    assert_eq!(report.process(job.tgid()).expect("it is in it").0["failures"][0]["error"], "out of memory");
    // The other commands give the same result.
    let listed = reading(&gpu, &["ps", "--json", "--in"], &file);
    assert_eq!(ReportLine::parse(&listed.stdout).json()["data"]["processes"], report.json()["data"]["processes"]);
    let text = reading(&gpu, &["report"], &file);
    text.assert_ended_with(0, &[]);
    assert!(text.stdout.contains("stopped as requested") && text.stdout.contains("4.0 MiB"), "{}", text.stdout);
}

#[test]
fn a_recording_has_the_title_that_a_worker_gave_itself() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.workload();
    job.run(&["device 0"]);
    let recorder = recorder(&gpu, &job, &[]);
    recorder.until(&gpu, |report| report.process(job.tgid()).is_some_and(|process| process.0["comm"] != "Worker_TP0"));
    job.run(&["title Worker_TP0", "alloc a 3145728"]);
    let is_named = |report: &ReportLine| {
        let process = report.process(job.tgid());
        process.is_some_and(|process| process.0["comm"] == "Worker_TP0" && process.0["command"] == "Worker_TP0")
    };
    let report = recorder.until(&gpu, |report| is_named(report) && live_bytes(report, job.tgid()) == Some(3 * MIB));
    assert!(report.is_complete(), "{report:#?}");
    recorder.interrupt();
}

#[test]
fn recording_of_a_killed_recorder_is_read_to_its_cut() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut job = gpu.workload();
    job.run(&["device 0"]);
    let recorder = recorder(&gpu, &job, &[]);
    recorder.until(&gpu, |report| report.process(job.tgid()).is_some());
    job.run(&["alloc a 7340032"]);
    recorder.until(&gpu, |report| live_bytes(report, job.tgid()) == Some(7 * MIB));
    let Recorder { mut program, file } = recorder;
    program.signal(libc::SIGKILL);
    assert_eq!(program.end(), -1, "a signal has ended it");
    let replayed = reading(&gpu, &["report", "--json"], &file);
    replayed.assert_ended_with(0, &["is incomplete: its recorder was killed"]);
    let report = ReportLine::parse(&replayed.stdout);
    assert_eq!((live_bytes(&report, job.tgid()), report.is_complete()), (Some(7 * MIB), true));
    assert_eq!(report.json()["data"]["recording"]["ending"], "cut");
}

#[test]
fn a_full_disk_ends_the_recording_and_leaves_what_fits() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let disk = SmallDisk::mount(&gpu.directory().join("disk"), "64k");
    let mut job = gpu.workload();
    job.run(&["device 0"]);
    let mut recorder = Recorder::start(&gpu, job.tgid(), disk.path().join("job.mwr"), &[]);
    recorder.until(&gpu, |report| report.process(job.tgid()).is_some());
    job.run(&["alloc a 5242880"]);
    recorder.until(&gpu, |report| live_bytes(report, job.tgid()) == Some(5 * MIB));
    disk.fill();
    job.run(&["churn 2 100000 4096"]);
    let stated = recorder.program.next_line().expect("it says what it has");
    assert_eq!(recorder.program.end(), 1, "{stated}");
    let replayed = reading(&gpu, &["report", "--json"], &recorder.file);
    replayed.assert_ended_with(0, &["is incomplete"]);
    assert_eq!(live_bytes(&ReportLine::parse(&replayed.stdout), job.tgid()), Some(5 * MIB));
}

#[test]
fn a_recording_with_a_limit_ends_below_it() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.workload();
    job.run(&["device 0"]);
    let mut recorder = recorder(&gpu, &job, &["--max-size", "64K"]);
    recorder.until(&gpu, |report| report.process(job.tgid()).is_some());
    job.run(&["churn 2 100000 4096"]);
    let stated = ReportLine::parse(&recorder.program.next_line().expect("it says what it has"));
    assert_eq!(recorder.program.end(), 0);
    assert_eq!(stated.json()["data"]["recording"]["stopped"], "limit");
    let length = std::fs::metadata(&recorder.file).expect("the file is there").len();
    assert!(
        (60 << 10..=64 << 10).contains(&length) && stated.json()["data"]["recording"]["bytes"] == length,
        "{length}"
    );
    let replayed = reading(&gpu, &["report", "--json"], &recorder.file);
    replayed.assert_ended_with(0, &[]);
    assert_eq!(ReportLine::parse(&replayed.stdout).json()["data"]["recording"]["stopped"], "limit");
}

#[test]
fn recording_begins_at_the_first_allocation_and_keeps_the_exit_code() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let file = gpu.directory().join("job.mwr");
    let path = file.display().to_string();
    let script = gpu.directory().join("script");
    std::fs::write(&script, "device 0\nalloc a 2M\nfree a\nexit 7\n").expect("a script in the temporary directory");
    let mut job = Command::new("sh");
    gpu.apply(&mut job);
    job.args(["-c", "exec \"$0\" < \"$1\""]).arg(gpu.workload_program()).arg(script);
    let outcome = CommandOutcome::of(gpu.memwatch_run(&["-o", &path], &job));
    outcome.assert_ended_with(7, &["job.mwr is written"]);
    let replayed = reading(&gpu, &["report", "--json"], &file);
    let report = ReportLine::parse(&replayed.stdout);
    let process = &report.json()["data"]["processes"][0];
    assert_eq!((&process["gpus"][0]["peak_bytes"], &process["from_start"]), (&(2 * MIB).into(), &true.into()));
    assert_eq!(report.json()["data"]["recording"]["stopped"], "nobody_left");
    assert_eq!(std::fs::metadata(&file).expect("it is there").mode() & 0o777, 0o600, "it has what root saw");
    // The file is not replaced without `--force`: the program is not even started.
    let again = CommandOutcome::of(gpu.memwatch_run(&["-o", &path], &job));
    again.assert_ended_with(125, &["already exists", "--force"]);
}

#[test]
fn standard_output_takes_a_recording_and_no_file_gets_its_name() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let directory = gpu.directory();
    let in_shell = |line: &str, words: &[&str]| {
        let memwatch = gpu.memwatch(words);
        let mut shell = Command::new("sh");
        shell.args(["-c", line]).arg(memwatch.get_program()).args(memwatch.get_args()).current_dir(directory);
        shell.envs(memwatch.get_envs().filter_map(|(name, value)| Some((name, value?))));
        CommandOutcome::of(shell)
    };
    for name in ["-", "/dev/stdout"] {
        let piped = in_shell("\"$0\" \"$@\" | cat > piped.mwr", &["record", "-d", "1s", "-o", name]);
        piped.assert_ended_with(0, &["recording into standard output", "the recording is written to standard output"]);
        let replayed = reading(&gpu, &["report", "--json"], &directory.join("piped.mwr"));
        replayed.assert_ended_with(0, &[]);
        assert_eq!(ReportLine::parse(&replayed.stdout).json()["data"]["recording"]["stopped"], "asked");
    }
    let refused = |words: &[&str]| in_shell("\"$0\" \"$@\" | cat", words);
    refused(&["record", "--json", "-o", "-"]).assert_ended_with(0, &["cannot both go to standard output", "-o FILE"]);
    refused(&["record", "--keep", "newest", "--max-size", "2M", "-o", "-"]).assert_ended_with(0, &["Name a file"]);
    let run = in_shell("\"$0\" \"$@\"", &["run", "-o", "-", "--", "true"]);
    run.assert_ended_with(125, &["which is the program's", "Name a file"]);
    let terminal = in_shell("script -qec \"$0 record -o -\" /dev/null", &[]);
    assert!(terminal.stdout.contains("standard output is a terminal") && terminal.code == 1, "{terminal:#?}");
    assert!(!directory.join("-").exists());
}

#[test]
fn recording_that_is_invalid_or_lacks_the_target_is_reported_with_a_fix() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let text = gpu.directory().join("notes.txt");
    std::fs::write(&text, "no recording").expect("the directory is ours");
    reading(&gpu, &["report"], &text).assert_ended_with(1, &["notes.txt: not a memwatch recording"]);
    reading(&gpu, &["report"], Path::new("/nowhere/job.mwr")).assert_ended_with(1, &["No such file or directory"]);
    let mut job = gpu.workload();
    job.run(&["device 0"]);
    let recorder = recorder(&gpu, &job, &[]);
    recorder.until(&gpu, |report| report.process(job.tgid()).is_some());
    let file = recorder.file.clone();
    recorder.interrupt();
    let stranger = reading(&gpu, &["ps", "--pid", "1", "--in"], &file);
    stranger.assert_ended_with(6, &["process 1 is not in", &format!("The recording contains PID {}.", job.tgid())]);
    reading(&gpu, &["where", "--in"], &file).assert_ended_with(6, &["no PyTorch allocator found"]);
    reading(&gpu, &["snapshot", "--in"], &file).assert_ended_with(6, &["there is no PyTorch process"]);
}

#[test]
fn recording_of_a_training_matches_the_reports_of_the_program() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let words = ["transformer.py", "--steps", "3", "--layers", "2", "--dim", "128"];
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &words);
    let recorder = Recorder::start(&gpu, job.tgid(), gpu.directory().join("job.mwr"), &[]);
    let is_seen =
        |report: &ReportLine| report.process(job.tgid()).is_some_and(|process| !process.0["tensor"].is_null());
    recorder.until(&gpu, is_seen);
    let mut last = Value::Null;
    job.go_on();
    while let Some(checkpoint) = job.next_checkpoint() {
        if checkpoint["label"] == "step 3" {
            last = checkpoint;
            break;
        }
        job.go_on();
    }
    let current = last["devices"][0]["memory_stats"]["allocated_bytes.all.current"].as_u64().expect("it is a number");
    recorder.until(&gpu, |report| {
        let process = report.process(job.tgid()).map(|process| process.0["tensor"].to_string());
        process.is_some_and(|tensor| tensor.contains(&format!(":{current}")))
    });
    let file = recorder.file.clone();
    let spoken = recorder.interrupt();
    assert_eq!(reading(&gpu, &["report", "--only", "where", "--json"], &file).stdout.trim_end(), spoken);
    let statistics = reading(&gpu, &["stats", "--json", "--in"], &file);
    statistics.assert_ended_with(0, &[]);
    let exact = compare_statistics(&ReportLine::parse(&statistics.stdout), &last, job.tgid());
    assert!(exact > 50, "{exact} fields are exact");
    for (by, list) in [("line", "lines"), ("phase", "phases"), ("module", "modules")] {
        let report = reading(&gpu, &["where", "--by", by, "--json", "--in"], &file);
        let report: Value = serde_json::from_str(&report.stdout).expect("it is JSON");
        let device = &report["data"]["processes"][0]["devices"][0];
        let rows = device[list].as_array().unwrap_or_else(|| panic!("no {list} in {device}"));
        let live: u64 = rows.iter().filter_map(|row| row["allocated_bytes"].as_u64()).sum();
        assert_eq!(live, current, "{list}: {rows:#?}");
    }
    let pickle = gpu.directory().join("snapshot.pickle");
    let path = pickle.display().to_string();
    let mut writing = gpu.memwatch(&["snapshot", "-o", &path, "--in"]);
    writing.arg(&file);
    CommandOutcome::of(writing).assert_ended_with(0, &["snapshot.pickle is written"]);
    let mut reader = gpu.torch_command("2.15", TorchAllocator::Native, &["read_snapshot.py", &path, "transformer.py"]);
    let read = reader.output().expect("Python starts");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
}
