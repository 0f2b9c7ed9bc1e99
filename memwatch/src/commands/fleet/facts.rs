//! Facts about a fleet: one expression per fact, and the series under which
//! `deploy/prometheus/rules.yaml` records it. If these rules are loaded, the recorded series are
//! queried, which is far cheaper for the server.

use super::select::{Matchers, WORKLOAD};

/// A fact with a value per row.
///
/// Placeholders in expressions: `<g>` and `<w>` for the conditions on a GPU or workload series,
/// `<g+>` and `<w+>` for conditions added to existing ones, and `<l>` for the labels of a workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fact {
    /// Name of the recorded series; empty if the raw expression is as cheap.
    pub(crate) record: &'static str,
    /// Labels of the recorded series.
    pub(crate) labels: &'static [&'static str],
    /// Expression over the raw series.
    pub(crate) expression: &'static str,
    /// Equivalent expression over other recorded series, which the rule evaluates instead.
    pub(crate) rule: Option<&'static str>,
}

/// Value of the series that identifies the loaded rules. It changes with every change of a rule.
pub(crate) const RULES: f64 = 5.0;
/// Name of the series that identifies the loaded rules.
pub(crate) const RULES_RECORD: &str = "memwatch:fleet_rules";

/// Labels that identify a node, a GPU, and a workload's part of a GPU.
pub(crate) const NODE: [&str; 1] = ["instance"];
pub(crate) const GPU: [&str; 3] = ["instance", "gpu", "uuid"];
pub(crate) const HOLDER: [&str; 9] =
    ["instance", "gpu", "uuid", "workload_kind", "namespace", "pod", "container", "slurm_job", "unit"];

const fn node(record: &'static str, expression: &'static str) -> Fact {
    Fact { record, labels: &NODE, expression, rule: None }
}

const fn gpu(record: &'static str, expression: &'static str) -> Fact {
    Fact { record, labels: &GPU, expression, rule: None }
}

const fn workload(record: &'static str, expression: &'static str) -> Fact {
    Fact { record, labels: &WORKLOAD, expression, rule: None }
}

const fn holder(record: &'static str, expression: &'static str) -> Fact {
    Fact { record, labels: &HOLDER, expression, rule: None }
}

const fn by_rule(fact: Fact, rule: &'static str) -> Fact {
    Fact { rule: Some(rule), ..fact }
}

/// Facts about the GPUs of a node.
pub(crate) const NODE_GPUS: Fact = node("memwatch:fleet_node_gpus", "count by (instance) (memwatch_gpu_up<g> == 1)");
pub(crate) const NODE_LIMIT: Fact =
    node("memwatch:fleet_node_limit_bytes", "sum by (instance) (memwatch_gpu_memory_limit_bytes<g>)");
pub(crate) const NODE_USED: Fact =
    node("memwatch:fleet_node_used_bytes", "sum by (instance) (memwatch_gpu_memory_used_bytes<g>)");
pub(crate) const NODE_UNATTRIBUTED: Fact =
    node("memwatch:fleet_node_unattributed_bytes", "sum by (instance) (memwatch_gpu_memory_unattributed_bytes<g>)");
/// Memory that PyTorch's allocators have reserved from the driver and no tensor uses.
pub(crate) const NODE_CACHED: Fact = by_rule(
    node(
        "memwatch:fleet_node_cached_bytes",
        "sum by (instance) (memwatch_workload_framework_reserved_bytes<w>) - sum by (instance) \
         (memwatch_workload_framework_allocated_bytes<w>)",
    ),
    "sum by (instance) (memwatch:fleet_gpu_cached_bytes)",
);
pub(crate) const NODE_IDLE: Fact = by_rule(
    node(
        "memwatch:fleet_node_idle_gpus",
        "count by (instance) (max by (instance, gpu, uuid) (memwatch_gpu_memory_used_bytes<g>) and on (instance, gpu, uuid) count by (instance, gpu, uuid) \
         (memwatch_workload_memory_used_bytes<w> > 0) and on (instance, uuid) max by (instance, uuid) \
         (max_over_time(memwatch_gpu_utilization_ratio<g>[30m])) == 0 and on (instance, uuid) memwatch_gpu_utilization_ratio<g> offset 30m)",
    ),
    "count by (instance) (memwatch:fleet_gpu_idle_bytes)",
);
pub(crate) const NODE_FULL: Fact =
    node("memwatch:fleet_node_seconds_to_full", "min by (instance) (memwatch_gpu_seconds_to_full<g>)");
