//! The columns of `memwatch ps`: their values, the order in which narrow terminals drop them, and
//! the sort orders.

use std::cmp::Reverse;

use memwatch_core::snapshot::{ProcessGpuView, ProcessView, Snapshot};

use super::grid::Align;
use crate::render::format::{UNKNOWN, bytes, count, known, printable, rate, signed_bytes, width};
use crate::render::order::by_holding;
use crate::render::{owners, sentences};

/// Minimum width of the command line. Less important columns are dropped before it gets narrower.
const COMMAND_WIDTH: usize = 24;

/// Input of one row: a process on a GPU, or a process without GPU memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProcessRow<'a> {
    /// Displayed snapshot.
    pub(crate) snapshot: &'a Snapshot,
    /// Process of the row.
    pub(crate) process: &'a ProcessView,
    /// Memory of the process on the row's GPU.
    pub(crate) gpu: Option<&'a ProcessGpuView>,
    /// Use ASCII characters only.
    pub(crate) ascii: bool,
}

/// A table column.
#[derive(Debug)]
pub(crate) struct ProcessColumn {
    /// Name for `--columns`.
    pub(crate) name: &'static str,
    title: &'static str,
    align: Align,
    /// Priority: on a narrow terminal the highest value is dropped first. Columns with 0 or 1
    /// always stay.
    rank: u8,
    text: fn(&ProcessRow<'_>) -> String,
}

/// All columns in screen order.
pub(crate) const COLUMNS: [ProcessColumn; 15] = [
    column(("pid", "PID", Align::Right, 0), |cell| cell.process.tgid.0.to_string()),
    column(("user", "USER", Align::Left, 2), |cell| {
        cell.process.user.as_deref().map_or(UNKNOWN.into(), printable).into_owned()
    }),
    column(("workload", "WORKLOAD", Align::Left, 4), |cell| known(owners::workload(&cell.process.owner), |text| text)),
    column(("framework", "FRAMEWORK", Align::Left, 5), |cell| known(frameworks(cell.process), |text| text)),
    column(("gpu", "GPU", Align::Right, 1), |cell| {
        sentences::gpu_number(cell.snapshot, cell.gpu.and_then(|gpu| gpu.uuid.as_ref()))
    }),
    column(("used", "USED", Align::Right, 1), |cell| on_gpu(cell, |gpu| known(gpu.used_bytes, bytes))),
    column(("driver", "DRIVER", Align::Right, 1), |cell| of_calls(cell, |gpu| bytes(gpu.live_bytes))),
    column(("peak", "PEAK", Align::Right, 3), |cell| of_calls(cell, |gpu| bytes(gpu.peak_bytes))),
    column(("pre-existing", "PRE-EXISTING", Align::Right, 6), |cell| {
        on_gpu(cell, |gpu| sentences::preexisting(gpu, cell.ascii))
    }),
    column(("unattributed", "UNATTRIBUTED", Align::Right, 7), |cell| {
        on_gpu(cell, |gpu| known(gpu.unattributed_bytes, signed_bytes))
    }),
    column(("kinds", "KINDS", Align::Left, 10), |cell| on_gpu(cell, sentences::kinds)),
    column(("alloc", "ALLOC/s", Align::Right, 8), |cell| known(cell.process.allocations_per_second, rate)),
    column(("free", "FREE/s", Align::Right, 9), |cell| known(cell.process.frees_per_second, rate)),
    column(("failed", "FAILED", Align::Right, 5), |cell| on_gpu(cell, |gpu| count(gpu.failed_allocations))),
    column(("command", "COMMAND", Align::Left, 0), |cell| sentences::command(cell.process)),
];

const fn column(
    (name, title, align, rank): (&'static str, &'static str, Align, u8),
    text: fn(&ProcessRow<'_>) -> String,
) -> ProcessColumn {
    ProcessColumn { name, title, align, rank, text }
}

/// Returns the frameworks of a process, separated by commas; `None` if none was found.
pub(crate) fn frameworks(process: &ProcessView) -> Option<String> {
    let names: Vec<_> = process.frameworks.iter().map(|framework| framework.name()).collect();
    (!names.is_empty()).then(|| names.join(","))
}

/// Formats a number that is derived from driver calls; unknown if the calls of the process are not
/// seen.
fn of_calls(cell: &ProcessRow<'_>, text: impl Fn(&ProcessGpuView) -> String) -> String {
    known(cell.gpu.filter(|_| !cell.process.is_unprobed()), text)
}

fn on_gpu(cell: &ProcessRow<'_>, text: impl Fn(&ProcessGpuView) -> String) -> String {
    known(cell.gpu, text)
}

impl ProcessColumn {
    /// Returns the title and the alignment for a grid.
    pub(crate) const fn head(&self) -> (&'static str, Align) {
        (self.title, self.align)
    }

    /// Returns the text of a row's cell.
    pub(crate) fn text(&self, cell: &ProcessRow<'_>) -> String {
        (self.text)(cell)
    }
}

/// Sort order of the rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum ProcessSort {
    /// Memory used on a GPU, the most first
    #[default]
    Used,
    /// Allocated by driver calls
    Driver,
    /// Peak
    Peak,
    /// Failed allocations
    Failed,
    /// PID, the lowest first
    Pid,
    /// User name
    User,
    /// Command line
    Command,
}

/// Columns and sort order of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TableSelection {
    /// Names of the columns; empty for all columns that fit.
    pub(crate) columns: Vec<&'static str>,
    /// Sort order of the rows.
    pub(crate) sort: ProcessSort,
}

