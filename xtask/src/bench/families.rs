//! `cargo xtask bench families`: measures the time of a call of each family, with and without
//! memwatch.

use super::DOCUMENT;
use super::report::{FAMILIES, Measurement};
use super::watcher::{Watcher, WatcherMode};
use super::workload::BenchWorkload;
use crate::args::TaskArgs;
use crate::binary;
use crate::document;
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::setup;
use crate::table::MarkdownTable;
use anyhow::{Context as _, Result, bail};

const ROUNDS: u64 = 7;
const TURNS: u64 = 20_000;

/// Loop of the workload program, and the title of its row.
const LOOPS: &[(&str, &str)] = &[
    ("cuMemAlloc", "linear: `cuMemAlloc_v2`, `cuMemFree_v2`"),
    ("cuMemHostAlloc", "pinned: `cuMemHostAlloc`, `cuMemFreeHost`"),
    ("cuMemAllocAsync", "pool: `cuMemAllocAsync`, `cuMemFreeAsync`"),
    ("cuMemCreate", "physical: `cuMemCreate`, `cuMemRelease`"),
    ("cuMemMap", "mapping: `cuMemMap`, `cuMemUnmap`"),
    ("cuArray3DCreate", "array: `cuArray3DCreate_v2`, `cuArrayDestroy`"),
    ("cuIpcGetMemHandle", "shared by handle: `cuIpcGetMemHandle` (64 bytes digested)"),
    ("cuMemExportToShareableHandle", "shared by file: `cuMemExportToShareableHandle`"),
    ("cuCtxSetCurrent", "context: `cuCtxSetCurrent`"),
];

/// Builds everything, measures, prints the table and writes it into the document.
pub(super) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let rounds = args.count("--rounds")?.unwrap_or(ROUNDS);
    args.finish()?;
    if rounds == 0 {
        bail!("--rounds is at least 1");
    }
    if !setup::is_root() {
        bail!("uprobes need root: sudo --preserve-env=PATH,HOME cargo xtask bench families");
    }
    let memwatch = binary::build(repo, BuildProfile::Release)?;
    integration::build_simulators(repo)?;
    let driver = integration::simulator(repo, Prologue::Cmp);
    let mut workload = BenchWorkload::start(&driver)?;
    let shape = "cmp first";
    let mut rows: Vec<[Measurement; 2]> = LOOPS
        .iter()
        .map(|_| [WatcherMode::None, WatcherMode::Memwatch].map(|mode| Measurement::new(shape, mode)))
        .collect();
    for round in 1..=rounds {
        for which in 0..2 {
            let mode = rows[0][which].mode;
            let watcher = mode.attach(&memwatch, &driver, &workload).context(mode.title())?;
            for ((function, _), row) in LOOPS.iter().zip(&mut rows) {
                workload.time_loop(function, TURNS.div_ceil(10))?;
                row[which].per_call_ns.push(workload.time_loop(function, TURNS)?.per_call_ns());
            }
            watcher.map(Watcher::detach).transpose().context(mode.title())?;
        }
        eprintln!("round {round} of {rounds}");
    }
    let text = format!("{}.\n{}", document::machine()?, text(&rows, rounds));
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &FAMILIES, &text)
}

fn text(rows: &[[Measurement; 2]], rounds: u64) -> String {
    let mut table =
        MarkdownTable::new(&["family", "no probe (median)", "memwatch (median)", "added (min)", "added (median)"]);
    for ((_, name), [unwatched, watched]) in LOOPS.iter().zip(rows) {
        table.row(vec![
            (*name).to_owned(),
            format!("{:.0}", unwatched.median()),
            format!("{:.0}", watched.median()),
            format!("{:.0}", watched.minimum() - unwatched.minimum()),
            format!("{:.0}", watched.median() - unwatched.median()),
        ]);
    }
    format!("{rounds} rounds of {TURNS} turns of each; nanoseconds per call.\n\n{}", table.text())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn added_time_is_the_difference_of_the_two_modes() {
        let measured = |mode, ns: f64| Measurement { per_call_ns: vec![ns], ..Measurement::new("cmp first", mode) };
        let rows: Vec<_> = LOOPS
            .iter()
            .map(|_| [measured(WatcherMode::None, 200.0), measured(WatcherMode::Memwatch, 1500.0)])
            .collect();
        let text = text(&rows, 1);
        assert_eq!(text.matches("1300").count(), 2 * LOOPS.len(), "{text}");
    }
}
