//! Converts Prometheus series to report rows, without side effects.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::sources::prometheus::{PrometheusAnswer, PrometheusSeries};

/// Label values of a row, in the order in which the labels were requested.
pub(crate) type FleetRowKey = Vec<String>;

/// Totals of all machines. `None` is unknown: no agent reports the value, or there is nothing to
/// sum.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct FleetTotals {
    /// Machines with an agent that reports GPUs.
    pub(crate) nodes: u64,
    /// GPUs of these machines that NVML reports.
    pub(crate) gpus: u64,
    /// Workloads that hold memory.
    pub(crate) workloads: u64,
    /// Total memory of the GPUs.
    pub(crate) limit_bytes: u64,
    /// Memory in use, as NVML reports it.
    pub(crate) used_bytes: u64,
    /// Memory reserved by PyTorch's allocators and used by no tensor.
    pub(crate) framework_cached_bytes: Option<u64>,
    /// GPUs with allocated memory on which no kernel has run for 30 minutes; `None` if no agent
    /// reports utilization.
    pub(crate) idle_gpus: Option<u64>,
    /// Number of times within a day at which memory was refused.
    pub(crate) ooms_1d: Option<u64>,
    /// Number of agents that do not respond; `agents_down` has the addresses of the first of them.
    pub(crate) agents_down_count: u64,
    pub(crate) agents_down: Vec<String>,
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct FleetNode {
    /// Address at which its agent is scraped.
    pub(crate) instance: String,
    pub(crate) gpus: Option<u64>,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) unattributed_bytes: Option<i64>,
    pub(crate) framework_cached_bytes: Option<u64>,
    pub(crate) idle_gpus: Option<u64>,
    pub(crate) seconds_to_full: Option<f64>,
    pub(crate) ooms_1d: Option<u64>,
    pub(crate) last_oom_unix_seconds: Option<f64>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct FleetGpu {
    pub(crate) instance: String,
    pub(crate) gpu: String,
    pub(crate) uuid: String,
    pub(crate) limit_bytes: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) unattributed_bytes: Option<i64>,
    pub(crate) framework_cached_bytes: Option<u64>,
    pub(crate) utilization: Option<f64>,
    /// Memory used on the GPU if no kernel has run for 30 minutes.
    pub(crate) idle_bytes: Option<u64>,
    pub(crate) seconds_to_full: Option<f64>,
    /// Number of workloads that hold memory on the GPU.
    pub(crate) holders: Option<u64>,
    /// The workload that holds most.
    pub(crate) largest_holder: Option<WorkloadName>,
    pub(crate) largest_holder_used_bytes: Option<u64>,
}

/// Labels of a workload in the metrics; labels that do not apply are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(crate) struct WorkloadName {
    pub(crate) workload_kind: String,
    pub(crate) namespace: String,
    pub(crate) pod: String,
    pub(crate) container: String,
    pub(crate) slurm_job: String,
    pub(crate) unit: String,
}

/// A workload, on all its GPUs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct FleetWorkload {
    #[serde(flatten)]
    pub(crate) name: WorkloadName,
    pub(crate) nodes: Option<u64>,
    pub(crate) gpus: Option<u64>,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) driver_allocated_bytes: Option<u64>,
    pub(crate) framework_cached_bytes: Option<u64>,
    /// Memory used on the GPU where the workload uses most.
    pub(crate) largest_used_bytes: Option<u64>,
    /// Memory used on the GPU where the workload uses least.
    pub(crate) smallest_used_bytes: Option<u64>,
    /// Its GPUs on which no kernel has run for 30 minutes.
    pub(crate) idle_gpus: Option<u64>,
    pub(crate) growth_bytes_per_second: Option<f64>,
    /// Number of times within a day at which the workload was refused memory.
    pub(crate) ooms_1d: Option<u64>,
    /// Time of the last refusal.
    pub(crate) last_oom_unix_seconds: Option<f64>,
}