impl TableSelection {
    /// Returns the processes in sort order.
    pub(crate) fn sorted<'a>(&self, snapshot: &'a Snapshot) -> Vec<&'a ProcessView> {
        let mut all = by_holding(snapshot);
        let most = |process: &ProcessView, of: fn(&ProcessGpuView) -> u64| {
            Reverse(process.gpus.iter().map(of).max().unwrap_or(0))
        };
        match self.sort {
            ProcessSort::Used => {}
            ProcessSort::Driver => all.sort_by_key(|process| most(process, |gpu| gpu.live_bytes)),
            ProcessSort::Peak => all.sort_by_key(|process| most(process, |gpu| gpu.peak_bytes)),
            ProcessSort::Failed => all.sort_by_key(|process| most(process, |gpu| gpu.failed_allocations)),
            ProcessSort::Pid => all.sort_by_key(|process| process.tgid),
            ProcessSort::User => all.sort_by_key(|process| process.user.clone()),
            ProcessSort::Command => all.sort_by_key(|process| sentences::command(process)),
        }
        all
    }

    /// Returns the columns for these rows. If the lines would be wider than `wide`, the least
    /// important columns are dropped to keep the command line readable.
    pub(crate) fn fitting(&self, rows: &[ProcessRow<'_>], wide: Option<usize>) -> Vec<&'static ProcessColumn> {
        if !self.columns.is_empty() {
            let named = self.columns.iter().filter_map(|name| COLUMNS.iter().find(|column| column.name == *name));
            return named.collect();
        }
        let has_workloads = rows.iter().any(|cell| owners::workload(&cell.process.owner).is_some());
        let has_frameworks = rows.iter().any(|cell| !cell.process.frameworks.is_empty());
        let is_shown = |column: &&ProcessColumn| match column.name {
            "workload" => has_workloads,
            "framework" => has_frameworks,
            _ => true,
        };
        let mut columns: Vec<_> = COLUMNS.iter().filter(is_shown).collect();
        let Some(wide) = wide else { return columns };
        let width_of = |column: &ProcessColumn| {
            let own = rows.iter().map(|cell| width(&column.text(cell))).max().unwrap_or(0).max(width(column.title));
            if column.name == "command" { own.min(COMMAND_WIDTH) } else { own }
        };
        let mut widths: Vec<usize> = columns.iter().map(|column| width_of(column)).collect();
        while widths.iter().map(|own| own + 2).sum::<usize>() > wide + 2 {
            let least = (0..columns.len()).filter(|at| columns[*at].rank > 1).max_by_key(|at| columns[*at].rank);
            let Some(least) = least else { break };
            columns.remove(least);
            widths.remove(least);
        }
        columns
    }
}

/// Parses the name of a column.
///
/// # Errors
/// If there is no column of this name. The error is the list of names.
pub(crate) fn named(text: &str) -> Result<&'static str, String> {
    let found = COLUMNS.iter().find(|column| column.name == text);
    let names = || COLUMNS.iter().map(|column| column.name).collect::<Vec<_>>().join(", ");
    found.map(|column| column.name).ok_or_else(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture::busy_node;

    fn rows(snapshot: &Snapshot) -> Vec<ProcessRow<'_>> {
        let of = |process| ProcessRow { snapshot, process, gpu: process.gpus.first(), ascii: false };
        snapshot.processes.iter().map(of).collect()
    }

    #[test]
    fn at_eighty_columns_the_command_line_can_be_read() {
        let snapshot = busy_node();
        let rows = rows(&snapshot);
        for wide in [80, 100, 120, 160] {
            let columns = TableSelection::default().fitting(&rows, Some(wide));
            let names: Vec<_> = columns.iter().map(|column| column.name).collect();
            assert!(names.starts_with(&["pid"]) && names.ends_with(&["command"]), "{wide}: {names:?}");
            assert!(names.contains(&"used") && names.contains(&"driver"), "{wide}: {names:?}");
            let used: usize = columns[..columns.len() - 1]
                .iter()
                .map(|column| {
                    rows.iter().map(|row| width(&column.text(row))).max().unwrap_or(0).max(width(column.title)) + 2
                })
                .sum();
            assert!(used + COMMAND_WIDTH <= wide, "{wide}: {names:?}");
        }
        assert_eq!(
            TableSelection::default().fitting(&rows, None).len(),
            COLUMNS.len() - 2,
            "no workload and no framework, no column of them"
        );
    }

    #[test]
    fn ps_columns_and_order_are_those_selected() {
        let snapshot = busy_node();
        let shown = TableSelection { columns: vec!["command", "pid"], sort: ProcessSort::Pid };
        let names: Vec<_> = shown.fitting(&rows(&snapshot), Some(20)).iter().map(|column| column.name).collect();
        assert_eq!(names, ["command", "pid"]);
        let order = |sort| {
            TableSelection { sort, ..TableSelection::default() }
                .sorted(&snapshot)
                .iter()
                .map(|one| one.tgid.0)
                .collect::<Vec<_>>()
        };
        assert_eq!(order(ProcessSort::Pid), [1234, 2002, 4321]);
        assert_eq!(order(ProcessSort::Failed)[0], 1234);
        assert_eq!(order(ProcessSort::Command), [4321, 1234, 2002]);
        assert!(named("memory").expect_err("no such").contains("pre-existing"));
    }
}
