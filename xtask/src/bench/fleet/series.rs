//! Series of a fictional fleet, with the names and labels of real agents.

use std::fmt::Write as _;

/// Size of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FictionalFleet {
    pub(super) nodes: u64,
    /// GPUs per node.
    pub(super) gpus: u64,
    /// Workloads per GPU.
    pub(super) workloads: u64,
}

/// Time unit of a server's samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleTimeUnit {
    Seconds,
    Milliseconds,
    /// No time: a sample is from its scrape.
    None,
}

/// Samples in the text format.
#[derive(Debug)]
pub(super) struct FleetSampleText {
    pub(super) text: String,
    pub(super) samples: u64,
    pub(super) series: u64,
    unit: SampleTimeUnit,
}

const GIB: u64 = 1 << 30;
const LIMIT: u64 = 80 * GIB;
const DAY: u64 = 86_400;
/// Seconds between samples of the series with history: utilization as it is scraped, failures less
/// often.
const UTILIZATION_EVERY: usize = 15;
const FAILURE_EVERY: usize = 60;
const HOUR: u64 = 3_600;
/// Number of workloads on a GPU per workload that was refused memory within the day.
const ONE_FAILED_IN: u64 = 100;
/// Number of GPUs per idle one; for `ONE_DOWN_IN`, number of nodes per one that does not respond.
const ONE_IDLE_IN: u64 = 20;
const ONE_DOWN_IN: u64 = 500;
/// Number of nodes of a Slurm job.
const NODES_OF_A_JOB: u64 = 4;

/// Series of a workload on a GPU: metric, additional labels, and its value in percent of the
/// workload's memory.
const OF_PAIRS: [(&str, &str, u64); 26] = [
    ("memwatch_workload_memory_used_bytes", "", 100),
    ("memwatch_workload_memory_driver_allocated_bytes", ",kind=\"device\"", 80),
    ("memwatch_workload_memory_driver_allocated_bytes", ",kind=\"pinned\"", 10),
    ("memwatch_workload_memory_used_part_bytes", ",part=\"context\"", 5),
    ("memwatch_workload_memory_used_part_bytes", ",part=\"code\"", 5),
    ("memwatch_workload_memory_used_part_bytes", ",part=\"stream\"", 1),
    ("memwatch_workload_memory_used_part_bytes", ",part=\"driver\"", 9),
    ("memwatch_workload_memory_used_part_bytes", ",part=\"requested\"", 80),
    ("memwatch_workload_memory_peak_bytes", "", 90),
    ("memwatch_workload_processes", "", 0),
    ("memwatch_workload_allocations_total", ",kind=\"device\"", 1),
    ("memwatch_workload_allocations_total", ",kind=\"pinned\"", 1),
    ("memwatch_workload_frees_total", ",kind=\"device\"", 1),
    ("memwatch_workload_frees_total", ",kind=\"pinned\"", 1),
    ("memwatch_workload_allocated_bytes_total", ",kind=\"device\"", 200),
    ("memwatch_workload_allocated_bytes_total", ",kind=\"pinned\"", 20),
    ("memwatch_workload_freed_bytes_total", ",kind=\"device\"", 120),
    ("memwatch_workload_freed_bytes_total", ",kind=\"pinned\"", 10),
    ("memwatch_workload_oom_events_total", "", 0),
    ("memwatch_workload_allocation_failures_total", ",error=\"CUDA_ERROR_OUT_OF_MEMORY\"", 0),
    ("memwatch_workload_framework_allocated_bytes", "", 50),
    ("memwatch_workload_framework_reserved_bytes", "", 70),
    ("memwatch_workload_framework_active_bytes", "", 55),
    ("memwatch_workload_framework_inactive_split_bytes", "", 5),
    ("memwatch_workload_framework_alloc_retries", "", 0),
    ("memwatch_workload_framework_ooms", "", 0),
];
/// Series of a node, with additional labels.
const OF_NODES: [(&str, &str); 15] = [
    ("up", ""),
    ("memwatch_build_info", ",version=\"0.1.0\",revision=\"0123456789ab\""),
    ("memwatch_agent_events_dropped_total", ",reason=\"ring_full\""),
    ("memwatch_agent_probes_attached", ",library=\"/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06\""),
    ("memwatch_agent_probe_failures_total", ",reason=\"library_refused\""),
    ("memwatch_agent_probe_failures_total", ",reason=\"function_refused\""),
    ("memwatch_agent_tracked_processes", ""),
    ("memwatch_agent_series_suppressed", ""),
    ("memwatch_agent_snapshot_timestamp_seconds", ""),
    ("memwatch_agent_collect_duration_seconds", ""),
    ("process_cpu_seconds_total", ""),
    ("process_resident_memory_bytes", ""),
    ("process_virtual_memory_bytes", ""),
    ("process_start_time_seconds", ""),
    ("process_open_fds", ""),
];

