//! Columns of a report, on the screen and in the table: one per fact.

use super::args::FleetSort;
use super::ask::{FleetReport, FleetRows, RuleUse};
use super::model::{FleetGpu, FleetHolder, FleetNode, FleetTotals, FleetWorkload};
use crate::render::Tone;
use crate::render::format::{
    self, UNKNOWN, bytes, count, known, percent, percent_of_one, plural, printable, signed_bytes,
};

/// Maximum number of agents that are named as not responding.
const NAMED: usize = 4;
const NS: f64 = 1e9;
const MINUTE: f64 = 60.0;
/// Imbalance from which a cell is highlighted.
const UNEVEN: f64 = 0.2;

/// A column, and its cell for a row at a time in seconds since 1970.
struct FleetColumn<T> {
    head: ColumnHead,
    cell: fn(&T, f64) -> FleetCell,
}

/// Title and layout of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ColumnHead {
    pub(crate) title: &'static str,
    /// Width on the screen; 0 for the remaining width.
    pub(crate) width: u16,
    /// Sort order of the column, if rows can be sorted by it.
    pub(crate) sort: Option<FleetSort>,
    /// Whether the column is shown on wide screens only.
    pub(crate) wide: bool,
    /// Whether the cells are text, which is left-aligned.
    pub(crate) words: bool,
}

/// A cell of a table.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FleetCell {
    /// Text, safe for a terminal.
    pub(crate) text: String,
    pub(crate) tone: Tone,
}

/// A table without the type of its rows.
pub(crate) struct FleetTable {
    pub(crate) columns: Vec<ColumnHead>,
    pub(crate) rows: Vec<Vec<FleetCell>>,
}

/// Returns the first rows of a report as cells.
pub(crate) fn shown(rows: &FleetRows, (top, now): (usize, f64)) -> FleetTable {
    match rows {
        FleetRows::Workloads(rows) => of(&WORKLOADS, rows, (top, now)),
        FleetRows::Nodes(rows) => of(&NODES, rows, (top, now)),
        FleetRows::Gpus(rows) => of(&GPUS, rows, (top, now)),
        FleetRows::Holders(rows) => of(&HOLDERS, rows, (top, now)),
    }
}

fn of<T>(columns: &[FleetColumn<T>], rows: &[T], (top, now): (usize, f64)) -> FleetTable {
    FleetTable {
        columns: columns.iter().map(|column| column.head).collect(),
        rows: rows.iter().take(top).map(|row| columns.iter().map(|column| (column.cell)(row, now)).collect()).collect(),
    }
}

const fn column<T>(title: &'static str, width: u16, cell: fn(&T, f64) -> FleetCell) -> FleetColumn<T> {
    FleetColumn { head: ColumnHead { title, width, sort: None, wide: false, words: false }, cell }
}

