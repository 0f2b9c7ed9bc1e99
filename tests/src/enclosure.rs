//! Daemons in mount and pid namespaces of their own: with them goes everything that they have started and mounted.
//!
//! The namespaces' first process is killed when the test drops it, and by the kernel when the test itself is killed. Control groups are
//! the machine's, so they are removed by name.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::{TIMEOUT, until};

const POLL: Duration = Duration::from_millis(20);

/// Which control groups the daemons see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cgroups {
    /// Those of the machine, of whatever version.
    Machine,
    /// Only those of version 2, as on a machine without version 1.
    Unified,
}

/// A shell script at work in namespaces of its own.
#[derive(Debug)]
pub struct Enclosure {
    child: Child,
    log: PathBuf,
    groups: Vec<String>,
    parents: Vec<String>,
}

impl Enclosure {
    /// Starts a script, whose `$1` is `directory`; the machine's own `/proc` is at [`machine_proc`] of it there.
    ///
    /// `parents` are control groups below which the daemons make theirs, the deepest first: who is empty at the end goes. Others may use
    /// them, too.
    /// `None`, with the reason on standard error, where no namespaces can be made.
    ///
    /// # Panics
    /// When `unshare` cannot be started.
    pub fn start(directory: &Path, cgroups: Cgroups, script: &str, parents: &[&str]) -> Option<Self> {
        let allowed =
            Command::new("unshare").args(["--mount", "--pid", "--fork", "true"]).stderr(Stdio::null()).status();
        if !allowed.is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: no mount and pid namespaces can be made here");
            return None;
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
        Some(Self { child, log, groups: Vec::new(), parents })
    }

    /// Waits until the daemons are ready.
    ///
    /// # Panics
    /// When they end, or are not ready in time; the end of their log is in the message.
    pub fn wait_until(&mut self, is_ready: impl Fn() -> bool) {
        let begin = Instant::now();
        while !is_ready() {
            let ended = self.child.try_wait().expect("the daemons are ours");
            assert!(ended.is_none(), "the daemons have ended: {ended:?}\n{}", self.end_of_log());
            assert!(begin.elapsed() < TIMEOUT, "the daemons are not ready\n{}", self.end_of_log());
            std::thread::sleep(POLL);
        }
    }

    /// A control group that the daemons alone use: it goes with all below it, in every hierarchy.
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
        // The namespaces' first process first: `unshare` waits for it, and nobody else might.
        let children = format!("/proc/{0}/task/{0}/children", self.child.id());
        let first = fs::read_to_string(children).ok().and_then(|children| children.trim().parse().ok());
        match first {
            // SAFETY: a plain system call; `unshare` has not waited for its child, or it would not be listed.
            Some(first) => drop(unsafe { libc::kill(first, libc::SIGKILL) }),
            None => drop(self.child.kill()),
        }
        let _ = self.child.wait();
        self.groups.iter().for_each(|group| remove_group(group));
        for path in self.parents.iter().flat_map(|parent| in_hierarchies(parent)) {
            // Fails where it is not there, or somebody else uses it.
            let _ = fs::remove_dir(path);
        }
    }
}

/// Where the machine's own `/proc` is for those in the namespaces.
pub fn machine_proc(directory: &Path) -> PathBuf {
    directory.join("proc")
}

/// Where a control group may be.
fn in_hierarchies(group: &str) -> Vec<PathBuf> {
    let root = Path::new("/sys/fs/cgroup");
    let below = fs::read_dir(root).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let hierarchies = below.chain([root.to_owned()]).filter(|path| path.join("cgroup.procs").exists());
    hierarchies.map(|hierarchy| hierarchy.join(group)).collect()
}

/// Removes a control group and those below it from every hierarchy, as soon as the last process in them is gone.
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

/// Whether a program is installed; where it is not, a line says so on standard error.
pub fn has_program(name: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .chain(["/usr/sbin".into(), "/sbin".into()])
        .any(|directory| directory.join(name).is_file());
    if !found {
        eprintln!("SKIPPED: {name} is not installed: `cargo xtask test` installs it as root on Debian");
    }
    found
}

/// The machine's number of the simulator's workload program in the control group whose path holds `part`.
///
/// # Panics
/// When there is none in time.
pub fn workload_in_group(part: &str) -> u32 {
    until(&format!("a workload in a control group with {part}"), || workloads_in_group(part).first().copied())
}

/// The same for all that are there now.
pub fn workloads_in_group(part: &str) -> Vec<u32> {
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let is_workload = |entry: &fs::DirEntry| {
        let text = |file: &str| fs::read_to_string(entry.path().join(file)).unwrap_or_default();
        text("comm").starts_with("gpusim") && text("cgroup").contains(part)
    };
    processes.filter(is_workload).filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