pub(crate) const NODE_OOMS: Fact = by_rule(
    node(
        "memwatch:fleet_node_ooms",
        "sum by (instance) (changes(memwatch_workload_last_oom_timestamp_seconds<w>[1d]) + \
         (min_over_time(memwatch_workload_last_oom_timestamp_seconds<w>[1d]) > bool (time() - 86400)) > 0)",
    ),
    "sum by (instance) (memwatch:fleet_holder_ooms)",
);
pub(crate) const NODE_LAST_OOM: Fact = by_rule(
    node(
        "memwatch:fleet_node_last_oom_timestamp_seconds",
        "max by (instance) (max_over_time(memwatch_workload_last_oom_timestamp_seconds<w>[1d]) > time() - 86400)",
    ),
    "max by (instance) (memwatch:fleet_holder_last_oom_timestamp_seconds)",
);
/// Agents that do not respond, found by the alert rules' naming convention for scrape jobs.
pub(crate) const DOWN: Fact = Fact {
    record: "memwatch:fleet_agent_down",
    labels: &["instance", "job"],
    expression: "up{job=~\".*memwatch.*\"<g+>} == 0",
    rule: None,
};

/// Facts about a GPU are raw series, so these have no recorded ones.
pub(crate) const GPU_LIMIT: Fact = gpu("", "memwatch_gpu_memory_limit_bytes<g>");
pub(crate) const GPU_USED: Fact = gpu("", "memwatch_gpu_memory_used_bytes<g>");
pub(crate) const GPU_UNATTRIBUTED: Fact = gpu("", "memwatch_gpu_memory_unattributed_bytes<g>");
pub(crate) const GPU_FULL: Fact = gpu("", "memwatch_gpu_seconds_to_full<g>");
/// Recorded, because it has far more samples than the others if a server reads them from files.
pub(crate) const GPU_UTILIZATION: Fact =
    gpu("memwatch:fleet_gpu_utilization_ratio", "max by (instance, gpu, uuid) (memwatch_gpu_utilization_ratio<g>)");
pub(crate) const GPU_CACHED: Fact = gpu(
    "memwatch:fleet_gpu_cached_bytes",
    "sum by (instance, gpu, uuid) (memwatch_workload_framework_reserved_bytes<w>) - sum by (instance, gpu, uuid) \
     (memwatch_workload_framework_allocated_bytes<w>)",
);
/// Memory used on a GPU with allocated memory on which no kernel has run for half an hour. A GPU
/// that was unknown half an hour ago is not idle.
pub(crate) const GPU_IDLE: Fact = by_rule(
    gpu(
        "memwatch:fleet_gpu_idle_bytes",
        "max by (instance, gpu, uuid) (memwatch_gpu_memory_used_bytes<g>) and on (instance, gpu, uuid) count by (instance, gpu, uuid) \
         (memwatch_workload_memory_used_bytes<w> > 0) and on (instance, uuid) max by (instance, uuid) \
         (max_over_time(memwatch_gpu_utilization_ratio<g>[30m])) == 0 and on (instance, uuid) memwatch_gpu_utilization_ratio<g> offset 30m",
    ),
    "max by (instance, gpu, uuid) (memwatch_gpu_memory_used_bytes) and on (instance, gpu, uuid) memwatch:fleet_gpu_holders and on (instance, \
     uuid) max by (instance, uuid) (max_over_time(memwatch_gpu_utilization_ratio[30m])) == 0 and on (instance, uuid) \
     memwatch_gpu_utilization_ratio offset 30m",
);
pub(crate) const GPU_HOLDERS: Fact =
    gpu("memwatch:fleet_gpu_holders", "count by (instance, gpu, uuid) (memwatch_workload_memory_used_bytes<w> > 0)");
/// Memory of the workload that holds most on the GPU, with the labels of the workload.
pub(crate) const GPU_LARGEST: Fact = holder(
    "memwatch:fleet_gpu_largest_holder_bytes",
    "topk by (instance, gpu, uuid) (1, sum by (instance, gpu, uuid, <l>) (memwatch_workload_memory_used_bytes<w>))",
);

/// Facts about a workload.
pub(crate) const WORKLOAD_USED: Fact =
    workload("memwatch:fleet_workload_used_bytes", "sum by (<l>) (memwatch_workload_memory_used_bytes<w>)");
