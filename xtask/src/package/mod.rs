//! `cargo xtask package`: makes memwatch's packages below `target/packages`.

mod chart;
mod contents;
mod formats;
mod licences;
mod portable;
#[cfg(test)]
mod slurm;
mod system;
mod tree;

pub(crate) use tree::copy as copy_tree;

use crate::args::TaskArgs;
use crate::install::{self, captured};
use crate::repo::{BuildProfile, Repo};
use crate::run::{first_line, run_quietly};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Directory of the packages below `target/`.
const FOLDER: &str = "packages";
/// Version that the upgrade check upgrades to.
const LATER: &str = "999.0.0";
/// Prefix of distribution packages.
const PREFIX: &str = "/usr";

/// Runs `cargo xtask package`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let profile = if args.flag("--tested") { BuildProfile::Tested } else { BuildProfile::Release };
    let checks = args.flag("--check");
    let binary = args.value("--binary")?.map(PathBuf::from);
    args.finish()?;
    let binary = match binary {
        Some(binary) => portable::check(&binary).map(|()| binary)?,
        None => portable::build(repo, profile)?,
    };
    let packages = make_and_look(repo, &binary, &repo.made(FOLDER))?;
    for file in packages.files() {
        println!("{}", file.display());
    }
    if checks { check(repo, &binary, &packages) } else { Ok(()) }
}

/// Makes packages of a binary for this machine, and checks their contents. Takes seconds and starts
/// no service.
///
/// # Errors
/// A package cannot be made, or its contents are wrong.
pub(crate) fn check_contents(repo: &Repo, binary: &Path) -> Result<()> {
    make_and_look(repo, binary, &repo.made(&format!("{FOLDER}/contents")))?;
    println!("the tarball, wheel, .deb and .rpm have the expected contents");
    Ok(())
}

fn make_and_look(repo: &Repo, binary: &Path, folder: &Path) -> Result<BuiltPackages> {
    let packages = BuiltPackages::make(repo, binary, folder, None)?;
    let unpacked = folder.join("unpacked");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked).with_context(|| format!("cannot remove {}", unpacked.display()))?;
    }
    fs::create_dir_all(&unpacked).with_context(|| format!("cannot create {}", unpacked.display()))?;
    packages.check_contents(&unpacked)?;
    Ok(packages)
}

/// Runs the checks that take minutes, need a virtual machine or a large installation.
fn check(repo: &Repo, binary: &Path, packages: &BuiltPackages) -> Result<()> {
    let folder = repo.made(FOLDER);
    chart::check(repo, &folder)?;
    let later = BuiltPackages::make(repo, binary, &folder.join("later"), Some(LATER))?;
    system::check(repo, packages, &later, &folder)
}

/// Packages of a binary.
pub(crate) struct BuiltPackages {
    pub(crate) tarball: PathBuf,
    pub(crate) wheel: PathBuf,
    pub(crate) deb: PathBuf,
    pub(crate) rpm: PathBuf,
    sums: PathBuf,
}

/// Input of all package formats.
pub(crate) struct PackageSource<'source> {
    repo: &'source Repo,
    /// Version of memwatch, or another one for a check of an upgrade.
    version: &'source str,
    /// Directory to make packages in.
    folder: &'source Path,
    /// Time of the commit, in seconds since 1970: the same commit gives the same files.
    epoch: &'source str,
    machine: PackageMachine,
    /// Licences of all linked works.
    licences: String,
}

/// Names of a processor.
#[derive(Debug, Clone, Copy)]
struct PackageMachine {
    /// The kernel's and RPM's name.
    kernel: &'static str,
    debian: &'static str,
}

/// memwatch is tested on the first; on the second its probes stay at a function's first
/// instruction.
const MACHINES: &[PackageMachine] =
    &[PackageMachine { kernel: "x86_64", debian: "amd64" }, PackageMachine { kernel: "aarch64", debian: "arm64" }];

impl BuiltPackages {
    /// Makes all packages from this binary in this directory; `version` overrides the binary's own.
    ///
    /// # Errors
    /// The binary does not start, or a tool cannot be downloaded or fails.
    pub(crate) fn make(repo: &Repo, binary: &Path, folder: &Path, version: Option<&str>) -> Result<Self> {
        let own = first_line(Command::new(binary).arg("--version"))?;
        let own = own.split(' ').nth(1).with_context(|| format!("{} prints no version: {own}", binary.display()))?;
        let epoch = first_line(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(repo.root()))?;
        let machine = MACHINES.iter().find(|machine| machine.kernel == std::env::consts::ARCH);
        let Some(machine) = machine else { bail!("there are no packages for {}", std::env::consts::ARCH) };
        let licences = licences::text(repo)?;
        let source = PackageSource {
            repo,
            version: version.unwrap_or(own),
            folder,
            epoch: epoch.trim(),
            machine: *machine,
            licences,
        };
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        let binary = &stripped(binary, folder)?;
        let tarball = source.tarball(binary)?;
        let wheel = source.wheel(binary)?;
        let (deb, rpm) = source.distributions(binary)?;
        let mut packages = Self { tarball, wheel, deb, rpm, sums: folder.join("SHA256SUMS") };
        packages.write_sums(folder)?;
        Ok(packages)
    }

    /// Returns all files.
    fn files(&self) -> [&Path; 5] {
        [&self.tarball, &self.wheel, &self.deb, &self.rpm, &self.sums]
    }

    /// Writes the checksums in the format of `sha256sum --check`.
    fn write_sums(&mut self, folder: &Path) -> Result<()> {
        let names = self.files().into_iter().take(4).filter_map(Path::file_name);
        let sums = captured(Command::new("sha256sum").args(names).current_dir(folder))?;
        install::put(&self.sums, &sums, 0o644)
    }
}

/// Strips debug information, three quarters of the binary, but keeps the symbols for backtraces.
fn stripped(binary: &Path, folder: &Path) -> Result<PathBuf> {
    let lean = folder.join("memwatch");
    run_quietly(Command::new("strip").args(["--strip-debug", "-o"]).arg(&lean).arg(binary))?;
    Ok(lean)
}