/// Memory of one workload on one GPU; for a job, this is one rank's part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct FleetHolder {
    pub(crate) instance: String,
    pub(crate) gpu: String,
    pub(crate) uuid: String,
    #[serde(flatten)]
    pub(crate) name: WorkloadName,
    pub(crate) used_bytes: Option<u64>,
    pub(crate) driver_allocated_bytes: Option<u64>,
    pub(crate) framework_cached_bytes: Option<u64>,
    pub(crate) processes: Option<u64>,
    pub(crate) growth_bytes_per_second: Option<f64>,
    pub(crate) ooms_1d: Option<u64>,
    pub(crate) last_oom_unix_seconds: Option<f64>,
}

impl WorkloadName {
    /// Makes a name from labels in the order of [`super::select::WORKLOAD`]; missing labels become
    /// empty.
    pub(crate) fn of(labels: &[String]) -> Self {
        let label = |place: usize| labels.get(place).cloned().unwrap_or_default();
        Self {
            workload_kind: label(0),
            namespace: label(1),
            pod: label(2),
            container: label(3),
            slurm_job: label(4),
            unit: label(5),
        }
    }

    /// Returns the labels in the order of [`super::select::WORKLOAD`].
    pub(crate) fn labels(&self) -> [&str; 6] {
        [&self.workload_kind, &self.namespace, &self.pod, &self.container, &self.slurm_job, &self.unit]
    }

