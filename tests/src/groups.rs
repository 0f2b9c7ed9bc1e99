//! Control groups for tests: groups in the machine's cgroup2 tree, and groups with a memory limit.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::harness::cannot_run;

/// A control group. When it is dropped, it is removed, and the processes left in it are killed.
#[derive(Debug)]
pub struct TestControlGroup {
    folder: PathBuf,
    path: String,
}

impl TestControlGroup {
    /// Creates a group at this path below the root of the tree, with all groups between. Ignores
    /// the test if no tree is mounted or no group may be created.
    ///
    /// # Panics
    /// When the mounts cannot be read.
    pub fn new(path: &str) -> Self {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts can be read");
        let mut unified = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let Some(root) = unified.find(|fields| fields.get(2) == Some(&"cgroup2")).map(|fields| fields[1].to_owned())
        else {
            cannot_run("no cgroup2 tree is mounted here");
        };
        let folder = Path::new(&root).join(path.trim_start_matches('/'));
        if let Err(error) = fs::create_dir_all(&folder) {
            cannot_run(format!("no control group can be made: {error}"));
        }
        Self { folder, path: path.to_owned() }
    }

    /// Returns the group's path as `/proc/PID/cgroup` shows it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Moves a process into the group.
    ///
    /// # Panics
    /// When the kernel refuses.
    pub fn take(&self, tgid: u32) {
        fs::write(self.folder.join("cgroup.procs"), tgid.to_string()).expect("a process may be moved");
    }

    /// Makes the command join the group before its program starts.
    pub fn start_in(&self, command: &mut Command) {
        start_in(self.folder.join("cgroup.procs"), command);
    }
}

/// Memory controllers of both versions: the root, the file of the limit, and the file with the
/// number of processes killed for exceeding it.
const MEMORY: [(&str, &str, &str); 2] = [
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.oom_control"),
    ("/sys/fs/cgroup", "memory.max", "memory.events"),
];

/// A control group with a memory limit that includes kernel memory. It is removed when it is
/// dropped.
#[derive(Debug)]
pub struct MemoryGroup {
    folder: PathBuf,
    killed: &'static str,
}

impl MemoryGroup {
    /// Creates a group with this name.
    ///
    /// # Panics
    /// When the machine has no memory controller or it may not be used.
    pub fn new(name: &str, limit_bytes: u64) -> Self {
        // In version 2, each group has to enable a controller for its children.
        let _ = fs::write("/sys/fs/cgroup/cgroup.subtree_control", "+memory");
        let make = |(root, limit, killed): (&str, &str, &'static str)| {
            let folder = Path::new(root).join(name);
            fs::create_dir(&folder).ok()?;
            let group = Self { folder, killed };
            fs::write(group.folder.join(limit), limit_bytes.to_string()).ok().map(|()| group)
        };
        MEMORY.into_iter().find_map(make).expect("a memory controller")
    }

    /// Makes the command join the group before its program starts.
    pub fn start_in(&self, command: &mut Command) {
        start_in(self.folder.join("cgroup.procs"), command);
    }

    /// Returns how many of the group's processes were killed for exceeding the limit.
    ///
    /// # Panics
    /// When the kernel does not report it.
    pub fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.killed)).expect("the group is there");
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.trim().parse().ok()).expect("a count of kills")
    }
}

impl Drop for MemoryGroup {
    fn drop(&mut self) {
        let mut tries = 0..200;
        while fs::remove_dir(&self.folder).is_err() && self.folder.exists() && tries.next().is_some() {
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

fn start_in(file: PathBuf, command: &mut Command) {
    // SAFETY: the child only opens and writes a file before it executes its program; "0" stands for
    // the writer itself.
    unsafe { command.pre_exec(move || fs::write(&file, "0")) };
}

impl Drop for TestControlGroup {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("cgroup.kill"), "1");
        // A process that has just been killed may keep the group alive for a moment.
        let parts = self.path.split('/').filter(|part| !part.is_empty()).count();
        for folder in self.folder.ancestors().take(parts) {
            let mut tries = 0..200;
            while fs::remove_dir(folder).is_err() && folder.exists() && tries.next().is_some() {
                // Another test's group may be below the same parent.
                if fs::read_dir(folder).into_iter().flatten().flatten().any(|entry| entry.path().is_dir()) {
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(10));
            }
        }
    }
}
