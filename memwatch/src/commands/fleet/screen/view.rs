//! Renders the state and the report to a frame.

use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

use super::state::{FleetScreenState, PAGES};
use crate::commands::fleet::args::FleetRowKind;
use crate::commands::fleet::ask::FleetReport;
use crate::commands::fleet::columns::{self, beyond, shown};
use crate::render::Tone;
use crate::render::format::{UNKNOWN, count, fit, printable};
use crate::render::sentences::Sentence;
use crate::render::tui::grid::{GridCell, GridColumn, GridRow, RowKey, ScreenGrid};
use crate::render::tui::view::look::TerminalLook;
use crate::render::tui::view::table::{TablePosition, rows_of};

/// Minimum width for the wide columns.
const WIDE: u16 = 120;
/// Height of the footer: the source of the numbers, and the keys.
const FOOT: u16 = 2;

/// The keys and words of the help page.
const KEYS: [(&str, &str); 9] = [
    ("1 2 3  Tab", "workloads, nodes, GPUs"),
    ("Up Down j k", "select a row; PgUp PgDn Home End"),
    ("Enter", "holders of the row, such as a job's part of each GPU"),
    ("Esc", "back"),
    ("s", "sort by the next column: the server sends its first rows"),
    ("Space", "pause, continue"),
    ("m  Ctrl-L", "mouse on or off; draw everything again"),
    ("?  h", "this page"),
    ("q  Ctrl-C", "quit"),
];
const WORDS: [(&str, &str); 8] = [
    ("used", "what NVML charges"),
    ("driver", "allocated by driver calls, without managed and pinned memory"),
    ("cached", "what PyTorch's allocators have, and no tensor has of them"),
    ("uneven", "what a job's emptiest GPU lacks of its fullest"),
    ("idle", "held, though no kernel has run on the GPU for 30 minutes"),
    ("growth", "as the agents estimate it"),
    ("OOMs", "moments within a day at which memory was refused"),
    ("unattributed", "used, but by no allocation that an agent has seen"),
];

/// Content of the screen besides the state.
pub(super) struct FleetScreenContent<'a> {
    /// Last report for the current question, or for the previous one.
    pub(super) report: Option<&'a FleetReport>,
    /// Whether the report answers the current question.
    pub(super) is_present: bool,
    /// When the report arrived: `12:00:03`, and in seconds since 1970.
    pub(super) time: (&'a str, f64),
    /// Why there is no newer report.
    pub(super) trouble: Option<&'a str>,
    pub(super) url: &'a str,
    pub(super) look: TerminalLook,
}

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame, state: &mut FleetScreenState, shown: &FleetScreenContent) {
    let area = frame.area();
    let foot = FOOT.min(area.height.saturating_sub(1));
    let body = Rect { height: area.height - foot, ..area };
    state.targets = super::state::FleetClickTargets::default();
    if state.is_help() {
        put(frame, body, 0, help(shown.look));
    } else {
        let top = top(state, shown, body);
        let taken = u16::try_from(top.len()).unwrap_or(u16::MAX).min(body.height);
        put(frame, body, 0, top);
        table(frame, Rect { y: body.y + taken, height: body.height - taken, ..body }, state, shown);
    }
    let lines = vec![status(shown, usize::from(area.width)), keys(state, shown.look, usize::from(area.width))];
    put(frame, Rect { y: body.y + body.height, height: foot, ..area }, 0, lines);
}

/// Writes lines from a row of the area on; lines beyond the area are dropped.
fn put(frame: &mut Frame, area: Rect, top: u16, lines: Vec<Line>) {
    for (row, line) in (top..area.height).zip(lines) {
        frame.render_widget(line, Rect { y: area.y + row, height: 1, ..area });
    }
}

/// Returns the lines above the table; the last one has the tabs.
fn top(state: &mut FleetScreenState, shown: &FleetScreenContent, area: Rect) -> Vec<Line<'static>> {
    let (look, width) = (shown.look, usize::from(area.width));
    let right = match (state.is_paused(), shown.is_present) {
        (true, _) => look.span(Tone::Warning, format!("  paused at {}", shown.time.0)),
        (false, true) => look.span(Tone::Faint, format!("  {}", shown.time.0)),
        (false, false) => look.span(Tone::Faint, "  asking"),
    };
    let left =
        vec![look.span(Tone::Heading, "memwatch fleet"), look.span(Tone::Faint, format!("  {}", printable(shown.url)))];
    let mut lines = vec![look.ends(left, vec![right], width)];
    if let Some(report) = shown.report {
        lines.push(Line::raw(fit(&columns::totals_line(&report.totals), width, look.mark()).into_owned()));
        let warnings = columns::warnings(&report.totals).into_iter().map(|(tone, text)| Sentence::new(tone, text));
        let warnings: Vec<_> = warnings.collect();
        if !warnings.is_empty() {
            lines.extend(look.joined(&warnings, width).into_iter().take(2));
        }
    }
    if area.height > 16 {
        lines.push(Line::default());
    }
    let row = area.y.saturating_add(u16::try_from(lines.len()).unwrap_or(u16::MAX));
    let bar = bar(state, shown, (area, row));
    lines.push(bar);
    lines
}

