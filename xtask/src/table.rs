//! A table for the terminal that is also valid Markdown.

/// Rows of text under a header, columns as wide as their widest cell.
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Makes a table with this header and no rows.
    pub(crate) fn new(header: &[&str]) -> Self {
        Self { rows: vec![header.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    /// Adds a row, which must have as many cells as the header.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    /// Renders the table as Markdown. Columns of numbers are right-aligned, others left-aligned.
    pub(crate) fn text(&self) -> String {
        let columns: Vec<Column> = (0..self.rows[0].len()).map(|index| self.column(index)).collect();
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = row.iter().zip(&columns).map(|(cell, column)| column.cell(cell)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<String> = columns.iter().map(Column::rule).collect();
        let mut lines: Vec<String> = self.rows.iter().map(line).collect();
        lines.insert(1, format!("| {} |\n", rule.join(" | ")));
        lines.concat()
    }

    fn column(&self, index: usize) -> Column {
        let width = self.rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0).max(NARROWEST);
        let is_number = |cell: &str| cell.is_empty() || cell.parse::<f64>().is_ok();
        Column { width, holds_numbers: self.rows[1..].iter().all(|row| is_number(&row[index])) }
    }
}

/// Minimum width of a column, required for Markdown's rule under the header.
const NARROWEST: usize = 3;

struct Column {
    width: usize,
    holds_numbers: bool,
}

impl Column {
    fn cell(&self, text: &str) -> String {
        let width = self.width;
        if self.holds_numbers { format!("{text:>width$}") } else { format!("{text:<width$}") }
    }

    fn rule(&self) -> String {
        let dashes = "-".repeat(self.width - 1);
        dashes + if self.holds_numbers { ":" } else { "-" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let mut table = Table::new(&["step", "s"]);
        table.row(vec!["a".to_owned(), "12.5".to_owned()]);
        assert_eq!(table.text(), "| step |    s |\n| ---- | ---: |\n| a    | 12.5 |\n");
    }
}
