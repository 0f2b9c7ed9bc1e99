//! Renders a plot as SVG: values are steps over a common time axis.
#![expect(clippy::cast_precision_loss, reason = "a place on a picture needs no sixteen digits")]

use std::fmt::Write as _;

use memwatch_core::features::timeline::view::PointView;

use super::{MEASURES, MarkKind, Panel, Plot, PlotLine, PlotMark};
use crate::render::format::{bytes, duration};

pub(crate) const WIDTH: f64 = 1000.0;
/// Left and right margins of the time axis.
pub(crate) const LEFT: f64 = 90.0;
pub(crate) const RIGHT: f64 = 20.0;
const TITLE: f64 = 26.0;
const HEIGHT: f64 = 150.0;
const BELOW: f64 = 26.0;
const SECOND_NS: u64 = 1_000_000_000;
/// Candidate distances of grid lines on the time axis, in nanoseconds. The first one that gives at
/// most [`MOST_LINES`] is used.
const STEPS_NS: [u64; 20] = [
    1_000_000,
    10_000_000,
    100_000_000,
    200_000_000,
    500_000_000,
    1_000_000_000,
    2_000_000_000,
    5_000_000_000,
    10_000_000_000,
    30_000_000_000,
    60_000_000_000,
    120_000_000_000,
    300_000_000_000,
    600_000_000_000,
    1_800_000_000_000,
    3_600_000_000_000,
    7_200_000_000_000,
    21_600_000_000_000,
    86_400_000_000_000,
    604_800_000_000_000,
];
const MOST_LINES: u64 = 12;

/// Styles for light and dark mode.
pub(crate) const STYLE: &str = "\
:root{color-scheme:light dark;--page:#fff;--text:#1b1f24;--faint:#57606a;--grid:#d8dee4;--used:#6e7781;--live:#0969da;\
--reserved:#bc4c00;--allocated:#1a7f37;--pinned:#8250df;--bad:#cf222e}\
@media (prefers-color-scheme:dark){:root{--page:#0f1318;--text:#e4e9ef;--faint:#9aa5b1;--grid:#2b333d;--used:#9aa5b1;--live:#58a6ff;\
--reserved:#f0883e;--allocated:#56d364;--pinned:#bc8cff;--bad:#ff7b72}}\
.plot{font:12px system-ui,sans-serif;background:var(--page)}.plot text{fill:var(--text)}.plot .faint{fill:var(--faint);font-size:11px}\
.plot .title{font-weight:600;font-size:13px}.plot .grid{stroke:var(--grid);stroke-width:1}\
.plot .line{fill:none;stroke-width:1.6;stroke-linejoin:round}.plot .band{opacity:.28;stroke:none}\
.plot .used{stroke:var(--used)}.plot .live{stroke:var(--live)}.plot .reserved{stroke:var(--reserved)}\
.plot .allocated{stroke:var(--allocated)}.plot .pinned{stroke:var(--pinned)}.plot .used.line{stroke-dasharray:5 3}.plot .live.line{stroke-width:4;opacity:.55}\
.plot .band.used{fill:var(--used)}.plot .band.live{fill:var(--live)}.plot .band.reserved{fill:var(--reserved)}\
.plot .band.allocated{fill:var(--allocated)}.plot .band.pinned{fill:var(--pinned)}\
.plot .failure{fill:var(--bad);stroke:var(--bad)}.plot .large{stroke:var(--faint)}.plot .life{stroke:var(--faint);stroke-dasharray:2 3}";

