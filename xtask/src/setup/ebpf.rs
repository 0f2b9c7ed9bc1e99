//! The kernel half, compiled for the eBPF target.
//!
//! It is built in a target folder of its own and with flags of its own: its `RUSTC_BOOTSTRAP` (the target has no
//! precompiled `core`, and building one is unstable) must reach nothing else.

use super::{linker, step};
use crate::repo::{Repo, rust_version};
use crate::run::{pinned, run};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::Path;
use std::process::Command;

const TARGET: &str = "bpfel-unknown-none";
/// The crate whose binary is the object.
const CRATE: &str = "memwatch-ebpf";

/// Builds the eBPF object and puts it where memwatch's build script looks, untouched when nothing changed.
///
/// # Errors
/// When the build fails; what the compiler reported is on the terminal already.
pub(crate) fn object(repo: &Repo) -> Result<()> {
    step("eBPF object", || {
        let built = kernel_target(repo).join(TARGET).join("release").join(CRATE);
        run(&mut kernel_cargo(repo, "build"))?;
        let changed = copy_if_different(&built, &repo.ebpf_object())?;
        let verb = if changed { "built" } else { "is up to date" };
        Ok(format!("eBPF object {verb}: {}", repo.ebpf_object().display()))
    })
}

/// A cargo command (`build`, `clippy`) on the kernel half.
pub(crate) fn kernel_cargo(repo: &Repo, subcommand: &str) -> Command {
    let mut command = pinned(repo, "cargo");
    command
        .args([subcommand, "--quiet", "--release", "--package", CRATE])
        .args(["--target", TARGET, "-Z", "build-std=core", "--target-dir"])
        .arg(kernel_target(repo))
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_BPFEL_UNKNOWN_NONE_LINKER", linker::path(repo))
        .env("CARGO_ENCODED_RUSTFLAGS", flags(std::env::consts::ARCH).join("\u{1f}"))
        .env_remove("RUSTFLAGS");
    command
}

/// The compiler's flags: which registers a probe sees depends on the machine, and the maps' types need BTF.
fn flags(machine: &str) -> [String; 4] {
    [
        format!("--cfg=bpf_target_arch=\"{machine}\""),
        "--check-cfg=cfg(bpf_target_arch,values(any()))".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
    ]
}

fn kernel_target(repo: &Repo) -> std::path::PathBuf {
    repo.made(&format!("ebpf/rust-{}", rust_version()))
}

/// Copies a file unless the destination already holds the same bytes: a new time stamp would rebuild memwatch.
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
