//! From the series of a Prometheus to rows. Pure.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::sources::prometheus::Series;

/// A row's labels with their values, in the order in which they were asked for.
pub(crate) type Key = Vec<String>;

/// All machines together.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Totals {
    /// Machines whose agent reports GPUs.
    pub(crate) nodes: u64,
    /// Their GPUs, of which NVML answers.
    pub(crate) gpus: u64,
    /// Memory of these.
    pub(crate) limit_bytes: u64,
    /// Of it in use, as NVML reports it.
    pub(crate) used_bytes: u64,
    /// GPUs on which something is held though no kernel has run for 30 minutes; `None` where no agent reports utilization.
    pub(crate) idle_gpus: Option<u64>,
    /// Addresses of agents that do not answer.
    pub(crate) agents_down: Vec<String>,
}

/// One machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Node {
    /// The address at which its agent is scraped.
    pub(crate) instance: String,
    pub(crate) gpus: Option<u64>,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) unattributed_bytes: Option<i64>,
    pub(crate) idle_gpus: Option<u64>,
    pub(crate) seconds_to_full: Option<f64>,
    pub(crate) last_oom_unix_seconds: Option<f64>,
}

/// One GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Gpu {
    pub(crate) instance: String,
    pub(crate) gpu: String,
    pub(crate) uuid: String,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) unattributed_bytes: Option<i64>,
    pub(crate) utilization: Option<f64>,
    pub(crate) seconds_to_full: Option<f64>,
}

/// One workload, on all its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Workload {
    pub(crate) workload_kind: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) slurm_job: String,
    pub(crate) unit: String,
    pub(crate) nodes: Option<u64>,
    pub(crate) gpus: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) driver_allocated_bytes: Option<u64>,
    /// What its fullest GPU has of it.
    pub(crate) largest_used_bytes: Option<u64>,
    /// What the emptiest has.
    pub(crate) smallest_used_bytes: Option<u64>,
    /// Its GPUs on which no kernel has run for 30 minutes.
    pub(crate) idle_gpus: Option<u64>,
    pub(crate) growth_bytes_per_second: Option<f64>,
    /// Its last allocation that failed for want of memory, within a day.
    pub(crate) last_oom_unix_seconds: Option<f64>,
}

impl Workload {
    /// How uneven it is: what its emptiest GPU lacks of the fullest, 0 to 1; `None` on one GPU.
    pub(crate) fn imbalance(&self) -> Option<f64> {
        let (most, least) = self.largest_used_bytes.zip(self.smallest_used_bytes)?;
        (self.gpus? > 1 && most > 0).then(|| f64_of(most.saturating_sub(least)) / f64_of(most))
    }

    /// What it is called.
    pub(crate) fn name(&self) -> String {
        let Self { workload_kind, namespace, pod, container, slurm_job, unit, .. } = self;
        let text = |parts: &[&String]| {
            parts.iter().map(|part| part.as_str()).filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/")
        };
        match workload_kind.as_str() {
            "kubernetes" => format!("pod {}", text(&[namespace, pod, container])),
            "slurm" => format!("Slurm job {slurm_job}"),
            "container" => format!("container {container}"),
            "systemd" => unit.clone(),
            "session" => "login sessions".to_owned(),
            "other" => "(beyond the largest of each node)".to_owned(),
            _ => "(rest of the nodes)".to_owned(),
        }
    }
}

/// Values of some facts by row.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: BTreeMap<Key, Vec<Option<f64>>>,
}

impl Table {
    /// Of the answers to as many queries, each a column; a row is what has the same values of these labels.
    pub(crate) fn of(labels: &[&str], answers: &[Vec<Series>]) -> Self {
        let mut rows: BTreeMap<Key, Vec<Option<f64>>> = BTreeMap::new();
        for (column, answer) in answers.iter().enumerate() {
            for Series { labels: found, value } in answer {
                let key = labels.iter().map(|label| found.get(*label).cloned().unwrap_or_default()).collect();
                rows.entry(key).or_insert_with(|| vec![None; answers.len()])[column] = Some(*value);
            }
        }
        Self { rows }
    }

