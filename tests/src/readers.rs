//! Third-party programs from PyPI that open files written by memwatch, in their own environment.

use std::path::Path;
use std::process::Command;

use crate::harness::cannot_run;

/// Returns the command that runs a script of `tests/readers` in the environment with its packages.
/// Ignores the test if that is not installed.
pub fn python_reader(script: &str) -> Command {
    let python = std::env::var_os("PROFILE_READERS").map(|folder| Path::new(&folder).join("python/bin/python"));
    let Some(python) = python.filter(|python| python.is_file()) else {
        cannot_run(format!("what {script} reads with is not installed: run through `cargo xtask test`"));
    };
    let mut reader = Command::new(python);
    // Lets Python cache bytecode for the next run, whatever the environment says.
    reader.env("PYTHONDONTWRITEBYTECODE", "");
    reader.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("readers").join(script));
    reader
}
