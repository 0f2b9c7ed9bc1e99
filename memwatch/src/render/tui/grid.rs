//! A table before it is rendered. Its rows can be sorted and filtered.

use std::cmp::Ordering;

use memwatch_core::snapshot::ProcessView;
use memwatch_core::words::Tgid;

use crate::render::Tone;
use crate::render::format::{UNKNOWN, ratio};
use crate::render::tui::size::size;

/// Identity of a process in the views. The PID alone is not unique: the kernel reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessKey {
    /// Process id.
    pub(crate) tgid: Tgid,
    observed_since_ns: u64,
}

impl ProcessKey {
    /// Returns the key of a process.
    pub(crate) fn of(process: &ProcessView) -> Self {
        Self { tgid: process.tgid, observed_since_ns: process.observed_since_ns }
    }
}

/// Identity of a row.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKey {
    /// A process on one of its GPUs, by index into its list of GPUs.
    Process(ProcessKey, Option<usize>),
    /// The processes of a workload.
    Workload(String),
    /// An entry of a process's tab, by a text that is unique in the tab.
    Place(String),
}

/// A table column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GridColumn {
    /// Title, unique within the table.
    pub(crate) title: &'static str,
    /// Width in columns of the screen; 0 takes the remaining width.
    pub(crate) width: u16,
    /// Whether the text is right-aligned, as for numbers.
    pub(crate) right: bool,
}

impl GridColumn {
    /// Creates a right-aligned column.
    pub(crate) const fn number(title: &'static str, width: u16) -> Self {
        Self { title, width, right: true }
    }

    /// Creates a left-aligned column.
    pub(crate) const fn words(title: &'static str, width: u16) -> Self {
        Self { title, width, right: false }
    }
}

/// Sort key of a cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SortKey {
    /// Sorted by value, largest first.
    Number(f64),
    /// Sorted by the cell's text.
    Text,
    /// Unknown value, always last.
    Unknown,
}

/// A table cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GridCell {
    /// Displayed text, safe for a terminal.
    pub(crate) text: String,
    /// Tone; `None` inherits the row's.
    pub(crate) tone: Option<Tone>,
    /// Sort key within the column.
    pub(crate) order: SortKey,
}

impl GridCell {
    /// Creates a text cell.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: None, order: SortKey::Text }
    }

    /// Creates a cell for an integer.
    pub(crate) fn number(value: u64, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: None, order: SortKey::Number(ratio(value, 1)) }
    }

    /// Creates a cell for bytes; `None` is unknown.
    pub(crate) fn bytes(value: Option<u64>) -> Self {
        value.map_or_else(Self::unknown, |bytes| Self::number(bytes, size(bytes)))
    }

    /// Creates a cell for a fractional or negative number.
    pub(crate) fn real(value: f64, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: None, order: SortKey::Number(value) }
    }

    /// Creates a cell for an unknown value.
    pub(crate) fn unknown() -> Self {
        Self { text: UNKNOWN.to_owned(), tone: None, order: SortKey::Unknown }
    }

    /// Returns the cell in another tone.
    #[must_use]
    pub(crate) fn in_tone(self, tone: Tone) -> Self {
        Self { tone: Some(tone), ..self }
    }
}

/// A table row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct GridRow {
    /// Identity of the row, independent of its position.
    pub(crate) key: RowKey,
    /// Cells, one per column.
    pub(crate) cells: Vec<GridCell>,
    /// Tone of cells that have none of their own.
    pub(crate) tone: Tone,
    /// Workload that the row is grouped under in the tree, and its rank there.
    pub(crate) branch: Option<(String, Option<u32>)>,
}

/// A table of columns and rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ScreenGrid {
    /// Columns from left to right.
    pub(crate) columns: Vec<GridColumn>,
    /// Rows, in the order of `natural` until [`ScreenGrid::sort`] is called.
    pub(crate) rows: Vec<GridRow>,
    /// Title of the column that defines the default order.
    pub(crate) natural: &'static str,
    /// Text that replaces a table without rows.
    pub(crate) empty: String,
}

impl ScreenGrid {
    /// Sorts by the column with this title. Does nothing if no column has it; the sort is stable.
    pub(crate) fn sort(&mut self, title: &str, reversed: bool) {
        let Some(place) = self.columns.iter().position(|column| column.title == title) else { return };
        self.rows.sort_by(|one, other| match (one.cells.get(place), other.cells.get(place)) {
            (Some(one), Some(other)) => compare(one, other, reversed),
            _ => Ordering::Equal,
        });
    }

    /// Keeps the rows that contain `text` in any cell, ignoring case.
    pub(crate) fn keep(&mut self, text: &str) {
        let text = text.to_lowercase();
        self.rows.retain(|row| row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&text)));
    }
}

fn compare(one: &GridCell, other: &GridCell, reversed: bool) -> Ordering {
    let turn = |order: Ordering| if reversed { order.reverse() } else { order };
    match (&one.order, &other.order) {
        (SortKey::Unknown, SortKey::Unknown) => Ordering::Equal,
        (SortKey::Unknown, _) => Ordering::Greater,
        (_, SortKey::Unknown) => Ordering::Less,
        (SortKey::Number(one), SortKey::Number(other)) => turn(other.total_cmp(one)),
        _ => turn(one.text.cmp(&other.text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> ScreenGrid {
        let row = |name: &str, bytes: Option<u64>| GridRow {
            key: RowKey::Place(name.to_owned()),
            cells: vec![GridCell::bytes(bytes), GridCell::text(name)],
            tone: Tone::Plain,
            branch: None,
        };
        ScreenGrid {
            columns: vec![GridColumn::number("NOW", 10), GridColumn::words("WHAT", 0)],
            rows: vec![row("Beta", None), row("alpha", Some(5)), row("gamma", Some(7 << 30))],
            natural: "NOW",
            empty: String::new(),
        }
    }

    fn names(grid: &ScreenGrid) -> Vec<&str> {
        grid.rows.iter().map(|row| row.cells[1].text.as_str()).collect()
    }

    #[test]
    fn numbers_sort_from_the_largest_and_what_is_not_known_stays_last() {
        let mut sorted = grid();
        sorted.sort("NOW", false);
        assert_eq!(names(&sorted), ["gamma", "alpha", "Beta"]);
        sorted.sort("NOW", true);
        assert_eq!(names(&sorted), ["alpha", "gamma", "Beta"]);
        sorted.sort("WHAT", false);
        assert_eq!(names(&sorted), ["Beta", "alpha", "gamma"]);
        sorted.sort("no such column", false);
        assert_eq!(names(&sorted), ["Beta", "alpha", "gamma"]);
    }

    #[test]
    fn a_filter_looks_into_every_cell_and_not_at_capitals() {
        let mut filtered = grid();
        filtered.keep("BETA");
        assert_eq!(names(&filtered), ["Beta"]);
        let mut filtered = grid();
        filtered.keep("gib");
        assert_eq!(names(&filtered), ["gamma"]);
    }
}
