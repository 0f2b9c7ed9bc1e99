use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use memwatch_common::record::ProcessRecord;
use memwatch_core::input::{GpuVisibility, ProcessFacts};
use memwatch_core::owner::Ancestor;
use memwatch_core::words::Tgid;
use tempfile::TempDir;

use super::ProcReader;

/// A simulated `/proc`.
struct Proc(TempDir);

impl Proc {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary directory"))
    }

    fn process(self, tgid: u32, name: &str, parent: u32, start: u64) -> Self {
        let folder = self.folder(tgid);
        fs::create_dir_all(folder.join("ns")).expect("a made-up process");
        symlink("mnt:[1]", folder.join("ns/mnt")).expect("its mounts");
        let line = format!(
            "{tgid} ({name}) S {parent} 7 7 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 1 0 {start} 1000 10 18446744073709551615"
        );
        self.file(tgid, "stat", line).file(tgid, "comm", format!("{name}\n"))
    }

    fn file(self, tgid: u32, name: &str, content: impl AsRef<[u8]>) -> Self {
        fs::write(self.folder(tgid).join(name), content).expect("a made-up file");
        self
    }

    fn folder(&self, tgid: u32) -> std::path::PathBuf {
        self.0.path().join(tgid.to_string())
    }

    fn facts(&self, tgid: u32) -> ProcessFacts {
        ProcReader::new(self.0.path()).facts(tgid, false).expect("the process is there")
    }
}

#[test]
fn a_resident_set_is_that_of_the_process_that_began_then_and_of_no_other() {
    let proc = Proc::new().process(7, "train", 1, 1234);
    let reader = ProcReader::new(proc.0.path());
    let start_ns = ProcReader::new(proc.0.path()).facts(7, false).expect("it is there").start_ns;
    let page_bytes = reader.page_bytes;
    assert_eq!(reader.resident_bytes(7, start_ns), Some(10 * page_bytes));
    assert_eq!(reader.resident_bytes(7, start_ns + 1), None, "its number was given to another");
    assert_eq!(reader.resident_bytes(8, start_ns), None);
}

#[test]
fn hostile_names_and_long_command_lines_become_bounded_valid_text() {
    let proc = Proc::new().process(7, "x", 1, 200);
    let proc = proc.file(7, "comm", b"\x1b[31m\xff\n").file(7, "cmdline", vec![b'a'; 100_000]);
    let facts = proc.facts(7);
    assert_eq!(facts.comm, "\u{1b}[31m\u{fffd}");
    assert_eq!(facts.command.len(), 4096);
    assert_eq!(facts.start_ns, 2_000_000_000);
    assert_eq!((facts.uid, facts.user, facts.cgroups), (None, None, None));
    let proc = proc.file(7, "comm", vec![b'a'; 100_000]).file(7, "cmdline", b"a\0b c\0\0\0");
    assert_eq!((proc.facts(7).comm.len(), proc.facts(7).command.as_str()), (64, "a b c"));
}

#[test]
fn of_a_process_that_is_gone_the_record_reports_what_it_can() {
    let mut comm = [0; 16];
    comm[..4].copy_from_slice(b"a\xff\x1bb");
    let record = ProcessRecord { tgid: 7, start_ns: 12, uid: 4_000_000_000, comm, ..ProcessRecord::default() };
    let facts = ProcReader::new("/nowhere").facts_of_gone(&record, Some("0::/x\n".into()), true);
    let expected = ProcessFacts {
        tgid: 7,
        start_ns: 12,
        comm: "a\u{fffd}\u{1b}b".into(),
        user: Some("4000000000".into()),
        uid: Some(4_000_000_000),
        login_uid: Some(4_000_000_000),
        cgroups: Some("0::/x\n".into()),
        target: true,
        ..ProcessFacts::default()
    };
    assert_eq!(facts, expected);
}

#[test]
fn open_device_file_is_recognised_by_name_in_any_directory() {
    for (path, is_it) in [
        ("/dev/nvidia-uvm", true),
        ("/memfd:nvidia-uvm (deleted)", true),
        ("/dev/nvidia-uvm-tools", false),
        ("socket:[12]", false),
        ("nvidia-uvm", true),
    ] {
        assert_eq!(super::is_called(path, "nvidia-uvm"), is_it, "{path}");
    }
}

#[test]
fn descendants_are_found_over_generations_and_strangers_are_not() {
    let proc = [(10, 1), (11, 10), (12, 11), (20, 1)]
        .into_iter()
        .fold(Proc::new(), |proc, (tgid, parent)| proc.process(tgid, "x", parent, 1));
    let reader = ProcReader::new(proc.0.path());
    assert_eq!(reader.descendants(&BTreeSet::from([10])), BTreeSet::from([11, 12]));
    assert!(reader.exists(20) && !reader.exists(21));
}

#[test]
fn ancestors_are_reported_nearest_first_without_the_first_process() {
    let proc = Proc::new().process(1, "init", 0, 0).process(10, "sh)", 1, 5).process(11, "a\\nb", 10, 6);
    let proc = proc.process(12, "python", 11, 7);
    let ancestor = |tgid, comm: &str| Ancestor { tgid: Tgid(tgid), comm: comm.into() };
    assert_eq!(proc.facts(12).ancestors, [ancestor(11, "a\nb"), ancestor(10, "sh)")]);
    assert_eq!(proc.facts(10).ancestors, []);
    assert_eq!(proc.facts(1).ancestors, []);
}

