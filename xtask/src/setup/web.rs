//! The plot library of the agent's page, from npm, by the lock file in the tree: its script becomes a part of memwatch.

use super::{Package, announce, packages, step};
use crate::repo::Repo;
use crate::run::run_quietly;
use anyhow::{Context as _, Result};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::SystemTime;

/// What npm reads; the lock file names versions and digests, and no place to take them from.
const FILES: [&str; 3] = ["package.json", LOCK, ".npmrc"];
const LOCK: &str = "package-lock.json";
/// Written last: a folder with another one is of another lock file, or half made.
const STAMP: &str = ".memwatch-complete";

/// Installs it below `target/web`, or says that memwatch's page will have no plots.
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
        // Whoever compiles memwatch looks at this file's time to see that there is another library.
        File::options().append(true).open(&lock)?.set_modified(SystemTime::now())?;
        fs::write(&stamp, &wanted).with_context(|| format!("cannot write {}", stamp.display()))?;
        Ok("the page's plot library is there".to_owned())
    })
}
