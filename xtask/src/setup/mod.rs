//! Set-up: installs what a task needs and the machine lacks. Each step checks first and does
//! nothing if all is there.

mod ebpf;
mod linker;
mod packages;
mod python;
mod toolchain;
mod web;

pub(crate) use ebpf::{kernel_cargo, object as ebpf_object, object_for as ebpf_object_for};
pub(crate) use packages::{Package, ensure as packages, ensure_daemons as daemons, is_root};
pub(crate) use python::PythonTools;
pub(crate) use toolchain::ensure as toolchain;

use crate::repo::Repo;
use anyhow::{Context as _, Result};
use std::time::Instant;

/// Sets up the tools of every build (compiler, C linker, bpf-linker) and what is embedded in
/// memwatch.
///
/// # Errors
/// A tool is missing and cannot be installed; the error has the command to type.
pub(crate) fn tools(repo: &Repo) -> Result<()> {
    packages(&[Package::CCompiler])?;
    toolchain(repo)?;
    linker::ensure(repo)?;
    web::ensure(repo);
    Ok(())
}

/// Runs a set-up step and prints one line with its result and duration.
///
/// `work` returns the text of the line.
///
/// # Errors
/// Those of `work`, with `announce` as context.
fn step(announce: &str, work: impl FnOnce() -> Result<String>) -> Result<()> {
    let start = Instant::now();
    let done = work().with_context(|| format!("set-up: {announce}"))?;
    eprintln!("set-up: {done} ({:.1} s)", start.elapsed().as_secs_f64());
    Ok(())
}

/// Prints what is about to take a while.
fn announce(what: &str) {
    eprintln!("set-up: {what} ...");
}