pub(crate) const WORKLOAD_DRIVER: Fact = workload(
    "memwatch:fleet_workload_driver_allocated_bytes",
    "sum by (<l>) (memwatch_workload_memory_driver_allocated_bytes{kind!~\"managed|pinned\"<w+>})",
);
/// Memory used, or the driver allocations if NVML does not report the use.
pub(crate) const WORKLOAD_HELD: Fact = by_rule(
    workload(
        "memwatch:fleet_workload_held_bytes",
        "sum by (<l>) (memwatch_workload_memory_used_bytes<w>) or sum by (<l>) \
         (memwatch_workload_memory_driver_allocated_bytes{kind!~\"managed|pinned\"<w+>})",
    ),
    "memwatch:fleet_workload_used_bytes or memwatch:fleet_workload_driver_allocated_bytes",
);
pub(crate) const WORKLOAD_CACHED: Fact = workload(
    "memwatch:fleet_workload_cached_bytes",
    "sum by (<l>) (memwatch_workload_framework_reserved_bytes<w>) - sum by (<l>) (memwatch_workload_framework_allocated_bytes<w>)",
);
pub(crate) const WORKLOAD_GPUS: Fact = by_rule(
    workload("memwatch:fleet_workload_gpus", "count by (<l>) (memwatch_workload_memory_used_bytes<w> > 0)"),
    "sum by (<l>) (memwatch:fleet_node_workload_gpus)",
);
pub(crate) const WORKLOAD_NODES: Fact = by_rule(
    workload(
        "memwatch:fleet_workload_nodes",
        "count by (<l>) (count by (instance, <l>) (memwatch_workload_memory_used_bytes<w> > 0))",
    ),
    "count by (<l>) (memwatch:fleet_node_workload_gpus)",
);
/// Memory on the workload's fullest and emptiest GPU.
pub(crate) const WORKLOAD_MOST: Fact =
    workload("memwatch:fleet_workload_largest_used_bytes", "max by (<l>) (memwatch_workload_memory_used_bytes<w> > 0)");
pub(crate) const WORKLOAD_LEAST: Fact = workload(
    "memwatch:fleet_workload_smallest_used_bytes",
    "min by (<l>) (memwatch_workload_memory_used_bytes<w> > 0)",
);
/// Imbalance of a workload on several GPUs: 1 - emptiest / fullest.
pub(crate) const WORKLOAD_IMBALANCE: Fact = by_rule(
    workload(
        "memwatch:fleet_workload_imbalance_ratio",
        "1 - min by (<l>) (memwatch_workload_memory_used_bytes<w> > 0) / max by (<l>) (memwatch_workload_memory_used_bytes<w> > 0) and \
         count by (<l>) (memwatch_workload_memory_used_bytes<w> > 0) > 1",
    ),
    "1 - memwatch:fleet_workload_smallest_used_bytes / memwatch:fleet_workload_largest_used_bytes and memwatch:fleet_workload_gpus > 1",
);
pub(crate) const WORKLOAD_IDLE: Fact = by_rule(
    workload(
        "memwatch:fleet_workload_idle_gpus",
        "count by (<l>) (memwatch_workload_memory_used_bytes<w> > 0 and memwatch_workload_memory_used_bytes<w> offset 30m > 0 and on (instance, \
         uuid) max by (instance, uuid) (max_over_time(memwatch_gpu_utilization_ratio<g>[30m])) == 0 and on (instance, uuid) \
         memwatch_gpu_utilization_ratio<g> offset 30m)",
    ),
    "count by (<l>) (memwatch_workload_memory_used_bytes > 0 and memwatch_workload_memory_used_bytes offset 30m > 0 and on (instance, uuid) \
     memwatch:fleet_gpu_idle_bytes)",
);
pub(crate) const WORKLOAD_GROWTH: Fact = workload(
    "memwatch:fleet_workload_growth_bytes_per_second",
    "sum by (<l>) (memwatch_workload_growth_bytes_per_second<w>)",
);
pub(crate) const WORKLOAD_OOMS: Fact = by_rule(
    workload(
        "memwatch:fleet_workload_ooms",
        "sum by (<l>) (changes(memwatch_workload_last_oom_timestamp_seconds<w>[1d]) + \
         (min_over_time(memwatch_workload_last_oom_timestamp_seconds<w>[1d]) > bool (time() - 86400)) > 0)",
    ),
    "sum by (<l>) (memwatch:fleet_holder_ooms)",
);
pub(crate) const WORKLOAD_LAST_OOM: Fact = by_rule(
    workload(
        "memwatch:fleet_workload_last_oom_timestamp_seconds",
        "max by (<l>) (max_over_time(memwatch_workload_last_oom_timestamp_seconds<w>[1d]) > time() - 86400)",
    ),
    "max by (<l>) (memwatch:fleet_holder_last_oom_timestamp_seconds)",
);

