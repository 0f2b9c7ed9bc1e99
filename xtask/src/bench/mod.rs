//! `cargo xtask bench`: measurements that go into the documents.

mod overhead;
mod report;
mod watcher;
mod workload;

use crate::args::Args;
use crate::repo::Repo;
use anyhow::{Result, bail};

/// `cargo xtask bench overhead`.
pub(crate) fn task(repo: &Repo, mut args: Args) -> Result<()> {
    match args.word().as_deref() {
        Some("overhead") => overhead::task(repo, args),
        _ => bail!("there is one benchmark: cargo xtask bench overhead [--rounds N] [--pairs N]"),
    }
}
