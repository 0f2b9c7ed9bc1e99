//! What a Prometheus is asked: one expression per fact. `deploy/prometheus/rules.yaml` records each of them under the name given here; where that is
//! done, the recorded series is asked for, which costs a server next to nothing.

/// A fact that has a value per row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Query {
    /// The recorded series.
    pub(crate) record: &'static str,
    /// What it stands for.
    pub(crate) expression: &'static str,
}

const fn query(record: &'static str, expression: &'static str) -> Query {
    Query { record, expression }
}

/// The labels that make a workload.
pub(crate) const WORKLOAD: [&str; 6] = ["workload_kind", "namespace", "pod", "container", "slurm_job", "unit"];

/// Machines, their GPUs, and what is used of these.
pub(crate) const NODE_GPUS: Query = query("memwatch:fleet_node_gpus", "count by (instance) (memwatch_gpu_up == 1)");
pub(crate) const NODE_LIMIT: Query =
    query("memwatch:fleet_node_limit_bytes", "sum by (instance) (memwatch_gpu_memory_limit_bytes)");
pub(crate) const NODE_USED: Query =
    query("memwatch:fleet_node_used_bytes", "sum by (instance) (memwatch_gpu_memory_used_bytes)");
pub(crate) const NODE_UNATTRIBUTED: Query =
    query("memwatch:fleet_node_unattributed_bytes", "sum by (instance) (memwatch_gpu_memory_unattributed_bytes)");
/// GPUs on which something is held though no kernel has run for half an hour; a GPU that was not known by then does not count.
pub(crate) const NODE_IDLE: Query = query(
    "memwatch:fleet_node_idle_gpus",
    "count by (instance) (max by (instance, uuid) (memwatch_workload_memory_used_bytes) > 0 and on (instance, uuid) max by (instance, uuid) \
     (max_over_time(memwatch_gpu_utilization_ratio[30m])) == 0 and on (instance, uuid) memwatch_gpu_utilization_ratio offset 30m)",
);
pub(crate) const NODE_FULL: Query =
    query("memwatch:fleet_node_seconds_to_full", "min by (instance) (memwatch_gpu_seconds_to_full)");
pub(crate) const NODE_OOM: Query = query(
    "memwatch:fleet_node_last_oom_timestamp_seconds",
    "max by (instance) (max_over_time(memwatch_workload_last_oom_timestamp_seconds[1d]))",
);
/// Agents that do not answer, by the alert rules' convention on the names of scrape jobs.
pub(crate) const DOWN: Query = query("memwatch:fleet_agent_down", "up{job=~\"memwatch.*\"} == 0");

pub(crate) const WORKLOAD_USED: Query = query(
    "memwatch:fleet_workload_used_bytes",
    "sum by (workload_kind, namespace, pod, container, slurm_job, unit) (memwatch_workload_memory_used_bytes)",
);
pub(crate) const WORKLOAD_ALLOCATED: Query = query(
    "memwatch:fleet_workload_driver_allocated_bytes",
    "sum by (workload_kind, namespace, pod, container, slurm_job, unit) (memwatch_workload_memory_driver_allocated_bytes{kind!~\"managed|pinned\"})",
);
pub(crate) const WORKLOAD_GPUS: Query = query(
    "memwatch:fleet_workload_gpus",
    "count by (workload_kind, namespace, pod, container, slurm_job, unit) (memwatch_workload_memory_used_bytes > 0)",
);
pub(crate) const WORKLOAD_NODES: Query = query(
    "memwatch:fleet_workload_nodes",
    "count by (workload_kind, namespace, pod, container, slurm_job, unit) (count by (instance, workload_kind, namespace, pod, container, slurm_job, \
     unit) (memwatch_workload_memory_used_bytes > 0))",
);
/// What its fullest and its emptiest GPU have.
pub(crate) const WORKLOAD_MOST: Query = query(
    "memwatch:fleet_workload_largest_used_bytes",
    "max by (workload_kind, namespace, pod, container, slurm_job, unit) (memwatch_workload_memory_used_bytes > 0)",
);
pub(crate) const WORKLOAD_LEAST: Query = query(
    "memwatch:fleet_workload_smallest_used_bytes",
    "min by (workload_kind, namespace, pod, container, slurm_job, unit) (memwatch_workload_memory_used_bytes > 0)",
);
pub(crate) const WORKLOAD_IDLE: Query = query(
    "memwatch:fleet_workload_idle_gpus",
    "count by (workload_kind, namespace, pod, container, slurm_job, unit) (memwatch_workload_memory_used_bytes > 0 and on (instance, uuid) max by \
     (instance, uuid) (max_over_time(memwatch_gpu_utilization_ratio[30m])) == 0 and on (instance, uuid) memwatch_gpu_utilization_ratio offset 30m)",
);
pub(crate) const WORKLOAD_GROWTH: Query = query(
    "memwatch:fleet_workload_growth_bytes_per_second",
    "sum by (workload_kind, namespace, pod, container, slurm_job, unit) (memwatch_workload_growth_bytes_per_second)",
);
pub(crate) const WORKLOAD_OOM: Query = query(
    "memwatch:fleet_workload_last_oom_timestamp_seconds",
    "max by (workload_kind, namespace, pod, container, slurm_job, unit) (max_over_time(memwatch_workload_last_oom_timestamp_seconds[1d]))",
);

/// The labels that make a GPU.
pub(crate) const GPU: [&str; 3] = ["instance", "gpu", "uuid"];
/// GPUs are series as they are: nothing is recorded of them.
pub(crate) const GPU_LIMIT: Query = query("", "memwatch_gpu_memory_limit_bytes");
pub(crate) const GPU_USED: Query = query("", "memwatch_gpu_memory_used_bytes");
pub(crate) const GPU_UNATTRIBUTED: Query = query("", "memwatch_gpu_memory_unattributed_bytes");
pub(crate) const GPU_FULL: Query = query("", "memwatch_gpu_seconds_to_full");
pub(crate) const GPU_UTILIZATION: Query = query("", "memwatch_gpu_utilization_ratio");

/// All that is recorded.
#[cfg(test)]
pub(crate) const RECORDED: [Query; 17] = [
    NODE_GPUS,
    NODE_LIMIT,
    NODE_USED,
    NODE_UNATTRIBUTED,
    NODE_IDLE,
    NODE_FULL,
    NODE_OOM,
    DOWN,
    WORKLOAD_USED,
    WORKLOAD_ALLOCATED,
    WORKLOAD_GPUS,
    WORKLOAD_NODES,
    WORKLOAD_MOST,
    WORKLOAD_LEAST,
    WORKLOAD_IDLE,
    WORKLOAD_GROWTH,
    WORKLOAD_OOM,
];

impl Query {
    /// What to ask, where the rules are loaded or not.
    pub(crate) const fn asked(self, is_recorded: bool) -> &'static str {
        if is_recorded && !self.record.is_empty() { self.record } else { self.expression }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_rules_record_every_expression_as_it_is_asked_for() {
        let rules = include_str!("../../../../deploy/prometheus/rules.yaml");
        let flat = rules.split_whitespace().chain([""]).collect::<Vec<_>>().join(" ");
        for Query { record, expression } in RECORDED {
            let rule = format!("- record: {record} expr: >- {expression} ");
            assert!(
                flat.contains(&rule),
                "rules.yaml lacks:\n      - record: {record}\n        expr: >-\n          {expression}"
            );
        }
        assert_eq!(rules.matches("- record: memwatch:fleet_").count(), RECORDED.len());
    }
}
