//! Self-contained HTML page: the plot, the values at the pointer, and a list of events. Nothing is
//! loaded from a network.

use std::io;

use memwatch_core::features::timeline::view::PointView;
use serde::Serialize;

use super::Plot;
use super::svg::{self, escape};
use crate::printable::write_json;

/// HTML template with placeholders.
const PAGE: &str = include_str!("plot.html");
/// Maximum number of events on the page. The last ones are kept.
const ROWS: usize = 500;

#[derive(Serialize)]
struct PlotPageData<'a> {
    /// Time of day at the beginning, in seconds since midnight.
    begun_of_day: f64,
    last_ns: u64,
    width: f64,
    left: f64,
    right: f64,
    panels: Vec<PanelData<'a>>,
}

#[derive(Serialize)]
struct PanelData<'a> {
    title: &'a str,
    lines: Vec<LineData<'a>>,
}

/// Label, and points: time since the beginning in nanoseconds, bytes, and maximum bytes since the
/// previous point.
#[derive(Serialize)]
struct LineData<'a>(&'a str, Vec<[u64; 3]>);

/// Writes the page.
///
/// # Errors
/// If the serializer fails.
pub(crate) fn write(plot: &Plot) -> io::Result<Vec<u8>> {
    let point = |point: &PointView| [point.time_ns.saturating_sub(plot.begun_ns), point.bytes, point.most_bytes];
    let panels = plot.panels.iter().map(|panel| PanelData {
        title: &panel.title,
        lines: panel
            .lines
            .iter()
            .map(|line| LineData(line.measure.1, line.points.iter().map(point).collect()))
            .collect(),
    });
    let data = PlotPageData {
        begun_of_day: plot.clock.seconds_of_day(plot.begun_ns),
        last_ns: plot.last_ns - plot.begun_ns,
        width: svg::WIDTH,
        left: svg::LEFT,
        right: svg::RIGHT,
        panels: panels.collect(),
    };
    let mut json = Vec::new();
    write_json(&mut json, &data)?;
    let json = String::from_utf8(json).map_err(io::Error::other)?;
    let skipped = plot.reported.len().saturating_sub(ROWS);
    let reported: Vec<String> =
        plot.reported.iter().skip(skipped).map(|row| format!("<li>{}</li>", escape(row))).collect();
    let mut rows = reported.join("\n");
    if skipped > 0 {
        rows.insert_str(0, &format!("<li>{skipped} more before these</li>"));
    }
    if rows.is_empty() {
        rows.push_str("<li>nothing</li>");
    }
    // JSON contains `<` only within strings. The HTML parser ends a script at the first `</script`.
    let parts = [("\"DATA\"", json.replace('<', "\\u003c")), ("<!--ROWS-->", rows), ("<!--PICTURE-->", plot.svg())];
    let page = parts.into_iter().fold(PAGE.to_owned(), |page, (hole, text)| page.replacen(hole, &text, 1));
    Ok(page.into_bytes())
}
