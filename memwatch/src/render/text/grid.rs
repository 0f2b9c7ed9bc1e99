//! Aligns cells in columns. The crate comfy-table breaks cells into lines if the terminal is too
//! narrow; this grid moves whole columns to a second line.

use crate::render::format::{fit, width};

/// Alignment of a column's cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Left, for words.
    Left,
    /// Right, for numbers.
    Right,
}

/// Indentation of a row's second line.
const FOLD: usize = 4;
/// Minimum width to which names are truncated.
const NAME: usize = 32;

/// Rows of cells below titles. The last column takes the remaining width.
#[derive(Debug)]
pub(crate) struct TextGrid {
    aligns: Vec<Align>,
    rows: Vec<Vec<String>>,
}

impl TextGrid {
    /// Creates a grid with these columns and no rows.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Self {
        let titles = columns.iter().map(|(title, _)| (*title).to_owned()).collect();
        Self { aligns: columns.iter().map(|(_, align)| *align).collect(), rows: vec![titles] }
    }

    /// Adds a row with one cell per column.
    pub(crate) fn push(&mut self, row: Vec<String>) {
        debug_assert_eq!(row.len(), self.aligns.len(), "one cell per column");
        self.rows.push(row);
    }

    /// Returns the lines, titles first. With `columns`, no line is wider: columns that do not fit
    /// move to an indented second line of each row, and what does not fit there is truncated.
    pub(crate) fn folded(&self, columns: Option<usize>, mark: &str) -> Vec<String> {
        let Some(wide) = columns else { return self.lines(None, mark) };
        let first = self.columns_within(wide);
        if first >= self.aligns.len() {
            return self.lines(columns, mark);
        }
        let part = |range: std::ops::Range<usize>| Self {
            aligns: self.aligns[range.clone()].to_vec(),
            rows: self.rows.iter().map(|row| row[range.clone()].to_vec()).collect(),
        };
        let (above, below) = (part(0..first), part(first..self.aligns.len()));
        let below = below.folded(Some(wide.saturating_sub(FOLD)), mark);
        let each = below.len() / self.rows.len().max(1);
        let mut below = below.into_iter();
        let mut lines = Vec::new();
        for line in above.lines(columns, mark) {
            lines.push(line);
            lines.extend(below.by_ref().take(each).map(|line| format!("{:FOLD$}{line}", "")));
        }
        lines
    }

    /// Returns the number of columns that fit, at least one. The last column may be truncated to
    /// [`NAME`].
    fn columns_within(&self, wide: usize) -> usize {
        let mut used = 0;
        for column in 0..self.aligns.len() {
            let own = self.rows.iter().map(|row| width(&row[column])).max().unwrap_or(0);
            let is_name = column + 1 == self.aligns.len() && self.aligns[column] == Align::Left;
            used += if column > 0 { 2 } else { 0 } + if is_name { own.min(NAME) } else { own };
            if used > wide {
                return column.max(1);
            }
        }
        self.aligns.len()
    }

    /// Returns the lines, titles first. With `columns`, no line is wider, and `mark` ends truncated
    /// lines.
    pub(crate) fn lines(&self, columns: Option<usize>, mark: &str) -> Vec<String> {
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
    fn text_grid_folds_columns_that_do_not_fit_into_a_second_line() {
        let (number, name) = (Align::Right, Align::Left);
        let mut grid = TextGrid::new(&[("PEAK", number), ("AT END", number), ("CALLS", number), ("SETTING", name)]);
        grid.push(["484.0 MiB", "1.0 MiB", "11", "expandable_segments:True"].map(str::to_owned).to_vec());
        let all = ["     PEAK   AT END  CALLS  SETTING", "484.0 MiB  1.0 MiB     11  expandable_segments:True"];
        assert_eq!(grid.folded(None, "…"), all);
        assert_eq!(grid.folded(Some(60), "…"), all);
        let folded =
            ["     PEAK   AT END  CALLS", "    SETTING", "484.0 MiB  1.0 MiB     11", "    expandable_segments:True"];
        assert_eq!(grid.folded(Some(30), "…"), folded);
        for columns in 20..60 {
            let lines = grid.folded(Some(columns), "");
            assert!(lines.iter().all(|line| width(line) <= columns), "{columns}: {lines:?}");
        }
    }

    #[test]
    fn text_grid_aligns_numbers_and_counts_wide_characters_twice() {
        let mut grid = TextGrid::new(&[("PID", Align::Right), ("USER", Align::Left), ("COMMAND", Align::Left)]);
        for row in [["7", "日本", "a"], ["1234", "bob", "b c"]] {
            grid.push(row.map(str::to_owned).to_vec());
        }
        assert_eq!(grid.lines(None, "…"), [" PID  USER  COMMAND", "   7  日本  a", "1234  bob   b c"]);
        assert_eq!(grid.lines(Some(14), "…"), [" PID  USER  C…", "   7  日本  a", "1234  bob   b…"]);
    }
}
