//! The process list: one row per process and GPU.

use std::collections::BTreeMap;

use memwatch_core::snapshot::{AllocatorView, ProcessGpuView, ProcessView};

use super::TableInput;
use crate::render::Tone;
use crate::render::format::{count, printable, rate};
use crate::render::order::by_holding;
use crate::render::owners;
use crate::render::sentences;
use crate::render::tui::grid::{GridCell, GridColumn, GridRow, ScreenGrid, SortKey};
use crate::render::tui::parts::beyond_driver;
use crate::render::tui::size::{signed, size};
use crate::render::tui::state::{ProcessKey, RowKey};
use crate::render::tui::view::look::TerminalLook;
use crate::render::tui::words::short_command;

/// Tree heading of processes without a workload.
const NO_WORKLOAD: &str = "(no workload)";

/// Input of one row.
struct ListEntry<'a> {
    facts: &'a TableInput<'a>,
    process: &'a ProcessView,
    gpu: Option<&'a ProcessGpuView>,
}

/// A column and the conditions under which it is shown.
struct ListColumn {
    column: GridColumn,
    /// Minimum screen width.
    from: usize,
    /// Returns whether any process has a value for the column. Otherwise the column is left out.
    wanted: fn(&TableInput) -> bool,
    cell: fn(&ListEntry) -> GridCell,
}

const fn always(_: &TableInput) -> bool {
    true
}

/// Columns in screen order. The command takes the remaining width.
const KINDS: [ListColumn; 16] = [
    ListColumn { column: GridColumn::number("PID", 7), from: 0, wanted: always, cell: process_number },
    ListColumn { column: GridColumn::words("USER", 8), from: 60, wanted: always, cell: user },
    ListColumn { column: GridColumn::words("WORKLOAD", 20), from: 100, wanted: has_workloads, cell: workload },
    ListColumn { column: GridColumn::number("RANK", 4), from: 80, wanted: has_ranks, cell: rank },
    ListColumn { column: GridColumn::number("GPU", 4), from: 0, wanted: always, cell: gpu_number },
    ListColumn { column: GridColumn::number("USED", 10), from: 24, wanted: always, cell: used },
    ListColumn { column: GridColumn::number("DRIVER", 10), from: 36, wanted: always, cell: driver },
    ListColumn { column: GridColumn::number("PEAK", 10), from: 100, wanted: always, cell: peak },
    ListColumn { column: GridColumn::number("RESERVED", 10), from: 76, wanted: has_pytorch, cell: reserved },
    ListColumn { column: GridColumn::number("ALLOCATED", 10), from: 110, wanted: has_pytorch, cell: allocated },
    ListColumn { column: GridColumn::number("PRE-EXISTING", 12), from: 130, wanted: always, cell: before },
    ListColumn { column: GridColumn::number("UNATTRIBUTED", 12), from: 130, wanted: always, cell: unattributed },
    ListColumn { column: GridColumn::number("ALLOC/S", 7), from: 170, wanted: always, cell: allocations },
    ListColumn { column: GridColumn::number("FREE/S", 7), from: 170, wanted: always, cell: frees },
    ListColumn { column: GridColumn::words("STATUS", 10), from: 70, wanted: has_status, cell: status },
    ListColumn { column: GridColumn::words("COMMAND", 0), from: 0, wanted: always, cell: command },
];

/// Builds the rows of all processes that use GPU memory, largest first.
pub(crate) fn grid(facts: &TableInput) -> ScreenGrid {
    let kinds: Vec<&ListColumn> =
        KINDS.iter().filter(|kind| kind.from <= facts.width && (kind.wanted)(facts)).collect();
    let mut rows = Vec::new();
    for process in by_holding(facts.snapshot).into_iter().filter(|process| is_shown(process)) {
        let places = if process.gpus.is_empty() { vec![None] } else { (0..process.gpus.len()).map(Some).collect() };
        for place in places {
            let entry = ListEntry { facts, process, gpu: place.and_then(|place| process.gpus.get(place)) };
            rows.push(GridRow {
                key: RowKey::Process(ProcessKey::of(process), place),
                cells: kinds.iter().map(|kind| (kind.cell)(&entry)).collect(),
                tone: if process.ended_ns.is_some() { Tone::Faint } else { Tone::Plain },
                branch: Some((
                    owners::workload(&process.owner).unwrap_or_else(|| NO_WORKLOAD.to_owned()),
                    process.owner.rank.and_then(|rank| rank.rank),
                )),
            });
        }
    }
    let columns = kinds.iter().map(|kind| kind.column).collect();
    ScreenGrid { columns, rows, natural: "USED", empty: "No process has used GPU memory yet.".to_owned() }
}

