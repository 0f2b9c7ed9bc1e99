//! A table for the terminal that is also valid Markdown.

/// Rows of text under a header, columns as wide as their widest cell.
pub(crate) struct MarkdownTable {
    rows: Vec<Vec<String>>,
}

impl MarkdownTable {
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
        let columns: Vec<TableColumn> = (0..self.rows[0].len()).map(|index| self.column(index)).collect();
        let line = |row: &Vec<String>| {
            let cells: Vec<String> = row.iter().zip(&columns).map(|(cell, column)| column.cell(cell)).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule: Vec<String> = columns.iter().map(TableColumn::rule).collect();
        let mut lines: Vec<String> = self.rows.iter().map(line).collect();
        lines.insert(1, format!("| {} |\n", rule.join(" | ")));
        lines.concat()
    }

    fn column(&self, index: usize) -> TableColumn {
        let width = self.rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0).max(NARROWEST);
        let is_number = |cell: &str| cell.is_empty() || cell.parse::<f64>().is_ok();
        TableColumn { width, holds_numbers: self.rows[1..].iter().all(|row| is_number(&row[index])) }
    }
}

/// Minimum width of a column, required for Markdown's rule under the header.
const NARROWEST: usize = 3;

struct TableColumn {
    width: usize,
    holds_numbers: bool,
}

impl TableColumn {
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
        let mut table = MarkdownTable::new(&["step", "s"]);
        table.row(vec!["a".to_owned(), "12.5".to_owned()]);
        assert_eq!(table.text(), "| step |    s |\n| ---- | ---: |\n| a    | 12.5 |\n");
    }
}
