//! Checks the contents of the packages with the tools of their formats.

use super::BuiltPackages;
use crate::install::captured;
use crate::run::{first_line, run_quietly, succeeds};
use anyhow::{Context as _, Result, ensure};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Files that the .deb installs: mode and path.
const DEB: &[(&str, &str)] = &[
    ("-rwxr-xr-x", "/usr/bin/memwatch"),
    ("-rw-r--r--", "/usr/lib/systemd/system/memwatch-agent.service"),
    ("-rw-r--r--", "/usr/lib/sysusers.d/memwatch.conf"),
    ("-rw-r--r--", "/etc/default/memwatch-agent"),
    ("-rw-r--r--", "/usr/share/bash-completion/completions/memwatch"),
    ("-rw-r--r--", "/usr/share/zsh/vendor-completions/_memwatch"),
    ("-rw-r--r--", "/usr/share/fish/vendor_completions.d/memwatch.fish"),
    ("-rw-r--r--", "/usr/share/man/man1/memwatch.1.gz"),
    ("-rw-r--r--", "/usr/share/man/man1/memwatch-ps.1.gz"),
    ("-rw-r--r--", "/usr/share/doc/memwatch/copyright"),
    ("-rw-r--r--", "/usr/share/doc/memwatch/changelog.Debian.gz"),
    ("-rw-r--r--", "/usr/share/doc/memwatch/third-party-licences.gz"),
    ("-rw-r--r--", "/usr/share/doc/memwatch/docs/operate/agent.md"),
    ("-rwxr-xr-x", "/usr/share/memwatch/slurm/epilog"),
    ("-rw-r--r--", "/usr/share/memwatch/helm/memwatch/Chart.yaml"),
];

impl BuiltPackages {
    /// Checks the file lists, and runs the program from the wheel; `folder` is for unpacked files.
    ///
    /// # Errors
    /// A file is missing or wrong; the error names it.
    pub(super) fn check_contents(&self, folder: &Path) -> Result<()> {
        self.check_deb(folder)?;
        self.check_wheel(folder)?;
        self.check_tarball()
    }

    fn check_deb(&self, folder: &Path) -> Result<()> {
        let listed = captured(Command::new("dpkg-deb").arg("--contents").arg(&self.deb))?;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        for (mode, path) in DEB {
            let row = listed.lines().find(|row| row.ends_with(&format!(" .{path}")));
            let row = row.with_context(|| format!("{path} is not in {}", self.deb.display()))?;
            ensure!(row.starts_with(mode), "{path} is not {mode}: {row}");
        }
        // nfpm writes the owner of files that it generates as numbers.
        let of_root = |row: &&str| row.contains(" root/root ") || row.contains(" 0/0 ");
        ensure!(listed.lines().all(|row| of_root(&row)), "files not owned by root:\n{listed}");
        let control = folder.join("control");
        run_quietly(Command::new("dpkg-deb").arg("--control").arg(&self.deb).arg(&control))?;
        let read =
            |name: &str| fs::read_to_string(control.join(name)).with_context(|| format!("no {name} in the .deb"));
        ensure!(read("conffiles")?.trim() == "/etc/default/memwatch-agent", "conffiles: {}", read("conffiles")?);
        ensure!(read("prerm")?.contains("memwatch agent --uninstall"), "a removal leaves what is pinned");
        for script in ["postinst", "prerm", "postrm"] {
            run_quietly(Command::new("sh").arg("-n").arg(control.join(script)))?;
        }
        let unpacked = folder.join("deb");
        run_quietly(Command::new("dpkg-deb").arg("--extract").arg(&self.deb).arg(&unpacked))?;
        let unit = fs::read_to_string(unpacked.join("usr/lib/systemd/system/memwatch-agent.service"))?;
        ensure!(unit.contains("\nExecStart=/usr/bin/memwatch agent"), "the unit does not start what the package has");
        Ok(())
    }

    /// Installs the wheel into a new environment, as users do.
    fn check_wheel(&self, folder: &Path) -> Result<()> {
        let environment = folder.join("environment");
        run_quietly(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
        let programs = environment.join("bin");
        let mut pip = Command::new(programs.join("python"));
        pip.args(["-m", "pip", "install", "--no-index", "--disable-pip-version-check", "--quiet"]);
        run_quietly(pip.arg(&self.wheel))?;
        let version = first_line(Command::new(programs.join("memwatch")).arg("--version"))?;
        ensure!(version.starts_with("memwatch "), "the wheel's program prints '{version}'");
        Ok(())
    }

    fn check_tarball(&self) -> Result<()> {
        let listed = captured(Command::new("tar").arg("--list").arg("--file").arg(&self.tarball))?;
        let listed = String::from_utf8_lossy(&listed).into_owned();
        for path in ["bin/memwatch", "lib/systemd/system/memwatch-agent.service", "share/man/man1/memwatch.1.gz"] {
            ensure!(listed.lines().any(|row| row.ends_with(path)), "{path} is not in {}", self.tarball.display());
        }
        ensure!(succeeds(Command::new("gzip").arg("--test").arg(&self.tarball)), "{}", self.tarball.display());
        Ok(())
    }
}
