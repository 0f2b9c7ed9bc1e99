//! `memwatch fleet` as text.

use std::io;

use super::model::{Gpu, Node, Totals, Workload};
use super::{Report, Rows};
use crate::render::format::{
    self, UNKNOWN, bytes, count, known, percent, percent_of_one, plural, printable, signed_bytes,
};
use crate::render::text::TableOptions;
use crate::render::text::grid::{Align, Grid};

/// So many agents that do not answer are named.
const NAMED: usize = 4;
const NS: f64 = 1e9;
const MINUTE: f64 = 60.0;

/// Writes a report; `now` is seconds since 1970.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    report: &Report,
    (top, now): (usize, f64),
    style: &TableOptions,
) -> io::Result<()> {
    let Report { prometheus, totals, rows } = report;
    writeln!(out, "{}", totals_line(totals))?;
    if let Some(line) = down_line(totals) {
        writeln!(out, "{line}")?;
    }
    writeln!(out)?;
    let (grid, all) = match rows {
        Rows::Workloads(workloads) => (grid(&WORKLOADS, workloads, (top, now)), workloads.len()),
        Rows::Nodes(nodes) => (grid(&NODES, nodes, (top, now)), nodes.len()),
        Rows::Gpus(gpus) => (grid(&GPUS, gpus, (top, now)), gpus.len()),
    };
    for line in grid.folded(style.columns, if style.ascii { "" } else { "…" }) {
        writeln!(out, "{line}")?;
    }
    if all > top {
        writeln!(out, "{} more rows: -n {all} shows all", all - top)?;
    }
    writeln!(out, "from {}", printable(prometheus))
}

fn totals_line(totals: &Totals) -> String {
    let Totals { nodes, gpus, limit_bytes, used_bytes, idle_gpus, .. } = totals;
    let idle = idle_gpus.filter(|idle| *idle > 0);
    let idle = idle.map(|idle| format!(" · held but idle for 30 min: {}", plural(idle, "GPU", "GPUs")));
    format!(
        "{}, {}  used {} of {} ({}){}",
        plural(*nodes, "node", "nodes"),
        plural(*gpus, "GPU", "GPUs"),
        bytes(*used_bytes),
        bytes(*limit_bytes),
        percent(*used_bytes, *limit_bytes),
        idle.unwrap_or_default()
    )
}

fn down_line(totals: &Totals) -> Option<String> {
    let down = &totals.agents_down;
    let named = down.iter().take(NAMED).map(|name| printable(name)).collect::<Vec<_>>().join(", ");
    let more = down.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let agents = plural(u64::try_from(down.len()).unwrap_or(u64::MAX), "agent does", "agents do");
    (!down.is_empty()).then(|| format!("{agents} not answer: {named}{more}"))
}

