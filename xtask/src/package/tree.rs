//! Files of a package below its prefix.

use super::PackageSource;
use crate::install::{self, InstallPlace, UNITS, install_help, put};
use crate::run::run_quietly;
use anyhow::{Context as _, Result};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Files copied from the working tree: a file or directory, and its path below the prefix.
const COPIED: &[(&str, &str)] = &[
    ("README.md", "share/doc/memwatch/README.md"),
    ("LICENSE-MIT", "share/doc/memwatch/LICENSE-MIT"),
    ("LICENSE-APACHE", "share/doc/memwatch/LICENSE-APACHE"),
    ("deploy/prometheus", "share/memwatch/prometheus"),
    ("deploy/grafana", "share/memwatch/grafana"),
    ("deploy/kubernetes", "share/memwatch/kubernetes"),
    ("deploy/helm", "share/memwatch/helm"),
    ("deploy/slurm", "share/memwatch/slurm"),
    // The book, without its part on the project: the measurements of single machines.
    ("docs/index.md", "share/doc/memwatch/docs/index.md"),
    ("docs/start", "share/doc/memwatch/docs/start"),
    ("docs/questions", "share/doc/memwatch/docs/questions"),
    ("docs/operate", "share/doc/memwatch/docs/operate"),
    ("docs/reference", "share/doc/memwatch/docs/reference"),
];

/// Writes all files to `root`, for an installation in `prefix`.
///
/// # Errors
/// The binary does not start, or a file cannot be read or written.
pub(super) fn write(source: &PackageSource<'_>, binary: &Path, root: &Path, prefix: &str) -> Result<()> {
    let repo = source.repo;
    if root.exists() {
        fs::remove_dir_all(root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    install::install(binary, &repo.path(UNITS), &InstallPlace { root, prefix: Path::new(prefix) })?;
    install_help(binary, &root.join("share"))?;
    compress(&pages(&root.join("share/man/man1"))?)?;
    for (from, to) in COPIED {
        copy(&repo.path(from), &root.join(to))?;
    }
    let path = root.join("share/doc/memwatch/third-party-licences");
    put(&path, source.licences.as_bytes(), 0o644)?;
    compress(&[path])
}

/// Returns the files of a directory in order, without its subdirectories.
fn pages(folder: &Path) -> Result<Vec<PathBuf>> {
    let listed = fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let paths: std::io::Result<Vec<PathBuf>> = listed.map(|entry| entry.map(|entry| entry.path())).collect();
    let mut files: Vec<PathBuf> = paths?.into_iter().filter(|path| path.is_file()).collect();
    files.sort();
    Ok(files)
}

/// Copies a file, or a directory with its contents, with the executable bits.
///
/// # Errors
/// A file cannot be read or written.
pub(crate) fn copy(from: &Path, to: &Path) -> Result<()> {
    if !from.is_dir() {
        let folder = to.parent().context("a file lies in a folder")?;
        return fs::create_dir_all(folder)
            .and_then(|()| fs::copy(from, to).map(drop))
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()));
    }
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry?.path();
        copy(&path, &to.join(path.file_name().context("a listed file has a name")?))?;
    }
    Ok(())
}

/// Compresses as Debian requires for man pages and long documents: best compression, no time stamp.
fn compress(files: &[PathBuf]) -> Result<()> {
    run_quietly(Command::new("gzip").args(["-9n", "--force"]).args(files))
}
