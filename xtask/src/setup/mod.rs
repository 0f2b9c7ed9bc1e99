//! Set-up: everything a task needs and the machine may lack. Each step looks first and does nothing when all is there.

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

/// The tools that every build needs: compiler, C linker, bpf-linker; and what is built into memwatch.
///
/// # Errors
/// When one of them is missing and cannot be installed; the error says what to type.
pub(crate) fn tools(repo: &Repo) -> Result<()> {
    packages(&[Package::CCompiler])?;
    toolchain(repo)?;
    linker::ensure(repo)?;
    web::ensure(repo);
    Ok(())
}

/// Runs one set-up step and prints one line: what it did and how long that took.
///
/// `announce` is printed first, for a reader who has to wait; `work` returns the line's text.
///
/// # Errors
/// Those of `work`, with `announce` as context.
fn step(announce: &str, work: impl FnOnce() -> Result<String>) -> Result<()> {
    let start = Instant::now();
    let done = work().with_context(|| format!("set-up: {announce}"))?;
    eprintln!("set-up: {done} ({:.1} s)", start.elapsed().as_secs_f64());
    Ok(())
}

/// Says what is about to take a while.
fn announce(what: &str) {
    eprintln!("set-up: {what} ...");
}
