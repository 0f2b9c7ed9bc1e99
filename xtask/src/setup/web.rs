//! The plot library of the agent's page, installed from npm by the committed lock file; its script
//! is embedded in memwatch.

use super::{Package, announce, packages, step};
use crate::repo::Repo;
use crate::run::run_quietly;
use anyhow::{Context as _, Result};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// Files that npm reads; the lock file has versions and digests, but no URLs.
const FILES: [&str; 3] = ["package.json", LOCK, ".npmrc"];
const LOCK: &str = "package-lock.json";
/// File written last: a directory with another one is incomplete or of another lock file.
const STAMP: &str = ".memwatch-complete";

/// Installs the library below `target/web`, or reports that memwatch's page will have no plots.
pub(super) fn ensure(repo: &Repo) {
    if let Err(error) = install(&repo.path("memwatch/web"), &repo.made("web")) {
        eprintln!("set-up: the agent's page is built WITHOUT PLOTS. {error:#}");
    }
}

fn install(sources: &Path, folder: &Path) -> Result<()> {
    let lock = sources.join(LOCK);
    let wanted = fs::read_to_string(&lock).with_context(|| format!("cannot read {}", lock.display()))?;
    let stamp = folder.join(STAMP);
    if fs::read_to_string(&stamp).is_ok_and(|made_from| made_from == wanted) {
        return Ok(());
    }
    packages(&[Package::NodeJs])?;
    step("plot library", || {
        announce("installing the page's plot library from npm");
        fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
        for file in FILES {
            let copied = fs::copy(sources.join(file), folder.join(file));
            copied.with_context(|| format!("cannot copy {file} to {}", folder.display()))?;
        }
        run_quietly(Command::new("npm").arg("ci").current_dir(folder))?;
        // The build script of memwatch detects a new library by this file's time.
        File::options().append(true).open(&lock)?.set_modified(SystemTime::now())?;
        fs::write(&stamp, &wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
        Ok("the page's plot library is there".to_owned())
    })
}
