//! Builds the kernel half for the eBPF target.
//!
//! It has its own target directory and flags: its `RUSTC_BOOTSTRAP` (the target has no precompiled
//! `core`, and building one is unstable) must not affect other crates.

use super::{linker, step};
use crate::repo::{Repo, rust_version};
use crate::run::{pinned, run};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "bpfel-unknown-none";
/// Crate that compiles to the object.
const CRATE: &str = "memwatch-ebpf";

/// Builds the eBPF object and copies it where memwatch's build script expects it. An unchanged
/// object is not touched.
///
/// # Errors
/// The build fails; the compiler's output is already on the terminal.
pub(crate) fn object(repo: &Repo) -> Result<()> {
    object_for(repo, std::env::consts::ARCH).map(drop)
}

/// Builds the eBPF object for another architecture, and returns its path.
///
/// # Errors
/// Those of [`object`].
pub(crate) fn object_for(repo: &Repo, machine: &str) -> Result<PathBuf> {
    let to = if machine == std::env::consts::ARCH {
        repo.ebpf_object()
    } else {
        repo.ebpf_object().with_file_name(format!("{CRATE}-{machine}"))
    };
    step("eBPF object", || {
        let built = kernel_target(repo, machine).join(TARGET).join("release").join(CRATE);
        run(&mut cargo_for(repo, "build", machine))?;
        let changed = copy_if_different(&built, &to)?;
        let verb = if changed { "built" } else { "is up to date" };
        Ok(format!("eBPF object {verb}: {}", to.display()))
    })?;
    Ok(to)
}

/// Returns a cargo command (`build`, `clippy`) for the kernel half.
pub(crate) fn kernel_cargo(repo: &Repo, subcommand: &str) -> Command {
    cargo_for(repo, subcommand, std::env::consts::ARCH)
}

fn cargo_for(repo: &Repo, subcommand: &str, machine: &str) -> Command {
    let mut command = pinned(repo, "cargo");
    command
        .args([subcommand, "--quiet", "--release", "--package", CRATE])
        .args(["--target", TARGET, "-Z", "build-std=core", "--target-dir"])
        .arg(kernel_target(repo, machine))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker::path(repo))
        .env("CARGO_ENCODED_RUSTFLAGS", flags(machine).join("\u{1f}"))
        .env_remove("RUSTFLAGS");
    command
}

/// Returns the compiler flags: the registers of a probe depend on the architecture, and map types
/// need BTF.
///
/// Memory of a known size is zeroed and copied by words, inline: if copies must keep their order
/// (bpf-linker's default), each one calls a function that copies by bytes.
fn flags(machine: &str) -> [String; 5] {
    [
        format!("--cfg=bpf_target_arch=\"{machine}\""),
        "--check-cfg=cfg(bpf_target_arch,values(any()))".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
    ]
}

/// Returns the target directory of an architecture: each has its own, so that builds do not
/// invalidate each other.
fn kernel_target(repo: &Repo, machine: &str) -> PathBuf {
    let own = repo.made(&format!("ebpf/rust-{}", rust_version()));
    if machine == std::env::consts::ARCH { own } else { own.with_extension(machine) }
}

/// Copies a file unless the destination has the same bytes: a new time stamp would rebuild
/// memwatch.
fn copy_if_different(from: &Path, to: &Path) -> Result<bool> {
    let bytes = fs::read(from).with_context(|| format!("cannot read {}", from.display()))?;
    if fs::read(to).is_ok_and(|old| old == bytes) {
        return Ok(false);
    }
    let folder = to.parent().expect("the object lies in a folder");
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    fs::write(to, bytes).with_context(|| format!("cannot write {}", to.display()))?;
    Ok(true)
}