/// Renders the complete picture with heading, legend and notes.
pub(crate) fn whole(plot: &Plot) -> String {
    let panels_top = 62.0;
    let below = panels_top + panels_height(plot);
    let height = below + 18.0 * plot.notes.len() as f64 + 14.0;
    let mut out = String::new();
    let _ = write!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"plot\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\" role=\"img\" aria-label=\"{}\"><style>{STYLE}</style>\
         <rect width=\"100%\" height=\"100%\" style=\"fill:var(--page)\"/>\
         <text class=\"title\" x=\"16\" y=\"24\">{}</text><text class=\"faint\" x=\"{}\" y=\"24\" text-anchor=\"end\">from {}, {}</text>",
        escape(&plot.title),
        escape(&plot.title),
        WIDTH - RIGHT,
        escape(&plot.begin),
        duration(plot.last_ns - plot.begun_ns),
    );
    legend(&mut out, plot, 16.0, 46.0);
    panels(&mut out, plot, panels_top);
    for (number, note) in plot.notes.iter().enumerate() {
        let y = below + 14.0 + 18.0 * number as f64;
        let _ = write!(out, "<text class=\"faint\" x=\"16\" y=\"{y:.0}\">{}</text>", escape(note));
    }
    out + "</svg>\n"
}

/// Returns the height of all panels together.
pub(crate) fn panels_height(plot: &Plot) -> f64 {
    plot.panels.len() as f64 * (TITLE + HEIGHT + BELOW)
}

/// Renders the legend of the measures that occur.
pub(crate) fn legend(out: &mut String, plot: &Plot, left: f64, y: f64) {
    let mut x = left;
    let is_there = |name: &str| plot.panels.iter().flat_map(|panel| &panel.lines).any(|line| line.measure.0 == name);
    for (name, label) in MEASURES.into_iter().filter(|(name, _)| is_there(name)) {
        let _ = write!(
            out,
            "<path class=\"line {name}\" d=\"M{x:.0} {:.1}h22\"/><text class=\"faint\" x=\"{:.0}\" y=\"{y:.0}\">{label}</text>",
            y - 4.0,
            x + 28.0
        );
        x += 48.0 + 6.1 * label.len() as f64;
    }
    let failed = plot.panels.iter().flat_map(|panel| &panel.marks).any(|mark| mark.kind == MarkKind::Failure);
    if failed {
        let _ = write!(
            out,
            "<path class=\"failure\" d=\"M{x:.0} {:.1}l5 9h-10z\"/><text class=\"faint\" x=\"{:.0}\" y=\"{y:.0}\">failed</text>",
            y - 9.0,
            x + 12.0
        );
    }
}

/// Renders all panels, one below the other.
pub(crate) fn panels(out: &mut String, plot: &Plot, top: f64) {
    for (number, panel) in plot.panels.iter().enumerate() {
        draw(out, plot, panel, top + number as f64 * (TITLE + HEIGHT + BELOW));
    }
}

fn draw(out: &mut String, plot: &Plot, panel: &Panel, top: f64) {
    let (begin, bottom) = (top + TITLE, top + TITLE + HEIGHT);
    let points = panel.lines.iter().flat_map(|line| &line.points);
    let highest = points.map(|point| point.most_bytes.max(point.bytes)).max().unwrap_or(0);
    let (ceiling, step) = scale(highest);
    let _ = write!(out, "<g><text class=\"title\" x=\"16\" y=\"{:.1}\">{}</text>", top + 16.0, escape(&panel.title));
    let y_of = |value: u64| bottom - HEIGHT * (value as f64 / ceiling as f64).min(1.0);
    let mut value = 0;
    while value <= ceiling {
        let y = y_of(value);
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{}\"/><text class=\"faint\" x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - RIGHT,
            LEFT - 8.0,
            y + 4.0,
            bytes(value)
        );
        value += step;
    }
    times(out, plot, begin, bottom);
    if let Some(total) = panel.total_bytes.filter(|total| *total <= ceiling) {
        let _ = write!(out, "<path class=\"life\" d=\"M{LEFT} {:.1}H{}\"/>", y_of(total), WIDTH - RIGHT);
    }
    for line in &panel.lines {
        steps(out, plot, line, &y_of);
    }
    for mark in &panel.marks {
        marked(out, plot, mark, begin, bottom);
    }
    out.push_str("</g>");
}

