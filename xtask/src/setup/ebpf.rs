//! The kernel half, compiled for the eBPF target.
//!
//! It is built in a target folder of its own and with flags of its own: its `RUSTC_BOOTSTRAP` (the target has no
//! precompiled `core`, and building one is unstable) must reach nothing else.

use super::{linker, step};
use crate::repo::{Repo, rust_version};
use crate::run::{pinned, run};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const TARGET: &str = "bpfel-unknown-none";
/// The crate whose binary is the object.
const CRATE: &str = "memwatch-ebpf";

/// Builds the eBPF object and puts it where memwatch's build script looks, untouched when nothing changed.
///
/// # Errors
/// When the build fails; what the compiler reported is on the terminal already.
pub(crate) fn object(repo: &Repo) -> Result<()> {
    object_for(repo, std::env::consts::ARCH).map(drop)
}

/// The same for a machine of another kind: where the object is.
///
/// # Errors
/// As [`object`].
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

/// A cargo command (`build`, `clippy`) on the kernel half.
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

/// The compiler's flags: which registers a probe sees depends on the machine, and the maps' types need BTF.
///
/// Memory of a known size is made zeros and copied by words, in place: where copies are to keep their order (bpf-linker's default), each is a call of a
/// function that goes byte by byte.
fn flags(machine: &str) -> [String; 5] {
    [
        format!("--cfg=bpf_target_arch=\"{machine}\""),
        "--check-cfg=cfg(bpf_target_arch,values(any()))".to_owned(),
        "-Cdebuginfo=2".to_owned(),
        "-Clink-arg=--btf".to_owned(),
        "-Clink-arg=--disable-expand-memcpy-in-order".to_owned(),
    ]
}

/// Each kind of machine has its own, so that none undoes the other's.
fn kernel_target(repo: &Repo, machine: &str) -> PathBuf {
    let own = repo.made(&format!("ebpf/rust-{}", rust_version()));
    if machine == std::env::consts::ARCH { own } else { own.with_extension(machine) }
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
