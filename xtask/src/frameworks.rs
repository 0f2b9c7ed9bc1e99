//! Unmodified JAX on the simulated GPU: a virtual environment with its wheels, which brings no NVIDIA library but the assembler.
//!
//! NVIDIA's other libraries are opened by name at run time: the stand-ins for PyTorch's wheel of the same CUDA version take their places.

use crate::run;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version that the tests run with.
pub(crate) const JAX: &str = "0.12.0.1";
/// Interpreters for which its wheels are, in the order in which they are tried.
const CANDIDATES: &[&str] = &["python3.12", "python3.13", "python3"];
/// Fails where this Python cannot have them, or makes no virtual environments.
const PROBE: &str = "import sys, venv, ensurepip; assert (3, 12) <= sys.version_info[:2] <= (3, 13)";
/// Written last: an environment without it is half made.
const STAMP: &str = ".memwatch-complete";

/// Makes the environment below `cache`, or finds it made from the same requirements. Returns its interpreter.
///
/// The first call downloads 0.3 GB with pip's ordinary configuration.
///
/// # Errors
/// When no suitable Python is there, or pip fails.
pub(crate) fn ensure_jax(repo: &Path, cache: &Path) -> Result<PathBuf> {
    let folder = cache.join(format!("jax-{JAX}"));
    fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let _lock = crate::torch::lock(&folder.join("lock"))?;
    let requirements = repo.join("tests/gpusim/jax-requirements.txt");
    let wanted =
        fs::read_to_string(&requirements).with_context(|| format!("cannot read {}", requirements.display()))?;
    let (venv, stamp) = (folder.join("venv"), folder.join(STAMP));
    let python = venv.join("bin/python");
    let starts = |python: &Path| run::succeeds(Command::new(python).args(["-c", ""]));
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) && starts(&python) {
        return Ok(python);
    }
    let Some(base) = CANDIDATES.iter().find(|name| run::succeeds(Command::new(name).args(["-c", PROBE]))) else {
        bail!("no Python 3.12 or 3.13 that can make virtual environments was found (tried {})", CANDIDATES.join(", "));
    };
    if venv.exists() {
        fs::remove_dir_all(&venv).with_context(|| format!("cannot remove {}", venv.display()))?;
    }
    eprintln!("set-up: installing JAX {JAX} for {base} in {} ...", venv.display());
    run::run_quietly(Command::new(base).args(["-m", "venv"]).arg(&venv))?;
    // Its dependencies would bring NVIDIA's libraries, hence --no-deps.
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--no-deps", "--no-compile", "--disable-pip-version-check", "--requirement"]);
    run::run(pip.arg(&requirements)).context("pip could not install JAX")?;
    fs::write(&stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
    Ok(python)
}