impl FleetSampleText {
    pub(super) const fn new(unit: SampleTimeUnit) -> Self {
        Self { text: String::new(), samples: 0, series: 0, unit }
    }

    fn sample(&mut self, (name, labels): (&str, &str), value: u64, time: u64) {
        // Writing to a string cannot fail.
        let _ = match self.unit {
            SampleTimeUnit::Seconds => writeln!(self.text, "{name}{{{labels}}} {value} {time}"),
            SampleTimeUnit::Milliseconds => writeln!(self.text, "{name}{{{labels}}} {value} {time}000"),
            SampleTimeUnit::None => writeln!(self.text, "{name}{{{labels}}} {value}"),
        };
        self.samples += 1;
    }
}

/// Returns the address at which a node's agent is scraped.
pub(super) fn instance(node: u64) -> String {
    format!("gpu-node-{node:05}.cluster.example:9747")
}

/// A Slurm job in every fleet.
pub(super) const JOB: u64 = 4_000_000;

impl FictionalFleet {
    fn of_node(node: u64) -> String {
        format!("instance=\"{}\",job=\"memwatch\"", instance(node))
    }

    fn of_gpu(node: u64, gpu: u64) -> String {
        let own = Self::of_node(node);
        format!("{own},gpu=\"{gpu}\",uuid=\"GPU-{:08x}-5f0a-4c1e-9d3b-{:012x}\"", node * 8 + gpu, node)
    }

    /// Returns the labels of a workload on a GPU. Every other workload is a Slurm job on several
    /// nodes; the others are pods on one node.
    fn of_pair(of_gpu: &str, node: u64, workload: u64) -> String {
        if workload.is_multiple_of(2) {
            let job = JOB + node / NODES_OF_A_JOB * 100 + workload;
            return format!(
                "{of_gpu},workload_kind=\"slurm\",namespace=\"\",pod=\"\",container=\"\",slurm_job=\"{job}\",unit=\"\""
            );
        }
        let team = node % 40;
        format!(
            "{of_gpu},workload_kind=\"kubernetes\",namespace=\"team-{team}\",pod=\"inference-{node:05}-{workload}-7d4b9c6f5-x2x9z\",\
             container=\"server\",slurm_job=\"\",unit=\"\""
        )
    }

    /// Returns the memory of a workload on a GPU. Some workloads are unbalanced.
    fn bytes(self, node: u64, gpu: u64, workload: u64) -> u64 {
        let share = LIMIT / (self.workloads + 2);
        let spread = (node * 31 + gpu * 7 + workload * 13) % 50;
        share / 100 * (50 + spread)
    }

    /// Writes all series of a node except those with history, with one sample each.
    pub(super) fn node(self, text: &mut FleetSampleText, node: u64, time: u64) {
        let before = text.samples;
        let own = Self::of_node(node);
        for (name, labels) in OF_NODES {
            let is_up = name != "up" || node % ONE_DOWN_IN != ONE_DOWN_IN - 1;
            text.sample((name, &format!("{own}{labels}")), u64::from(is_up), time);
        }
        for gpu in 0..self.gpus {
            let own = Self::of_gpu(node, gpu);
            let used: u64 = (0..self.workloads).map(|workload| self.bytes(node, gpu, workload)).sum();
            let labels = format!(
                "{own},model=\"NVIDIA H100 80GB HBM3\",driver_version=\"580.65.06\",pci_bus_id=\"00000000:{gpu:02x}:00.0\""
            );
            text.sample(("memwatch_gpu_info", &labels), 1, time);
            text.sample(("memwatch_gpu_up", &own), 1, time);
            text.sample(("memwatch_gpu_memory_limit_bytes", &own), LIMIT, time);
            text.sample(("memwatch_gpu_memory_used_bytes", &own), used + GIB, time);
            text.sample(("memwatch_gpu_memory_unattributed_bytes", &own), GIB, time);
            if (node + gpu).is_multiple_of(10) {
                text.sample(("memwatch_gpu_seconds_to_full", &own), 3_600 + node, time);
            }
            for workload in 0..self.workloads {
                let pair = Self::of_pair(&own, node, workload);
                let bytes = self.bytes(node, gpu, workload);
                for (name, labels, percent) in OF_PAIRS {
                    text.sample((name, &format!("{pair}{labels}")), (bytes / 100 * percent).max(1), time);
                }
                if (node + gpu + workload).is_multiple_of(5) {
                    text.sample(("memwatch_workload_growth_bytes_per_second", &pair), 1_000 + node, time);
                }
            }
        }
        text.series += text.samples - before;
    }