/// Facts about a workload's part of a GPU. These are raw series, queried by node, GPU or workload.
pub(crate) const HOLDER_USED: Fact =
    holder("", "sum by (instance, gpu, uuid, <l>) (memwatch_workload_memory_used_bytes<w>)");
pub(crate) const HOLDER_DRIVER: Fact = holder(
    "",
    "sum by (instance, gpu, uuid, <l>) (memwatch_workload_memory_driver_allocated_bytes{kind!~\"managed|pinned\"<w+>})",
);
pub(crate) const HOLDER_CACHED: Fact = holder(
    "",
    "sum by (instance, gpu, uuid, <l>) (memwatch_workload_framework_reserved_bytes<w>) - sum by (instance, gpu, uuid, <l>) \
     (memwatch_workload_framework_allocated_bytes<w>)",
);
pub(crate) const HOLDER_PROCESSES: Fact =
    holder("", "max by (instance, gpu, uuid, <l>) (memwatch_workload_processes<w>)");
pub(crate) const HOLDER_GROWTH: Fact =
    holder("", "sum by (instance, gpu, uuid, <l>) (memwatch_workload_growth_bytes_per_second<w>)");
/// Number of times within a day that memory ran out, as far as scrapes show: two failures between
/// two scrapes count once.
///
/// The rule identifies a node by its label `node` if the scrape has one: an agent's pod changes its
/// address, and so its instance, with each roll-out, and the new instance reports the same failures
/// again.
pub(crate) const HOLDER_OOMS: Fact = by_rule(
    holder(
        "memwatch:fleet_holder_ooms",
        "sum by (instance, gpu, uuid, <l>) (changes(memwatch_workload_last_oom_timestamp_seconds<w>[1d]) + \
         (min_over_time(memwatch_workload_last_oom_timestamp_seconds<w>[1d]) > bool (time() - 86400)) > 0)",
    ),
    "max by (instance, gpu, uuid, <l>) (label_replace(max by (host, gpu, uuid, <l>) \
     (label_replace(label_replace(changes(memwatch_workload_last_oom_timestamp_seconds[1d]) + \
     (min_over_time(memwatch_workload_last_oom_timestamp_seconds[1d]) > bool (time() - 86400)) > 0, \"host\", \"$1\", \"instance\", \"(.+)\"), \
     \"host\", \"$1\", \"node\", \"(.+)\")), \"instance\", \"$1\", \"host\", \"(.+)\"))",
);
pub(crate) const HOLDER_LAST_OOM: Fact = by_rule(
    holder(
        "memwatch:fleet_holder_last_oom_timestamp_seconds",
        "max by (instance, gpu, uuid, <l>) (max_over_time(memwatch_workload_last_oom_timestamp_seconds<w>[1d]) > time() - 86400)",
    ),
    "max by (instance, gpu, uuid, <l>) (label_replace(max by (host, gpu, uuid, <l>) \
     (label_replace(label_replace(max_over_time(memwatch_workload_last_oom_timestamp_seconds[1d]) > time() - 86400, \"host\", \"$1\", \
     \"instance\", \"(.+)\"), \"host\", \"$1\", \"node\", \"(.+)\")), \"instance\", \"$1\", \"host\", \"(.+)\"))",
);

impl Fact {
    /// Returns the expression to query, and whether it is the recorded series. That series is used
    /// if it exists and has all labels of the conditions.
    pub(crate) fn asked(self, is_recorded: bool, matchers: &Matchers) -> (String, bool) {
        let of_workloads = self.expression.contains("<w");
        if !is_recorded || self.record.is_empty() || !matchers.are_on(self.labels, of_workloads) {
            return (filled(self.expression, matchers), false);
        }
        let conditions = matchers.text(of_workloads);
        let conditions = if conditions.is_empty() { conditions } else { format!("{{{conditions}}}") };
        (format!("{}{conditions}", self.record), true)
    }
}

