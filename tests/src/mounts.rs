//! Mount namespaces for commands, as containers have them, whose mounts disappear with the command;
//! and small disks.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::harness::cannot_run;

/// Returns a command that mounts something with a shell script, in its own mount namespace, and
/// then runs `command`. `words` are the script's `$1`, `$2` and so on.
///
/// The started process becomes the command itself. Ignores the test if nothing can be mounted.
pub fn after_mounting(script: &str, words: &[&str], command: &Command) -> Command {
    let allowed = Command::new("unshare").args(["--mount", "true"]).stderr(Stdio::null()).status();
    if !allowed.is_ok_and(|status| status.success()) {
        cannot_run("no mount namespace can be made here");
    }
    let mut outer = Command::new("unshare");
    outer.args(["--mount", "--propagation", "private", "sh", "-c"]);
    outer.arg(format!("{script} && shift {} && exec \"$@\"", words.len())).arg("sh").args(words);
    outer.arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outer.env(name, value),
            None => outer.env_remove(name),
        };
    }
    outer
}

/// A small disk. It is unmounted when it is dropped.
#[derive(Debug)]
pub struct SmallDisk {
    path: PathBuf,
}

impl SmallDisk {
    /// Mounts a disk of this size, such as `64k`, on a new directory. Ignores the test
    /// if nothing can be mounted.
    ///
    /// # Panics
    /// When the directory cannot be created.
    pub fn mount(path: &Path, size: &str) -> Self {
        std::fs::create_dir(path).expect("a new directory");
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).status();
        if !mounted.is_ok_and(|status| status.success()) {
            cannot_run("no tmpfs can be mounted here");
        }
        Self { path: path.to_owned() }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Fills the disk.
    ///
    /// # Panics
    /// When no file can be created on it.
    pub fn fill(&self) {
        let mut file = File::create(self.path.join("filling")).expect("a file on the disk");
        while file.write_all(&[1]).is_ok() {}
    }
}

/// A bpf file system of a test's own. Objects pinned in it are released with it.
#[derive(Debug)]
pub struct BpfFolder {
    path: PathBuf,
}

impl BpfFolder {
    /// Mounts a bpf file system on a new directory. Ignores the test if none can be
    /// mounted.
    ///
    /// # Panics
    /// When the directory cannot be created.
    pub fn mount(path: &Path) -> Self {
        std::fs::create_dir(path).expect("a new directory");
        let mounted = Command::new("mount").args(["-t", "bpf", "-o", "mode=700", "bpf"]).arg(path).status();
        if !mounted.is_ok_and(|status| status.success()) {
            cannot_run("no bpf file system can be mounted here");
        }
        Self { path: path.to_owned() }
    }

    /// Returns the mount point.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for BpfFolder {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that still writes to the disk is about to exit.
        let _ = Command::new("umount").arg("--lazy").arg(&self.path).status();
    }
}
