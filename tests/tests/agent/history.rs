//! The agent's history: every command reads it like a recording, whatever happens to the agent or
//! its disk.

use std::fs;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use memwatch_tests::agent::{TestAgent, workload_of};
use memwatch_tests::mounts::SmallDisk;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, MIB, PrologueShape, SimulatedGpu, SimulatedWorkload, TIMEOUT, until};
use serde_json::Value;

const ANN: u32 = 64_001;
const BOB: u32 = 64_002;
const ROOT: u32 = 0;
/// Options that request the whole history.
const ALL: [&str; 2] = ["--since", "300d"];

fn machine() -> SimulatedGpu {
    SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda()
}

/// Starts an agent that keeps a history of this size in a directory. Returns the agent and the
/// history's file.
fn keeping(gpu: &SimulatedGpu, directory: &Path, size: &str) -> (TestAgent, PathBuf) {
    let mut command = gpu.memwatch(&[]);
    command.env("MEMWATCH_HISTORY", directory).env("MEMWATCH_HISTORY_SIZE", size);
    (TestAgent::by(gpu, command), directory.join("history.mwr"))
}

fn in_file(gpu: &SimulatedGpu, words: &[&str], file: &Path) -> CommandOutcome {
    let file = file.display().to_string();
    let place: &[&str] = if words[0] == "report" { &[&file] } else { &["--in", &file] };
    CommandOutcome::of(gpu.memwatch(&[&words[..1], place, &words[1..]].concat()))
}

/// Waits until the history shows this number of live bytes.
fn until_live(gpu: &SimulatedGpu, agent: &TestAgent, job: &SimulatedWorkload, bytes: u64) {
    until("what is live", || {
        let report = ReportLine::parse(&agent.ask(gpu, ROOT, &[&["ps", "--json"], &ALL[..]].concat()).stdout);
        let live = report.process(job.tgid()).map(|process| process.0["gpus"][0]["driver_allocated_bytes"].clone());
        (live == Some(bytes.into())).then_some(())
    });
    std::thread::sleep(Duration::from_millis(1100));
}

fn failures(outcome: &CommandOutcome) -> usize {
    outcome.assert_ended_with(0, &[]);
    ReportLine::parse(&outcome.stdout).json()["data"]["failures"].as_array().expect("a list").len()
}

/// Asserts that the agent and the file give the same report for the same window, to the byte.
fn assert_agent_and_file_agree(gpu: &SimulatedGpu, agent: &TestAgent, file: &Path, [since, end]: [&str; 2]) {
    for command in ["ps", "leak", "oom", "events", "timeline", "fragment", "report"] {
        for json in [&[][..], &["--json"]] {
            let words = [&[command, "--since", since, "--until", end], json].concat();
            let (asked, read) = (agent.ask(gpu, ROOT, &words), in_file(gpu, &words, file));
            asked.assert_ended_with(0, &[]);
            read.assert_ended_with(0, &[]);
            assert_eq!(asked.stdout, read.stdout, "{words:?}");
            assert!(!asked.stdout.is_empty() && asked.stderr.is_empty(), "{asked:?}");
        }
    }
}

