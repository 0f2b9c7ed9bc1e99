//! Third-party programs from PyPI that open files written by memwatch, in their own environment.

use std::path::Path;
use std::process::Command;

/// Returns the command that runs a script of `tests/readers` in the environment with its packages.
/// Returns `None`, with the reason on standard error, if that is not installed.
pub fn python_reader(script: &str) -> Option<Command> {
    let python = std::env::var_os("PROFILE_READERS").map(|folder| Path::new(&folder).join("python/bin/python"));
    let Some(python) = python.filter(|python| python.is_file()) else {
        eprintln!("SKIPPED: what {script} reads with is not installed: run through `cargo xtask test`");
        return None;
    };
    let mut reader = Command::new(python);
    // Lets Python cache bytecode for the next run, whatever the environment says.
    reader.env("PYTHONDONTWRITEBYTECODE", "");
    reader.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("readers").join(script));
    Some(reader)
}
