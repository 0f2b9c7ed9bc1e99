//! Building and running memwatch itself.

use crate::args::Args;
use crate::repo::{Profile, Repo};
use crate::run::{line, pinned, run};
use crate::setup;
use anyhow::{Context as _, Result};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// `cargo xtask build`.
pub(crate) fn build_task(repo: &Repo, mut args: Args) -> Result<()> {
    let profile = if args.flag("--debug") { Profile::Debug } else { Profile::Release };
    args.finish()?;
    let binary = build(repo, profile)?;
    println!("{}", binary.display());
    Ok(())
}

/// `cargo xtask run -- ARGS`: replaces xtask by memwatch, so that its exit code and signals are its own.
pub(crate) fn run_task(repo: &Repo, mut args: Args) -> Result<()> {
    let words = args.passed_on();
    args.finish()?;
    let binary = build(repo, Profile::Release)?;
    let mut command = if setup::is_root() {
        Command::new(&binary)
    } else {
        let mut sudo = Command::new("sudo");
        sudo.arg("--").arg(&binary);
        sudo
    };
    command.args(words);
    Err(command.exec()).with_context(|| format!("cannot start {}", line(&command)))
}

/// Sets up the tools and builds memwatch with its kernel half inside.
///
/// # Errors
/// When a tool cannot be had or the build fails.
pub(crate) fn build(repo: &Repo, profile: Profile) -> Result<PathBuf> {
    setup::tools(repo)?;
    setup::ebpf_object(repo)?;
    compile(repo, profile)
}

/// Builds memwatch around the eBPF object that is there already.
///
/// # Errors
/// When the build fails.
pub(crate) fn compile(repo: &Repo, profile: Profile) -> Result<PathBuf> {
    let mut cargo = pinned(repo, "cargo");
    run(cargo.args(["build", "--package", "memwatch", "--profile", profile.name()]))?;
    Ok(repo.memwatch(profile))
}