#[test]
fn a_line_of_ancestors_ends_at_a_younger_process_a_gap_or_a_circle() {
    let proc = Proc::new().process(10, "other", 1, 9).process(11, "x", 10, 7);
    assert_eq!(proc.facts(11).ancestors, []);
    let proc = Proc::new().process(11, "x", 10, 7);
    assert_eq!(proc.facts(11).ancestors, []);
    let proc = Proc::new().process(10, "a", 11, 7).process(11, "b", 10, 7);
    assert_eq!(proc.facts(11).ancestors.len(), 32);
}

#[test]
fn control_groups_are_read_line_by_line_to_a_limit() {
    let proc = Proc::new().process(7, "x", 1, 1).file(7, "cgroup", "1:cpu:/a\n0::/\u{fc}\n");
    assert_eq!(proc.facts(7).cgroups.as_deref(), Some("1:cpu:/a\n0::/\u{fc}\n"));
    let long = format!("1:cpu:/a\n2:pids:/{}", "x".repeat(1 << 17));
    let proc = proc.file(7, "cgroup", long);
    assert_eq!(proc.facts(7).cgroups.as_deref(), Some("1:cpu:/a\n"));
    assert_eq!(proc.file(7, "cgroup", b"0::/\xff\n").facts(7).cgroups.as_deref(), Some("0::/\u{fffd}\n"));
}

#[test]
fn ended_process_keeps_only_its_unified_cgroup() {
    let ended = |text: &str| {
        let proc = Proc::new().process(7, "x", 1, 1).file(7, "cgroup", text);
        let stat = fs::read_to_string(proc.folder(7).join("stat")).expect("it was written");
        let proc = proc.file(7, "stat", stat.replace(") S ", ") Z "));
        (ProcReader::new(proc.0.path()).cgroups(7), proc.facts(7).cgroups)
    };
    assert_eq!(
        ended("4:memory:/\n0::/a (deleted)\n"),
        (Some("0::/a (deleted)\n".into()), Some("0::/a (deleted)\n".into()))
    );
    assert_eq!(ended("4:memory:/\n0::/\n"), (None, None));
}

/// Returns the GPU visibility of a process with this environment, mount namespace and control
/// group, next to process 1.
fn seeing(environ: &[u8], mounts: &str, group: &str) -> Option<GpuVisibility> {
    let proc = Proc::new().process(1, "init", 0, 0).process(7, "x", 1, 1);
    let link = proc.folder(7).join("ns/mnt");
    fs::remove_file(&link).expect("the link was made");
    symlink(mounts, link).expect("its mounts");
    proc.file(7, "environ", environ).file(7, "cgroup", group).facts(7).visibility
}

#[test]
fn an_environment_that_cannot_be_read_as_a_whole_says_nothing() {
    let environ = b"CUDA_VISIBLE_DEVICES=1,0\0RANK=1\0";
    let seen = seeing(environ, "mnt:[1]", "0::/user.slice\n").expect("it can be read");
    assert_eq!((seen.visible_devices.as_deref(), seen.device_order), (Some("1,0"), None));
    let mut long = environ.to_vec();
    long.resize(1 << 20, b'a');
    assert_eq!(seeing(&long, "mnt:[1]", ""), None);
    assert!(Proc::new().process(7, "x", 1, 1).file(7, "environ", &long).facts(7).environment.is_empty());
    assert_eq!(Proc::new().process(7, "x", 1, 1).facts(7).visibility, None);
}

#[test]
fn other_mounts_or_a_slurm_job_may_hide_gpus() {
    let sees_machine = |mounts, group| seeing(b"", mounts, group).expect("it can be read").sees_machine;
    assert!(sees_machine("mnt:[1]", "0::/user.slice\n"));
    assert!(!sees_machine("mnt:[2]", "0::/user.slice\n"));
    assert!(!sees_machine("mnt:[1]", "0::/system.slice/slurmstepd.scope/job_7/step_0\n"));
}

#[test]
fn real_process_facts_have_user_parent_and_listed_variables_only() {
    let sleeping =
        Command::new("sleep").arg("1000").env("SLURM_JOB_ID", "7").env("TOKEN", "s").stdin(Stdio::null()).spawn();
    let mut child = sleeping.expect("sleep starts");
    let mut reader = ProcReader::new("/proc");
    // The new image has an environment only when the exec is complete.
    let facts = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(10));
        reader.facts(child.id(), true).filter(|facts| !facts.environment.is_empty())
    });
    child.kill().expect("it can be ended");
    child.wait().expect("it has ended");
    let facts = facts.expect("its environment is read within ten seconds");
    // SAFETY: getuid has no preconditions.
    assert_eq!(facts.uid, Some(unsafe { libc::getuid() }));
    assert_eq!(facts.ancestors.first().map(|parent| parent.tgid), Some(Tgid(std::process::id())));
    let own = fs::read_to_string(Path::new("/proc/self/cgroup")).expect("there are control groups");
    assert_eq!(facts.cgroups, Some(own));
    let environment = facts.environment;
    // Variables of the test itself are passed on to its child.
    assert_eq!(environment.get("SLURM_JOB_ID").map(String::as_str), Some("7"));
    assert!(environment.keys().all(|name| name != "TOKEN"));
}
