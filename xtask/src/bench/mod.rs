//! `cargo xtask bench`: measurements that go into the documents.

mod agent;
mod crowd;
mod families;
mod fleet;
mod ledger;
mod overhead;
mod price;
mod recording;
mod report;
mod training;
mod watcher;
mod workload;

use crate::args::TaskArgs;
use crate::repo::Repo;
use anyhow::{Result, bail};

/// Document with the measurements.
const DOCUMENT: &str = "docs/project/overhead.md";

/// Runs `cargo xtask bench`.
pub(crate) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    match args.word().as_deref() {
        Some("agent") => agent::task(repo, args),
        Some("overhead") => overhead::task(repo, args),
        Some("fleet") => fleet::task(repo, args),
        Some("ledger") => ledger::task(repo, args),
        Some("families") => families::task(repo, args),
        Some("price") => price::task(repo, args),
        Some("arenas") => price::arenas(repo, args),
        Some("recording") => recording::task(repo, args),
        _ => bail!(
            "cargo xtask bench overhead [--rounds N] [--pairs N], bench families|ledger|price|arenas [--rounds N], bench recording [--steps N], \
             bench agent [--duration 60s] [--processes MOST] [--debug], or bench fleet [--nodes N] [--gpus N] [--workloads N] [--debug]"
        ),
    }
}
