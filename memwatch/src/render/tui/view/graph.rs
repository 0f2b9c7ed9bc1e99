//! A graph of bytes over time, with both axes.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::Line;
use ratatui::widgets::{RenderDirection, Sparkline};

use super::look::{Fill, TerminalLook};
use crate::render::Tone;
use crate::render::tui::history::UsageSeries;
use crate::render::tui::size::{giga, seconds, size, time};

/// Minimum columns and rows for bars and axes.
const LEAST: (u16, u16) = (24, 3);
/// Width of the byte axis in columns.
const AXIS: u16 = 9;

/// Draws a series of bytes over the full height of its area. The last row is the time axis. `whole`
/// is the top of the byte axis; without it, the maximum of the series is.
pub(crate) fn draw(frame: &mut Frame, area: Rect, series: &UsageSeries, (look, whole): (TerminalLook, Option<u64>)) {
    if area.width < LEAST.0 || area.height < LEAST.1 {
        return;
    }
    let bars = Rect { x: area.x + AXIS, width: area.width - AXIS, height: area.height - 1, ..area };
    let room = usize::from(bars.width);
    let last: Vec<_> = series.iter().skip(series.len().saturating_sub(room)).collect();
    let most = last.iter().map(|point| point.bytes).max().unwrap_or(0);
    let top = whole.filter(|whole| *whole > 0).unwrap_or(most).max(1);
    let values: Vec<u64> = last.iter().map(|point| point.bytes).collect();
    let sparkline = Sparkline::default()
        .data(&values)
        .max(top)
        .bar_set(look.bars())
        .direction(RenderDirection::LeftToRight)
        .style(look.fill(Fill::Own).1);
    frame.render_widget(sparkline, bars);
    for row in 0..bars.height {
        let label = match row {
            0 => label(top),
            _ if row + 1 == bars.height => label(0),
            _ => String::new(),
        };
        let tick = match (look.ascii, label.is_empty()) {
            (true, _) => "|",
            (false, true) => "│",
            (false, false) => "┤",
        };
        let line = Line::from(look.span(Tone::Faint, format!("{label:>7} {tick}")));
        frame.render_widget(line, Rect { y: area.y + row, height: 1, width: AXIS, ..area });
    }
    let span = last.first().zip(last.last()).map_or(0.0, |(first, last)| seconds(first.time_ns, last.time_ns));
    let begin = format!("{} ago", time(span));
    let shown = values.len().max(begin.len() + 5).min(room);
    let text = format!("{begin}{:>1$}", "now", shown - begin.len());
    let line = Line::from(look.span(Tone::Faint, text));
    frame.render_widget(line, Rect { y: bars.bottom(), height: 1, ..bars });
}

/// Formats a label of the byte axis, without the unit if it is the unit of the page.
fn label(bytes: u64) -> String {
    if bytes == 0 || bytes >= 1 << 30 { giga(bytes) } else { size(bytes) }
}
