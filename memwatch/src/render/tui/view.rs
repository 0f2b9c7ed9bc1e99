//! Renders state and snapshot to a frame: the layout of the screen.

mod gpus;
mod graph;
mod help;
pub(crate) mod look;
mod process;
mod status;
pub(crate) mod table;

use memwatch_core::snapshot::{ProcessView, Snapshot};
use ratatui::Frame;
use ratatui::layout::Rect;
use ratatui::symbols::border;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Clear, Paragraph, Wrap};

pub(crate) use self::look::TerminalLook;

use super::grid::ScreenGrid;
use super::outlook::Outlooks;
use super::state::{Overlay, ProcessKey, ScreenPage, Tab, ViewState};
use super::tables::{self, TableInput};
use crate::render::Tone;
use crate::render::format::{count, fit, plural};
use crate::render::wall_clock::WallClock;

/// Minimum number of rows for the table area, if the screen has that many.
const TABLE: usize = 6;
/// Screen width from which a graph is drawn beside a process's numbers.
const GRAPH_WIDTH: u16 = 100;
/// Screen height from which the process list shows graphs of GPUs.
const GRAPH_HEIGHT: usize = 36;
/// Screen width from which the selected row's details are drawn beside the table.
const DETAIL_WIDTH: u16 = 150;
/// Borders in ASCII.
const ASCII_BORDER: border::Set = border::Set {
    top_left: "+",
    top_right: "+",
    bottom_left: "+",
    bottom_right: "+",
    vertical_left: "|",
    vertical_right: "|",
    horizontal_top: "-",
    horizontal_bottom: "-",
};

/// Input of a frame.
#[derive(Clone, Copy)]
pub(crate) struct FrameInput<'a> {
    /// Displayed snapshot.
    pub(crate) snapshot: &'a Snapshot,
    /// Clock for the snapshot's times.
    pub(crate) clock: &'a WallClock,
    /// Colours and characters.
    pub(crate) look: TerminalLook,
    /// Leaks, forecasts and named objects.
    pub(crate) outlooks: &'a Outlooks,
}

impl<'a> FrameInput<'a> {
    fn facts(&self, width: usize) -> TableInput<'a> {
        let Self { snapshot, clock, look, outlooks } = *self;
        TableInput { snapshot, clock, outlooks, ascii: look.ascii, width }
    }
}

/// Draws a frame.
pub(crate) fn draw(frame: &mut Frame, state: &mut ViewState, shown: &FrameInput) {
    let area = frame.area();
    let (width, height) = (usize::from(area.width), usize::from(area.height));
    let facts = shown.facts(width);
    let grid = tables::grid(state, &facts);
    let process = facts.process(state.page());
    let foot = status::lines(state, shown, width, height).len();
    let room = height.saturating_sub(foot);
    let top = draw_top(frame, state, shown, (process, room));
    state.targets.tabs = None;
    let body = rows(area, top, room.saturating_sub(top));
    match state.overlay() {
        Some(Overlay::Help) => {
            // The help page replaces everything above the last lines.
            let body = rows(area, 0, room);
            frame.render_widget(Clear, body);
            scroll(frame, body, state, help::lines(shown.look));
        }
        _ => draw_body(frame, body, state, (shown, &grid)),
    }
    // Drawing may set a notice, so the last lines are rendered at the end.
    let foot = status::lines(state, shown, width, height);
    put(frame, area, height.saturating_sub(foot.len()), foot);
}

/// Returns `height` rows of an area, starting at row `top`.
fn rows(area: Rect, top: usize, height: usize) -> Rect {
    let of = |number: usize| u16::try_from(number).unwrap_or(u16::MAX);
    Rect { y: area.y.saturating_add(of(top)), height: of(height), ..area }.intersection(area)
}

/// Writes lines to an area, starting at row `top`. Lines that do not fit are left out.
fn put(frame: &mut Frame, area: Rect, top: usize, lines: Vec<Line>) {
    for (row, line) in (top..usize::from(area.height)).zip(lines) {
        frame.render_widget(line, rows(area, row, 1));
    }
}