    /// Each row as what `make` makes of its labels and values.
    pub(crate) fn each<T>(self, make: impl Fn(Key, &Values) -> T) -> Vec<T> {
        self.rows.into_iter().map(|(key, values)| make(key, &Values(values))).collect()
    }
}

/// The values of a row.
#[derive(Debug)]
pub(crate) struct Values(Vec<Option<f64>>);

impl Values {
    /// As it is.
    pub(crate) fn real(&self, column: usize) -> Option<f64> {
        self.0.get(column).copied().flatten()
    }

    /// A count or bytes: whole numbers are exact in a Prometheus up to 2^53.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a float beyond the type becomes its end"
    )]
    pub(crate) fn whole(&self, column: usize) -> Option<u64> {
        self.real(column).map(|value| value.round() as u64)
    }

    /// The same with a sign.
    #[expect(clippy::cast_possible_truncation, reason = "a float beyond the type becomes its end")]
    pub(crate) fn signed(&self, column: usize) -> Option<i64> {
        self.real(column).map(|value| value.round() as i64)
    }
}

/// The totals of these machines.
pub(crate) fn totals(nodes: &[Node], mut agents_down: Vec<String>, knows_utilization: bool) -> Totals {
    let sum = |of: fn(&Node) -> Option<u64>| nodes.iter().filter_map(of).fold(0, u64::saturating_add);
    agents_down.sort_unstable();
    Totals {
        nodes: u64::try_from(nodes.len()).unwrap_or(u64::MAX),
        gpus: sum(|node| node.gpus),
        limit_bytes: sum(|node| node.limit_bytes),
        used_bytes: sum(|node| node.used_bytes),
        idle_gpus: knows_utilization.then(|| sum(|node| node.idle_gpus)),
        agents_down,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a ratio is shown with three digits")]
const fn f64_of(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(labels: &[(&str, &str)], value: f64) -> Series {
        let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        Series { labels, value }
    }

    #[test]
    fn rows_are_what_has_the_same_labels_and_what_has_no_answer_is_unknown() {
        let used = vec![series(&[("instance", "a"), ("job", "x")], 5.0), series(&[("instance", "b")], 7.0)];
        let unattributed = vec![series(&[("instance", "b")], -2.0)];
        let table = Table::of(&["instance"], &[used, unattributed]);
        let rows = table.each(|key, values| (key, values.whole(0), values.signed(1)));
        assert_eq!(rows, [(vec!["a".to_owned()], Some(5), None), (vec!["b".to_owned()], Some(7), Some(-2))]);
    }

    #[test]
    fn one_gpu_is_never_uneven() {
        let (most, least) = (Some(400), Some(100));
        let two =
            Workload { gpus: Some(2), largest_used_bytes: most, smallest_used_bytes: least, ..Workload::default() };
        assert_eq!(two.imbalance(), Some(0.75));
        assert_eq!(Workload { gpus: Some(1), ..two.clone() }.imbalance(), None);
        assert_eq!(Workload { gpus: None, ..two }.imbalance(), None);
    }

    #[test]
    fn a_workload_is_named_by_the_labels_that_it_has() {
        let text = |text: &str| text.to_owned();
        let pod = Workload {
            workload_kind: text("kubernetes"),
            namespace: text("ml"),
            pod: text("a-0"),
            ..Workload::default()
        };
        assert_eq!(pod.name(), "pod ml/a-0");
        let job = Workload { workload_kind: text("slurm"), slurm_job: text("77"), ..Workload::default() };
        assert_eq!(job.name(), "Slurm job 77");
    }

    #[test]
    fn what_is_idle_is_unknown_where_no_agent_reports_utilization() {
        let node = Node { instance: "a".to_owned(), gpus: Some(8), used_bytes: Some(3), ..Node::default() };
        let nodes = [node.clone(), Node { gpus: None, ..node }];
        let known = totals(&nodes, vec!["b".to_owned(), "a".to_owned()], true);
        assert_eq!((known.nodes, known.gpus, known.used_bytes, known.idle_gpus), (2, 8, 6, Some(0)));
        assert_eq!(known.agents_down, ["a", "b"]);
        assert_eq!(totals(&nodes, Vec::new(), false).idle_gpus, None);
    }
}
