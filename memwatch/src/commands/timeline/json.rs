//! JSON output of `memwatch timeline`: points of each number and events, in seconds since the
//! beginning of the timeline.

use std::io;

use memwatch_core::features::timeline::view::{EventView, PointView, SpanView, TimelineView, TrackView};
use memwatch_core::snapshot::Snapshot;
use serde::Serialize;

use crate::export::plot::thinned_to;
use crate::render::json::{ReportOrigin, write_report};

/// Writes the report as one line, with at most `points` points per number.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (timeline, points): (&TimelineView, usize),
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    let since = |time_ns| since(timeline, time_ns);
    let data = TimelineData {
        view: timeline,
        tracks: timeline.tracks.iter().map(|view| track(view, points, since)).collect(),
        events: timeline.events.iter().map(|view| TimelineEventData { view, seconds: since(view.time_ns) }).collect(),
        spans: timeline.spans.iter().map(|view| span(view, since)).collect(),
    };
    write_report(out, "memwatch.timeline/3", data, snapshot, origin)
}

#[derive(Serialize)]
struct TimelineData<'a> {
    #[serde(flatten)]
    view: &'a TimelineView,
    tracks: Vec<TimelineSeriesData<'a>>,
    events: Vec<TimelineEventData<'a>>,
    spans: Vec<TimelineSpanData<'a>>,
}

#[derive(Serialize)]
struct TimelineSeriesData<'a> {
    #[serde(flatten)]
    view: &'a TrackView,
    /// `null` for a number of a GPU.
    comm: Option<&'a str>,
    command: Option<&'a str>,
    /// Whether the number is known only at its polls.
    sampled: bool,
    points: Vec<TimelinePoint>,
}

#[derive(Serialize)]
struct TimelinePoint {
    seconds: f64,
    #[serde(flatten)]
    view: PointView,
}

#[derive(Serialize)]
struct TimelineEventData<'a> {
    #[serde(flatten)]
    view: &'a EventView,
    seconds: f64,
}

#[derive(Serialize)]
struct TimelineSpanData<'a> {
    #[serde(flatten)]
    view: &'a SpanView,
    begin_seconds: f64,
    end_seconds: f64,
}

fn track(view: &TrackView, points: usize, since: impl Fn(u64) -> f64) -> TimelineSeriesData<'_> {
    let is_process = view.tgid.is_some();
    let point = |view: PointView| TimelinePoint { seconds: since(view.time_ns), view };
    TimelineSeriesData {
        view,
        comm: is_process.then_some(&*view.comm),
        command: is_process.then_some(&*view.command),
        sampled: view.measure == "used",
        points: thinned_to(&view.points, points).into_iter().map(point).collect(),
    }
}

fn span(view: &SpanView, since: impl Fn(u64) -> f64) -> TimelineSpanData<'_> {
    TimelineSpanData { view, begin_seconds: since(view.begun_ns), end_seconds: since(view.last_ns) }
}

/// Returns the seconds since the beginning; negative for earlier times.
#[expect(clippy::cast_precision_loss, reason = "a time needs no sixteen digits")]
fn since(timeline: &TimelineView, time_ns: u64) -> f64 {
    time_ns.wrapping_sub(timeline.begun_ns).cast_signed() as f64 / 1e9
}
