//! bpf-linker, built once against the LLVM of the pinned rustc.
//!
//! rustc passes bpf-linker LLVM bitcode, which only the same LLVM reads reliably. The toolchain has
//! its LLVM as a shared library, but without the plain name that a linker looks for; a directory of
//! symlinks provides it. The rpath lets bpf-linker run without environment variables.

use super::{announce, step, toolchain};
use crate::repo::{Repo, bpf_linker_version, rust_version};
use crate::run::{first_line, pinned, run_quietly};
use anyhow::{Context as _, Result, bail};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds bpf-linker below `target/tools/` if it is missing or does not start.
///
/// # Errors
/// The toolchain has no LLVM library, or the build fails.
pub(super) fn ensure(repo: &Repo) -> Result<()> {
    let version = bpf_linker_version();
    step("bpf-linker", || {
        let binary = path(repo);
        if starts(&binary) {
            return Ok(format!("bpf-linker {version} is there"));
        }
        announce(&format!(
            "building bpf-linker {version} against the LLVM of Rust {} (about a minute)",
            rust_version()
        ));
        build(repo)?;
        if !starts(&binary) {
            bail!("{} was built but does not start", binary.display());
        }
        Ok(format!("bpf-linker {version} built"))
    })
}

/// Returns the linker's path. Its directory contains both versions, so that a new pin leads to a
/// new build.
pub(super) fn path(repo: &Repo) -> PathBuf {
    home(repo).join("bin/bpf-linker")
}

fn home(repo: &Repo) -> PathBuf {
    repo.made(&format!("tools/bpf-linker-{}-rust-{}", bpf_linker_version(), rust_version()))
}

fn starts(binary: &Path) -> bool {
    first_line(Command::new(binary).arg("--version")).is_ok_and(|line| line.ends_with(bpf_linker_version()))
}

fn build(repo: &Repo) -> Result<()> {
    let home = home(repo);
    let libraries = toolchain::sysroot(repo)?.join("lib");
    let prefix = home.join("llvm");
    link_llvm(&libraries, &prefix.join("lib64"))?;
    let build_folder = home.join("build");
    run_quietly(
        pinned(repo, "cargo")
            .args(["install", "bpf-linker", "--version", bpf_linker_version(), "--locked"])
            .args(["--force", "--no-track", "--root"])
            .arg(&home)
            .env("LLVM_PREFIX", &prefix)
            .env("CARGO_TARGET_DIR", &build_folder)
            .env("CARGO_ENCODED_RUSTFLAGS", format!("-Clink-arg=-Wl,-rpath,{}", libraries.display())),
    )?;
    fs::remove_dir_all(&build_folder).with_context(|| format!("cannot remove {}", build_folder.display()))
}

/// Links the toolchain's `libLLVM.so.<version>` as `libLLVM.so` in a separate directory.
fn link_llvm(libraries: &Path, folder: &Path) -> Result<()> {
    let llvm = find_llvm(libraries)?;
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let link = folder.join("libLLVM.so");
    match fs::remove_file(&link) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            return Err(error).with_context(|| format!("cannot replace {}", link.display()));
        }
        _ => {}
    }
    symlink(&llvm, &link).with_context(|| format!("cannot link {}", link.display()))
}

fn find_llvm(libraries: &Path) -> Result<PathBuf> {
    let entries = fs::read_dir(libraries).with_context(|| format!("cannot list {}", libraries.display()))?;
    for entry in entries {
        let entry = entry.with_context(|| format!("cannot list {}", libraries.display()))?;
        if entry.file_name().to_string_lossy().starts_with("libLLVM.so.") {
            return Ok(entry.path());
        }
    }
    bail!("{} holds no libLLVM.so.*: this toolchain links LLVM statically", libraries.display());
}