/// Returns whether a process is listed. Programs that only query NVML, as memwatch does, are not
/// GPU processes.
fn is_shown(process: &ProcessView) -> bool {
    process.target || process.has_touched_gpu()
}

/// Groups rows by workload, in the order of each workload's first row, and sorts each group by
/// rank. Rows of a folded workload are left out.
pub(crate) fn branch(grid: &mut ScreenGrid, is_folded: impl Fn(&str) -> bool, ascii: bool) {
    let mut names = Vec::new();
    let mut branches: BTreeMap<String, Vec<GridRow>> = BTreeMap::new();
    for row in std::mem::take(&mut grid.rows) {
        let name = row.branch.as_ref().map_or(NO_WORKLOAD, |(name, _)| name).to_owned();
        let branch = branches.entry(name.clone()).or_default();
        if branch.is_empty() {
            names.push(name);
        }
        branch.push(row);
    }
    for name in names {
        let Some(mut branch) = branches.remove(&name) else { continue };
        branch.sort_by_key(|row| row.branch.as_ref().and_then(|(_, rank)| *rank).unwrap_or(u32::MAX));
        let folded = is_folded(&name);
        grid.rows.push(head(&grid.columns, &name, &branch, (folded, ascii)));
        if !folded {
            let last = branch.len() - 1;
            grid.rows.extend(branch.into_iter().enumerate().map(|(place, row)| twig(row, place == last, ascii)));
        }
    }
}

/// Builds the row of a workload. A sum is shown only if every process has a value.
fn head(columns: &[GridColumn], name: &str, branch: &[GridRow], (folded, ascii): (bool, bool)) -> GridRow {
    let mark = match (folded, ascii) {
        (true, false) => "▸",
        (false, false) => "▾",
        (true, true) => "+",
        (false, true) => "-",
    };
    let rows = u64::try_from(branch.len()).unwrap_or(u64::MAX);
    let cell = |(place, column): (usize, &GridColumn)| match column.title {
        "USED" | "DRIVER" => sum(branch, place),
        "COMMAND" => GridCell::text(format!("{mark} {name} ({})", count(rows))),
        _ => GridCell::text(""),
    };
    GridRow {
        key: RowKey::Workload(name.to_owned()),
        cells: columns.iter().enumerate().map(cell).collect(),
        tone: Tone::Heading,
        branch: None,
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "these were whole bytes")]
fn sum(branch: &[GridRow], place: usize) -> GridCell {
    let bytes = |row: &GridRow| match row.cells.get(place)?.order {
        SortKey::Number(bytes) => Some(bytes),
        _ => None,
    };
    let sum: Option<f64> = branch.iter().map(bytes).sum();
    GridCell::bytes(sum.map(|bytes| bytes as u64))
}

/// Returns a row with the tree branch in front of its command.
fn twig(mut row: GridRow, is_last: bool, ascii: bool) -> GridRow {
    let stem = match (is_last, ascii) {
        (true, false) => "└ ",
        (false, false) => "├ ",
        (_, true) => "| ",
    };
    if let Some(command) = row.cells.last_mut() {
        command.text.insert_str(0, stem);
    }
    row
}

fn has_workloads(facts: &TableInput) -> bool {
    owners::any(facts.snapshot)
}

fn has_ranks(facts: &TableInput) -> bool {
    facts.snapshot.processes.iter().any(|process| process.owner.rank.is_some_and(|rank| rank.rank.is_some()))
}

fn has_pytorch(facts: &TableInput) -> bool {
    facts.snapshot.processes.iter().any(|process| process.tensors.is_some())
}

fn has_status(facts: &TableInput) -> bool {
    facts.snapshot.processes.iter().any(|process| status_of(facts, process).is_some())
}

fn process_number(entry: &ListEntry) -> GridCell {
    GridCell::number(u64::from(entry.process.tgid.0), entry.process.tgid.0.to_string())
}

fn user(entry: &ListEntry) -> GridCell {
    entry.process.user.as_deref().map_or_else(GridCell::unknown, |user| GridCell::text(printable(user)))
}

fn workload(entry: &ListEntry) -> GridCell {
    owners::workload(&entry.process.owner).map_or_else(GridCell::unknown, GridCell::text)
}

fn rank(entry: &ListEntry) -> GridCell {
    let rank = entry.process.owner.rank.and_then(|rank| rank.rank).map(u64::from);
    rank.map_or_else(GridCell::unknown, |rank| GridCell::number(rank, rank.to_string()))
}

/// Returns the GPU's number, or four characters of its UUID if NVML gives no number.
fn gpu_number(entry: &ListEntry) -> GridCell {
    let number = sentences::gpu_number(entry.facts.snapshot, entry.gpu.and_then(|gpu| gpu.uuid.as_ref()));
    let bare = number.split_once('-').filter(|(kind, _)| !kind.is_empty());
    GridCell::text(bare.map_or_else(|| number.clone(), |(_, bare)| bare.chars().take(4).collect()))
}

