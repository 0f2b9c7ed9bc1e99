//! `cargo xtask bench tensors`: what a step of training costs while somebody watches each tensor of it.
//!
//! A small model whose kernels take no time: the step is as fast as the processor lets it be, the worst case for any watcher. All modes take turns
//! within one run of one program.

use super::DOCUMENT;
use super::report::TENSORS;
use super::training::{Measured, Mode, Tools, Training, VERSION, in_turns, least, middle};
use crate::args::Args;
use crate::document;
use crate::repo::Repo;
use crate::table::Table;
use anyhow::Result;
use std::fmt::Write as _;
use std::process::Command;

const ROUNDS: u64 = 5;
const STEPS: u64 = 200;

const MODES: [Mode; 9] = [
    Mode::Nobody,
    Mode::Memwatch(&["--tensors=off"]),
    Mode::Memwatch(&["--tensors=blocks"]),
    Mode::Memwatch(&["--tensors=sites"]),
    Mode::Memwatch(&["--tensors=layers"]),
    Mode::Places("sites"),
    Mode::Places("layers"),
    Mode::History,
    Mode::Count,
];

/// Builds everything, measures, prints the table and writes it into docs/overhead.md.
pub(super) fn task(repo: &Repo, mut args: Args) -> Result<()> {
    let rounds = args.count("--rounds")?.unwrap_or(ROUNDS);
    args.finish()?;
    let tools = Tools::build(repo, "tensors")?;
    let mut training = Training::start(repo, &tools.driver, &[])?;
    let measured = in_turns(&mut training, &tools, &MODES, (rounds, STEPS))?;
    let text = text(&measured, rounds)?;
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &TENSORS, &text)
}

fn text(measured: &[Measured], rounds: u64) -> Result<String> {
    let events_per_step = measured[0].events_per_step;
    let bpftrace = crate::run::first_line(Command::new("bpftrace").arg("--version"))?;
    let mut text = format!("{}, PyTorch {VERSION}, {bpftrace}.\n", document::machine()?);
    write!(
        text,
        "{rounds} rounds of {STEPS} steps, {events_per_step:.0} tensors granted or taken back in each; milliseconds per step.\n\n"
    )?;
    let mut table = Table::new(&["watched by", "shortest", "median", "added", "added %", "ns per tensor event"]);
    let (base_least, base) = (least(&measured[0].shortest_ns), middle(&measured[0].median_ns));
    for measured in measured {
        let (shortest, median) = (least(&measured.shortest_ns), middle(&measured.median_ns));
        let added = |of: String| if measured.mode == Mode::Nobody { String::new() } else { of };
        table.row(vec![
            measured.mode.title(),
            format!("{:.2}", shortest / 1e6),
            format!("{:.2}", median / 1e6),
            added(format!("{:.2}", (median - base) / 1e6)),
            added(format!("{:.0}", 100.0 * (median - base) / base)),
            added(format!("{:.0}", (shortest - base_least) / events_per_step)),
        ]);
    }
    text.push_str(&table.text());
    Ok(text)
}
