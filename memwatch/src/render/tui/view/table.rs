//! Renders a table to the screen.

use ratatui::Frame;
use ratatui::layout::{Constraint, Rect};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::look::TerminalLook;
use super::{FrameInput, ViewState};
use crate::render::Tone;
use crate::render::format::fit;
use crate::render::tui::grid::{self, GridColumn, ScreenGrid};

/// Draws the visible rows below their titles, or the reason for an empty table.
pub(crate) fn draw(frame: &mut Frame, area: Rect, state: &mut ViewState, (grid, shown): (&ScreenGrid, &FrameInput)) {
    let rows = usize::from(area.height.saturating_sub(1));
    state.settle(grid, rows);
    state.targets.first_row = area.y.saturating_add(1);
    state.targets.rows = area.height.saturating_sub(1);
    if grid.rows.is_empty() {
        state.targets.rows = 0;
        let text = Text::from(shown.look.span(Tone::Plain, grid.empty.clone()));
        return frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
    }
    let at = TablePosition { sorted: state.sort(), top: state.top(), selected: state.selected() };
    rows_of(frame, area, grid, (shown.look, at));
}

/// Sort order, scroll position and selection of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TablePosition {
    /// Sort column, and whether the order is reversed.
    pub(crate) sorted: Option<(&'static str, bool)>,
    /// Index of the first visible row.
    pub(crate) top: usize,
    /// Index of the selected row.
    pub(crate) selected: usize,
}

/// Draws the rows below their titles, starting at the first visible row.
pub(crate) fn rows_of(frame: &mut Frame, area: Rect, grid: &ScreenGrid, (look, at): (TerminalLook, TablePosition)) {
    let rows = usize::from(area.height.saturating_sub(1));
    let widths = widths(&grid.columns, area.width);
    let titles = grid.columns.iter().zip(&widths).map(|(column, width)| {
        let title = title(column, at.sorted, look);
        cell(look, &title, (column.right, *width), Tone::Faint)
    });
    let shown_rows = grid.rows.iter().skip(at.top).take(rows).map(|row| {
        let cells = row.cells.iter().zip(&grid.columns).zip(&widths);
        Row::new(cells.map(|((own, column), width)| of(look, own, (column.right, *width), row.tone)))
    });
    let table = Table::new(shown_rows, widths.iter().map(|width| Constraint::Length(*width)))
        .header(Row::new(titles))
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let mut selection = TableState::new().with_selected(Some(at.selected.saturating_sub(at.top)));
    frame.render_stateful_widget(table, area, &mut selection);
}

/// Returns the widths of the columns. A column of width 0 gets the remaining width.
fn widths(columns: &[GridColumn], width: u16) -> Vec<u16> {
    let gaps = u16::try_from(columns.len().saturating_sub(1)).unwrap_or(u16::MAX);
    let taken = columns.iter().map(|column| column.width).fold(gaps, u16::saturating_add);
    let left = width.saturating_sub(taken);
    columns.iter().map(|column| if column.width == 0 { left } else { column.width }).collect()
}

/// Returns a column's title. The sort column is marked with its direction.
fn title(column: &GridColumn, sorted: Option<(&'static str, bool)>, look: TerminalLook) -> String {
    match sorted {
        Some((title, reversed)) if title == column.title => {
            let mark = match (reversed, look.ascii) {
                (false, false) => "▼",
                (true, false) => "▲",
                (false, true) => "v",
                (true, true) => "^",
            };
            format!("{title}{mark}")
        }
        _ => column.title.to_owned(),
    }
}

fn of(look: TerminalLook, own: &grid::GridCell, place: (bool, u16), row: Tone) -> Cell<'static> {
    // A row of an ended process is faint in all cells.
    let tone = if row == Tone::Faint { row } else { own.tone.unwrap_or(row) };
    cell(look, &own.text, place, tone)
}

fn cell(look: TerminalLook, text: &str, (right, width): (bool, u16), tone: Tone) -> Cell<'static> {
    let line = Line::from(look.span(tone, fit(text, usize::from(width), look.mark())));
    Cell::from(if right { line.right_aligned() } else { line })
}