/// Renders the grid lines of the time axis, labelled with the time of day.
fn times(out: &mut String, plot: &Plot, begin: f64, bottom: f64) {
    let length = plot.last_ns - plot.begun_ns;
    let fits = |step: &&u64| length / **step <= MOST_LINES;
    let step = STEPS_NS.iter().find(fits).copied().unwrap_or(length.max(1));
    // Lines are at round UTC times. They are round in the local zone as well if its offset is a
    // multiple of the distance.
    let passed = plot.clock.unix_ns(plot.begun_ns).rem_euclid(step.cast_signed()).unsigned_abs();
    let mut at = (step - passed) % step;
    while at <= length {
        let time_ns = plot.begun_ns + at;
        let x = x_of(plot, time_ns);
        let mut label = plot.clock.time_of_day(time_ns);
        if step < SECOND_NS {
            let part_ns = plot.clock.unix_ns(time_ns).rem_euclid(SECOND_NS.cast_signed());
            let _ = write!(label, ".{:03}", part_ns / 1_000_000);
        }
        let _ = write!(
            out,
            "<path class=\"grid\" d=\"M{x:.1} {begin:.1}V{bottom:.1}\"/><text class=\"faint\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
            bottom + 16.0
        );
        at += step;
    }
}

fn x_of(plot: &Plot, time_ns: u64) -> f64 {
    let length = (plot.last_ns - plot.begun_ns) as f64;
    let passed = time_ns.clamp(plot.begun_ns, plot.last_ns) - plot.begun_ns;
    LEFT + (WIDTH - LEFT - RIGHT) * passed as f64 / length
}

/// Renders a line as steps: a value applies back to the previous poll.
fn steps(out: &mut String, plot: &Plot, line: &PlotLine, y_of: &impl Fn(u64) -> f64) {
    let Some(first) = line.points.first() else { return };
    let name = line.measure.0;
    let (mut curve, mut upper) = (String::new(), String::new());
    let mut lower: Vec<(f64, f64)> = Vec::new();
    let begin = x_of(plot, first.time_ns);
    let _ = write!(curve, "M{begin:.1} {:.1}", y_of(first.bytes));
    let mut x = begin;
    for PointView { time_ns, bytes, most_bytes } in line.points.iter().copied() {
        let (next, y, most) = (x_of(plot, time_ns), y_of(bytes), y_of(most_bytes.max(bytes)));
        let _ = write!(curve, "H{next:.1}V{y:.1}");
        let _ = write!(upper, "{}{x:.1} {most:.1}H{next:.1}", if upper.is_empty() { "M" } else { "L" });
        lower.push((x, y));
        lower.push((next, y));
        x = next;
    }
    for (x, y) in lower.into_iter().rev() {
        let _ = write!(upper, "L{x:.1} {y:.1}");
    }
    let _ = write!(out, "<path class=\"band {name}\" d=\"{upper}z\"/><path class=\"line {name}\" d=\"{curve}\"/>");
}

fn marked(out: &mut String, plot: &Plot, mark: &PlotMark, begin: f64, bottom: f64) {
    let x = x_of(plot, mark.time_ns);
    let title = escape(&mark.text);
    let _ = match mark.kind {
        MarkKind::Failure => write!(
            out,
            "<path class=\"failure\" d=\"M{x:.1} {begin:.1}V{bottom:.1}M{x:.1} {:.1}l5 9h-10z\"><title>{title}</title></path>",
            begin - 8.0
        ),
        MarkKind::Large => {
            write!(out, "<path class=\"large\" d=\"M{x:.1} {bottom:.1}v-6\"><title>{title}</title></path>")
        }
        MarkKind::Life => {
            write!(out, "<path class=\"life\" d=\"M{x:.1} {begin:.1}V{bottom:.1}\"><title>{title}</title></path>")
        }
    };
}

/// Returns the end of an axis that covers `highest` bytes, and the distance of its grid lines.
pub(crate) fn scale(highest: u64) -> (u64, u64) {
    let mut step: u64 = 1;
    while step.saturating_mul(4) < highest.max(4) {
        step = step.saturating_mul(2);
    }
    (step.saturating_mul(highest.max(1).div_ceil(step).max(1)), step)
}

/// Escapes text for SVG and HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            letter => safe.push(letter),
        }
    }
    safe
}