const fn sorted<T>(
    (title, width): (&'static str, u16),
    sort: FleetSort,
    cell: fn(&T, f64) -> FleetCell,
) -> FleetColumn<T> {
    FleetColumn { head: ColumnHead { title, width, sort: Some(sort), wide: false, words: false }, cell }
}

#[expect(clippy::needless_pass_by_value, reason = "tables are made of it")]
const fn wide<T>(column: FleetColumn<T>) -> FleetColumn<T> {
    FleetColumn { head: ColumnHead { wide: true, ..column.head }, ..column }
}

const fn words<T>(title: &'static str, width: u16, cell: fn(&T, f64) -> FleetCell) -> FleetColumn<T> {
    FleetColumn { head: ColumnHead { title, width, sort: None, wide: false, words: true }, cell }
}

const WORKLOADS: [FleetColumn<FleetWorkload>; 11] = [
    sorted(("USED", 10), FleetSort::Used, |row, _| plain(known(row.used_bytes, bytes))),
    wide(sorted(("DRIVER", 10), FleetSort::Driver, |row, _| plain(known(row.driver_allocated_bytes, bytes)))),
    sorted(("CACHED", 10), FleetSort::Cached, |row, _| cached(row.framework_cached_bytes, row.driver_allocated_bytes)),
    column("GPUS", 5, |row, _| plain(known(row.gpus, count))),
    wide(column("NODES", 5, |row, _| plain(known(row.nodes, count)))),
    sorted(("UNEVEN", 7), FleetSort::Imbalance, |row, _| {
        let tone = if row.imbalance().is_some_and(|part| part >= UNEVEN) { Tone::Warning } else { Tone::Plain };
        FleetCell { text: known(row.imbalance(), percent_of_one), tone }
    }),
    sorted(("IDLE", 5), FleetSort::Idle, |row, _| idle(row.idle_gpus)),
    sorted(("GROWTH", 14), FleetSort::Growth, |row, _| growth(row.growth_bytes_per_second)),
    sorted(("OOMS", 5), FleetSort::Ooms, |row, _| ooms(row.ooms_1d)),
    wide(column("LAST OOM", 15, |row, now| plain(ago(row.last_oom_unix_seconds, now)))),
    words("WORKLOAD", 0, |row, _| plain(printable(&row.name.text()))),
];
const NODES: [FleetColumn<FleetNode>; 11] = [
    sorted(("USED", 10), FleetSort::Used, |row, _| plain(known(row.used_bytes, bytes))),
    wide(column("OF", 10, |row, _| plain(known(row.limit_bytes, bytes)))),
    column("%", 7, |row, _| part(row.used_bytes, row.limit_bytes)),
    sorted(("CACHED", 10), FleetSort::Cached, |row, _| cached(row.framework_cached_bytes, row.used_bytes)),
    wide(sorted(("UNATTRIBUTED", 12), FleetSort::Unattributed, |row, _| {
        plain(known(row.unattributed_bytes, signed_bytes))
    })),
    column("GPUS", 5, |row, _| plain(known(row.gpus, count))),
    sorted(("IDLE", 5), FleetSort::Idle, |row, _| idle(row.idle_gpus)),
    sorted(("FULL IN", 12), FleetSort::Full, |row, _| plain(known(row.seconds_to_full, seconds))),
    sorted(("OOMS", 5), FleetSort::Ooms, |row, _| ooms(row.ooms_1d)),
    wide(column("LAST OOM", 15, |row, now| plain(ago(row.last_oom_unix_seconds, now)))),
    words("NODE", 0, |row, _| plain(printable(&row.instance))),
];
const GPUS: [FleetColumn<FleetGpu>; 10] = [
    sorted(("USED", 10), FleetSort::Used, |row, _| plain(known(row.used_bytes, bytes))),
    column("%", 7, |row, _| part(row.used_bytes, row.limit_bytes)),
    wide(sorted(("CACHED", 10), FleetSort::Cached, |row, _| cached(row.framework_cached_bytes, row.used_bytes))),
    wide(sorted(("UNATTRIBUTED", 12), FleetSort::Unattributed, |row, _| {
        plain(known(row.unattributed_bytes, signed_bytes))
    })),
    wide(column("UTIL", 5, |row, _| plain(known(row.utilization, |part| format!("{:.0} %", part * 100.0))))),
    sorted(("IDLE", 10), FleetSort::Idle, |row, _| {
        let tone = if row.idle_bytes.is_some() { Tone::Warning } else { Tone::Plain };
        FleetCell { text: known(row.idle_bytes, bytes), tone }
    }),
    wide(sorted(("FULL IN", 12), FleetSort::Full, |row, _| plain(known(row.seconds_to_full, seconds)))),
    column("GPU", 5, |row, _| plain(printable(&row.gpu))),
    words("NODE", 21, |row, _| plain(printable(&row.instance))),
    words("HELD BY", 0, |row, _| plain(held_by(row))),
];
const HOLDERS: [FleetColumn<FleetHolder>; 10] = [
    sorted(("USED", 10), FleetSort::Used, |row, _| plain(known(row.used_bytes, bytes))),
    wide(sorted(("DRIVER", 10), FleetSort::Driver, |row, _| plain(known(row.driver_allocated_bytes, bytes)))),
    sorted(("CACHED", 10), FleetSort::Cached, |row, _| cached(row.framework_cached_bytes, row.driver_allocated_bytes)),
    wide(column("PROCESSES", 9, |row, _| plain(known(row.processes, count)))),
    wide(sorted(("GROWTH", 14), FleetSort::Growth, |row, _| growth(row.growth_bytes_per_second))),
    sorted(("OOMS", 5), FleetSort::Ooms, |row, _| ooms(row.ooms_1d)),
    wide(column("LAST OOM", 15, |row, now| plain(ago(row.last_oom_unix_seconds, now)))),
    column("GPU", 5, |row, _| plain(printable(&row.gpu))),
    words("NODE", 21, |row, _| plain(printable(&row.instance))),
    words("WORKLOAD", 0, |row, _| plain(printable(&row.name.text()))),
];

fn plain(text: impl Into<String>) -> FleetCell {
    FleetCell { text: text.into(), tone: Tone::Plain }
}

/// Highlights a cache of at least half the memory.
fn cached(cached: Option<u64>, of: Option<u64>) -> FleetCell {
    let is_much = cached.zip(of).is_some_and(|(cached, of)| of > 0 && cached >= of / 2);
    FleetCell { text: known(cached, bytes), tone: if is_much { Tone::Warning } else { Tone::Plain } }
}

fn idle(gpus: Option<u64>) -> FleetCell {
    let tone = if gpus.is_some_and(|gpus| gpus > 0) { Tone::Warning } else { Tone::Plain };
    FleetCell { text: known(gpus, count), tone }
}

fn growth(bytes_per_second: Option<f64>) -> FleetCell {
    plain(known(bytes_per_second, |growth| format::rate_per_minute(growth * MINUTE)))
}

fn ooms(number: Option<u64>) -> FleetCell {
    let tone = if number.is_some_and(|number| number > 0) { Tone::Bad } else { Tone::Plain };
    FleetCell { text: known(number, count), tone }
}

fn part(used: Option<u64>, limit: Option<u64>) -> FleetCell {
    let is_full = used.zip(limit).is_some_and(|(used, limit)| used >= limit / 100 * 95);
    let text = known(used.zip(limit), |(used, limit)| percent(used, limit));
    FleetCell { text, tone: if is_full { Tone::Bad } else { Tone::Plain } }
}

/// Formats `pod ml/a-0 and 3 more`.
fn held_by(gpu: &FleetGpu) -> String {
    let Some(name) = &gpu.largest_holder else { return UNKNOWN.to_owned() };
    let name = name.text();
    match gpu.holders.unwrap_or(1).saturating_sub(1) {
        0 => printable(&name).into_owned(),
        more => format!("{} and {} more", printable(&name), count(more)),
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time beyond the type becomes its end")]
fn seconds(seconds: f64) -> String {
    format::duration((seconds * NS) as u64)
}

/// Formats `3 min 2 s ago`.
fn ago(time: Option<f64>, now: f64) -> String {
    time.map_or_else(|| UNKNOWN.to_owned(), |time| format!("{} ago", seconds((now - time).max(0.0))))
}

/// Formats `2 nodes, 16 GPUs, 7 workloads  used 1.0 TiB of 1.2 TiB (81.3 %)`.
pub(crate) fn totals_line(totals: &FleetTotals) -> String {
    let FleetTotals { nodes, gpus, workloads, limit_bytes, used_bytes, .. } = totals;
    format!(
        "{}, {}, {}  used {} of {} ({})",
        plural(*nodes, "node", "nodes"),
        plural(*gpus, "GPU", "GPUs"),
        plural(*workloads, "workload", "workloads"),
        bytes(*used_bytes),
        bytes(*limit_bytes),
        percent(*used_bytes, *limit_bytes),
    )
}

/// Returns warnings about the totals; values of zero are left out.
pub(crate) fn warnings(totals: &FleetTotals) -> Vec<(Tone, String)> {
    let positive = |number: Option<u64>| number.filter(|number| *number > 0);
    let mut parts = Vec::new();
    if let Some(cached) = positive(totals.framework_cached_bytes) {
        parts.push((Tone::Plain, format!("{} cached by PyTorch, in no tensor", bytes(cached))));
    }
    if let Some(idle) = positive(totals.idle_gpus) {
        parts.push((Tone::Warning, format!("{} held but idle for 30 min", plural(idle, "GPU", "GPUs"))));
    }
    if let Some(ooms) = positive(totals.ooms_1d) {
        parts.push((Tone::Bad, format!("{} within a day", plural(ooms, "time out of memory", "times out of memory"))));
    }
    parts.extend(down(totals).map(|text| (Tone::Bad, text)));
    parts
}

fn down(totals: &FleetTotals) -> Option<String> {
    let named = totals.agents_down.iter().take(NAMED).map(|name| printable(name)).collect::<Vec<_>>();
    let number = totals.agents_down_count;
    let more = number.saturating_sub(u64::try_from(named.len()).unwrap_or(u64::MAX));
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    (number > 0)
        .then(|| format!("{} not answer: {}{more}", plural(number, "agent does", "agents do"), named.join(", ")))
}

/// Describes the source of the numbers, and whether recording rules were used.
pub(crate) fn origin(report: &FleetReport) -> String {
    let rules = match report.rules {
        RuleUse::Used => "by its recording rules",
        RuleUse::PartlyUsed => "in part from raw series: the recorded ones lack a label of --match",
        RuleUse::Absent => "from raw series: deploy/prometheus/rules.yaml, loaded there, makes this cheap",
        RuleUse::OtherVersion => "from raw series: its recording rules are of another memwatch version",
    };
    let seconds = report.queries.iter().fold(0.0, |sum, asked| sum + asked.seconds);
    let queries = plural(u64::try_from(report.queries.len()).unwrap_or(u64::MAX), "query", "queries");
    format!("{} · {rules} · {queries} in {seconds:.2} s", printable(&report.prometheus))
}

/// Returns the number of rows that the report leaves out; 0 if unknown.
pub(crate) fn beyond(report: &FleetReport) -> u64 {
    let (all, here) = match &report.rows {
        FleetRows::Workloads(rows) => (report.totals.workloads, rows.len()),
        FleetRows::Nodes(rows) => (report.totals.nodes, rows.len()),
        FleetRows::Gpus(rows) => (report.totals.gpus, rows.len()),
        FleetRows::Holders(_) => (0, 0),
    };
    all.saturating_sub(u64::try_from(here).unwrap_or(u64::MAX))
}