/// Draws everything above the table and returns the number of rows used.
fn draw_top(
    frame: &mut Frame,
    state: &ViewState,
    shown: &FrameInput,
    (process, room): (Option<&ProcessView>, usize),
) -> usize {
    let area = frame.area();
    let width = usize::from(area.width);
    let most = room.saturating_sub(TABLE);
    if most == 0 {
        return 0;
    }
    let mut lines = vec![
        process.map_or_else(|| title(state, shown, width), |process| process::title(state, shown, process, width)),
    ];
    lines.extend(process.and_then(|process| process::owner(shown, process, width)));
    lines.extend(gpus::lines(shown, process, width, (most / 2).max(1)));
    lines.extend(process.and_then(|process| process::held(shown, process, width)));
    lines.extend(process.and_then(|process| process::kv_cache(shown.look, process, width)));
    lines.extend(process.and_then(|process| process::warning(state, shown, process, width)));
    lines.truncate(most);
    let graph = match process {
        Some(process) => numbers(&mut lines, shown, process, (area, room)),
        None if room >= GRAPH_HEIGHT && lines.len() + 8 + TABLE <= room => {
            lines.push(Line::default());
            let place = rows(area, lines.len(), 7);
            lines.extend((0..7).map(|_| Line::default()));
            Some(place)
        }
        None => None,
    };
    if lines.len() < most {
        lines.push(Line::default());
    }
    let taken = lines.len();
    put(frame, area, 0, lines);
    if let Some(place) = graph {
        match process {
            Some(process) => process_graph(frame, place, state, (shown, process)),
            None => gpu_graphs(frame, place, state, shown),
        }
    }
    taken
}

/// Appends a process's numbers if they fit, and returns the area for a graph beside them.
fn numbers(
    lines: &mut Vec<Line<'static>>,
    shown: &FrameInput,
    process: &ProcessView,
    (area, room): (Rect, usize),
) -> Option<Rect> {
    let mut own = process::numbers(shown, process, usize::from(area.width));
    let left = room.saturating_sub(TABLE + lines.len());
    if own.len() > left {
        return None;
    }
    let has_room = left > own.len() + 2;
    if has_room {
        lines.push(Line::default());
    }
    let first = lines.len();
    let with_graph = area.width >= GRAPH_WIDTH && process.gpus.len() == 1;
    // The sum below the numbers spans the full width.
    let sum = if own.len() > 3 { own.pop() } else { None };
    let tall = own.len().max(if with_graph && room >= 44 { 10 } else { 5 }).min(left);
    if with_graph {
        own.resize(tall.max(own.len()), Line::default());
    }
    let high = own.len();
    lines.append(&mut own);
    lines.extend(sum);
    with_graph.then(|| {
        let place = rows(area, first, high);
        Rect { x: area.x + process::NUMBERS, width: (area.width - process::NUMBERS).min(130), ..place }
    })
}

fn process_graph(frame: &mut Frame, place: Rect, state: &ViewState, (shown, process): (&FrameInput, &ProcessView)) {
    let Some(gpu) = process.gpus.first() else { return };
    if let Some(series) = state.histories.process(ProcessKey::of(process), gpu.uuid.as_ref()) {
        graph::draw(frame, place, series, (shown.look, None));
    }
}

/// Draws the graphs of the GPUs side by side.
fn gpu_graphs(frame: &mut Frame, place: Rect, state: &ViewState, shown: &FrameInput) {
    let gpus = gpus::of_page(shown.snapshot, None);
    let fitting = gpus.len().min(usize::from(place.width / 40).max(1)).min(4);
    let Some(wide) = place.width.checked_div(u16::try_from(fitting).unwrap_or(1)) else { return };
    let mut x = place.x;
    for gpu in gpus.into_iter().take(fitting) {
        let own = Rect { x, width: wide.saturating_sub(2), ..place };
        let name = format!("GPU {} used", crate::render::sentences::place(gpu));
        frame.render_widget(Line::from(shown.look.span(Tone::Faint, name)), Rect { height: 1, ..own });
        if let Some(series) = state.histories.gpu(&gpu.uuid) {
            let below = Rect { y: own.y + 1, height: own.height.saturating_sub(1), ..own };
            graph::draw(frame, below, series, (shown.look, gpu.total_bytes));
        }
        x += wide;
    }
}

fn title(state: &ViewState, shown: &FrameInput, width: usize) -> Line<'static> {
    let look = shown.look;
    let number = |number: usize| u64::try_from(number).unwrap_or(u64::MAX);
    let gpus = plural(number(shown.snapshot.gpus.len()), "GPU", "GPUs");
    let from = if shown.snapshot.from_agent { "  by the agent" } else { "" };
    let left = vec![look.span(Tone::Heading, "memwatch"), look.span(Tone::Faint, format!("  {gpus}{from}"))];
    look.ends(left, vec![clock(state, shown)], width)
}

/// Returns the time of the displayed snapshot.
fn clock(state: &ViewState, shown: &FrameInput) -> Span<'static> {
    let time = shown.clock.time_of_day(shown.snapshot.time_ns);
    if state.is_paused() {
        shown.look.span(Tone::Warning, format!("  paused at {time}"))
    } else {
        shown.look.span(Tone::Faint, format!("  {time}"))
    }
}