/// A column: its title, and what a row has in it at a time in seconds since 1970. The last has words, the others numbers.
type Column<T> = (&'static str, fn(&T, f64) -> String);

const WORKLOADS: [Column<Workload>; 9] = [
    ("USED", |workload, _| known(workload.used_bytes, bytes)),
    ("DRIVER", |workload, _| known(workload.driver_allocated_bytes, bytes)),
    ("GPUS", |workload, _| known(workload.gpus, count)),
    ("NODES", |workload, _| known(workload.nodes, count)),
    ("IMBALANCE", |workload, _| known(workload.imbalance(), percent_of_one)),
    ("IDLE GPUS", |workload, _| known(workload.idle_gpus, count)),
    ("GROWTH", |workload, _| {
        known(workload.growth_bytes_per_second, |growth| format::rate_per_minute(growth * MINUTE))
    }),
    ("LAST OOM", |workload, now| ago(workload.last_oom_unix_seconds, now)),
    ("WORKLOAD", |workload, _| printable(&workload.name()).into_owned()),
];
const NODES: [Column<Node>; 9] = [
    ("USED", |node, _| known(node.used_bytes, bytes)),
    ("OF", |node, _| known(node.limit_bytes, bytes)),
    ("%", |node, _| part(node.used_bytes, node.limit_bytes)),
    ("UNATTRIBUTED", |node, _| known(node.unattributed_bytes, signed_bytes)),
    ("GPUS", |node, _| known(node.gpus, count)),
    ("IDLE GPUS", |node, _| known(node.idle_gpus, count)),
    ("FULL IN", |node, _| known(node.seconds_to_full, seconds)),
    ("LAST OOM", |node, now| ago(node.last_oom_unix_seconds, now)),
    ("NODE", |node, _| printable(&node.instance).into_owned()),
];
const GPUS: [Column<Gpu>; 9] = [
    ("USED", |gpu, _| known(gpu.used_bytes, bytes)),
    ("OF", |gpu, _| known(gpu.limit_bytes, bytes)),
    ("%", |gpu, _| part(gpu.used_bytes, gpu.limit_bytes)),
    ("UNATTRIBUTED", |gpu, _| known(gpu.unattributed_bytes, signed_bytes)),
    ("UTIL", |gpu, _| known(gpu.utilization, |part| format!("{:.0} %", part * 100.0))),
    ("FULL IN", |gpu, _| known(gpu.seconds_to_full, seconds)),
    ("GPU", |gpu, _| printable(&gpu.gpu).into_owned()),
    ("UUID", |gpu, _| printable(&gpu.uuid).into_owned()),
    ("NODE", |gpu, _| printable(&gpu.instance).into_owned()),
];

fn grid<T>(columns: &[Column<T>], rows: &[T], (top, now): (usize, f64)) -> Grid {
    let last = columns.len() - 1;
    let align = |index| if index == last { Align::Left } else { Align::Right };
    let titles: Vec<_> = columns.iter().enumerate().map(|(index, (title, _))| (*title, align(index))).collect();
    let mut grid = Grid::new(&titles);
    for row in rows.iter().take(top) {
        grid.push(columns.iter().map(|(_, cell)| cell(row, now)).collect());
    }
    grid
}

fn part(used: Option<u64>, limit: Option<u64>) -> String {
    known(used.zip(limit), |(used, limit)| percent(used, limit))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time beyond the type becomes its end")]
fn seconds(seconds: f64) -> String {
    format::duration((seconds * NS) as u64)
}

/// `3 min 2 s ago`.
fn ago(time: Option<f64>, now: f64) -> String {
    time.map_or_else(|| UNKNOWN.to_owned(), |time| format!("{} ago", seconds((now - time).max(0.0))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(rows: Rows) -> String {
        let agents_down = (0..6).map(|number| format!("node{number}:9747")).collect();
        let (limit_bytes, used_bytes) = (320 << 30, 80 << 30);
        let totals = Totals { nodes: 2, gpus: 4, limit_bytes, used_bytes, idle_gpus: Some(1), agents_down };
        let report = Report { prometheus: "http://prometheus:9090".to_owned(), totals, rows };
        let style = TableOptions { columns: None, color: false, ascii: false, repeated: false };
        let mut out = Vec::new();
        write(&mut out, &report, (1, 1_000_060.0), &style).expect("memory can be written to");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_fleet_has_its_totals_its_largest_workloads_and_where_they_came_from() {
        let job = Workload {
            workload_kind: "slurm".to_owned(),
            slurm_job: "77\u{1b}[2J".to_owned(),
            gpus: Some(2),
            nodes: Some(2),
            used_bytes: Some(60 << 30),
            largest_used_bytes: Some(40 << 30),
            smallest_used_bytes: Some(20 << 30),
            growth_bytes_per_second: Some(f64::from(1 << 20)),
            last_oom_unix_seconds: Some(1_000_000.0),
            ..Workload::default()
        };
        let text = report(Rows::Workloads(vec![job, Workload::default()]));
        let expected = "2 nodes, 4 GPUs  used 80.00 GiB of 320.00 GiB (25.0 %) · held but idle for 30 min: 1 GPU\n\
            6 agents do not answer: node0:9747, node1:9747, node2:9747, node3:9747 and 2 more\n\n\
            \x20    USED  DRIVER  GPUS  NODES  IMBALANCE  IDLE GPUS         GROWTH       LAST OOM  WORKLOAD\n\
            60.00 GiB       -     2      2     50.0 %          -  +60.0 MiB/min  1 min 0 s ago  Slurm job 77\\x1b[2J\n\
            1 more rows: -n 2 shows all\nfrom http://prometheus:9090\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn nodes_and_gpus_show_what_is_unknown_as_that() {
        let text = report(Rows::Nodes(vec![Node { instance: "a:9747".to_owned(), ..Node::default() }]));
        assert!(text.contains("  -  -             -     -          -        -         -  a:9747\n"), "{text}");
        let gpu = Gpu { gpu: "0".to_owned(), utilization: Some(0.97), seconds_to_full: Some(61.0), ..Gpu::default() };
        let text = report(Rows::Gpus(vec![gpu]));
        assert!(text.contains("97 %") && text.contains("1 min 1 s"), "{text}");
    }
}
