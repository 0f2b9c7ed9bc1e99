//! Builds one binary that also runs on systems older than the build machine: zig links it against
//! stubs of an early glibc.
//!
//! memwatch loads NVML at run time, so it cannot be static; the glibc symbols that it uses decide
//! where it runs.

use crate::binary::stamped;
use crate::repo::{BuildProfile, Repo};
use crate::run::{pinned, run};
use crate::setup::{self, PythonTools};
use anyhow::{Context as _, Result, bail};
use object::Endianness;
use object::elf::FileHeader64;
use object::read::elf::FileHeader as _;
use std::fs;
use std::path::{Path, PathBuf};

/// zig with the stubs, and the tool that makes cargo link with it.
const TOOLS: PythonTools = PythonTools { name: "zig", wheels: &["ziglang==0.17.1", "cargo-zigbuild==0.24.1"] };
/// Newest glibc that the binary may require: RHEL 8, Debian 10, Ubuntu 20.04 and later have it.
pub(super) const GLIBC: GlibcVersion = GlibcVersion(2, 28);

/// A version of glibc.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GlibcVersion(pub(super) u32, pub(super) u32);

impl std::fmt::Display for GlibcVersion {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}.{}", self.0, self.1)
    }
}

/// Builds the binary, and checks the glibc that it requires.
///
/// # Errors
/// A tool cannot be downloaded, the build fails, or the binary requires a newer glibc than
/// [`GLIBC`].
pub(super) fn build(repo: &Repo, profile: BuildProfile) -> Result<PathBuf> {
    let target = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    setup::tools(repo)?;
    setup::ebpf_object(repo)?;
    let programs = TOOLS.ensure(repo)?;
    let mut paths = vec![programs];
    paths.extend(std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()));
    let cache = repo.made("tools/zig-cache");
    let mut cargo = pinned(repo, "cargo");
    stamped(&mut cargo, repo, profile)
        .args(["zigbuild", "--package", "memwatch", "--profile", profile.name()])
        .args(["--target", &format!("{target}.{GLIBC}")])
        .env("PATH", std::env::join_paths(paths).context("PATH has an odd folder")?)
        .env("CARGO_ZIGBUILD_CACHE_DIR", &cache)
        .env("ZIG_GLOBAL_CACHE_DIR", cache.join("global"))
        .env("ZIG_LOCAL_CACHE_DIR", cache.join("local"));
    run(&mut cargo)?;
    let binary = repo.cargo_target().join(target).join(profile.folder()).join("memwatch");
    check(&binary)?;
    Ok(binary)
}

/// Prints the glibc version that the binary requires.
///
/// # Errors
/// It is newer than [`GLIBC`], or the binary cannot be read.
pub(super) fn check(binary: &Path) -> Result<()> {
    let bytes = fs::read(binary).with_context(|| format!("cannot read {}", binary.display()))?;
    let asked = newest_glibc(&bytes).with_context(|| binary.display().to_string())?;
    if asked > GLIBC {
        bail!("{} asks for glibc {asked}, and packages are for {GLIBC} on", binary.display());
    }
    println!("{} asks for glibc {asked}", binary.display());
    Ok(())
}

/// Returns the newest glibc version in a program's table of needed versions (`.gnu.version_r`).
///
/// # Errors
/// The file is not 64-bit ELF, requires no glibc, or a version that is not a number.
pub(super) fn newest_glibc(bytes: &[u8]) -> Result<GlibcVersion> {
    let header = FileHeader64::<Endianness>::parse(bytes).context("no ELF file of 64 bits")?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let mut newest = None;
    if let Some((mut needs, link)) = sections.gnu_verneed(endian, bytes)? {
        let strings = sections.strings(endian, bytes, link)?;
        while let Some((_, mut versions)) = needs.next()? {
            while let Some(version) = versions.next()? {
                let name = String::from_utf8_lossy(version.name(endian, strings)?).into_owned();
                newest = newest.max(version_of(&name)?);
            }
        }
    }
    newest.context("asks for no version of glibc: it is static, or none of glibc's")
}

/// Parses `GLIBC_2.28` → 2.28; `None` for other libraries.
fn version_of(name: &str) -> Result<Option<GlibcVersion>> {
    let Some(digits) = name.strip_prefix("GLIBC_") else { return Ok(None) };
    // Names such as GLIBC_ABI_DT_RELR are not versions, and need a loader that knows them.
    let mut numbers = digits.split('.').map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => Ok(Some(GlibcVersion(major, minor))),
        _ => bail!("it asks for {name}, which is not a version"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_glibc_are_compared_as_numbers() {
        assert_eq!(version_of("GLIBC_2.2.5").unwrap(), Some(GlibcVersion(2, 2)));
        assert!(version_of("GLIBC_2.9").unwrap() < version_of("GLIBC_2.28").unwrap());
        assert_eq!(version_of("GCC_3.0").unwrap(), None);
        assert!(version_of("GLIBC_ABI_DT_RELR").unwrap_err().to_string().contains("DT_RELR"));
        assert_eq!(GLIBC.to_string(), "2.28");
    }

    #[test]
    fn portable_glibc_requirement_is_read_from_the_program() {
        let own = fs::read("/proc/self/exe").unwrap();
        let asked = newest_glibc(&own).unwrap();
        assert!(asked >= GlibcVersion(2, 14) && asked < GlibcVersion(3, 0), "{asked}");
        assert!(newest_glibc(b"#!/bin/sh\n").unwrap_err().to_string().contains("no ELF file"));
    }
}
