//! Paths in the repository, and the pinned tool versions.

use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};

const MANIFEST: &str = include_str!("../../Cargo.toml");

/// The working tree that xtask was built from.
#[derive(Debug, Clone)]
pub(crate) struct Repo {
    root: PathBuf,
}

impl Repo {
    /// Finds the working tree: the parent of xtask's manifest directory.
    ///
    /// # Errors
    /// The tree was moved or deleted after xtask was built.
    pub(crate) fn locate() -> Result<Self> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask is a member of a workspace");
        let root = root.canonicalize().with_context(|| format!("the working tree {} is gone", root.display()))?;
        Ok(Self { root })
    }

    /// Returns the root of the working tree.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Returns a path below the root.
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.root.join(below)
    }

    /// Returns a path below `target/`, which contains everything that xtask generates.
    pub(crate) fn made(&self, below: &str) -> PathBuf {
        self.root.join("target").join(below)
    }

    /// Returns cargo's target directory: `CARGO_TARGET_DIR`, or `target/`.
    pub(crate) fn cargo_target(&self) -> PathBuf {
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| self.root.join("target"), |dir| self.root.join(dir))
    }

    /// Returns the memwatch binary that `cargo xtask build` makes.
    pub(crate) fn memwatch(&self, profile: BuildProfile) -> PathBuf {
        self.cargo_target().join(profile.folder()).join("memwatch")
    }

    /// Returns the eBPF object that memwatch's build script embeds.
    pub(crate) fn ebpf_object(&self) -> PathBuf {
        self.made("bpf/memwatch-ebpf")
    }
}

/// Build profile of memwatch; the eBPF half is always a release build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BuildProfile {
    /// Unoptimised, with overflow checks.
    Debug,
    /// Optimised: for installation and benchmarks.
    Release,
    /// Optimised, without optimisation across crates: for the integration tests.
    Tested,
    /// Hardly optimised: for the first look at the program.
    Demo,
}

impl BuildProfile {
    /// Returns the directory below cargo's target directory.
    pub(crate) fn folder(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Release | Self::Tested | Self::Demo => self.name(),
        }
    }

    /// Returns cargo's name of the profile.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Debug => "dev",
            Self::Release => "release",
            Self::Tested => "tested",
            Self::Demo => "demo",
        }
    }
}

/// Returns the Rust version that compiles everything but xtask.
pub(crate) fn rust_version() -> &'static str {
    pin("rust")
}

/// Returns the bpf-linker version that links the eBPF half.
pub(crate) fn bpf_linker_version() -> &'static str {
    pin("bpf-linker")
}

fn pin(name: &str) -> &'static str {
    find_pin(MANIFEST, name).expect("the root Cargo.toml pins this tool, a unit test checks it")
}

/// Finds the value of `name = "value"` in the section `[workspace.metadata.toolchain]`.
fn find_pin<'text>(manifest: &'text str, name: &str) -> Option<&'text str> {
    let (_, section) = manifest.split_once("[workspace.metadata.toolchain]")?;
    let section = section.split("\n[").next().unwrap_or(section);
    section.lines().find_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == name).then(|| value.trim().trim_matches('"'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_manifest_pins_both_tools() {
        assert_eq!(rust_version().split('.').count(), 3);
        assert_eq!(bpf_linker_version().split('.').count(), 3);
    }

    #[test]
    fn a_pin_is_read_from_its_own_section_only() {
        let manifest = "rust = \"9\"\n[workspace.metadata.toolchain]\nrust = \"1.2.3\"\n\n[profile]\nlinker = \"x\"\n";
        assert_eq!(find_pin(manifest, "rust"), Some("1.2.3"));
        assert_eq!(find_pin(manifest, "linker"), None);
    }
}
