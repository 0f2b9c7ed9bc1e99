//! Installs memwatch: the program, the agent's unit and group, completions and man pages.

use crate::args::TaskArgs;
use crate::binary;
use crate::repo::{BuildProfile, Repo};
use crate::run::line;
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Default prefix; the shipped unit starts the program from there.
pub(crate) const ROOT: &str = "/usr/local";

/// Runs `cargo xtask install`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let root = PathBuf::from(args.value("--root")?.unwrap_or_else(|| ROOT.to_owned()));
    args.finish()?;
    let binary = binary::build(repo, BuildProfile::Release)?;
    let root = std::path::absolute(root)?;
    let place = InstallPlace { root: &root, prefix: &root };
    let Installed { program, unit, group } = install(&binary, &repo.path(UNITS), &place).with_context(|| {
        format!("cannot install (as another user: sudo install -m 755 {} {}/bin/)", binary.display(), root.display())
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

/// Directory of the agent's unit and group in the working tree.
pub(crate) const UNITS: &str = "deploy/systemd";

/// Where files are written, and where they will be found: a package is written in one directory and
/// unpacked in another.
pub(crate) struct InstallPlace<'place> {
    /// Directory in which `bin`, `lib` and `share` are written.
    pub(crate) root: &'place Path,
    /// Path of that directory on the target system.
    pub(crate) prefix: &'place Path,
}

/// Written files of an installation.
pub(crate) struct Installed {
    pub(crate) program: PathBuf,
    /// Unit of the agent, which contains the path of the program.
    pub(crate) unit: PathBuf,
    /// File that defines the group that sees everything.
    pub(crate) group: PathBuf,
}

/// Installs the program, the agent's unit and its group at `place`: systemd reads `/usr/local/lib`
/// and `/usr/lib`.
///
/// # Errors
/// A file cannot be read or written, or the unit starts no program.
pub(crate) fn install(binary: &Path, deploy: &Path, place: &InstallPlace<'_>) -> Result<Installed> {
    let installed = Installed {
        program: place.root.join("bin/memwatch"),
        unit: place.root.join("lib/systemd/system/memwatch-agent.service"),
        group: place.root.join("lib/sysusers.d/memwatch.conf"),
    };
    let unit = fs::read_to_string(deploy.join("memwatch-agent.service"))?;
    put(&installed.program, &fs::read(binary)?, 0o755)?;
    put(&installed.unit, unit_of(&unit, &place.prefix.join("bin/memwatch"))?.as_bytes(), 0o644)?;
    put(&installed.group, &fs::read(deploy.join("sysusers.d/memwatch.conf"))?, 0o644)?;
    Ok(installed)
}

/// Writes a file atomically, so that a running memwatch keeps its own.
///
/// # Errors
/// The file cannot be written; the error names it.
pub(crate) fn put(path: &Path, bytes: &[u8], mode: u32) -> Result<()> {
    let fresh = path.with_added_extension("new");
    let folder = path.parent().context("a file lies in a folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(&fresh, bytes))
        .and_then(|()| fs::set_permissions(&fresh, fs::Permissions::from_mode(mode)))
        .and_then(|()| fs::rename(&fresh, path))
        .with_context(|| path.display().to_string())
}

/// Returns the unit with the path of this program.
fn unit_of(unit: &str, program: &Path) -> Result<String> {
    let line = unit.lines().find(|line| line.starts_with("ExecStart=")).context("the unit starts nothing")?;
    let shipped = line.trim_start_matches("ExecStart=").split(' ').next().unwrap_or_default();
    let program = program.to_str().filter(|program| !program.contains(char::is_whitespace));
    let program = program.context("systemd needs a path without spaces")?;
    Ok(unit.replace(line, &line.replacen(shipped, program, 1)))
}

/// Completion scripts by shell, with their paths below `share`.
const COMPLETIONS: [(&str, &str); 3] = [
    ("bash", "bash-completion/completions/memwatch"),
    ("zsh", "zsh/site-functions/_memwatch"),
    ("fish", "fish/vendor_completions.d/memwatch.fish"),
];

/// Installs the completion scripts and man pages that this memwatch writes, below `share`.
///
/// # Errors
/// memwatch does not start, or a file cannot be written.
pub(crate) fn install_help(memwatch: &Path, share: &Path) -> Result<()> {
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

/// Returns the output of a program.
///
/// # Errors
/// The program cannot be started or fails; the error has its stderr.
pub(crate) fn captured(command: &mut Command) -> Result<Vec<u8>> {
    let words = line(command);
    let output = command.output().with_context(|| format!("cannot start {words}"))?;
    if !output.status.success() {
        bail!("{words} failed: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(output.stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn deploy() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(UNITS)
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
        let installed = install(&binary, &deploy(), &InstallPlace { root: &root, prefix: Path::new("/usr") });
        let unit = fs::read_to_string(root.join("lib/systemd/system/memwatch-agent.service"));
        let program = fs::read(root.join("bin/memwatch"));
        let mode = fs::metadata(root.join("bin/memwatch")).map(|found| found.permissions().mode() & 0o777);
        let group = fs::read_to_string(root.join("lib/sysusers.d/memwatch.conf"));
        let left = fs::read_dir(root.join("bin")).map(Iterator::count);
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(installed.unwrap().program, root.join("bin/memwatch"));
        let unit = unit.unwrap();
        assert_eq!(started_by(&unit), "/usr/bin/memwatch", "as it will be found");
        assert_eq!(unit.replace("/usr/bin/memwatch", started_by(&shipped)), shipped, "nothing else is changed");
        assert_eq!((program.unwrap(), mode.unwrap(), left.unwrap()), (b"a program".to_vec(), 0o755, 1));
        assert!(group.unwrap().contains("g memwatch"));
    }

    #[test]
    fn a_unit_that_systemd_would_misread_is_not_written() {
        assert!(unit_of("ExecStart=/a b\n", Path::new("/a folder/memwatch")).is_err());
        assert!(unit_of("[Service]\n", Path::new("/bin/memwatch")).is_err());
    }
}
