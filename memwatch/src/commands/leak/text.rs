//! `memwatch leak` as text.

use std::io;

use memwatch_core::features::leak::view::{LeakView, LeaksView};
use memwatch_core::snapshot::Snapshot;

use crate::commands::leak::words::{by_age, reason};
use crate::render::Tone;
use crate::render::format::{bytes, count, duration, percent_of_one, rate_per_minute};
use crate::render::places;
use crate::render::sentences::{self, Sentence};
use crate::render::text::grid::{Align, Grid};
use crate::render::text::{Page, TableOptions};
use crate::render::wall_clock::WallClock;

const COLUMNS: [(&str, Align); 7] = [
    ("VERDICT", Align::Left),
    ("PER MINUTE", Align::Right),
    ("RECENT RATE", Align::Right),
    ("BASELINE AT START", Align::Right),
    ("BASELINE NOW", Align::Right),
    ("CONFIDENCE", Align::Right),
    ("WHERE", Align::Left),
];

/// Writes the verdict on each process, and the places that grow or have grown, so many at most.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    (leaks, top): (&[LeaksView], usize),
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = Page { text: String::new(), options: *options };
    section(&mut page, (leaks, top), snapshot);
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

/// The same within another report.
pub(crate) fn section(page: &mut Page, (leaks, top): (&[LeaksView], usize), snapshot: &Snapshot) {
    for process in leaks {
        let (tone, text) = heading(process, snapshot);
        page.line(&Sentence::new(tone, text));
        let rows: Vec<&LeakView> = process.findings.iter().filter(|finding| finding.verdict != "steady").collect();
        if !rows.is_empty() {
            let mut grid = Grid::new(&COLUMNS);
            for finding in rows.iter().take(top) {
                grid.push(row(snapshot, finding));
            }
            page.grid(&grid);
            let grow = |finding: &&&LeakView| finding.verdict == "leak" || finding.verdict == "slow";
            for finding in rows.iter().take(top).filter(grow) {
                let why = [Some(reason(finding)), by_age(finding)].into_iter().flatten().collect::<Vec<_>>().join("; ");
                page.line(&Sentence::new(Tone::Plain, format!("why {}: {why}", place(snapshot, finding))));
            }
        }
        if rows.len() > top {
            page.line(&Sentence::new(Tone::Faint, format!("and {} more", count((rows.len() - top) as u64))));
        }
    }
    if leaks.is_empty() {
        page.line(&Sentence::new(Tone::Plain, "No process with GPU memory."));
    }
}

/// `PID 1234  train.py: 1 leak, 0 slow, 3 levelled off, 12 steady; 2 places seen too short; 58 windows in 60 s`.
fn heading(process: &LeaksView, snapshot: &Snapshot) -> (Tone, String) {
    let of = |verdict: &str| process.findings.iter().filter(|finding| finding.verdict == verdict).count() as u64;
    let leaks = of("leak");
    let watched = snapshot.time_ns.saturating_sub(process.observed_since_ns);
    let windows = process.windows.map(|windows| format!("{} windows in ", count(windows))).unwrap_or_default();
    let view = snapshot.process(process.tgid, process.observed_since_ns);
    let command = view.map(sentences::short_command).unwrap_or_default();
    let verdicts = if process.findings.is_empty() {
        "too little data: watch longer, with --duration".to_owned()
    } else {
        format!(
            "{} leaking, {} slowly, {} levelled off, {} steady, {} with too little data",
            count(leaks),
            count(of("slow")),
            count(of("levelled_off")),
            count(of("steady")),
            count(process.too_short),
        )
    };
    let tone = if leaks > 0 { Tone::Bad } else { Tone::Heading };
    let text = format!("PID {}  {}: {verdicts}; {windows}{}", process.tgid.0, command, duration(watched));
    (tone, text)
}

fn row(snapshot: &Snapshot, finding: &LeakView) -> Vec<String> {
    vec![
        finding.verdict.replace('_', " "),
        rate_per_minute(finding.bytes_per_minute),
        rate_per_minute(finding.late_bytes_per_minute),
        bytes(finding.first_bytes),
        bytes(finding.last_bytes),
        percent_of_one(1.0 - finding.p),
        place(snapshot, finding),
    ]
}

/// `GPU 0: train.py:12 main`, `GPU 0: driver`, `pinned host memory`.
fn place(snapshot: &Snapshot, finding: &LeakView) -> String {
    let gpu = sentences::gpu_number(snapshot, finding.uuid.as_ref());
    match &*finding.level {
        "pinned_host" => "pinned host memory".to_owned(),
        _ => format!("GPU {gpu}: {}", places::leak(finding).unwrap_or_else(|| "memory of the driver".to_owned())),
    }
}

#[cfg(test)]
mod tests;