    /// Writes the series of a node with history, with their samples up to a time.
    pub(super) fn over_time(self, text: &mut FleetSampleText, node: u64, until: u64) {
        for gpu in 0..self.gpus {
            let own = Self::of_gpu(node, gpu);
            let is_idle = (node * self.gpus + gpu).is_multiple_of(ONE_IDLE_IN);
            text.series += 1;
            for time in (until - HOUR..until).step_by(UTILIZATION_EVERY) {
                text.sample(("memwatch_gpu_utilization_ratio", &own), u64::from(!is_idle), time);
            }
            for workload in 0..self.workloads {
                let number = (node * self.gpus + gpu) * self.workloads + workload;
                if !number.is_multiple_of(ONE_FAILED_IN) {
                    continue;
                }
                let pair = Self::of_pair(&own, node, workload);
                text.series += 1;
                // The workload was refused memory twice: half a day and an hour before the end.
                for time in (until - DAY / 2..until).step_by(FAILURE_EVERY) {
                    let last = if time < until - HOUR { until - DAY / 2 } else { until - HOUR };
                    text.sample(("memwatch_workload_last_oom_timestamp_seconds", &pair), last, time);
                }
            }
        }
    }

    /// Returns a scrape of a node at a time.
    pub(super) fn scraped(self, node: u64, time: u64) -> FleetSampleText {
        let mut text = FleetSampleText::new(SampleTimeUnit::None);
        self.node(&mut text, node, time);
        for gpu in 0..self.gpus {
            text.sample(("memwatch_gpu_utilization_ratio", &Self::of_gpu(node, gpu)), 1, time);
        }
        text.series = text.samples;
        text
    }

    /// Returns the number of pairs of workload and GPU.
    pub(super) fn pairs(self) -> u64 {
        self.nodes * self.gpus * self.workloads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_is_one_that_an_agent_has() {
        let documented = include_str!("../../../../docs/reference/metrics.md");
        let fleet = FictionalFleet { nodes: 1, gpus: 2, workloads: 3 };
        let mut text = FleetSampleText::new(SampleTimeUnit::Seconds);
        fleet.node(&mut text, 0, 1_000_000);
        fleet.over_time(&mut text, 0, 1_000_000);
        assert_eq!(text.text.lines().count() as u64, text.samples);
        for line in text.text.lines().filter(|line| !line.starts_with("up{")) {
            let (name, rest) = line.split_once('{').unwrap();
            let row = documented.lines().find(|row| row.starts_with(&format!("| `{name}` ")));
            let row = row.unwrap_or_else(|| panic!("{name} is not in docs/reference/metrics.md"));
            let labels = rest.split("\",").filter_map(|label| label.split_once("=\"")).map(|(label, _)| label);
            for label in labels.filter(|label| !["instance", "job"].contains(label)) {
                assert!(row.contains(&format!("`{label}`")), "{label} of {name}");
            }
        }
    }

    #[test]
    fn a_server_counts_time_in_its_own_unit() {
        let line = |unit| {
            let mut text = FleetSampleText::new(unit);
            text.sample(("a", "b=\"c\""), 7, 12);
            text.text
        };
        assert_eq!(line(SampleTimeUnit::Seconds), "a{b=\"c\"} 7 12\n");
        assert_eq!(line(SampleTimeUnit::Milliseconds), "a{b=\"c\"} 7 12000\n");
        assert_eq!(line(SampleTimeUnit::None), "a{b=\"c\"} 7\n");
    }
}