#[test(alone)]
fn history_reports_equal_those_of_a_recording() {
    let gpu = machine();
    let (agent, file) = keeping(&gpu, &gpu.directory().join("history"), "64M");
    let mut job = workload_of(&gpu, ANN);
    job.run(&["uuid 0", "device 0", "alloc held 4M", "alloc most 32M", "free most"]);
    assert_eq!(job.ask("alloc huge 200000000000")["result"], 2);
    until_live(&gpu, &agent, &job, 4 * MIB);
    let since = Timestamp::now().to_string();
    std::thread::sleep(Duration::from_millis(1100));
    job.run(&["alloc more 8M", "alloc passing 16M", "free passing"]);
    assert_eq!(job.ask("alloc huge 200000000000")["result"], 2);
    until_live(&gpu, &agent, &job, 12 * MIB);
    let end = Timestamp::now().to_string();
    std::thread::sleep(Duration::from_millis(1100));
    job.run(&["free more"]);
    until_live(&gpu, &agent, &job, 4 * MIB);

    assert_agent_and_file_agree(&gpu, &agent, &file, [&since, &end]);
    // Events before or after the window are excluded.
    let asked = |words: &[&str]| agent.ask(&gpu, ROOT, &[words, &["--json"]].concat());
    assert_eq!(failures(&asked(&["oom", "--since", &since])), 1);
    assert_eq!(failures(&asked(&["oom", "--since", "300d"])), 2);
    assert_eq!(failures(&asked(&["oom", "--until", &since])), 1);
    let profile = |words: &[&str]| {
        let report = asked(&[&["report", "--only", "profile"], words].concat());
        let profile = ReportLine::parse(&report.stdout).json()["data"]["profile"].clone();
        let mut processes = profile["processes"].as_array().expect("a list").iter();
        let process = processes.find(|process| process["pid"] == job.tgid()).expect("it holds memory");
        let live = &process["gpus"][0]["live"];
        ["minimum_bytes", "peak_bytes", "current_bytes"].map(|name| live[name].as_u64().expect("a number") / MIB)
    };
    assert_eq!(profile(&["--since", &since, "--until", &end]), [4, 28, 12]);
    assert_eq!(profile(&["--since", "300d", "--until", &since])[1..], [36, 4]);
    let held = ReportLine::parse(&asked(&["ps", "--since", &since, "--until", &end]).stdout);
    let held = held.process(job.tgid()).expect("it holds memory").only_gpu();
    assert_eq!((held.number("driver_allocated_bytes"), held.number("peak_bytes")), (12 * MIB, 28 * MIB));

    let metadata = fs::metadata(&file).expect("it is there");
    assert_eq!((metadata.mode() & 0o7777, metadata.uid()), (0o640, 0));
    assert_eq!(fs::metadata(file.parent().expect("a directory")).expect("it is there").mode() & 0o777, 0o750);
    for command in ["where", "simulate"] {
        asked(&[command, "--since", "10s"])
            .assert_ended_with(1, &["the agent does not trace tensors", "memwatch record"]);
    }
    let long = agent.ask(&gpu, ROOT, &[&["ps"], &ALL[..]].concat());
    long.assert_ended_with(0, &["the agent's history starts at"]);
    assert!(!long.stderr.contains("is incomplete"), "{long:?}");
}

/// Returns the complete files of a history, oldest first.
fn complete(directory: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(directory).expect("it is there").map(|entry| entry.expect("it is ours").path());
    let is_complete = |path: &PathBuf| path.to_string_lossy().contains("/history-");
    let mut files: Vec<PathBuf> = files.filter(is_complete).collect();
    files.sort();
    files
}

#[test(alone)]
fn history_is_read_as_one_across_restarts_and_a_killed_agent() {
    let gpu = machine();
    let directory = gpu.directory().join("history");
    let (mut agent, file) = keeping(&gpu, &directory, "64M");
    let mut job = workload_of(&gpu, ANN);
    job.run(&["uuid 0", "device 0", "alloc held 4M"]);
    assert_eq!(job.ask("alloc huge 200000000000")["result"], 2);
    until_live(&gpu, &agent, &job, 4 * MIB);
    let before_restart = Instant::now();
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.end(), 0);
    let tgid = job.tgid();
    let recording = |file: &Path| {
        let report = in_file(&gpu, &["report", "--json"], file);
        report.assert_ended_with(0, &[]);
        let report = ReportLine::parse(&report.stdout);
        assert!(report.process(tgid).is_some(), "{report:#?}");
        report.json()["data"]["recording"]["ending"].clone()
    };
    assert_eq!(recording(&file), "whole");
    let first = fs::read(&file).expect("it is there");

    let (mut agent, _) = keeping(&gpu, &directory, "64M");
    assert_eq!(fs::read(&complete(&directory)[0]).expect("it is kept"), first);
    let ago = format!("{}ms", before_restart.elapsed().as_millis());
    let then = agent.ask(&gpu, ROOT, &["ps", "--json", "--until", &ago]);
    then.assert_ended_with(0, &[]);
    assert!(then.stderr.is_empty(), "{then:?}");
    let held = ReportLine::parse(&then.stdout)
        .process(tgid)
        .expect("it was there")
        .only_gpu()
        .number("driver_allocated_bytes");
    assert_eq!(held, 4 * MIB, "{then:?}");
    job.run(&["alloc more 8M"]);
    assert_eq!(job.ask("alloc huge 200000000000")["result"], 2);
    // The job's earlier memory is unknown to this agent.
    until_live(&gpu, &agent, &job, 8 * MIB);
    let all = |agent: &TestAgent, words: &[&str]| agent.ask(&gpu, ROOT, &[words, &["--json"], &ALL[..]].concat());
    assert_eq!(failures(&all(&agent, &["oom"])), 2, "one of each session");
    agent.signal(libc::SIGKILL);
    agent.end();
    assert_eq!(recording(&file), "cut");

    let (agent, _) = keeping(&gpu, &directory, "64M");
    assert_eq!(complete(&directory).len(), 2);
    until_live(&gpu, &agent, &job, 0);
    assert_eq!(failures(&all(&agent, &["oom"])), 2);
    let owners = agent.ask(&gpu, ANN, &[&["oom", "--json"], &ALL[..]].concat());
    assert_eq!(failures(&owners), 2, "the owner reads all sessions, too");
    assert!(!owners.stderr.contains("a state every"), "nothing is missing: {owners:?}");
    drop(agent);
    let nobody = TestAgent::start(&gpu);
    nobody.ask(&gpu, ROOT, &["leak", "--since", "10s"]).assert_ended_with(1, &["keeps no history", "--history"]);
    assert_eq!(recording(&complete(&directory)[1]), "cut", "without the option nothing of it changes");
}

