//! A newer system than most machines have, in a root directory: its C library and its Python run PyTorch, as in a container.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::mounts::after_mounting;

/// Its Python: an executable with fixed addresses, whose heap begins below 4 GiB. An older system that stands in its place has the other.
const PYTHONS: [&str; 2] = ["/usr/bin/python3.13", "/usr/bin/python3.11"];
/// What every system has.
const MOUNTS: &str = r#"mount -t tmpfs tmpfs "$1/tmp" && mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev""#;

/// A root directory that `cargo xtask test` has made.
#[derive(Debug)]
pub(crate) struct NewerSystem {
    /// The directory.
    pub(crate) root: PathBuf,
    /// The folder of the machine with PyTorch and what it imports.
    pub(crate) packages: PathBuf,
}

impl NewerSystem {
    /// Its Python, not started.
    pub(crate) fn python(&self) -> Command {
        let is_there = |python: &&str| self.root.join(python.trim_start_matches('/')).exists();
        let mut command = Command::new(PYTHONS.into_iter().find(is_there).unwrap_or(PYTHONS[0]));
        command.env("PYTHONPATH", &self.packages);
        command
    }

    /// The command in it, with these folders of the machine at the same paths; `None` where nothing can be mounted.
    ///
    /// The process that is started becomes the command itself.
    ///
    /// # Panics
    /// When a path is not UTF-8.
    pub(crate) fn inside(&self, folders: &[&Path], command: &Command) -> Option<Command> {
        let root = self.root.canonicalize().expect("the root directory is there");
        let paths = [root.as_path(), &self.packages].into_iter().chain(folders.iter().copied());
        let words: Vec<&str> = paths.map(|path| path.to_str().expect("a path in UTF-8")).collect();
        // What is made for one test lies in /tmp, and goes with the mount.
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
