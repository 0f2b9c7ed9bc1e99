//! Text output of `memwatch simulate`.

use std::io;

use memwatch_core::features::simulate::view::{PolicyView, PredictedFailureView, SimulationView};
use memwatch_core::snapshot::Snapshot;

use crate::commands::simulate::words::{advice, change, name};
use crate::render::Tone;
use crate::render::format::{UNKNOWN, bytes, count, known, percent};
use crate::render::sentences::{self, Sentence};
use crate::render::text::grid::{Align, TextGrid};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

const COLUMNS: [(&str, Align); 10] = [
    ("PEAK", Align::Right),
    ("CHANGE", Align::Right),
    ("CACHED AT PEAK", Align::Right),
    ("AT END", Align::Right),
    ("LARGEST FREE BLOCK", Align::Right),
    ("CACHE HITS", Align::Right),
    ("DRIVER CALLS", Align::Right),
    ("RETRIES", Align::Right),
    ("FAILED", Align::Right),
    ("SETTING", Align::Left),
];

/// Writes the predicted memory of each setting.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (simulations, capacity_bytes): (&[SimulationView], Option<u64>),
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    for view in simulations {
        page.line(&Sentence::new(Tone::Heading, heading(view, capacity_bytes, snapshot)));
        if view.traced {
            let mut grid = TextGrid::new(&COLUMNS);
            grid.push(measured(view));
            for policy in &view.policies {
                grid.push(row(view, policy));
            }
            page.grid(&grid);
        }
        for policy in &view.policies {
            if let Some(failure) = &policy.failure {
                page.line(&Sentence::new(Tone::Bad, failed(policy, failure, clock)));
            }
        }
        for sentence in advice(view) {
            page.line(&Sentence::new(Tone::Plain, format!("so  {sentence}")));
        }
    }
    if simulations.is_empty() {
        page.line(&Sentence::new(Tone::Plain, "No PyTorch process allocated anything."));
    }
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

/// Formats `PID 1234  train.py on GPU 0: 23,184 requests and frees replayed, on a card of 24.00
/// GiB, 23.50 GiB of it for PyTorch`.
fn heading(view: &SimulationView, capacity_bytes: Option<u64>, snapshot: &Snapshot) -> String {
    let process = snapshot.process(view.tgid, view.observed_since_ns);
    let command = process.map(sentences::short_command).unwrap_or_default();
    let gpu = sentences::gpu_number(snapshot, view.uuid.as_ref());
    let available = known(view.available_bytes, bytes);
    let card = capacity_bytes.map_or_else(String::new, |capacity| {
        format!(", on a card of {}, {available} of it for PyTorch", bytes(capacity))
    });
    let operations = count(view.operations);
    format!("PID {}  {command} on GPU {gpu}: {operations} requests and frees replayed{card}", view.tgid.0)
}

fn measured(view: &SimulationView) -> Vec<String> {
    let own = &view.measured;
    vec![
        bytes(own.peak_reserved_bytes),
        String::new(),
        bytes(own.peak_reserved_bytes.saturating_sub(own.allocated_at_peak_bytes)),
        bytes(own.reserved_bytes),
        UNKNOWN.to_owned(),
        percent(own.hits, own.hits + own.misses),
        count(own.driver_allocations + own.driver_frees),
        count(own.retries),
        count(own.refused),
        "as it ran (measured)".to_owned(),
    ]
}

fn row(view: &SimulationView, policy: &PolicyView) -> Vec<String> {
    let at_least = if policy.begins_otherwise { "≥" } else { "" };
    vec![
        format!("{at_least}{}", bytes(policy.peak_reserved_bytes)),
        known(change(view, policy), |part| format!("{:+.1} %", part * 100.0)),
        bytes(policy.peak_reserved_bytes.saturating_sub(policy.allocated_at_peak_bytes)),
        format!("{at_least}{}", bytes(policy.reserved_bytes)),
        bytes(policy.largest_free_bytes),
        percent(policy.hits, policy.hits + policy.misses),
        count(policy.driver_allocations + policy.driver_frees),
        count(policy.retries),
        count(policy.refused + u64::from(policy.failure.is_some())),
        name(policy),
    ]
}

/// Formats `out of memory at 14:05:20 with …: requested 512.0 MiB, reserved 23.40 GiB, allocated
/// 20.10 GiB; the replay ends there`.
fn failed(policy: &PolicyView, failure: &PredictedFailureView, clock: &WallClock) -> String {
    format!(
        "out of memory at {} with {}: requested {}, reserved {}, allocated {}; the replay ends there",
        clock.time_of_day(failure.time_ns),
        name(policy),
        bytes(failure.wanted_bytes),
        bytes(failure.reserved_bytes),
        bytes(failure.allocated_bytes),
    )
}

#[cfg(test)]
mod tests;
