//! Control groups of the machine's own cgroup2 tree, for tests to put processes into.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A control group; when it is dropped, it is removed, with what is left in it.
#[derive(Debug)]
pub struct Group {
    folder: PathBuf,
    path: String,
}

impl Group {
    /// Makes a group at this path below the root of the tree, with all between. `None` where there is no tree, or none may be made.
    ///
    /// # Panics
    /// When there are no mounts to be read.
    pub fn new(path: &str) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("mounts can be read");
        let mut unified = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let Some(root) = unified.find(|fields| fields.get(2) == Some(&"cgroup2")).map(|fields| fields[1].to_owned())
        else {
            eprintln!("SKIPPED: no cgroup2 tree is mounted here");
            return None;
        };
        let folder = Path::new(&root).join(path.trim_start_matches('/'));
        if let Err(error) = fs::create_dir_all(&folder) {
            eprintln!("SKIPPED: no control group can be made: {error}");
            return None;
        }
        Some(Self { folder, path: path.to_owned() })
    }

    /// Its path as `/proc/PID/cgroup` writes it.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Puts a process into it.
    ///
    /// # Panics
    /// When that is refused.
    pub fn take(&self, tgid: u32) {
        fs::write(self.folder.join("cgroup.procs"), tgid.to_string()).expect("a process may be moved");
    }

    /// The command will be in the group before its first instruction.
    pub fn start_in(&self, command: &mut Command) {
        let file = self.folder.join("cgroup.procs");
        // SAFETY: the child only opens and writes a file before it executes its program; "0" stands for the writer itself.
        unsafe { command.pre_exec(move || fs::write(&file, "0")) };
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::write(self.folder.join("cgroup.kill"), "1");
        // A process that was ended a moment ago may keep its group for another.
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
