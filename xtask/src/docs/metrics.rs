//! Generates `docs/reference/metrics.md`: the agent's table of metrics, and facts about all of
//! them.

use crate::table::MarkdownTable;
use families::{ALL, MetricFamily, MetricKind};

#[path = "../../../memwatch/src/agent/metrics/families.rs"]
mod families;

const HEAD: &str = "\
# Metrics

<!-- Written by `cargo xtask docs` from memwatch/src/agent/metrics/families.rs: change the table there. -->

`memwatch agent --listen 127.0.0.1:9747` serves these at `/metrics`, as OpenMetrics 1.0 or as Prometheus' older text (0.0.4),
whichever the scraper's `Accept` likes better. They are served to anybody who can connect: listen on loopback, or on the network through TLS
([agent.md](agent.md#through-tls)), or where the network is yours with `--insecure=metrics`. The page that is served beside them takes a link ([agent.md](agent.md#its-page)). `deploy/prometheus/` holds a scrape configuration, alert rules and
routes for an Alertmanager,
`deploy/grafana/memwatch.json` a dashboard to import into Grafana, `deploy/kubernetes/` a DaemonSet
with a NetworkPolicy. With `--otlp` the agent pushes the same by OpenTelemetry's protocol ([agent.md](agent.md#it-pushes)).

* **`/healthz`** answers 200 while the watch does: if not, restart the agent.
* **`/readyz`** answers 200 while the probes are attached and NVML answers, else 503 with the reason. NVML that is missing or fails is tried again,
  after 1 s at first and every 30 s later, so a driver may be loaded after the agent, and replaced while it runs. On a machine that has no NVML,
  start the agent with `--no-nvml`: it is ready without.
* **Neither waits for other clients**: 128 connections are open at a time, and of them 16 scrapes, 16 pages on their way and 64 open ones. A client that has sent half a request has 5 s
  for the rest, and loses its place to a new one where all are taken.

* **A GPU** is `gpu` (NVML's number, `1:0` for a MIG instance) and `uuid`; both are empty where memory's GPU is not known.
* **A workload** is a pod's container, a Slurm job, a container, a systemd unit or session, or the rest of the machine
  (`workload_kind` `kubernetes`, `slurm`, `container`, `systemd`, `session`, `host`); labels that do not apply are empty. Two workloads
  with the same labels are summed. Where a scraper's own labels are called `pod` or `namespace`, too, set `honor_labels: true`.
* **`kind`** is `device`, `async_pool`, `vmm`, `managed`, `pinned`, `array` or `graph`, and appears once it was seen.
* **Absent is not known**, never 0. `memwatch_gpu_up` is 0 where NVML fails, and the GPU's other series are absent then.
* **Bounded**: 200 pairs of workload and GPU have series of their own, the smallest beyond that are summed by GPU under `workload_kind`
  `other`; a pair keeps its place until another is more than twice as large. What is counted while a pair stands there belongs to
  `other`, so no counter goes backwards. Series of a workload go five minutes after its last process. Values of labels are at most
  256 bytes, with control characters replaced.
* Per-process series, which are many and short-lived, are off: `--process-metrics N` turns them on for the N largest.

";

/// Returns the whole document.
pub(super) fn text() -> String {
    let mut table = MarkdownTable::new(&["metric", "type", "labels", "meaning"]);
    for family in ALL {
        let MetricFamily { name, kind, labels, help, .. } = family;
        table.row(vec![
            format!("`{name}{}`", kind.suffix()),
            type_word(*kind).to_owned(),
            labels.iter().map(|label| format!("`{label}`")).collect::<Vec<_>>().join(" "),
            (*help).to_owned(),
        ]);
    }
    format!("{HEAD}{}", table.text())
}

const fn type_word(kind: MetricKind) -> &'static str {
    match kind {
        MetricKind::Gauge => "gauge",
        MetricKind::Counter => "counter",
        MetricKind::Facts => "info",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_has_a_row() {
        let text = text();
        for family in ALL {
            let name = format!("| `{}{}` ", family.name, family.kind.suffix());
            assert_eq!(text.lines().filter(|line| line.starts_with(&name)).count(), 1, "{name}");
        }
    }
}
