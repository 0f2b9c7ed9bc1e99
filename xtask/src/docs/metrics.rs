//! Generates `docs/reference/metrics.md`: the agent's table of metrics, and facts about all of
//! them.

use crate::table::MarkdownTable;
use families::{ALL, MetricFamily, MetricKind};

#[path = "../../../memwatch/src/agent/metrics/families.rs"]
mod families;

const HEAD: &str = "\
# Metrics

<!-- Written by `cargo xtask docs` from memwatch/src/agent/metrics/families.rs: change the table there. -->

`memwatch agent --listen 127.0.0.1:9747` serves these metrics at `/metrics`, as OpenMetrics 1.0 or as
Prometheus' older text format (0.0.4), as the scraper's `Accept` header prefers. Every client that can
connect can read them. Listen on loopback, on the network through [TLS](../operate/agent.md#tls), or on a
trusted network with `--insecure=metrics`. [The page](../operate/agent.md#the-page) at the same address
requires a link. With `--otlp` the agent pushes the same metrics by
[OpenTelemetry's protocol](../operate/agent.md#opentelemetry).

| directory | content |
|---|---|
| `deploy/prometheus/` | a scrape configuration, alert rules and routes for an Alertmanager |
| `deploy/grafana/` | a dashboard to import into Grafana |
| `deploy/kubernetes/`, `deploy/helm/` | a DaemonSet with a NetworkPolicy, and a chart |

## Health

`/healthz` answers 200 while the session works. If it does not, restart the agent.

`/readyz` answers 200 while the probes are attached and NVML answers, otherwise 503 with the reason.
The agent retries NVML after 1 s at first and every 30 s later, so the driver may be loaded or replaced
while the agent runs. On a machine without NVML, start the agent with `--no-nvml`; it is ready without
NVML then.

Neither waits for other clients. The agent serves 128 connections at a time, of which 16 may be scrapes,
16 pages in progress and 64 open pages. A client has 5 s to complete its request, and a new client takes
its place if all are in use.

## Rules

* `gpu` is NVML's number (`1:0` for a MIG instance) and `uuid` its UUID. Both labels are empty if the GPU
  of the memory is unknown.
* A workload is a container of a pod, a Slurm job, a container, a systemd unit or session, or the rest of
  the machine (`workload_kind` is `kubernetes`, `slurm`, `container`, `systemd`, `session` or `host`).
  Labels that do not apply are empty. Workloads with equal labels are summed. If the scraper adds labels
  called `pod` or `namespace` itself, set `honor_labels: true`.
* `kind` is `device`, `async_pool`, `vmm`, `managed`, `pinned`, `array` or `graph`. A kind appears after
  its first allocation.
* An unknown value is absent, never 0. If NVML fails, `memwatch_gpu_up` is 0 and the other series of the
  GPU are absent.
* The number of series is bounded. 200 pairs of workload and GPU have series of their own. The smallest
  ones beyond that are summed by GPU under `workload_kind` `other`. A pair keeps its series until another
  one is more than twice as large, and what it counts meanwhile belongs to `other`, so that no counter
  decreases. The series of a workload end five minutes after its last process. Label values have at most
  256 bytes, with control characters replaced.
* Series per process are off, because they are many and short-lived. `--process-metrics N` enables them
  for the N largest processes.

## All metrics

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
