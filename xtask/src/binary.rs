//! Building and running memwatch itself.

use crate::args::TaskArgs;
use crate::repo::{BuildProfile, Repo};
use crate::run::{line, pinned, run};
use crate::setup;
use anyhow::{Context as _, Result};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Command;

/// Runs `cargo xtask build`.
pub(crate) fn build_task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let profile = if args.flag("--debug") { BuildProfile::Debug } else { BuildProfile::Release };
    args.finish()?;
    let binary = build(repo, profile)?;
    println!("{}", binary.display());
    Ok(())
}

/// Runs `cargo xtask run -- ARGS`: replaces xtask by memwatch, so that exit code and signals are
/// memwatch's.
pub(crate) fn run_task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let words = args.passed_on();
    args.finish()?;
    let binary = build(repo, BuildProfile::Release)?;
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

/// Sets up the tools, and builds memwatch with its kernel half.
///
/// # Errors
/// A tool cannot be installed, or the build fails.
pub(crate) fn build(repo: &Repo, profile: BuildProfile) -> Result<PathBuf> {
    setup::tools(repo)?;
    setup::ebpf_object(repo)?;
    compile(repo, profile)
}

/// Builds memwatch with the existing eBPF object.
///
/// # Errors
/// The build fails.
pub(crate) fn compile(repo: &Repo, profile: BuildProfile) -> Result<PathBuf> {
    let mut cargo = pinned(repo, "cargo");
    run(stamped(&mut cargo, repo, profile).args(["build", "--package", "memwatch", "--profile", profile.name()]))?;
    Ok(repo.memwatch(profile))
}

/// Embeds the git revision in release builds. Other builds would be rebuilt for each commit.
pub(crate) fn stamped<'a>(cargo: &'a mut Command, repo: &Repo, profile: BuildProfile) -> &'a mut Command {
    match revision(repo).filter(|_| profile == BuildProfile::Release) {
        Some(revision) => cargo.env("MEMWATCH_REVISION", revision),
        None => cargo,
    }
}

/// Returns the checked-out commit; `None` outside a git repository.
fn revision(repo: &Repo) -> Option<String> {
    let named = std::env::var("MEMWATCH_REVISION").ok().filter(|revision| !revision.is_empty());
    named.or_else(|| {
        let output =
            Command::new("git").args(["rev-parse", "--verify", "HEAD"]).current_dir(repo.root()).output().ok()?;
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        Some(text.trim().to_owned())
    })
}
