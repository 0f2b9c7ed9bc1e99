//! Owners of processes by real control groups: at the first reading, after a move, and for
//! processes that exit before they are read.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;

use memwatch_tests::groups::TestControlGroup;
use memwatch_tests::report::{ReportLine, ReportedProcess};
use memwatch_tests::test;
use memwatch_tests::{MIB, PrologueShape, SimulatedGpu, SimulatedWorkload};
use serde_json::Value;

const FIRST: &str = "17db96a24ae1e9dd57143e62b1cb0d2d35e693c65c774c7470e87b0572e07c1a";
const SECOND: &str = "a1c70e2750b78e0747c477c569e36c53d2d0bc1e26b34175dd9e1ea42a69bd71";

fn container(id: &str) -> String {
    format!("/memwatch-test/docker/{id}")
}

fn owner(report: &ReportLine, tgid: u32) -> Value {
    report.process(tgid).map_or(Value::Null, |ReportedProcess(process)| process.clone())
}

#[test(alone)]
fn a_process_moved_between_two_groups_changes_its_owner() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let (first, second) = (TestControlGroup::new(&container(FIRST)), TestControlGroup::new(&container(SECOND)));
    let mut watch = gpu.watch(&[]);
    let mut command = gpu.workload_command();
    first.start_in(&mut command);
    let mut workload = SimulatedWorkload::start(command);
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let before = watch.until(|report| !owner(report, workload.tgid()).is_null());
    let before = owner(&before, workload.tgid());
    assert_eq!((&before["container"]["id"], &before["container"]["runtime"]), (&FIRST.into(), &"docker".into()));
    assert_eq!(before["cgroup"], first.path());
    second.take(workload.tgid());
    let moved = watch.until(|report| owner(report, workload.tgid())["container"]["id"] == SECOND);
    assert_eq!(owner(&moved, workload.tgid())["cgroup"], second.path());
    assert_eq!(moved.process(workload.tgid()).expect("it runs").only_gpu().number("driver_allocated_bytes"), 4 * MIB);
    assert_eq!(moved.json()["coverage"]["moves"], "tracepoint");
    workload.end();
}

#[test(alone)]
fn short_lived_processes_are_reported_with_container_user_and_name() {
    const PROCESSES: usize = 200;
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let group = TestControlGroup::new(&container(FIRST));
    let mut watch = gpu.watch(&[]);
    let script = gpu.directory().join("script");
    // The script ends with SIGKILL from within: nothing happens between the last call and the exit.
    std::fs::write(&script, "device 0\nalloc a 1M\nkill\n").expect("a script");
    let mut tgids = Vec::new();
    for _ in 0..PROCESSES {
        let mut command = gpu.workload_command();
        command.stdin(File::open(&script).expect("the script")).stdout(Stdio::null());
        group.start_in(&mut command);
        let mut child = command.spawn().expect("the workload starts");
        tgids.push(child.id());
        child.wait().expect("it is ours");
    }
    let report =
        watch.until(|report| tgids.iter().all(|tgid| report.process(*tgid).is_some_and(|process| process.has_ended())));
    // SAFETY: getuid has no preconditions.
    let uid = unsafe { libc::getuid() };
    let mut gone_before_proc_was_read = 0;
    for tgid in tgids {
        let process = report.process(tgid).expect("it was there a moment ago").0;
        assert_eq!(process["container"]["id"], FIRST, "{process:#}");
        assert_eq!((&process["uid"], &process["comm"]), (&uid.into(), &"gpusim-workload".into()), "{process:#}");
        gone_before_proc_was_read += usize::from(process["command"] == "");
    }
    eprintln!("{gone_before_proc_was_read} of {PROCESSES} were gone before /proc was read");
}

#[test(alone)]
fn a_group_of_a_hostile_name_reaches_no_terminal_unescaped() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let group = TestControlGroup::new("/memwatch-test/\u{1b}[31m\u{9b}2J\u{202e}evil\u{ad}.service");
    let mut command = gpu.workload_command();
    command.arg0(OsStr::from_bytes(b"\x1b]0;owned\x07\xe2\x80\xae\xff"));
    group.start_in(&mut command);
    let mut workload = SimulatedWorkload::start(command);
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let tgid = workload.tgid_word();
    let harmful = |letter: char| letter.is_control() || matches!(letter, '\u{ad}' | '\u{202e}');
    for words in [&["ps"][..], &["ps", "--by", "container"], &["ps", "--by", "user"], &["ps", "--json"]] {
        let outcome = gpu.run_memwatch(&[words, &["--pid", &tgid, "--color=never"]].concat());
        outcome.assert_ended_with(0, &[]);
        assert!(!outcome.stdout.replace('\n', "").contains(harmful), "{outcome:#?}");
        assert!(!outcome.stderr.replace('\n', "").contains(harmful), "{outcome:#?}");
        if words.contains(&"--json") {
            let report = ReportLine::parse(&outcome.stdout);
            assert_eq!(owner(&report, workload.tgid())["cgroup"], group.path());
            assert_eq!(owner(&report, workload.tgid())["unit"], "\u{1b}[31m\u{9b}2J\u{202e}evil\u{ad}.service");
        }
    }
    workload.end();
}