#[test(alone)]
fn history_is_readable_while_its_oldest_part_is_dropped() {
    let gpu = machine();
    let (agent, file) = keeping(&gpu, &gpu.directory().join("history"), "1M");
    let mut job = workload_of(&gpu, ANN);
    job.run(&["uuid 0", "device 0", "alloc held 4M"]);
    until_live(&gpu, &agent, &job, 4 * MIB);
    let inode = || fs::metadata(&file).expect("one or the other is there").ino();
    let (first, mut copies) = (inode(), 0);
    let begin = Instant::now();
    let mut last = first;
    while copies < 3 {
        assert!(begin.elapsed() < TIMEOUT, "it does not grow");
        job.run(&["churn 2 20000 4096"]);
        for words in [&["report", "--since", "1s", "--json"][..], &["timeline", "--since", "300d", "--json"]] {
            let outcome = agent.ask(&gpu, ROOT, words);
            outcome.assert_ended_with(0, &[]);
            assert!(!outcome.stderr.contains("damaged"), "{outcome:?}");
        }
        copies += u32::from(std::mem::replace(&mut last, inode()) != last);
        assert!(fs::metadata(&file).expect("it is there").len() < 1 << 20);
    }
    until_live(&gpu, &agent, &job, 4 * MIB);
    let report = ReportLine::parse(&agent.ask(&gpu, ROOT, &["ps", "--json", "--since", "300d"]).stdout);
    assert!(report.is_complete(), "{report:#?}");
}

#[test(alone)]
fn history_pauses_on_a_full_disk_and_resumes_without_ending_the_agent() {
    let gpu = machine();
    let disk = SmallDisk::mount(&gpu.directory().join("disk"), "256k");
    let directory = disk.path().join("history");
    fs::create_dir(&directory).expect("the disk is ours");
    fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("it is ours");
    let (agent, _) = keeping(&gpu, &directory, "1M");
    let mut job = workload_of(&gpu, ANN);
    job.run(&["uuid 0", "device 0", "alloc held 4M"]);
    until_live(&gpu, &agent, &job, 4 * MIB);
    disk.fill();
    job.run(&["churn 2 2000 4096"]);
    let asked = || agent.ask(&gpu, ROOT, &[&["ps", "--json"], &ALL[..]].concat());
    until("that it cannot be written", || asked().stderr.contains("No space left on device").then_some(()));
    let now = ReportLine::parse(&agent.ask(&gpu, ROOT, &["ps", "--json"]).stdout);
    assert!(now.json()["from_agent"] == true && now.is_complete(), "{now:#?}");
    fs::remove_file(disk.path().join("filling")).expect("it is ours");
    job.run(&["alloc more 8M"]);
    let again = until("that it is written", || {
        let outcome = asked();
        let is_fine = outcome.code == 0 && !outcome.stderr.contains("cannot continue its history");
        is_fine.then(|| ReportLine::parse(&outcome.stdout)).filter(|report| {
            report.process(job.tgid()).is_some_and(|process| process.0["gpus"][0]["driver_allocated_bytes"] == 12 * MIB)
        })
    });
    assert!(again.is_complete(), "{again:#?}");
}