/// Inserts the conditions into an expression.
fn filled(expression: &str, matchers: &Matchers) -> String {
    let mut text = expression.replace("<l>", &WORKLOAD.join(", "));
    for (place, of_workloads) in [("g", false), ("w", true)] {
        let conditions = matchers.text(of_workloads);
        let [alone, more] = match conditions.as_str() {
            "" => [String::new(), String::new()],
            _ => [format!("{{{conditions}}}"), format!(",{conditions}")],
        };
        text = text.replace(&format!("<{place}>"), &alone).replace(&format!("<{place}+>"), &more);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::select::Matcher;
    use super::*;

    /// Queried by other rules only, each of which would otherwise read all pairs of workload and
    /// GPU.
    const NODE_WORKLOAD_GPUS: Fact = Fact {
        record: "memwatch:fleet_node_workload_gpus",
        labels: &[],
        expression: "count by (instance, <l>) (memwatch_workload_memory_used_bytes > 0)",
        rule: None,
    };
    /// All recorded facts, in the order of evaluation.
    const RECORDED: [Fact; 31] = [
        HOLDER_OOMS,
        HOLDER_LAST_OOM,
        GPU_UTILIZATION,
        GPU_CACHED,
        GPU_HOLDERS,
        GPU_LARGEST,
        GPU_IDLE,
        NODE_GPUS,
        NODE_LIMIT,
        NODE_USED,
        NODE_UNATTRIBUTED,
        NODE_CACHED,
        NODE_IDLE,
        NODE_FULL,
        NODE_OOMS,
        NODE_LAST_OOM,
        DOWN,
        NODE_WORKLOAD_GPUS,
        WORKLOAD_USED,
        WORKLOAD_DRIVER,
        WORKLOAD_HELD,
        WORKLOAD_CACHED,
        WORKLOAD_GPUS,
        WORKLOAD_NODES,
        WORKLOAD_MOST,
        WORKLOAD_LEAST,
        WORKLOAD_IMBALANCE,
        WORKLOAD_IDLE,
        WORKLOAD_GROWTH,
        WORKLOAD_OOMS,
        WORKLOAD_LAST_OOM,
    ];

    #[test]
    fn the_shipped_rules_record_every_fact_as_it_is_asked_for() {
        let rules = include_str!("../../../../deploy/prometheus/rules.yaml");
        let flat = rules.split_whitespace().chain([""]).collect::<Vec<_>>().join(" ");
        let mut last = 0;
        for Fact { record, expression, rule, .. } in RECORDED {
            let expression = filled(rule.unwrap_or(expression), &Matchers::default());
            let place = flat.find(&format!("- record: {record} expr: >- {expression} "));
            let wanted = format!("      - record: {record}\n        expr: >-\n          {expression}");
            assert!(place.is_some_and(|place| place > last), "rules.yaml lacks, at its place:\n{wanted}");
            last = place.unwrap_or_default();
        }
        // The identifier of the rules comes last.
        assert!(flat[last..].contains(&format!("- record: {RULES_RECORD} expr: vector({RULES}) ")));
        assert_eq!(rules.matches("- record: memwatch:fleet_").count(), RECORDED.len() + 1);
    }

    #[test]
    fn fleet_conditions_are_added_where_a_series_has_the_label() {
        let ml = Matchers(vec![Matcher::is("namespace", "ml"), Matcher::is("cluster", "a")]);
        assert_eq!(NODE_USED.asked(true, &Matchers::default()), ("memwatch:fleet_node_used_bytes".to_owned(), true));
        assert_eq!(NODE_USED.asked(false, &ml).0, r#"sum by (instance) (memwatch_gpu_memory_used_bytes{cluster="a"})"#);
        assert_eq!(NODE_USED.asked(true, &ml), NODE_USED.asked(false, &ml), "the recorded series has no cluster");
        let namespace = Matchers(ml.0[..1].to_vec());
        let (text, is_recorded) = WORKLOAD_DRIVER.asked(true, &namespace);
        assert_eq!(
            (text.as_str(), is_recorded),
            (r#"memwatch:fleet_workload_driver_allocated_bytes{namespace="ml"}"#, true)
        );
        assert_eq!(NODE_USED.asked(true, &namespace), ("memwatch:fleet_node_used_bytes".to_owned(), true));
        let (text, is_recorded) = WORKLOAD_DRIVER.asked(false, &namespace);
        assert!(!is_recorded && text.contains(r#"{kind!~"managed|pinned",namespace="ml"}"#), "{text}");
        assert!(text.starts_with("sum by (workload_kind, namespace, pod, container, slurm_job, unit) ("), "{text}");
    }

    #[test]
    fn fleet_expressions_have_no_unfilled_condition() {
        for fact in RECORDED.iter().chain(&[GPU_LIMIT, GPU_FULL, HOLDER_DRIVER, HOLDER_CACHED, HOLDER_GROWTH]) {
            for matchers in [Matchers::default(), Matchers(vec![Matcher::is("x", "<w>")])] {
                let text = filled(fact.expression, &matchers);
                assert!(!text.contains('<'), "{text}");
            }
        }
    }
}
