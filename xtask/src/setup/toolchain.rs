//! The pinned Rust toolchain, installed next to others of rustup.

use super::{announce, step};
use crate::repo::{Repo, rust_version};
use crate::run::{first_line, pinned, run_quietly};
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files of a complete installation, below the sysroot: includes `core`'s source for the eBPF
/// target, and both checkers.
const PARTS: &[&str] =
    &["bin/cargo", "bin/cargo-fmt", "bin/cargo-clippy", "lib/rustlib/src/rust/library/core/Cargo.toml"];

/// Installs the pinned toolchain if it or one of its parts is missing.
///
/// # Errors
/// rustup is missing or cannot download.
pub(crate) fn ensure(repo: &Repo) -> Result<()> {
    let version = rust_version();
    step("Rust toolchain", || {
        if sysroot(repo).is_ok_and(|root| is_complete(&root)) {
            return Ok(format!("Rust {version} is there"));
        }
        announce(&format!("installing Rust {version} with rust-src, rustfmt and clippy"));
        run_quietly(
            Command::new("rustup")
                .args(["toolchain", "install", version, "--profile", "minimal", "--no-self-update"])
                .args(["-c", "rust-src", "-c", "rustfmt", "-c", "clippy"]),
        )
        .context("rustup is needed to install the pinned toolchain")?;
        Ok(format!("Rust {version} installed"))
    })
}

/// Returns the root directory of the pinned toolchain.
///
/// # Errors
/// The toolchain is not installed.
pub(super) fn sysroot(repo: &Repo) -> Result<PathBuf> {
    first_line(pinned(repo, "rustc").args(["--print", "sysroot"])).map(PathBuf::from)
}

fn is_complete(sysroot: &Path) -> bool {
    PARTS.iter().all(|part| sysroot.join(part).exists())
}