#[test(alone)]
fn history_refuses_shared_directories_and_a_size_of_zero() {
    let gpu = machine();
    let (socket, open) = (gpu.directory().join("run/a.sock"), gpu.directory().join("open"));
    fs::create_dir(&open).expect("the directory is ours");
    let asked = |words: &[&str]| {
        let mut command = gpu.memwatch(&["agent", "--history"]);
        command.arg(&open).args(words).arg("--socket").arg(&socket);
        CommandOutcome::of(command)
    };
    asked(&["--history-size", "1000"]).assert_ended_with(2, &["the minimum is 1M"]);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).expect("it is ours");
    asked(&[]).assert_ended_with(1, &["can be changed by others"]);
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).expect("it is ours");
    chown(&open, Some(ANN), None).expect("we are root");
    asked(&[]).assert_ended_with(1, &["use a directory that belongs to root"]);
    let nowhere = gpu.directory().join("nobody.sock").display().to_string();
    let ask = |words: &[&str]| gpu.run_memwatch(&[words, &["leak", "--since", "10s"]].concat());
    ask(&["--agent", &nowhere]).assert_ended_with(1, &["no agent listens on", "--history"]);
    ask(&["--no-agent"]).assert_ended_with(1, &["which --no-agent forbids", "--in FILE"]);
}

#[test(alone)]
fn user_reads_the_own_part_of_the_history_and_nothing_of_others() {
    let gpu = machine();
    let directory = tempfile::tempdir().expect("a directory");
    let (mut agent, _) = keeping(&gpu, directory.path(), "4M");
    let fails = |uid: u32, size: &str| {
        let mut job = workload_of(&gpu, uid);
        job.run(&["uuid 0", "device 0", &format!("alloc a {size}")]);
        assert_ne!(job.ask("alloc huge 200G")["result"], 0);
        job
    };
    let (mut of_ann, of_bob) = (fails(ANN, "24M"), fails(BOB, "40M"));
    let (ann, bob) = (of_ann.tgid(), of_bob.tgid());
    until_live(&gpu, &agent, &of_bob, 40 * MIB);
    let failures_of = |report: &Value, tgid: u32| -> Vec<Value> {
        let all = report["data"]["failures"].as_array().expect("a list").iter();
        all.filter(|failure| failure["pid"] == tgid).cloned().collect()
    };
    let asked = |agent: &TestAgent, uid: u32, words: &[&str]| {
        let outcome = agent.ask(&gpu, uid, words);
        outcome.assert_ended_with(0, &[]);
        outcome.stdout
    };
    let oom = |agent: &TestAgent, uid: u32| -> Value {
        serde_json::from_str(&asked(agent, uid, &["oom", "--json", "--since", "10m"])).expect("one line of JSON")
    };
    let own = until("the failure is in the history", || {
        Some(oom(&agent, ANN)).filter(|report| !failures_of(report, ann).is_empty())
    });
    assert_eq!(failures_of(&own, ann), failures_of(&oom(&agent, ROOT), ann));
    assert_eq!(failures_of(&own, bob), [] as [Value; 0], "{own:#}");
    let held = asked(&agent, ANN, &["ps", "--json", "--until", "1s"]);
    let held = ReportLine::parse(&held);
    assert_eq!(held.process(ann).expect("it is hers").only_gpu().number("driver_allocated_bytes"), 24 * MIB);
    assert!(held.process(bob).is_none() && !held.json().to_string().contains(&format!("\"pid\":{bob}")));
    // The morning after: the job is gone, and so is its agent.
    of_ann.run(&["free a"]);
    drop(of_ann);
    agent.signal(libc::SIGTERM);
    agent.end();
    let (next, _) = keeping(&gpu, directory.path(), "4M");
    let text = asked(&next, ANN, &["oom", "--since", "10m", "--until", "1s"]);
    assert!(text.contains("200.00 GiB") && !text.contains(&bob.to_string()), "{text}");
    let nothing = asked(&next, ROOT + 64_009, &["oom", "--since", "10m", "--until", "1s"]);
    assert!(!nothing.contains(&ann.to_string()) && !nothing.contains("200.00 GiB"), "{nothing}");
}
