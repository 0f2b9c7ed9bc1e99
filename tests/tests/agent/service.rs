//! The agent's systemd unit, checked by systemd itself.

use memwatch_tests::harness::cannot_run;
use memwatch_tests::test;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd").join(name)
}

/// Returns the unit in its own folder, changed to run a program that exists here. Ignores the
/// test if systemd-analyze is missing.
fn unit() -> (TempDir, PathBuf) {
    if Command::new("systemd-analyze").arg("--version").output().is_err() {
        cannot_run("no systemd-analyze (Debian: apt-get install systemd)");
    }
    let text = fs::read_to_string(file("memwatch-agent.service")).expect("the unit is in the tree");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("memwatch-agent.service");
    fs::write(&path, text.replace("/usr/local/bin/memwatch", "/bin/true")).expect("it is ours");
    (directory, path)
}

fn judged(words: &[&str], unit: &Path) -> (bool, String) {
    let output = Command::new("systemd-analyze").args(words).arg(unit).output().expect("it was there");
    let stated = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&stated).into_owned())
}

#[test(alone)]
fn systemd_finds_nothing_wrong_with_the_unit() {
    let (_directory, unit) = unit();
    let (fine, stated) = judged(&["verify"], &unit);
    // Messages about other units of this machine are ignored.
    let about_it = stated.lines().filter(|line| line.contains("memwatch")).collect::<Vec<_>>();
    assert!(fine && about_it.is_empty(), "{stated}");
}

#[test(alone)]
fn the_units_exposure_is_3_5_at_most() {
    let (_directory, unit) = unit();
    let (fine, stated) = judged(&["security", "--offline=true", "--threshold=35"], &unit);
    assert!(stated.contains("Overall exposure level"), "{stated}");
    assert!(fine, "{stated}");
    let (fine, _) = judged(&["security", "--offline=true", "--threshold=10"], &unit);
    assert!(!fine, "the judge judges");
}

#[test(alone)]
fn the_unit_grants_what_the_agent_keeps_and_what_it_calls() {
    let text = fs::read_to_string(file("memwatch-agent.service")).expect("the unit is in the tree");
    for line in [
        "Type=notify",
        "CapabilityBoundingSet=CAP_BPF CAP_PERFMON CAP_SYS_PTRACE CAP_DAC_READ_SEARCH",
        "NoNewPrivileges=yes",
        "RuntimeDirectory=memwatch",
        "RuntimeDirectoryPreserve=yes",
        "ReadWritePaths=-/sys/fs/bpf/memwatch",
        "ExecStartPre=-+/bin/mkdir --parents --mode=0700 /sys/fs/bpf/memwatch",
        "ExecStart=/usr/local/bin/memwatch agent --keep --history /var/lib/memwatch",
        "StateDirectory=memwatch",
        "StateDirectoryMode=0750",
        "Group=memwatch",
    ] {
        assert!(text.lines().any(|own| own == line), "no {line}");
    }
    // A later line may revoke what an earlier line allows.
    let last = text.lines().rfind(|line| line.starts_with("SystemCallFilter=")).expect("there are filters");
    assert!(last.contains("bpf") && last.contains("capset") && !last.contains('~'), "{last}");
    let groups = fs::read_to_string(file("sysusers.d/memwatch.conf")).expect("it is in the tree");
    assert!(groups.lines().any(|line| line.starts_with("g memwatch ")), "{groups}");
}
