//! The bundle: a directory, and an archive of it, with everything that the check needs except
//! Python and the driver.

use crate::repo::Repo;
use crate::run::{first_line, run_quietly};
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Program to run in the unpacked bundle.
pub(super) const PROGRAM: &str = "gpu-check";
/// Directory in the archive.
const NAME: &str = "memwatch-gpu-check";
/// Directories of Python files: path in the repository, and in the bundle.
const SCRIPTS: &[(&str, &str)] =
    &[("tests/gpu/gpucheck", "gpucheck"), ("tests/gpu/scripts", "scripts"), ("tests/workloads", "workloads")];

/// Recreates the directory.
///
/// # Errors
/// A file cannot be copied.
pub(super) fn fill(repo: &Repo, memwatch: &Path) -> Result<PathBuf> {
    let folder = repo.made("gpu-check").join(NAME);
    if folder.exists() {
        fs::remove_dir_all(&folder).with_context(|| format!("cannot remove {}", folder.display()))?;
    }
    copy(memwatch, &folder.join("bin/memwatch"))?;
    copy(&repo.path("tests/gpu").join(PROGRAM), &folder.join(PROGRAM))?;
    for (from, to) in SCRIPTS {
        for script in python_files(&repo.path(from))? {
            copy(&script, &folder.join(to).join(script.file_name().unwrap_or_default()))?;
        }
    }
    let built_from = folder.join("BUILT_FROM");
    fs::write(&built_from, revision(repo)).with_context(|| format!("cannot write {}", built_from.display()))?;
    Ok(folder)
}

/// Packs the directory into this file, or into one next to it.
///
/// # Errors
/// tar fails.
pub(super) fn pack(repo: &Repo, folder: &Path, file: Option<PathBuf>) -> Result<PathBuf> {
    let file = file.unwrap_or_else(|| {
        let name = format!("{NAME}-{}-{}.tar.gz", env!("CARGO_PKG_VERSION"), std::env::consts::ARCH);
        repo.made("gpu-check").join(name)
    });
    let parent = folder.parent().context("the bundle's folder has no parent")?;
    run_quietly(
        Command::new("tar")
            .arg("--create")
            .arg("--gzip")
            .arg("--file")
            .arg(&file)
            .arg("--directory")
            .arg(parent)
            .arg(NAME),
    )?;
    Ok(file)
}

fn copy(from: &Path, to: &Path) -> Result<()> {
    let folder = to.parent().context("a file of the bundle has no folder")?;
    fs::create_dir_all(folder)
        .and_then(|()| fs::copy(from, to))
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

fn python_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))? {
        let path = entry.with_context(|| format!("cannot list {}", folder.display()))?.path();
        if path.extension().is_some_and(|extension| extension == "py") {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns the commit for the report, or a placeholder without git.
fn revision(repo: &Repo) -> String {
    let mut git = Command::new("git");
    git.args(["describe", "--always", "--dirty"]).current_dir(repo.root());
    first_line(&mut git).unwrap_or_else(|_| "a tree without git".to_owned())
}