/// Draws the bar above the table, the table, and the details beside or over it.
fn draw_body(frame: &mut Frame, area: Rect, state: &mut ViewState, (shown, grid): (&FrameInput, &ScreenGrid)) {
    if area.height < 3 {
        return table::draw(frame, area, state, (grid, shown));
    }
    let width = usize::from(area.width);
    // The table determines the visible rows, and the bar shows their range.
    let below = rows(area, 1, usize::from(area.height) - 1);
    let below = Rect { y: area.y + 1, height: area.height - 1, ..below };
    let beside = area.width >= DETAIL_WIDTH && matches!(state.page(), ScreenPage::Process(_)) && !grid.rows.is_empty();
    let wide = if beside { area.width * 3 / 5 } else { area.width };
    table::draw(frame, Rect { width: wide, ..below }, state, (grid, shown));
    let details = tables::detail(state, &shown.facts(width));
    frame.render_widget(bar(state, shown, (grid, area), usize::from(below.height) - 1), Rect { height: 1, ..area });
    let lines: Vec<Line> = details.into_iter().map(Line::raw).collect();
    if state.overlay() == Some(Overlay::Detail) {
        if lines.is_empty() {
            state.take(super::state::ViewAction::Back);
            state.notify("there is nothing more about this row");
            return;
        }
        return popup(frame, below, state, (shown, grid, lines));
    }
    if beside {
        let place = Rect { x: below.x + wide + 2, width: below.width - wide - 2, ..below };
        frame.render_widget(Paragraph::new(lines).wrap(Wrap { trim: false }), place);
    }
}

/// Returns the bar: tabs or heading, filter, sort column and visible rows.
fn bar(state: &mut ViewState, shown: &FrameInput, (grid, area): (&ScreenGrid, Rect), rows: usize) -> Line<'static> {
    let look = shown.look;
    let mut left = Vec::new();
    if let ScreenPage::Process(_) = state.page() {
        let mut ends = Vec::new();
        let mut column = area.x;
        for (number, tab) in (1..).zip(Tab::ALL) {
            let open = tab == state.tab();
            let text = if open { format!("[{number} {}]", tab.title()) } else { format!(" {number} {} ", tab.title()) };
            let wide = u16::try_from(text.len()).unwrap_or(0);
            ends.push((column, column + wide));
            column += wide;
            left.push(look.span(if open { Tone::Heading } else { Tone::Faint }, text));
        }
        state.targets.tabs = Some((area.y, ends));
    } else {
        left.push(look.span(Tone::Heading, if state.is_tree() { "Workloads" } else { "Processes" }));
    }
    let mut facts = Vec::new();
    if !state.filter().is_empty() {
        facts.push(format!("/{}", crate::render::format::printable(state.filter())));
    }
    if !grid.rows.is_empty() {
        facts.push(format!("sort: {}", state.sort().map_or(grid.natural, |(title, _)| title)));
        let number = |number: usize| count(u64::try_from(number).unwrap_or(u64::MAX));
        if grid.rows.len() > rows {
            let last = (state.top() + rows).min(grid.rows.len());
            facts.push(format!("{}-{} of {}", number(state.top() + 1), number(last), number(grid.rows.len())));
        }
    }
    look.ends(left, vec![look.span(Tone::Faint, facts.join("   "))], usize::from(area.width))
}

/// Draws lines over the table, in a frame titled with the selected row's name.
fn popup(
    frame: &mut Frame,
    area: Rect,
    state: &mut ViewState,
    (shown, grid, lines): (&FrameInput, &ScreenGrid, Vec<Line<'static>>),
) {
    let set = if shown.look.ascii { ASCII_BORDER } else { border::PLAIN };
    let name = grid.rows.get(state.selected()).and_then(|row| row.cells.last()).map_or("", |cell| &cell.text);
    let name = fit(name, usize::from(area.width.saturating_sub(2)), shown.look.mark()).into_owned();
    let block = Block::bordered().border_set(set).title(name);
    let inside = block.inner(area);
    frame.render_widget(Clear, area);
    frame.render_widget(block, area);
    scroll(frame, inside, state, lines);
}

/// Draws the lines that fit, starting at the overlay's scroll position.
fn scroll(frame: &mut Frame, area: Rect, state: &mut ViewState, lines: Vec<Line<'static>>) {
    let height = usize::from(area.height);
    state.settle_overlay(lines.len(), height);
    let shown = lines.into_iter().skip(state.overlay_top()).take(height).collect();
    put(frame, area, 0, shown);
}

#[cfg(test)]
mod picture;
#[cfg(test)]
mod tests;
