//! CSV (RFC 4180, UTF-8): one row per line of code, or per point of a timeline. Column names
//! contain the units; unknown values are empty.

use memwatch_core::features::timeline::view::{PointView, TimelineView, TrackView};
use memwatch_core::snapshot::SiteView;

use super::{CallPathProfile, ProfilePart};
use crate::render::format::printable;
use crate::render::places;
use crate::render::wall_clock::WallClock;

/// Columns of the table of code lines.
const COLUMNS: [&str; 17] = [
    "pid",
    "command",
    "gpu",
    "gpu_uuid",
    "kind",
    "call_site",
    "file",
    "line",
    "function",
    "allocated_bytes",
    "at_peak_bytes",
    "peak_bytes",
    "total_bytes",
    "allocations",
    "frees",
    "mean_lifetime_seconds",
    "longest_lifetime_seconds",
];

/// Columns of a timeline, the same as in its Parquet file.
const POINTS: [&str; 7] = ["time", "pid", "command", "gpu_uuid", "measure", "bytes", "most_bytes"];

/// Writes the lines of code of all parts, in the order of `memwatch where`.
pub(crate) fn write(profile: &CallPathProfile) -> String {
    let mut text = COLUMNS.join(",") + "\r\n";
    for part in &profile.parts {
        for site in &part.sites {
            text.push_str(&row(part, site).join(","));
            text.push_str("\r\n");
        }
    }
    text
}

fn row(part: &ProfilePart, site: &SiteView) -> [String; COLUMNS.len()] {
    let words = |words: &Option<String>| words.as_deref().map_or_else(String::new, quoted);
    let seconds = |time_ns: Option<u64>| {
        time_ns
            .map_or_else(String::new, |time_ns| format!("{}.{:09}", time_ns / 1_000_000_000, time_ns % 1_000_000_000))
    };
    let sum = &site.sum;
    [
        part.tgid.to_string(),
        quoted(&part.program),
        quoted(&part.gpu),
        words(&part.uuid),
        quoted(&site.kind),
        quoted(&places::site(site)),
        words(&site.file),
        site.line.map_or_else(String::new, |line| line.to_string()),
        words(&site.function),
        sum.live_bytes.to_string(),
        sum.at_peak_bytes.to_string(),
        sum.peak_bytes.to_string(),
        sum.total_bytes.to_string(),
        sum.allocations.to_string(),
        sum.frees.to_string(),
        seconds(sum.mean_lifetime_ns),
        seconds(sum.longest_lifetime_ns),
    ]
}

/// Writes the points of a timeline, one per row.
pub(crate) fn timeline(timeline: &TimelineView, clock: &WallClock) -> String {
    let mut text = POINTS.join(",") + "\r\n";
    for track in &timeline.tracks {
        for point in &track.points {
            text.push_str(&point_row(track, *point, clock).join(","));
            text.push_str("\r\n");
        }
    }
    text
}

fn point_row(track: &TrackView, point: PointView, clock: &WallClock) -> [String; POINTS.len()] {
    [
        clock.rfc3339(point.time_ns),
        track.tgid.map_or_else(String::new, |tgid| tgid.0.to_string()),
        track.tgid.map_or_else(String::new, |_| quoted(&track.command)),
        track.uuid.as_ref().map_or_else(String::new, ToString::to_string),
        track.measure.to_string(),
        point.bytes.to_string(),
        point.most_bytes.to_string(),
    ]
}

/// Quotes a text. A text that a spreadsheet would interpret as a formula gets a leading `'`, the
/// usual escape in spreadsheets.
pub(crate) fn quoted(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@']);
    format!("\"{}{}\"", if is_formula { "'" } else { "" }, printable(text).replace('"', "\"\""))
}
