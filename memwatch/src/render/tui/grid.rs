//! A table before it is drawn: rows that can be sorted and filtered.

use std::cmp::Ordering;

use memwatch_core::snapshot::ProcessView;
use memwatch_core::words::Tgid;

use crate::render::Tone;
use crate::render::format::{UNKNOWN, ratio};
use crate::render::tui::size::size;

/// A process in the views: its id alone may come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ProcessKey {
    /// Its number.
    pub(crate) tgid: Tgid,
    observed_since_ns: u64,
}

impl ProcessKey {
    /// The key of a process.
    pub(crate) fn of(process: &ProcessView) -> Self {
        Self { tgid: process.tgid, observed_since_ns: process.observed_since_ns }
    }
}

/// What a row stands for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKey {
    /// A process on the GPU that has this place among its GPUs.
    Process(ProcessKey, Option<usize>),
    /// The processes of a workload.
    Workload(String),
    /// Something in a process, by a text that no other row of its tab has.
    Place(String),
}

/// A column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// Its title: no other column of the table has it.
    pub(crate) title: &'static str,
    /// How wide it is; 0 for the one that takes what is left.
    pub(crate) width: u16,
    /// Flush right, as numbers are.
    pub(crate) right: bool,
}

impl Column {
    /// A column of numbers.
    pub(crate) const fn number(title: &'static str, width: u16) -> Self {
        Self { title, width, right: true }
    }

    /// A column of words.
    pub(crate) const fn words(title: &'static str, width: u16) -> Self {
        Self { title, width, right: false }
    }
}

/// What a cell is sorted by.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Order {
    /// Largest first.
    Number(f64),
    /// In the order of the alphabet.
    Text,
    /// Not known: always last.
    Unknown,
}

/// A cell.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Cell {
    /// What it shows, safe for a terminal.
    pub(crate) text: String,
    /// How much it matters; the row's, where that is `None`.
    pub(crate) tone: Option<Tone>,
    /// Where it stands in a sorted column.
    pub(crate) order: Order,
}

impl Cell {
    /// Words.
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: None, order: Order::Text }
    }

    /// A number that is known.
    pub(crate) fn number(value: u64, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: None, order: Order::Number(ratio(value, 1)) }
    }

    /// Bytes, where they are known.
    pub(crate) fn bytes(value: Option<u64>) -> Self {
        value.map_or_else(Self::unknown, |bytes| Self::number(bytes, size(bytes)))
    }

    /// A number with a fraction or a sign.
    pub(crate) fn real(value: f64, text: impl Into<String>) -> Self {
        Self { text: text.into(), tone: None, order: Order::Number(value) }
    }

    /// What is not known.
    pub(crate) fn unknown() -> Self {
        Self { text: UNKNOWN.to_owned(), tone: None, order: Order::Unknown }
    }

    /// The same in another tone.
    #[must_use]
    pub(crate) fn in_tone(self, tone: Tone) -> Self {
        Self { tone: Some(tone), ..self }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Row {
    /// What it stands for, whatever place it has.
    pub(crate) key: RowKey,
    /// As many as there are columns.
    pub(crate) cells: Vec<Cell>,
    /// How much it matters.
    pub(crate) tone: Tone,
    /// The workload that a tree shows it under, and its rank there.
    pub(crate) branch: Option<(String, Option<u32>)>,
}

/// A table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grid {
    /// From left to right.
    pub(crate) columns: Vec<Column>,
    /// In the order of `natural` until they are sorted.
    pub(crate) rows: Vec<Row>,
    /// The title of the column that rows are in the order of when nobody sorts them.
    pub(crate) natural: &'static str,
    /// What stands there instead of a table without rows.
    pub(crate) empty: String,
}

impl Grid {
    /// Sorts by the column with this title, if there is one; rows that are equal stay as they are.
    pub(crate) fn sort(&mut self, title: &str, reversed: bool) {
        let Some(place) = self.columns.iter().position(|column| column.title == title) else { return };
        self.rows.sort_by(|one, other| match (one.cells.get(place), other.cells.get(place)) {
            (Some(one), Some(other)) => compare(one, other, reversed),
            _ => Ordering::Equal,
        });
    }

    /// Keeps the rows that have this text in any cell, in capitals or not.
    pub(crate) fn keep(&mut self, text: &str) {
        let text = text.to_lowercase();
        self.rows.retain(|row| row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&text)));
    }
}

fn compare(one: &Cell, other: &Cell, reversed: bool) -> Ordering {
    let turn = |order: Ordering| if reversed { order.reverse() } else { order };
    match (&one.order, &other.order) {
        (Order::Unknown, Order::Unknown) => Ordering::Equal,
        (Order::Unknown, _) => Ordering::Greater,
        (_, Order::Unknown) => Ordering::Less,
        (Order::Number(one), Order::Number(other)) => turn(other.total_cmp(one)),
        _ => turn(one.text.cmp(&other.text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let row = |name: &str, bytes: Option<u64>| Row {
            key: RowKey::Place(name.to_owned()),
            cells: vec![Cell::bytes(bytes), Cell::text(name)],
            tone: Tone::Plain,
            branch: None,
        };
        Grid {
            columns: vec![Column::number("NOW", 10), Column::words("WHAT", 0)],
            rows: vec![row("Beta", None), row("alpha", Some(5)), row("gamma", Some(7 << 30))],
            natural: "NOW",
            empty: String::new(),
        }
    }

    fn names(grid: &Grid) -> Vec<&str> {
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