/// Returns the tab bar, or the name of the opened row, and the sort order.
fn bar(state: &mut FleetScreenState, shown: &FleetScreenContent, (area, row): (Rect, u16)) -> Line<'static> {
    let look = shown.look;
    let mut left = Vec::new();
    let mut targets = Vec::new();
    let mut column = area.x;
    for (number, (by, title)) in (1..).zip(PAGES) {
        let is_here = by == state.page() && state.opened().is_none();
        let text = if is_here { format!("[{number} {title}]") } else { format!(" {number} {title} ") };
        let wide = u16::try_from(text.len()).unwrap_or(0);
        targets.push((column, column + wide));
        column += wide;
        left.push(look.span(if is_here { Tone::Heading } else { Tone::Faint }, text));
    }
    if let Some(opened) = state.opened() {
        left.push(
            look.span(Tone::Heading, format!(" {} {}", if look.ascii { ">" } else { "›" }, printable(&opened.name))),
        );
    }
    state.targets.pages = Some((row, targets));
    let mut facts = format!("sort: {}", state.sort().word());
    let report = shown.report.filter(|_| shown.is_present);
    if let Some(more) = report.map(beyond).filter(|more| *more > 0) {
        facts = format!("{facts}   {} more", count(more));
    }
    look.ends(left, vec![look.span(Tone::Faint, facts)], usize::from(area.width))
}

fn table(frame: &mut Frame, area: Rect, state: &mut FleetScreenState, shown_now: &FleetScreenContent) {
    if area.height == 0 {
        return;
    }
    let grid = shown_now
        .report
        .filter(|_| shown_now.is_present)
        .map(|report| grid(report, state, (shown_now.time.1, area.width)));
    let look = shown_now.look;
    let Some(grid) = grid else {
        let what = if shown_now.trouble.is_some() { UNKNOWN } else { "asking" };
        return frame.render_widget(Paragraph::new(Line::from(look.span(Tone::Faint, what))), area);
    };
    let rows = usize::from(area.height - 1);
    state.settle(grid.rows.len(), rows);
    state.targets.rows = (area.y + 1, area.height - 1);
    if grid.rows.is_empty() {
        return frame.render_widget(Paragraph::new(Line::from(look.span(Tone::Faint, grid.empty))), area);
    }
    let title = grid.natural;
    let (selected, top) = state.place();
    rows_of(frame, area, &grid, (look, TablePosition { sorted: Some((title, false)), top, selected }));
}

/// Returns the rows of a report, with the columns that fit.
fn grid(report: &FleetReport, state: &FleetScreenState, (now, width): (f64, u16)) -> ScreenGrid {
    let table = shown(&report.rows, (usize::MAX, now));
    let sort = state.sort();
    // The sort column is always shown.
    let has_room = |head: &columns::ColumnHead| width >= WIDE || !head.wide || head.sort == Some(sort);
    // The heading shows what all rows have in common.
    let in_common = state.opened().map(|_| if state.page() == FleetRowKind::Workload { "WORKLOAD" } else { "NODE" });
    let places: Vec<usize> = (0..)
        .zip(&table.columns)
        .filter(|(_, head)| has_room(head) && Some(head.title) != in_common)
        .map(|(place, _)| place)
        .collect();
    let columns = places.iter().map(|place| table.columns[*place]);
    let natural = columns.clone().find(|head| head.sort == Some(sort)).map_or("", |head| head.title);
    let columns = columns.map(|head| GridColumn { title: head.title, width: head.width, right: !head.words });
    let row = |(number, cells): (usize, Vec<columns::FleetCell>)| GridRow {
        key: RowKey::Place(number.to_string()),
        cells: places
            .iter()
            .filter_map(|place| cells.get(*place))
            .map(|cell| GridCell::text(cell.text.clone()).in_tone(cell.tone))
            .collect(),
        tone: Tone::Plain,
        branch: None,
    };
    let empty = match state.by() {
        FleetRowKind::Holder => "nobody holds memory of it by now",
        _ => "no rows have this column",
    };
    ScreenGrid {
        columns: columns.collect(),
        rows: (0..).zip(table.rows).map(row).collect(),
        natural,
        empty: empty.to_owned(),
    }
}

/// Returns the source of the numbers, or why there are no newer ones.
fn status(shown: &FleetScreenContent, width: usize) -> Line<'static> {
    let look = shown.look;
    let (tone, text) = match (shown.trouble, shown.report) {
        (Some(trouble), _) => (Tone::Bad, printable(trouble).into_owned()),
        (None, Some(report)) => (Tone::Faint, columns::origin(report)),
        (None, None) => return Line::default(),
    };
    let text = if look.ascii { text.replace('·', "-") } else { text };
    Line::from(look.span(tone, fit(&text, width, look.mark())))
}

fn keys(state: &FleetScreenState, look: TerminalLook, width: usize) -> Line<'static> {
    if let Some(notice) = state.notice() {
        return Line::from(look.span(Tone::Warning, printable(notice)));
    }
    let keys: &[(&str, &str)] = match (state.is_help(), state.opened()) {
        (true, _) => &[("Esc", "back"), ("q", "quit")],
        (false, Some(_)) => &[("Esc", "back"), ("s", "sort"), ("Space", "pause"), ("?", "help"), ("q", "quit")],
        (false, None) => {
            &[("Enter", "open"), ("1-3", "pages"), ("s", "sort"), ("Space", "pause"), ("?", "help"), ("q", "quit")]
        }
    };
    look.keys(keys, width)
}

fn help(look: TerminalLook) -> Vec<Line<'static>> {
    let row = |(name, meaning): (&'static str, &'static str)| {
        Line::from(vec![look.span(Tone::Heading, format!("  {name:<14}")), Span::raw(meaning)])
    };
    let mut lines = vec![Line::from(look.span(Tone::Faint, "Keys"))];
    lines.extend(KEYS.map(row));
    lines.push(Line::from(look.span(Tone::Faint, "Words")));
    lines.extend(WORDS.map(row));
    lines
}

#[cfg(test)]
mod tests;
