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
        Rows::Workloads(workloads) => (workload_grid(workloads.iter().take(top), now), workloads.len()),
        Rows::Nodes(nodes) => (node_grid(nodes.iter().take(top), now), nodes.len()),
        Rows::Gpus(gpus) => (gpu_grid(gpus.iter().take(top)), gpus.len()),
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

fn workload_grid<'a>(workloads: impl Iterator<Item = &'a Workload>, now: f64) -> Grid {
    let number = Align::Right;
    let mut grid = Grid::new(&[
        ("USED", number),
        ("DRIVER", number),
        ("GPUS", number),
        ("NODES", number),
        ("IMBALANCE", number),
        ("IDLE GPUS", number),
        ("GROWTH", number),
        ("LAST OOM", number),
        ("WORKLOAD", Align::Left),
    ]);
    for workload in workloads {
        grid.push(vec![
            known(workload.used_bytes, bytes),
            known(workload.driver_allocated_bytes, bytes),
            known(workload.gpus, count),
            known(workload.nodes, count),
            known(workload.imbalance(), percent_of_one),
            known(workload.idle_gpus, count),
            known(workload.growth_bytes_per_second, |growth| format::rate_per_minute(growth * MINUTE)),
            ago(workload.last_oom_unix_seconds, now),
            printable(&workload.name()).into_owned(),
        ]);
    }
    grid
}

fn node_grid<'a>(nodes: impl Iterator<Item = &'a Node>, now: f64) -> Grid {
    let number = Align::Right;
    let mut grid = Grid::new(&[
        ("USED", number),
        ("OF", number),
        ("%", number),
        ("UNATTRIBUTED", number),
        ("GPUS", number),
        ("IDLE GPUS", number),
        ("FULL IN", number),
        ("LAST OOM", number),
        ("NODE", Align::Left),
    ]);
    for node in nodes {
        grid.push(vec![
            known(node.used_bytes, bytes),
            known(node.limit_bytes, bytes),
            known(node.used_bytes.zip(node.limit_bytes), |(used, limit)| percent(used, limit)),
            known(node.unattributed_bytes, signed_bytes),
            known(node.gpus, count),
            known(node.idle_gpus, count),
            known(node.seconds_to_full, seconds),
            ago(node.last_oom_unix_seconds, now),
            printable(&node.instance).into_owned(),
        ]);
    }
    grid
}

fn gpu_grid<'a>(gpus: impl Iterator<Item = &'a Gpu>) -> Grid {
    let number = Align::Right;
    let mut grid = Grid::new(&[
        ("USED", number),
        ("OF", number),
        ("%", number),
        ("UNATTRIBUTED", number),
        ("UTIL", number),
        ("FULL IN", number),
        ("GPU", number),
        ("UUID", Align::Left),
        ("NODE", Align::Left),
    ]);
    for gpu in gpus {
        grid.push(vec![
            known(gpu.used_bytes, bytes),
            known(gpu.limit_bytes, bytes),
            known(gpu.used_bytes.zip(gpu.limit_bytes), |(used, limit)| percent(used, limit)),
            known(gpu.unattributed_bytes, signed_bytes),
            known(gpu.utilization, |part| format!("{:.0} %", part * 100.0)),
            known(gpu.seconds_to_full, seconds),
            printable(&gpu.gpu).into_owned(),
            printable(&gpu.uuid).into_owned(),
            printable(&gpu.instance).into_owned(),
        ]);
    }
    grid
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
