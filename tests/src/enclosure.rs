//! Daemons in their own mount and pid namespaces. Everything that they started and mounted ends
//! with the namespaces.
//!
//! The first process of the namespaces is killed when the test drops the enclosure, and by the
//! kernel when the test itself is killed. Control groups belong to the machine and are removed by
//! name.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::cannot_run;
use crate::{TIMEOUT, until};

const POLL: Duration = Duration::from_millis(20);

/// Control groups that the daemons see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cgroups {
    /// The machine's control groups, of whatever version.
    Machine,
    /// Only version 2, as on a machine without version 1.
    Unified,
}

/// A running shell script in its own namespaces.
#[derive(Debug)]
pub struct Enclosure {
    child: Child,
    log: PathBuf,
    groups: Vec<String>,
    parents: Vec<String>,
}

impl Enclosure {
    /// Starts a script with `directory` as `$1`. The machine's `/proc` is mounted at
    /// [`machine_proc`] of that directory.
    ///
    /// `parents` are control groups in which the daemons create theirs, the deepest first. Those
    /// that are empty at the end are removed. Other programs may use them, too.
    ///
    /// Ignores the test if no namespaces can be made.
    ///
    /// # Panics
    /// When `unshare` cannot be started.
    pub fn start(directory: &Path, cgroups: Cgroups, script: &str, parents: &[&str]) -> Self {
        let allowed =
            Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).stderr(Stdio::null()).status();
        if !allowed.is_ok_and(|status| status.success()) {
            cannot_run("no mount and pid namespaces can be made here");
        }
        let log = directory.join("log");
        let output = File::create(&log).expect("a file in the temporary directory");
        let unified = match cgroups {
            Cgroups::Machine => "",
            Cgroups::Unified => "umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup &&",
        };
        let proc = machine_proc(directory);
        fs::create_dir(&proc).expect("a directory in the temporary one");
        let prepare = "mount --bind /proc \"$2\" && mount -t proc proc /proc &&";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "sh", "-c"]);
        command.arg(format!("{prepare} {unified} {script}")).arg("sh").args([directory, &proc]);
        command.stdin(Stdio::null()).stderr(output.try_clone().expect("a second handle")).stdout(output);
        // SAFETY: between fork and exec only one system call is made, which takes plain numbers.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let child = command.spawn().expect("unshare starts");
        let parents = parents.iter().map(|parent| (*parent).to_owned()).collect();
        Self { child, log, groups: Vec::new(), parents }
    }

    /// Waits until the daemons are ready.
    ///
    /// # Panics
    /// When the daemons exit or are not ready in time. The message has the end of their log.
    pub fn wait_until(&mut self, is_ready: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_ready() {
            let ended = self.child.try_wait().expect("the daemons are ours");
            assert!(ended.is_none(), "the daemons have ended: {ended:?}\n{}", self.end_of_log());
            assert!(begin.elapsed() < TIMEOUT, "the daemons are not ready\n{}", self.end_of_log());
            std::thread::sleep(POLL);
        }
    }

    /// Registers a control group that only the daemons use. It is removed with all its descendants,
    /// in every hierarchy.
    pub fn owns_group(&mut self, group: String) {
        self.groups.push(group);
    }

    fn end_of_log(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }
}

impl Drop for Enclosure {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the daemons' last words:\n{}", self.end_of_log());
        }
        // Kills the first process of the namespaces before `unshare`: `unshare` waits for it, and
        // no other process is sure to.
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let first = fs::read_to_string(children).ok().and_then(|children| children.trim().parse().ok());
        match first {
            // SAFETY: a plain system call; `unshare` has not waited for its child, or it would not
            // be listed.
            Some(first) => drop(unsafe { libc::kill(first, libc::SIGKILL) }),
            None => drop(self.child.kill()),
        }
        let _ = self.child.wait();
        self.groups.iter().for_each(|group| remove_group(group));
        for path in self.parents.iter().flat_map(|parent| in_hierarchies(parent)) {
            // Fails if the group does not exist or another program uses it.
            let _ = fs::remove_dir(path);
        }
    }
}

/// Returns the path at which the machine's `/proc` is mounted inside the namespaces.
pub fn machine_proc(directory: &Path) -> PathBuf {
    directory.join("proc")
}

/// Returns the paths that a control group may have, one for each hierarchy.
fn in_hierarchies(group: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let below = fs::read_dir(root).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let hierarchies = below.chain([root.to_owned()]).filter(|path| path.join("cgroup.procs").exists());
    hierarchies.map(|hierarchy| hierarchy.join(group)).collect()
}

/// Removes a control group and its descendants from every hierarchy as soon as their last process
/// has exited.
fn remove_group(group: &str) {
    for path in in_hierarchies(group) {
        let begin = Instant::now();
        while path.is_dir() && !remove_tree(&path) && has_processes(&path) && begin.elapsed() < TIMEOUT {
            std::thread::sleep(POLL);
        }
    }
}

fn remove_tree(path: &Path) -> bool {
    let below = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    for entry in below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_tree(&entry.path());
    }
    fs::remove_dir(path).is_ok()
}

fn has_processes(path: &Path) -> bool {
    let below = fs::read_dir(path).into_iter().flatten().filter_map(Result::ok);
    let mut below = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    fs::read_to_string(path.join("cgroup.procs")).is_ok_and(|processes| !processes.is_empty())
        || below.any(|entry| has_processes(&entry.path()))
}

/// Ignores the test if a program is not installed.
pub fn need_program(name: &str) {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(name).is_file());
    if !found {
        cannot_run(format!("{name} is not installed: `cargo xtask test` installs it as root on Debian"));
    }
}

/// Waits for a workload program in a control group whose path contains `part`, and returns its
/// process id in the machine's namespace.
///
/// # Panics
/// When there is none in time.
pub fn workload_in_group(part: &str) -> u32 {
    until(&format!("a workload in a control group with {part}"), || workloads_in_group(part).first().copied())
}

/// Returns the process ids of all workload programs that are in such a control group.
pub fn workloads_in_group(part: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let is_workload = |entry: &fs::DirEntry| {
        let text = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        text("comm").starts_with("gpusim") && text("cgroup").contains(part)
    };
    processes.filter(is_workload).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