    /// Returns a readable name, not yet safe for a terminal.
    pub(crate) fn text(&self) -> String {
        let Self { workload_kind, namespace, pod, container, slurm_job, unit } = self;
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

impl FleetWorkload {
    /// Returns the imbalance: the difference between the fullest and the emptiest GPU, relative to
    /// the fullest, 0 to 1; `None` on one GPU.
    pub(crate) fn imbalance(&self) -> Option<f64> {
        let (most, least) = self.largest_used_bytes.zip(self.smallest_used_bytes)?;
        (self.gpus? > 1 && most > 0).then(|| f64_of(most.saturating_sub(least)) / f64_of(most))
    }
}

/// Values of several facts by row.
#[derive(Debug, Default)]
pub(crate) struct JoinedAnswers {
    rows: BTreeMap<FleetRowKey, Vec<Option<f64>>>,
}

impl JoinedAnswers {
    /// Joins the answers to several queries, each of which becomes a column; series with the same
    /// key form a row. Rows beyond `most` are dropped.
    pub(crate) fn of(answers: Vec<PrometheusAnswer>, most: usize) -> Self {
        let mut rows: BTreeMap<FleetRowKey, Vec<Option<f64>>> = BTreeMap::new();
        let columns = answers.len();
        for (column, answer) in answers.into_iter().enumerate() {
            for PrometheusSeries { key, value } in answer.series {
                if rows.len() < most || rows.contains_key(&key) {
                    rows.entry(key).or_insert_with(|| vec![None; columns])[column] = Some(value);
                }
            }
        }
        Self { rows }
    }

    /// Converts each row with `make`, which gets its labels and values.
    pub(crate) fn each<T>(self, make: impl Fn(FleetRowKey, &RowValues) -> T) -> Vec<T> {
        self.rows.into_iter().map(|(key, values)| make(key, &RowValues(values))).collect()
    }
}

/// Values of a row.
#[derive(Debug)]
pub(crate) struct RowValues(Vec<Option<f64>>);

impl RowValues {
    /// Returns a finite value, or `None`.
    pub(crate) fn real(&self, column: usize) -> Option<f64> {
        self.0.get(column).copied().flatten().filter(|value| value.is_finite())
    }

    /// Returns a count or number of bytes; `None` if negative. Prometheus represents whole numbers
    /// exactly up to 2^53.
    pub(crate) fn whole(&self, column: usize) -> Option<u64> {
        self.real(column).and_then(whole)
    }

    /// Returns a signed whole number.
    #[expect(clippy::cast_possible_truncation, reason = "a float beyond the type becomes its end")]
    pub(crate) fn signed(&self, column: usize) -> Option<i64> {
        self.real(column).map(|value| value.round() as i64)
    }
}

/// Converts a float to a count or number of bytes; `None` if it cannot be one.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float beyond the type becomes its end")]
pub(crate) fn whole(value: f64) -> Option<u64> {
    (value.is_finite() && value > -0.5).then(|| value.round() as u64)
}

#[expect(clippy::cast_precision_loss, reason = "a ratio is shown with three digits")]
const fn f64_of(number: u64) -> f64 {
    number as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(series: &[(&str, f64)]) -> PrometheusAnswer {
        let one = |(key, value): &(&str, f64)| PrometheusSeries { key: vec![(*key).to_owned()], value: *value };
        PrometheusAnswer { series: series.iter().map(one).collect(), left_out: 0 }
    }

    #[test]
    fn fleet_rows_join_answers_by_labels_with_missing_ones_unknown() {
        let answers = || vec![answer(&[("a", 5.0), ("b", 7.0)]), answer(&[("b", -2.0), ("c", 1.0)])];
        let rows = |most| {
            JoinedAnswers::of(answers(), most).each(|key, values| (key.concat(), values.whole(0), values.signed(1)))
        };
        let [a, b] = [("a".to_owned(), Some(5), None), ("b".to_owned(), Some(7), Some(-2))];
        assert_eq!(rows(9), [a.clone(), b.clone(), ("c".to_owned(), None, Some(1))]);
        assert_eq!(rows(2), [a, b], "what is too much has no row");
    }

    #[test]
    fn fleet_values_that_are_not_numbers_are_unknown() {
        let values = RowValues(vec![Some(f64::INFINITY), Some(-3.0), Some(-0.2), Some(1e30), Some(f64::NAN)]);
        let whole: Vec<_> = (0..6).map(|column| values.whole(column)).collect();
        assert_eq!(whole, [None, None, Some(0), Some(u64::MAX), None, None]);
        assert_eq!((values.signed(1), values.signed(0), values.real(0)), (Some(-3), None, None));
    }

    #[test]
    fn one_gpu_is_never_uneven() {
        let (most, least) = (Some(400), Some(100));
        let two = FleetWorkload {
            gpus: Some(2),
            largest_used_bytes: most,
            smallest_used_bytes: least,
            ..FleetWorkload::default()
        };
        assert_eq!(two.imbalance(), Some(0.75));
        assert_eq!(FleetWorkload { gpus: Some(1), ..two.clone() }.imbalance(), None);
        assert_eq!(FleetWorkload { gpus: None, ..two }.imbalance(), None);
    }

    #[test]
    fn a_workload_is_named_by_the_labels_that_it_has() {
        let name = |labels: [&str; 6]| WorkloadName::of(&labels.map(str::to_owned)).text();
        assert_eq!(name(["kubernetes", "ml", "a-0", "", "", ""]), "pod ml/a-0");
        assert_eq!(name(["slurm", "", "", "", "77", ""]), "Slurm job 77");
        assert_eq!(name([""; 6]), "(rest of the nodes)");
        assert_eq!(WorkloadName::of(&[]), WorkloadName::default());
    }

    proptest! {
        /// For arbitrary answers, rows stay within the limit, and each has a value for every
        /// column.
        #[test]
        fn fleet_rows_of_arbitrary_answers_are_bounded(
            columns in prop::collection::vec(prop::collection::vec((0..20_u8, any::<f64>()), 0..30), 0..5),
            most in 0..10_usize,
        ) {
            let series = |column: Vec<(u8, f64)>| {
                let one = |(key, value): (u8, f64)| PrometheusSeries { key: vec![key.to_string()], value };
                PrometheusAnswer { series: column.into_iter().map(one).collect(), left_out: 0 }
            };
            let columns_count = columns.len();
            let rows = JoinedAnswers::of(columns.into_iter().map(series).collect(), most).each(|_, values| {
                (0..=columns_count).map(|column| (values.whole(column), values.signed(column))).collect::<Vec<_>>()
            });
            prop_assert!(rows.len() <= most);
            prop_assert!(rows.iter().all(|row| row[columns_count] == (None, None)));
        }
    }
}
