//! Text output of `memwatch diff`.

use std::io;

use memwatch_core::features::diff::{DiffRow, Difference, RunSums, SumField};

use crate::commands::diff::DiffRun;
use crate::render::Tone;
use crate::render::format::{bytes, count, known, printable, signed_bytes};
use crate::render::places;
use crate::render::sentences::Sentence;
use crate::render::text::grid::{Align, TextGrid};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

/// Writes both totals, and the `top` call sites of each list with the largest changes.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (difference, top): (&Difference, usize),
    runs: [&DiffRun<'_>; 2],
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    let [before, after] = runs.map(|run| printable(&run.name).into_owned());
    page.line(&Sentence::new(Tone::Heading, format!("{before} and then {after}")));
    for (name, pair) in [("driver", &difference.driver), ("PyTorch", &difference.tensors)] {
        page.line(&Sentence::new(tone(pair), format!("  {name:<9}{}", total(pair))));
    }
    for (number, _) in runs.iter().enumerate().filter(|(_, run)| !run.snapshot.complete) {
        let which = if number == 0 { &before } else { &after };
        page.line(&Sentence::new(Tone::Warning, format!("{which}: events were dropped, its numbers may be wrong")));
    }
    list(&mut page, ("LINE", top), &difference.sites, places::site);
    list(&mut page, ("PHASE", top), &difference.phases, places::phase);
    list(&mut page, ("MODULE", top), &difference.modules, places::module);
    page.trust(&runs[1].snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

fn tone(pair: &RunSums) -> Tone {
    if pair.known_change(SumField::Peak) > Some(0) { Tone::Warning } else { Tone::Plain }
}

/// Formats `peak 1.00 GiB, then 1.20 GiB: +204.8 MiB, +20.0 %; 1,234 allocations, then 1,300`.
fn total(pair: &RunSums) -> String {
    let side = |side: SumField| [pair.before, pair.after].map(|sum| sum.map(|sum| side.of(&sum)));
    if pair.before.is_none() && pair.after.is_none() {
        return "in neither".to_owned();
    }
    let [before, after] = side(SumField::Peak).map(|value| known(value, bytes));
    let [first, second] = side(SumField::Count).map(|value| known(value, count));
    let change = changed(pair, SumField::Peak);
    format!("peak {before}, then {after}: {change}{}; {first} allocations, then {second}", percent(pair))
}

fn percent(pair: &RunSums) -> String {
    pair.growth(SumField::Peak).map_or_else(String::new, |growth| format!(", {}", part(growth)))
}

/// Formats `+12.3 %` for 0.123.
fn part(growth: f64) -> String {
    format!("{:+.1} %", growth * 100.0)
}

/// Formats `+12.0 MiB`; a number of allocations has no unit.
fn changed(pair: &RunSums, side: SumField) -> String {
    let Some(change) = pair.known_change(side) else { return "-".to_owned() };
    let sign = match change {
        0 => return "0".to_owned(),
        1.. => "+",
        _ if side == SumField::Count => "-",
        _ => "",
    };
    if side == SumField::Count {
        format!("{sign}{}", count(change.unsigned_abs()))
    } else {
        format!("{sign}{}", signed_bytes(change))
    }
}

fn list<T>(page: &mut TextPage, (title, top): (&str, usize), rows: &[DiffRow<T>], name: impl Fn(&T) -> String) {
    let has_changed =
        |row: &&DiffRow<T>| row.pair.state() != "both" || SumField::ALL.iter().any(|side| row.pair.change(*side) != 0);
    let changes: Vec<&DiffRow<T>> = rows.iter().filter(has_changed).collect();
    let same = rows.len() - changes.len();
    let columns = [
        ("", Align::Left),
        ("PEAK BEFORE", Align::Right),
        ("AFTER", Align::Right),
        ("CHANGE", Align::Right),
        ("PART", Align::Right),
        ("ALLOCATED", Align::Right),
        ("TOTAL ALLOCATED", Align::Right),
        ("COUNT", Align::Right),
        (title, Align::Left),
    ];
    let mut grid = TextGrid::new(&columns);
    for row in changes.iter().take(top) {
        let peak = |sum: Option<memwatch_core::snapshot::SumView>| known(sum, |sum| bytes(sum.peak_bytes));
        let state = row.pair.state();
        grid.push(vec![
            if state == "both" { String::new() } else { state.to_owned() },
            peak(row.pair.before),
            peak(row.pair.after),
            changed(&row.pair, SumField::Peak),
            known(row.pair.growth(SumField::Peak), part),
            changed(&row.pair, SumField::Live),
            changed(&row.pair, SumField::Total),
            changed(&row.pair, SumField::Count),
            name(&row.place),
        ]);
    }
    if !changes.is_empty() {
        page.grid(&grid);
    }
    let more = changes.len().saturating_sub(top);
    let mut rest = Vec::new();
    if more > 0 {
        rest.push(format!("{} more have changed", count(more as u64)));
    }
    if same > 0 {
        rest.push(format!("{} are the same", count(same as u64)));
    }
    if !rest.is_empty() {
        page.line(&Sentence::new(Tone::Faint, format!("{}: {}", title.to_lowercase(), rest.join(", "))));
    }
}
