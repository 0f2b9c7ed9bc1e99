//! Building, running and installing memwatch itself.

use crate::args::Args;
use crate::repo::{Profile, Repo};
use crate::run::{line, pinned, run};
use crate::setup;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
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

/// `cargo xtask install`.
pub(crate) fn install_task(repo: &Repo, mut args: Args) -> Result<()> {
    let root = PathBuf::from(args.value("--root")?.unwrap_or_else(|| "/usr/local".to_owned()));
    args.finish()?;
    let binary = build(repo, Profile::Release)?;
    let folder = root.join("bin");
    let installed = folder.join("memwatch");
    // A running memwatch keeps its file: the new one takes the name only when it is complete.
    let fresh = folder.join(".memwatch.new");
    fs::create_dir_all(&folder)
        .and_then(|()| fs::copy(&binary, &fresh))
        .and_then(|_| fs::set_permissions(&fresh, fs::Permissions::from_mode(0o755)))
        .and_then(|()| fs::rename(&fresh, &installed))
        .with_context(|| {
            format!(
                "cannot install {} (as another user: sudo install -m 755 {} {})",
                installed.display(),
                binary.display(),
                installed.display()
            )
        })?;
    println!("installed {}", installed.display());
    let share = root.join("share");
    install_help(&installed, &share)?;
    println!("installed completions for bash, zsh and fish, and man pages, in {}", share.display());
    println!("next:  sudo {0} doctor     (what works on this machine)", installed.display());
    println!("       sudo {0}            (every process on every GPU)", installed.display());
    Ok(())
}

/// Completion scripts by shell, and where each is looked for below `share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/memwatch"),
    ("zsh", "zsh/site-functions/_memwatch"),
    ("fish", "fish/vendor_completions.d/memwatch.fish"),
];

/// Completion scripts and man pages, as this memwatch writes them.
fn install_help(memwatch: &Path, share: &Path) -> Result<()> {
    for (shell, place) in COMPLETIONS {
        let script = captured(Command::new(memwatch).args(["completions", shell]))?;
        let path = share.join(place);
        let folder = path.parent().context("a script lies in a folder")?;
        fs::create_dir_all(folder)
            .and_then(|()| fs::write(&path, script))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    captured(Command::new(memwatch).arg("man").arg(share.join("man/man1"))).map(drop)
}

/// What a program writes, where it succeeds.
fn captured(command: &mut Command) -> Result<Vec<u8>> {
    let words = line(command);
    let output = command.output().with_context(|| format!("cannot start {words}"))?;
    if !output.status.success() {
        bail!("{words} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
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
    cargo.args(["build", "--package", "memwatch"]);
    if profile == Profile::Release {
        cargo.arg("--release");
    }
    run(&mut cargo)?;
    Ok(repo.memwatch(profile))
}