fn used(entry: &ListEntry) -> GridCell {
    let Some(bytes) = entry.gpu.and_then(|gpu| gpu.used_bytes) else { return GridCell::unknown() };
    let on = |uuid| entry.facts.snapshot.gpus.iter().find(|gpu| Some(&gpu.uuid) == uuid);
    let total = on(entry.gpu.and_then(|gpu| gpu.uuid.as_ref())).and_then(|gpu| gpu.total_bytes);
    let tone = match TerminalLook::load(bytes, total) {
        Tone::Plain => Tone::Heading,
        tone => tone,
    };
    GridCell::number(bytes, size(bytes)).in_tone(tone)
}

/// Returns the row's GPU if the calls of the process are seen.
fn of_calls<'a>(entry: &'a ListEntry<'_>) -> Option<&'a ProcessGpuView> {
    entry.gpu.filter(|_| !entry.process.is_unprobed())
}

fn driver(entry: &ListEntry) -> GridCell {
    GridCell::bytes(of_calls(entry).map(|gpu| gpu.live_bytes))
}

fn peak(entry: &ListEntry) -> GridCell {
    GridCell::bytes(of_calls(entry).map(|gpu| gpu.peak_bytes))
}

/// Sums a value of the PyTorch allocators on the row's GPU.
fn of_pytorch(entry: &ListEntry, number: fn(&AllocatorView) -> Option<u64>) -> GridCell {
    let uuid = entry.gpu.and_then(|gpu| gpu.uuid.as_ref());
    let allocators = entry.process.tensors.iter().flat_map(|tensors| &tensors.allocators);
    let own: Vec<_> = allocators.filter(|allocator| allocator.uuid.as_ref() == uuid).map(number).collect();
    if own.is_empty() { GridCell::unknown() } else { GridCell::bytes(own.into_iter().sum()) }
}

fn reserved(entry: &ListEntry) -> GridCell {
    of_pytorch(entry, |allocator| allocator.reserved_bytes)
}

fn allocated(entry: &ListEntry) -> GridCell {
    of_pytorch(entry, |allocator| allocator.allocated_bytes)
}

fn before(entry: &ListEntry) -> GridCell {
    let Some((gpu, bytes)) = entry.gpu.and_then(|gpu| Some((gpu, gpu.preexisting_bytes?))) else {
        return GridCell::unknown();
    };
    GridCell::number(bytes, format!("{}{}", at_most(gpu, entry.facts.ascii), size(bytes)))
}

/// Returns the sign in front of a value that may include the CUDA context's memory.
pub(crate) const fn at_most(gpu: &ProcessGpuView, ascii: bool) -> &'static str {
    match (gpu.preexisting_includes_context, ascii) {
        (false, _) => "",
        (true, false) => "≤",
        (true, true) => "<=",
    }
}

#[expect(clippy::cast_precision_loss, reason = "rows are sorted by it, and the screen shows three digits")]
fn unattributed(entry: &ListEntry) -> GridCell {
    let bytes = entry.gpu.and_then(|gpu| Some(beyond_driver(gpu.unattributed_bytes?, gpu.preexisting_bytes).1));
    bytes.map_or_else(GridCell::unknown, |bytes| GridCell::real(bytes as f64, signed(bytes)))
}

fn allocations(entry: &ListEntry) -> GridCell {
    let rate_now = entry.process.allocations_per_second;
    rate_now.map_or_else(GridCell::unknown, |now| GridCell::real(now, rate(now)))
}

fn frees(entry: &ListEntry) -> GridCell {
    let rate_now = entry.process.frees_per_second;
    rate_now.map_or_else(GridCell::unknown, |now| GridCell::real(now, rate(now)))
}

/// Returns the most severe status of a process.
fn status_of(facts: &TableInput, process: &ProcessView) -> Option<(Tone, String)> {
    let failed: u64 = process.gpus.iter().map(|gpu| gpu.ooms).sum();
    if process.ended_ns.is_some() {
        return Some((Tone::Faint, if failed > 0 { "ended, OOM" } else { "ended" }.to_owned()));
    }
    facts.outlooks.status(process).or_else(|| {
        (failed > 0)
            .then(|| (Tone::Bad, format!("{} OOM", count(failed))))
            .or_else(|| (!process.exact).then(|| (Tone::Warning, "dropped".to_owned())))
    })
}

fn status(entry: &ListEntry) -> GridCell {
    let status = status_of(entry.facts, entry.process);
    status.map_or_else(|| GridCell::text(""), |(tone, text)| GridCell::text(text).in_tone(tone))
}

fn command(entry: &ListEntry) -> GridCell {
    GridCell::text(short_command(entry.process))
}
