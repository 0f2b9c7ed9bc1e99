//! Text output of `memwatch timeline`: a small curve for each number, and events.

use std::io;

use memwatch_core::features::timeline::view::{TimelineView, TrackView};
use memwatch_core::snapshot::Snapshot;

use crate::export::plot::{sentence, thinned_to};
use crate::render::Tone;
use crate::render::format::{bytes, count, duration};
use crate::render::sentences::{self, Sentence};
use crate::render::text::grid::{Align, TextGrid};
use crate::render::text::{TableOptions, TextPage};
use crate::render::wall_clock::WallClock;

const COLUMNS: [(&str, Align); 6] = [
    ("PID", Align::Right),
    ("GPU", Align::Right),
    ("WHAT", Align::Left),
    ("LAST", Align::Right),
    ("MAX", Align::Right),
    ("OVER TIME", Align::Left),
];
/// Characters of a curve, lowest first.
const BLOCKS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
const ASCII: [char; 8] = ['_', '.', ':', '-', '=', '+', '*', '#'];
const LETTERS: usize = 48;

/// Writes all numbers, and at most `top` of the latest events.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (timeline, top): (&TimelineView, usize),
    snapshot: &Snapshot,
    clock: &WallClock,
    options: &TableOptions,
) -> io::Result<()> {
    let mut page = TextPage { text: String::new(), options: *options };
    let length = timeline.last_ns.saturating_sub(timeline.begun_ns);
    let from = clock.moment(timeline.begun_ns, timeline.last_ns);
    page.line(&Sentence::new(Tone::Heading, format!("{} from {from}", duration(length))));
    let mut grid = TextGrid::new(&COLUMNS);
    for track in &timeline.tracks {
        grid.push(row(track, timeline, snapshot, options.ascii));
    }
    if timeline.tracks.is_empty() {
        page.line(&Sentence::new(Tone::Plain, "No GPU, and no process with GPU memory."));
    } else {
        page.grid(&grid);
    }
    let skipped = timeline.events.len().saturating_sub(top);
    let before = timeline.forgotten_events + skipped as u64;
    if before > 0 {
        page.line(&Sentence::new(Tone::Faint, format!("{} earlier events not shown", count(before))));
    }
    for event in timeline.events.iter().skip(skipped) {
        let tone = if event.kind == "failure" { Tone::Bad } else { Tone::Plain };
        let time = clock.time_of_day(event.time_ns);
        page.line(&Sentence::new(tone, format!("{time}  {}", sentence(event, snapshot))));
    }
    page.trust(snapshot, clock);
    out.write_all(page.text.as_bytes())?;
    out.flush()
}

fn row(track: &TrackView, timeline: &TimelineView, snapshot: &Snapshot, ascii: bool) -> Vec<String> {
    let most = track.points.iter().map(|point| point.most_bytes).max().unwrap_or(0);
    let what = match (&*track.measure, track.tgid) {
        ("used", _) => "used (NVML)",
        ("live", None) => "allocated by all traced processes",
        ("live", _) => "allocated by driver calls",
        ("reserved", _) => "reserved by PyTorch",
        ("allocated", _) => "allocated by PyTorch",
        _ => "pinned host memory",
    };
    let gpu = track.uuid.as_ref().map(|uuid| sentences::gpu_number(snapshot, Some(uuid))).unwrap_or_default();
    vec![
        track.tgid.map(|tgid| tgid.0.to_string()).unwrap_or_default(),
        gpu,
        what.to_owned(),
        track.points.last().map_or_else(String::new, |point| bytes(point.bytes)),
        bytes(most),
        curve(track, timeline, most, ascii),
    ]
}

/// Draws the maximum of each time slot; a space if there is no value.
fn curve(track: &TrackView, timeline: &TimelineView, most: u64, ascii: bool) -> String {
    let letters = if ascii { ASCII } else { BLOCKS };
    let length = timeline.last_ns.saturating_sub(timeline.begun_ns).max(1);
    let place = |time_ns: u64| {
        let passed = u128::from(time_ns.saturating_sub(timeline.begun_ns).min(length));
        usize::try_from(passed * LETTERS as u128 / u128::from(length)).unwrap_or(0).min(LETTERS - 1)
    };
    let mut line = vec![' '; LETTERS];
    let mut from = place(track.begun_ns);
    for point in thinned_to(&track.points, LETTERS) {
        let to = place(point.time_ns.saturating_sub(1));
        let highest = u128::from(most.max(1));
        let level = usize::try_from(u128::from(point.most_bytes) * 8 / highest).unwrap_or(0).min(7);
        line[from.min(to)..=to].fill(letters[level]);
        from = to + 1;
    }
    line.into_iter().collect::<String>().trim_end().to_owned()
}
