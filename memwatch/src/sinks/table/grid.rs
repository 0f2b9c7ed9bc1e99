//! Cells in columns.

use crate::sinks::format::{fit, width};

/// The side on which a column's cells are flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Align {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows of cells under titles. The last column takes what room is left.
#[derive(Debug)]
pub(super) struct Grid {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl Grid {
    /// A grid with these columns and no rows.
    pub(super) fn new(columns: &[(&str, Align)]) -> Self {
        let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        Self { aligns: columns.iter().map(|(_, align)| *align).collect(), rows: vec![titles] }
    }

    /// Adds a row with one cell per column.
    pub(super) fn push(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.aligns.len(), "one cell per column");
        self.rows.push(row);
    }

    /// The lines, titles first; with `columns` no line is wider, and `mark` shows where the last cell was cut.
    pub(super) fn lines(&self, columns: Option<usize>, mark: &str) -> Vec<String> {
        let widths: Vec<usize> = (0..self.aligns.len())
            .map(|column| self.rows.iter().map(|row| width(&row[column])).max().unwrap_or(0))
            .collect();
        let line = |row: &Vec<String>| {
            let mut line = String::new();
            for ((cell, wide), align) in row.iter().zip(&widths).zip(&self.aligns) {
                if !line.is_empty() {
                    line.push_str("  ");
                }
                let padding = " ".repeat(wide.saturating_sub(width(cell)));
                match align {
                    Align::Left => line.extend([cell.as_str(), &padding]),
                    Align::Right => line.extend([&padding, cell.as_str()]),
                }
            }
            let line = line.trim_end();
            columns.map_or_else(|| line.to_owned(), |columns| fit(line, columns, mark).into_owned())
        };
        self.rows.iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_under_one_another_and_wide_letters_count_twice() {
        let mut grid = Grid::new(&[("PID", Align::Right), ("USER", Align::Left), ("COMMAND", Align::Left)]);
        for row in [["7", "日本", "a"], ["1234", "bob", "b c"]] {
            grid.push(row.map(str::to_owned).to_vec());
        }
        assert_eq!(grid.lines(None, "…"), [" PID  USER  COMMAND", "   7  日本  a", "1234  bob   b c"]);
        assert_eq!(grid.lines(Some(14), "…"), [" PID  USER  C…", "   7  日本  a", "1234  bob   b…"]);
    }
}
