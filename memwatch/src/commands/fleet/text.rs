//! Text output of `memwatch fleet`.

use std::io;

use super::ask::FleetReport;
use super::columns::{self, ColumnHead, FleetCell, beyond};
use crate::render::format::count;
use crate::render::text::TableOptions;
use crate::render::text::grid::{Align, TextGrid};

/// Writes a report; `now` is in seconds since 1970.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    report: &FleetReport,
    (top, now): (usize, f64),
    style: &TableOptions,
) -> io::Result<()> {
    writeln!(out, "{}", columns::totals_line(&report.totals))?;
    let warnings = columns::warnings(&report.totals);
    if !warnings.is_empty() {
        let texts: Vec<_> = warnings.into_iter().map(|(_, text)| text).collect();
        writeln!(out, "{}", texts.join(if style.ascii { " - " } else { " · " }))?;
    }
    writeln!(out)?;
    let shown = columns::shown(&report.rows, (top, now));
    let align = |head: &ColumnHead| if head.words { Align::Left } else { Align::Right };
    let titles: Vec<_> = shown.columns.iter().map(|head| (head.title, align(head))).collect();
    let mut grid = TextGrid::new(&titles);
    let grid_is_empty = shown.rows.is_empty();
    for row in shown.rows {
        grid.push(row.into_iter().map(|FleetCell { text, .. }| text).collect());
    }
    let lines = grid.folded(style.columns, if style.ascii { "" } else { "…" });
    for line in lines.iter().filter(|_| !grid_is_empty) {
        writeln!(out, "{line}")?;
    }
    let more = beyond(report);
    if grid_is_empty {
        writeln!(out, "no rows")?;
    } else if more > 0 {
        writeln!(out, "{} more rows: -n shows more", count(more))?;
    }
    let origin = columns::origin(report);
    writeln!(out, "from {}", if style.ascii { origin.replace('·', "-") } else { origin })
}

#[cfg(test)]
mod tests {
    use super::super::ask::{FleetRows, RuleUse};
    use super::super::model::{FleetGpu, FleetNode, FleetTotals, FleetWorkload, WorkloadName};
    use super::*;

    fn report(rows: FleetRows) -> String {
        let totals = FleetTotals {
            nodes: 2,
            gpus: 4,
            workloads: 2,
            limit_bytes: 320 << 30,
            used_bytes: 80 << 30,
            framework_cached_bytes: Some(3 << 30),
            idle_gpus: Some(1),
            ooms_1d: Some(2),
            agents_down_count: 6,
            agents_down: (0..5).map(|number| format!("node{number}:9747")).collect(),
        };
        let prometheus = "http://prometheus:9090".to_owned();
        let report = FleetReport { prometheus, rules: RuleUse::Absent, totals, rows, queries: Vec::new() };
        let style = TableOptions { columns: None, color: false, ascii: false, repeated: false };
        let mut out = Vec::new();
        write(&mut out, &report, (1, 1_000_060.0), &style).expect("memory can be written to");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_fleet_has_its_totals_its_largest_workloads_and_where_they_came_from() {
        let job = FleetWorkload {
            name: WorkloadName {
                workload_kind: "slurm".to_owned(),
                slurm_job: "77\u{1b}[2J".to_owned(),
                ..WorkloadName::default()
            },
            gpus: Some(2),
            nodes: Some(2),
            used_bytes: Some(60 << 30),
            framework_cached_bytes: Some(2 << 30),
            largest_used_bytes: Some(40 << 30),
            smallest_used_bytes: Some(20 << 30),
            growth_bytes_per_second: Some(f64::from(1 << 20)),
            ooms_1d: Some(3),
            last_oom_unix_seconds: Some(1_000_000.0),
            ..FleetWorkload::default()
        };
        let text = report(FleetRows::Workloads(vec![job]));
        let expected = "2 nodes, 4 GPUs, 2 workloads  used 80.00 GiB of 320.00 GiB (25.0 %)\n\
            3.00 GiB cached by PyTorch, in no tensor · 1 GPU held but idle for 30 min · 2 times out of memory within a day · \
            6 agents do not answer: node0:9747, node1:9747, node2:9747, node3:9747 and 2 more\n\n\
            \x20    USED  DRIVER    CACHED  GPUS  NODES  UNEVEN  IDLE         GROWTH  OOMS       LAST OOM  WORKLOAD\n\
            60.00 GiB       -  2.00 GiB     2      2  50.0 %     -  +60.0 MiB/min     3  1 min 0 s ago  Slurm job 77\\x1b[2J\n\
            1 more rows: -n shows more\nfrom http://prometheus:9090 · from raw series: deploy/prometheus/rules.yaml, loaded \
            there, makes this cheap · 0 queries in 0.00 s\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn fleet_report_without_rows_has_no_header() {
        let text = report(FleetRows::Workloads(Vec::new()));
        assert!(text.contains("\n\nno rows\nfrom "), "{text}");
        assert!(!text.contains("WORKLOAD") && !text.contains("shows more"), "{text}");
    }

    #[test]
    fn nodes_and_gpus_show_what_is_unknown_as_that() {
        let text = report(FleetRows::Nodes(vec![FleetNode { instance: "a:9747".to_owned(), ..FleetNode::default() }]));
        let row = text.lines().nth(4).unwrap_or_default();
        assert_eq!(
            row.split_whitespace().collect::<Vec<_>>(),
            ["-"; 10].iter().chain(&["a:9747"]).copied().collect::<Vec<_>>()
        );
        let gpu = FleetGpu {
            gpu: "0".to_owned(),
            utilization: Some(0.97),
            seconds_to_full: Some(61.0),
            holders: Some(3),
            largest_holder: Some(WorkloadName {
                workload_kind: "systemd".to_owned(),
                unit: "a\n.service".to_owned(),
                ..WorkloadName::default()
            }),
            ..FleetGpu::default()
        };
        let text = report(FleetRows::Gpus(vec![gpu]));
        assert!(text.contains("97 %") && text.contains("1 min 1 s"), "{text}");
        assert!(text.contains("  a\\n.service and 2 more\n"), "{text}");
    }
}
