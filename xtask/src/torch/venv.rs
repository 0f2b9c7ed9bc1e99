//! The virtual environment with PyTorch and the few pure-Python packages that it imports.

use crate::run;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Interpreters to try, in this order.
const CANDIDATES: &[&str] = &["python3", "python3.13", "python3.12", "python3.11"];
/// The minor versions of Python 3 for which every PyTorch version here has a wheel.
const MINORS: RangeInclusive<u32> = 11..=13;
/// File written last: an environment without it is incomplete.
const STAMP: &str = ".memwatch-complete";
/// Prints the minor version; fails if `python -m venv` would fail.
const PROBE: &str = "import sys, venv, ensurepip; assert sys.version_info[0] == 3; print(sys.version_info[1])";

/// Makes the environment in `folder`, unless it was made from the same inputs. Returns its
/// interpreter.
///
/// # Errors
/// There is no suitable Python, or pip fails.
pub(super) fn ensure(folder: &Path, requirements: &Path, version: &str) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let wanted = fs::read_to_string(requirements).with_context(|| format!("cannot read {}", requirements.display()))?
        + &format!("torch=={version}\n");
    let stamp = folder.join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) && starts(&python) {
        return Ok(python);
    }
    let base = find_python()?;
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    eprintln!("set-up: installing PyTorch {version} for {base} in {} ...", folder.display());
    run::run_quietly(Command::new(base).args(["-m", "venv"]).arg(folder))?;
    // The wheel's dependencies would include NVIDIA's libraries, hence --no-deps.
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--no-deps", "--no-compile", "--disable-pip-version-check"]);
    pip.arg(format!("torch=={version}")).arg("--requirement").arg(requirements);
    run::run(&mut pip).context("pip could not install PyTorch")?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}

/// Returns the directory of PyTorch's own shared libraries.
///
/// # Errors
/// The environment has none.
pub(super) fn torch_libraries(venv: &Path) -> Result<PathBuf> {
    MINORS
        .map(|minor| venv.join(format!("lib/python3.{minor}/site-packages/torch/lib")))
        .find(|folder| folder.is_dir())
        .with_context(|| format!("there is no PyTorch in {}", venv.display()))
}

/// Whether the environment's interpreter works. It fails if the Python it was made from is removed.
fn starts(python: &Path) -> bool {
    run::succeeds(Command::new(python).args(["-c", ""]))
}

fn find_python() -> Result<&'static str> {
    let found = CANDIDATES.iter().find(|name| minor_version(name).is_some_and(|minor| MINORS.contains(&minor)));
    if let Some(name) = found {
        return Ok(name);
    }
    bail!(
        "no Python 3.{} to 3.{} that can make virtual environments was found (tried {}). On Debian or Ubuntu: \
         sudo apt-get install -y python3-venv (or python3.11-venv, where python3 is older)",
        MINORS.start(),
        MINORS.end(),
        CANDIDATES.join(", ")
    );
}

fn minor_version(python: &str) -> Option<u32> {
    let output = Command::new(python).args(["-c", PROBE]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.trim().parse().ok().filter(|_| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_has_no_version() {
        assert_eq!(minor_version("no-such-python"), None);
    }

    #[test]
    fn a_program_that_is_not_python_has_no_version() {
        assert_eq!(minor_version("true"), None);
        assert_eq!(minor_version("false"), None);
    }
}
