//! Text output of `memwatch report`: facts about the recording, memory by process, and call sites
//! of PyTorch programs.

use std::io;

use memwatch_core::recording::{Ending, Stopped};
use memwatch_core::snapshot::Snapshot;

use crate::commands::places::text as places;
use crate::render::format::{bytes, count, duration, printable};
use crate::render::summary;
use crate::render::text::TableOptions;
use crate::render::wall_clock::WallClock;
use crate::watch::recording::RecordingFacts;

/// Writes the report, with at most `top` rows per list.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    facts: &RecordingFacts<'_>,
    (snapshot, top): (&Snapshot, usize),
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    out.write_all(front(facts, snapshot, clock).as_bytes())?;
    out.write_all(summary::render(snapshot, clock, None).as_bytes())?;
    places::write_all(out, snapshot, top, clock, options)
}

/// Formats `job.mwr  node-7  14:02:11 to 14:05:20 (3 min)  1.3 MiB, 23,411 inputs`, how the
/// recording was made, and how it ended.
fn front(facts: &RecordingFacts<'_>, snapshot: &Snapshot, clock: &WallClock) -> String {
    let ended = match facts.ending {
        None => "read until then".to_owned(),
        Some(Ending::Whole(mark)) => match mark.stopped {
            Stopped::Asked => "stopped as requested".to_owned(),
            Stopped::NobodyLeft => "ended with its last process".to_owned(),
            Stopped::Limit => "ended when it reached --max-size".to_owned(),
        },
        Some(Ending::Cut) => "is incomplete: what its recorder had not written yet is missing".to_owned(),
        Some(Ending::Damaged { byte }) => format!("is damaged from byte {byte} on: the rest is missing"),
    };
    let path = facts.path.to_string_lossy();
    let (begin, end) = (clock.moment(snapshot.attached_ns, 0), clock.time_of_day(snapshot.time_ns));
    let took = duration(snapshot.time_ns.saturating_sub(snapshot.attached_ns));
    let words: Vec<_> = facts.front.command.iter().map(|word| printable(word)).collect();
    let kept = facts.events_since_ns.map_or_else(String::new, |since_ns| {
        let since = clock.moment(since_ns, snapshot.time_ns);
        format!("keeps the newest: events from {since} on; sums count all since {begin}\n")
    });
    let looked = facts.since_ns.map_or_else(String::new, |since_ns| {
        let since = clock.moment(since_ns, snapshot.time_ns);
        format!("from {since}: peaks, allocations and frees; calls and sums count from {begin}\n")
    });
    format!(
        "{}: {begin} to {end} ({took}) on {}, {} in {} inputs, {ended}\n{kept}{looked}made by memwatch {}: {}\n\n",
        printable(&path),
        printable(&facts.front.host),
        bytes(facts.bytes),
        count(facts.inputs),
        printable(&facts.front.version),
        words.join(" "),
    )
}
