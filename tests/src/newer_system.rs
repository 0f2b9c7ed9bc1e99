//! A newer system than most machines have, in a root directory. As in a container, its C library
//! and its Python run PyTorch.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mounts::after_mounting;

/// Paths of its Python, an executable with fixed addresses whose heap begins below 4 GiB. The
/// second is that of an older system used instead.
const PYTHONS: [&str; 2] = ["/usr/bin/python3.13", "/usr/bin/python3.11"];
/// Mounts that every system has.
const MOUNTS: &str = r#"mount -t tmpfs tmpfs "$1/tmp" && mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev""#;

/// A root directory that `cargo xtask test` has created.
#[derive(Debug)]
pub(crate) struct NewerSystem {
    /// Path of the root directory.
    pub(crate) root: PathBuf,
    /// Folder outside the root with PyTorch and its dependencies.
    pub(crate) packages: PathBuf,
}

impl NewerSystem {
    /// Returns a command that runs its Python.
    pub(crate) fn python(&self) -> Command {
        let is_there = |python: &&str| self.root.join(python.trim_start_matches('/')).exists();
        let mut command = Command::new(PYTHONS.into_iter().find(is_there).unwrap_or(PYTHONS[0]));
        command.env("PYTHONPATH", &self.packages);
        command
    }

    /// Returns a command that runs `command` in the root directory, with these folders of the
    /// machine mounted at the same paths. Ignores the test if nothing can be mounted.
    ///
    /// The started process becomes the command itself.
    ///
    /// # Panics
    /// When a path is not UTF-8.
    pub(crate) fn inside(&self, folders: &[&Path], command: &Command) -> Command {
        let root = self.root.canonicalize().expect("the root directory is there");
        let paths = [root.as_path(), &self.packages].into_iter().chain(folders.iter().copied());
        let words: Vec<&str> = paths.map(|path| path.to_str().expect("a path in UTF-8")).collect();
        // Directories created for a test are in /tmp and disappear with the mount.
        let mut script = MOUNTS.to_owned();
        for number in 2..=words.len() {
            let folder = format!("${{{number}}}");
            write!(script, r#" && mkdir -p "$1{folder}" && mount --bind "{folder}" "$1{folder}""#)
                .expect("a string takes any text");
        }
        let mut inside = Command::new("chroot");
        inside.arg(&root).arg(command.get_program()).args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        after_mounting(&script, &words, &inside)
    }
}
