//! Text output of `memwatch report`: facts about the recording, a summary of each process, and the
//! sections one below the other.

use std::io;

use memwatch_core::recording::{Ending, Stopped};
use memwatch_core::snapshot::Snapshot;

use crate::commands::fragment::text as fragments;
use crate::commands::leak::text as leaks;
use crate::commands::oom::{forecast_text as forecast, text as oom};
use crate::commands::places::text as places;
use crate::commands::report::sections::Finding;
use crate::commands::report::{churn_text as churn, profile_text as profile};
use crate::render::Tone;
use crate::render::format::{bytes, count, duration, printable};
use crate::render::sentences::Sentence;
use crate::render::summary;
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;
use crate::watch::recording::RecordingFacts;

/// Writes facts about the recording, if it is one, a summary of each process and each section with
/// at most `top` rows per list.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (facts, sections): (Option<&RecordingFacts<'_>>, &[(&'static str, Finding)]),
    (snapshot, top): (&Snapshot, usize),
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    if let Some(facts) = facts {
        out.write_all(front(facts, snapshot, clock).as_bytes())?;
    }
    out.write_all(summary::processes(snapshot, clock).as_bytes())?;
    for (name, finding) in sections {
        let mut page = TextPage { text: String::new(), options: *options };
        match finding {
            Finding::Where => places::section(&mut page, snapshot, top, clock),
            Finding::Ooms(found) => oom::section(&mut page, found, clock),
            Finding::Leaks(found) => leaks::section(&mut page, (found, top), snapshot),
            Finding::Forecasts(found) => forecast::show(&mut page, (found, &[]), snapshot, clock),
            Finding::Fragments(found) => fragments::section(&mut page, (found, top), snapshot, clock),
            Finding::Profile(found) => profile::section(&mut page, found, snapshot, clock),
            Finding::Churn(found) => churn::section(&mut page, found, top),
        }
        if !page.text.is_empty() {
            let mut heading = TextPage { text: "\n".to_owned(), options: *options };
            heading.line(&Sentence::new(Tone::Heading, name.to_uppercase()));
            out.write_all(heading.text.as_bytes())?;
            out.write_all(page.text.as_bytes())?;
        }
    }
    out.flush()
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
