//! Programs of others that open what memwatch writes: from PyPI, in an environment of their own.

use std::path::Path;
use std::process::Command;

/// A script of `tests/readers` in the environment with its packages; `None`, with the reason on standard error, where that is not installed.
pub fn python_reader(script: &str) -> Option<Command> {
    let python = std::env::var_os("PROFILE_READERS").map(|folder| Path::new(&folder).join("python/bin/python"));
    let Some(python) = python.filter(|python| python.is_file()) else {
        eprintln!("SKIPPED: what {script} reads with is not installed: run through `cargo xtask test`");
        return None;
    };
    let mut reader = Command::new(python);
    // What Python compiles is kept for the next one, whatever the environment says.
    reader.env("PYTHONDONTWRITEBYTECODE", "");
    reader.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("readers").join(script));
    Some(reader)
}
