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

/// Where it is installed unless another place is named; the shipped unit starts it from there.
const ROOT: &str = "/usr/local";

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
    let root = PathBuf::from(args.value("--root")?.unwrap_or_else(|| ROOT.to_owned()));
    args.finish()?;
    let binary = build(repo, Profile::Release)?;
    let root = std::path::absolute(root)?;
    let Installed { program, unit, group } = install(&binary, &repo.root().join("deploy/systemd"), &root)
        .with_context(|| {
            format!(
                "cannot install (as another user: sudo install -m 755 {} {}/bin/)",
                binary.display(),
                root.display()
            )
        })?;
    println!("installed {}, {} and {}", program.display(), unit.display(), group.display());
    let share = root.join("share");
    install_help(&program, &share)?;
    println!("installed completions for bash, zsh and fish, and man pages, in {}", share.display());
    println!("next:  sudo {0} doctor     (what works on this machine)", program.display());
    println!("       sudo {0}            (every process on every GPU)", program.display());
    println!(
        "       sudo systemd-sysusers && sudo systemctl daemon-reload && sudo systemctl enable --now memwatch-agent"
    );
    Ok(())
}

/// The files of an installation.
struct Installed {
    program: PathBuf,
    /// The agent's unit, which names the program.
    unit: PathBuf,
    /// What makes the group that sees everything.
    group: PathBuf,
}

/// Puts the program, the agent's unit and its group where `root` has them: systemd reads `/usr/local/lib` and `/usr/lib`.
///
/// # Errors
/// When a file cannot be read or written, or the unit starts nothing.
fn install(binary: &Path, deploy: &Path, root: &Path) -> Result<Installed> {
    let installed = Installed {
        program: root.join("bin/memwatch"),
        unit: root.join("lib/systemd/system/memwatch-agent.service"),
        group: root.join("lib/sysusers.d/memwatch.conf"),
    };
    let unit = fs::read_to_string(deploy.join("memwatch-agent.service"))?;
    put(&installed.program, &fs::read(binary)?, 0o755)?;
    put(&installed.unit, unit_of(&unit, &installed.program)?.as_bytes(), 0o644)?;
    put(&installed.group, &fs::read(deploy.join("sysusers.d/memwatch.conf"))?, 0o644)?;
    Ok(installed)
}

/// Writes a file. A running memwatch keeps its own: the new one takes the name only when it is complete.
fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let fresh = path.with_added_extension("new");
    let folder = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&fresh, bytes))
        .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&fresh, path))
        .with_context(|| path.display().to_string())
}

/// The unit with this program.
fn unit_of(unit: &str, program: &Path) -> Result<String> {
    let line = unit.lines().find(|line| line.starts_with("ExecStart=")).context("the unit starts nothing")?;
    let shipped = line.trim_start_matches("ExecStart=").split(' ').next().unwrap_or_default();
    let program = program.to_str().filter(|program| !program.contains(char::is_whitespace));
    let program = program.context("systemd needs a path without spaces")?;
    Ok(unit.replace(line, &line.replacen(shipped, program, 1)))
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
    run(cargo.args(["build", "--package", "memwatch", "--profile", profile.name()]))?;
    Ok(repo.memwatch(profile))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deploy() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd")
    }

    fn started_by(unit: &str) -> &str {
        let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
        line.split(' ').next().unwrap()
    }

    #[test]
    fn the_unit_starts_what_install_writes() {
        let shipped = fs::read_to_string(deploy().join("memwatch-agent.service")).unwrap();
        assert_eq!(started_by(&shipped), Path::new(ROOT).join("bin/memwatch").to_str().unwrap());
        let root = std::env::temp_dir().join(format!("memwatch-install-{}", std::process::id()));
        let binary = root.join("built");
        fs::create_dir_all(&root).unwrap();
        fs::write(&binary, "a program").unwrap();
        let installed = install(&binary, &deploy(), &root);
        let unit = fs::read_to_string(root.join("lib/systemd/system/memwatch-agent.service"));
        let program = fs::read(root.join("bin/memwatch"));
        let mode = fs::metadata(root.join("bin/memwatch")).map(|found| found.permissions().mode() & 0o777);
        let group = fs::read_to_string(root.join("lib/sysusers.d/memwatch.conf"));
        let left = fs::read_dir(root.join("bin")).map(Iterator::count);
        fs::remove_dir_all(&root).unwrap();
        let Installed { program: path, .. } = installed.unwrap();
        let unit = unit.unwrap();
        assert_eq!(started_by(&unit), path.to_str().unwrap());
        assert_eq!(unit.replace(path.to_str().unwrap(), started_by(&shipped)), shipped, "nothing else is changed");
        assert_eq!((program.unwrap(), mode.unwrap(), left.unwrap()), (b"a program".to_vec(), 0o755, 1));
        assert!(group.unwrap().contains("g memwatch"));
    }

    #[test]
    fn a_unit_that_systemd_would_misread_is_not_written() {
        assert!(unit_of("ExecStart=/a b\n", Path::new("/a folder/memwatch")).is_err());
        assert!(unit_of("[Service]\n", Path::new("/bin/memwatch")).is_err());
    }
}
