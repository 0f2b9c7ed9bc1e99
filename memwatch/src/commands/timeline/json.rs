//! `memwatch timeline` in JSON: points of each number, and what happened.

use std::io;

use memwatch_core::features::timeline::view::{EventView, TimelineView, TrackView};
use memwatch_core::snapshot::{Snapshot, WhoseView};
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use crate::export::plot::thinned_to;
use crate::render::json::{Origin, write_report};
use crate::render::wall_clock::WallClock;

/// Writes the report as one line, with so many points of each number at most.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    (timeline, points): (&TimelineView, usize),
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    let clock = origin.clock;
    let data = Data {
        interval_seconds: seconds(timeline.interval_ns),
        begin_time: clock.rfc3339(timeline.begun_ns),
        end_time: clock.rfc3339(timeline.last_ns),
        tracks: timeline.tracks.iter().map(|track| track_json(track, points, timeline, clock)).collect(),
        events: timeline.events.iter().map(|event| event_json(event, timeline, clock)).collect(),
        forgotten_events: timeline.forgotten_events,
        spans: timeline
            .spans
            .iter()
            .map(|span| SpanJson {
                tgid: span.tgid.0,
                kind: &span.kind,
                name: &span.name,
                begin_seconds: since(timeline, span.begun_ns),
                end_seconds: since(timeline, span.last_ns),
            })
            .collect(),
        forgotten_spans: timeline.forgotten_spans,
    };
    write_report(out, "memwatch.timeline/2", data, snapshot, origin)
}

#[derive(Serialize)]
struct Data<'a> {
    interval_seconds: f64,
    begin_time: String,
    end_time: String,
    tracks: Vec<TrackJson<'a>>,
    events: Vec<EventJson<'a>>,
    forgotten_events: u64,
    spans: Vec<SpanJson<'a>>,
    forgotten_spans: u64,
}

#[derive(Serialize)]
struct TrackJson<'a> {
    #[serde(rename = "pid")]
    tgid: Option<u32>,
    comm: Option<&'a str>,
    command: Option<&'a str>,
    observed_since: Option<String>,
    uuid: Option<&'a str>,
    measure: &'a str,
    /// Between two looks, only the looks are known.
    sampled: bool,
    points: Vec<PointJson>,
}

/// Seconds since the beginning, what it was, and the most it was since the point before.
#[derive(Serialize)]
struct PointJson {
    seconds: f64,
    bytes: u64,
    most_bytes: u64,
}

#[derive(Serialize)]
struct EventJson<'a> {
    time: String,
    seconds: f64,
    kind: &'a str,
    #[serde(rename = "pid")]
    tgid: Option<u32>,
    uuid: Option<&'a str>,
    bytes: Option<u64>,
    level: Option<&'a str>,
    symbol: Option<&'a str>,
    whose: Option<&'a WhoseView>,
}

#[derive(Serialize)]
struct SpanJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    kind: &'a str,
    name: &'a str,
    begin_seconds: f64,
    end_seconds: f64,
}

fn track_json<'a>(track: &'a TrackView, points: usize, timeline: &TimelineView, clock: &WallClock) -> TrackJson<'a> {
    let is_process = track.tgid.is_some();
    let point = |point: memwatch_core::features::timeline::view::PointView| PointJson {
        seconds: since(timeline, point.time_ns),
        bytes: point.bytes,
        most_bytes: point.most_bytes,
    };
    TrackJson {
        tgid: track.tgid.map(|tgid| tgid.0),
        comm: is_process.then_some(&*track.comm),
        command: is_process.then_some(&*track.command),
        observed_since: track.observed_since_ns.map(|time_ns| clock.rfc3339(time_ns)),
        uuid: track.uuid.as_ref().map(GpuUuid::as_str),
        measure: &track.measure,
        sampled: track.measure == "used",
        points: thinned_to(&track.points, points).into_iter().map(point).collect(),
    }
}

fn event_json<'a>(event: &'a EventView, timeline: &TimelineView, clock: &WallClock) -> EventJson<'a> {
    EventJson {
        time: clock.rfc3339(event.time_ns),
        seconds: since(timeline, event.time_ns),
        kind: &event.kind,
        tgid: event.tgid.map(|tgid| tgid.0),
        uuid: event.uuid.as_ref().map(GpuUuid::as_str),
        bytes: event.bytes,
        level: event.level.as_deref(),
        symbol: event.symbol.as_deref(),
        whose: event.whose.as_ref(),
    }
}

/// Since the beginning; what is older is below 0.
#[expect(clippy::cast_precision_loss, reason = "a time needs no sixteen digits")]
fn since(timeline: &TimelineView, time_ns: u64) -> f64 {
    time_ns.wrapping_sub(timeline.begun_ns).cast_signed() as f64 / 1e9
}

#[expect(clippy::cast_precision_loss, reason = "a time needs no sixteen digits")]
fn seconds(time_ns: u64) -> f64 {
    time_ns as f64 / 1e9
}
