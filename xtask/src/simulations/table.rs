//! Table of the measurements, which keeps rows that were not measured again.

use super::measure::{PeakCell, SimulationRow};
use super::settings::SETTINGS;
use crate::table::MarkdownTable;

const MIB: u64 = 1 << 20;

/// Returns the date, the machine, and the table of new measurements and kept rows.
pub(super) fn text(measured: &[SimulationRow], old: &str, machine: &str, titles: &[&str]) -> String {
    let (date, machine) = machine.split_once(": ").unwrap_or(("", machine));
    let mut rows: Vec<Vec<String>> = measured.iter().map(|row| cells(row, date)).collect();
    let is_new = |row: &[String]| measured.iter().any(|new| new.title == row[0] && new.version == row[1]);
    let old = old.lines().filter_map(read).filter(|row| !is_new(row));
    let kept: Vec<Vec<String>> = old.filter(|row| place(titles, &row[0]) < titles.len()).collect();
    rows.extend(kept);
    rows.sort_by_key(|row| (place(titles, &row[0]), row[0].clone(), row[1].clone()));
    let mut header = vec!["program", "PyTorch"];
    header.extend(SETTINGS.iter().map(|setting| setting.title));
    header.push("measured");
    let mut table = MarkdownTable::new(&header);
    for row in rows {
        table.row(row);
    }
    format!("{machine}.\n\n{}", table.text())
}

/// Returns the position of a row's program among all.
fn place(titles: &[&str], title: &str) -> usize {
    titles
        .iter()
        .position(|known| title == *known || title.strip_prefix(known).is_some_and(|rest| rest.starts_with(':')))
        .unwrap_or(titles.len())
}

fn cells(row: &SimulationRow, date: &str) -> Vec<String> {
    let mut cells = vec![row.title.clone(), row.version.clone()];
    cells.extend(row.cells.iter().map(|cell| cell.as_ref().map_or_else(|| "-".to_owned(), cell_text)));
    cells.push(date.to_owned());
    cells
}

fn cell_text(cell: &PeakCell) -> String {
    let ended = match cell.is_out_of_memory {
        (false, false) => "",
        (true, true) => " †",
        (true, false) => " † real",
        (false, true) => " † simulated",
    };
    format!("{}, {:.2} %{ended}", cell.real_bytes / MIB, cell.off())
}

/// Parses a row of the earlier table; `None` for other lines, or if the columns differ.
fn read(line: &str) -> Option<Vec<String>> {
    let inner = line.strip_prefix('|')?.trim_end().strip_suffix('|')?;
    let cells: Vec<String> = inner.split('|').map(|cell| cell.trim().to_owned()).collect();
    (cells.len() == SETTINGS.len() + 3).then_some(cells)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn simulation_table_keeps_unmeasured_rows_and_replaces_the_others() {
        let row = |title: &str, real_mib: u64| {
            let cell = PeakCell {
                real_bytes: real_mib << 20,
                simulated_bytes: real_mib << 20,
                is_out_of_memory: (true, true),
            };
            SimulationRow { title: title.into(), version: "2.8.0".into(), cells: vec![Some(cell); SETTINGS.len()] }
        };
        let titles = ["b", "a"];
        let first = text(&[row("a", 1), row("b: 1", 2)], "", "2026-11-22: one", &titles);
        let second = text(&[row("a", 3)], &first, "2026-11-23: two", &titles);
        let rows: Vec<Vec<String>> = second.lines().filter_map(read).skip(2).collect();
        assert_eq!(rows.len(), 2, "{second}");
        assert_eq!((&*rows[0][0], &*rows[0][2], &*rows[0][11]), ("b: 1", "2, 0.00 % †", "2026-11-22"));
        assert_eq!((&*rows[1][0], &*rows[1][2], &*rows[1][11]), ("a", "3, 0.00 % †", "2026-11-23"));
        assert!(second.starts_with("two.\n"), "{second}");
    }
}
