use std::collections::{BTreeMap, BTreeSet};

use memwatch_core::features::checks::ContradictionKind;
use memwatch_core::input::{LibraryCoverage, NvmlState};
use memwatch_core::snapshot::{
    FrameworkSums, KvCacheSums, LeftBehindView, LeftOnGpu, Snapshot, WorkloadGpuView, WorkloadKindView, WorkloadView,
};
use memwatch_core::words::{GpuUuid, Tgid};

use super::*;
use crate::render::fixture::{self, UUID_0, UUID_1};

const GIB: u64 = 1 << 30;

/// Returns a pod's workload with this many live bytes on the first GPU.
pub(super) fn workload(pod: &str, live_bytes: u64) -> WorkloadView {
    WorkloadView {
        kind: "kubernetes".into(),
        namespace: Some("ml".to_owned()),
        pod: Some(pod.to_owned()),
        container: Some("trainer".to_owned()),
        slurm_job: None,
        unit: None,
        processes: 2,
        ended_ns: None,
        exact: true,
        uids: BTreeSet::from([Some(1000)]),
        gpus: vec![on(UUID_0, live_bytes)],
    }
}

/// Returns a workload's part of a GPU.
pub(super) fn on(uuid: &str, live_bytes: u64) -> WorkloadGpuView {
    let kind = WorkloadKindView {
        live_bytes,
        allocations: 10,
        frees: 4,
        allocated_bytes: 3 * live_bytes,
        freed_bytes: 2 * live_bytes,
    };
    WorkloadGpuView {
        uuid: Some(GpuUuid::new(uuid)),
        used_bytes: Some(live_bytes + GIB),
        live_bytes,
        peak_bytes: live_bytes + GIB,
        preexisting_bytes: None,
        refusals: BTreeMap::new(),
        last_oom_ns: None,
        ooms: 0,
        retries: 0,
        kinds: BTreeMap::from([("device".into(), kind)]),
        parts: BTreeMap::new(),
        framework: None,
        kv_cache: None,
        growth_bytes_per_second: None,
    }
}

/// Returns two pods' containers, one of which was refused memory; a job on both GPUs; and a hostile
/// unit on an unknown GPU.
pub(super) fn node() -> Snapshot {
    let mut snapshot = fixture::busy_node();
    let mut refused = workload("train-0", 40 * GIB);
    snapshot.gpus[0].seconds_to_full = Some(312.5);
    snapshot.gpus[0].sensors.utilization_percent = Some(97);
    let gpu = &mut refused.gpus[0];
    gpu.growth_bytes_per_second = Some(1_048_576.25);
    gpu.refusals = BTreeMap::from([(2, 3), (700, 1), (12_345, 4)]);
    gpu.last_oom_ns = Some(fixture::at(14, 3, 20));
    (gpu.ooms, gpu.retries) = (2, 5);
    let bytes = Some(GIB);
    gpu.framework = Some(FrameworkSums {
        allocated_bytes: bytes,
        reserved_bytes: bytes,
        active_bytes: bytes,
        inactive_split_bytes: bytes,
        retries: Some(1),
        ooms: Some(2),
    });
    gpu.kv_cache = Some(KvCacheSums {
        size_bytes: Some(30 * GIB),
        used_bytes: Some(7 * GIB),
        reusable_bytes: Some(20 * GIB),
        running_requests: 24,
        waiting_requests: 3,
    });
    gpu.parts = BTreeMap::from([("context".into(), 518 << 20), ("requested".into(), 40 * GIB)]);
    gpu.kinds.insert("pool".into(), WorkloadKindView { live_bytes: 7, allocations: 1, ..WorkloadKindView::default() });
    let job = WorkloadView {
        kind: "slurm".into(),
        namespace: None,
        pod: None,
        container: None,
        slurm_job: Some("4242".to_owned()),
        gpus: vec![
            WorkloadGpuView { preexisting_bytes: Some(GIB), ..on(UUID_0, GIB) },
            WorkloadGpuView { used_bytes: None, ..on(UUID_1, 2 * GIB) },
        ],
        ..workload("", 0)
    };
    let hostile = WorkloadView {
        kind: "systemd".into(),
        namespace: None,
        pod: None,
        container: None,
        unit: Some("a\"b\\c\nd\x1b[2J.service".to_owned()),
        gpus: vec![WorkloadGpuView { uuid: None, used_bytes: None, kinds: BTreeMap::new(), ..on("", 0) }],
        ..workload("", 0)
    };
    snapshot.workloads = vec![refused, workload("train-1", GIB), job, hostile];
    snapshot
}

fn own() -> OwnUse {
    OwnUse {
        cpu_seconds: Some(1.5),
        resident_bytes: Some(20 << 20),
        virtual_bytes: Some(1 << 30),
        start_ns: Some(fixture::at(14, 2, 10)),
        open_files: Some(40),
        open_files_limit: Some(1024),
    }
}

pub(super) fn facts(snapshot: &Snapshot) -> MetricsInput<'_> {
    let boottime_to_unix_ns = fixture::clock().boottime_to_unix_ns;
    let history =
        Some(HistoryState { is_written: true, failures_total: 2, oldest_unix_ns: Some(1_764_400_000_500_000_000) });
    let (collect_ns, driver_version) = (Some(250_000), "580.65.06");
    let pushes = Some(PushState { is_up: Some(true), failures_total: 3 });
    let survives = Some(true);
    let contradictions = Some(ContradictionKind::ALL.map(|kind| u64::from(kind == ContradictionKind::OlderGrows)));
    let own = own();
    MetricsInput {
        snapshot,
        boottime_to_unix_ns,
        collect_ns,
        driver_version,
        history,
        survives,
        events_left_out: Some(4),
        flight_recorder: Some(FlightRecorderState {
            readings: 12,
            failed: 1,
            left_out: 5,
            processor_ns: 2_500_000_000,
        }),
        pushes,
        contradictions,
        own,
    }
}

fn text(snapshot: &Snapshot, form: ExpositionFormat) -> String {
    Metrics::new(2).text(&facts(snapshot), form)
}

/// Returns the series of a text: names with labels, and values.
pub(super) fn series(text: &str) -> Vec<(&str, &str)> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| line.rsplit_once(' ').expect("a name and a number")).collect()
}

#[test]
fn a_busy_node_in_both_forms() {
    for (form, expected) in [
        (ExpositionFormat::Plain, include_str!("tests/node.txt")),
        (ExpositionFormat::OpenMetrics, include_str!("tests/node.openmetrics")),
    ] {
        let text = text(&node(), form);
        let differing = text.lines().zip(expected.lines()).find(|(line, expected)| line != expected);
        assert!(text == expected, "{form:?}: {differing:#?}");
    }
}

#[test]
fn every_metric_of_the_table_is_written_once_and_in_its_order() {
    let text = text(&node_with_a_dead(), ExpositionFormat::OpenMetrics);
    let written: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let table: Vec<&str> = families::ALL.iter().map(|family| family.name).collect();
    assert_eq!(written, table);
}

#[test]
fn names_units_labels_and_sentences_follow_the_rules() {
    let mut names = BTreeSet::new();
    for MetricFamily { name, kind, unit, labels, help } in families::ALL {
        assert!(names.insert(*name), "{name} twice");
        assert!(name.starts_with("memwatch_") || name.starts_with("process_"), "{name}");
        let ends = ["_total", "_info", "_count", "_sum", "_bucket", "_created"];
        assert!(!ends.iter().any(|end| name.ends_with(end)), "{name} ends with what a kind adds");
        let is_unit = ["bytes", "seconds"].iter().find(|unit| name.ends_with(*unit)).copied().unwrap_or_default();
        assert_eq!(*unit, is_unit, "{name}");
        assert!(help.ends_with('.') && !help.contains(['\n', '\\', '"']), "{name}: {help}");
        // The scraper sets `job` and `instance`; `hostname` and `cluster` belong to the target.
        assert!(!["job", "instance", "hostname", "cluster", "type"].iter().any(|word| labels.contains(word)), "{name}");
        assert!(labels.len() < 10 && (*kind == families::MetricKind::Facts || !labels.contains(&"UUID")), "{name}");
    }
}

#[test]
fn a_gpu_is_down_and_says_nothing_where_nvml_does_not_answer() {
    let mut metrics = Metrics::new(0);
    let mut snapshot = node();
    metrics.text(&facts(&snapshot), ExpositionFormat::Plain);
    snapshot.nvml = NvmlState::Unavailable("NVML has not answered for 10 s".to_owned());
    snapshot.gpus.clear();
    let text = metrics.text(&facts(&snapshot), ExpositionFormat::Plain);
    let of_gpus: Vec<_> = series(&text).into_iter().filter(|(name, _)| name.starts_with("memwatch_gpu")).collect();
    let [first, second] =
        [(0, UUID_0), (1, UUID_1)].map(|(number, uuid)| format!("memwatch_gpu_up{{gpu=\"{number}\",uuid=\"{uuid}\"}}"));
    assert_eq!(of_gpus, [(first.as_str(), "0"), (&second, "0")]);
}

#[test]
fn metrics_gpu_missing_from_nvml_is_down_for_five_minutes_then_removed() {
    let mut metrics = Metrics::new(0);
    let mut snapshot = node();
    metrics.text(&facts(&snapshot), ExpositionFormat::Plain);
    snapshot.gpus.remove(1);
    let down = format!("memwatch_gpu_up{{gpu=\"1\",uuid=\"{UUID_1}\"}} 0\n");
    snapshot.time_ns += 299_000_000_000;
    assert!(metrics.text(&facts(&snapshot), ExpositionFormat::Plain).contains(&down));
    snapshot.time_ns += 2_000_000_000;
    assert!(!metrics.text(&facts(&snapshot), ExpositionFormat::Plain).contains(&down));
}

#[test]
fn metrics_omit_unknown_values() {
    let mut snapshot = node();
    snapshot.gpus[0].used_bytes = None;
    snapshot.gpus[0].unattributed_bytes = None;
    let text =
        Metrics::new(0).text(&MetricsInput { own: OwnUse::default(), ..facts(&snapshot) }, ExpositionFormat::Plain);
    let lines = |name: &str, part: &str| {
        series(&text).iter().filter(|(series, _)| series.starts_with(name) && series.contains(part)).count()
    };
    assert_eq!(lines("memwatch_gpu_memory_used_bytes", UUID_0), 0);
    assert_eq!(lines("memwatch_gpu_memory_unattributed_bytes", UUID_0), 0);
    assert_eq!(lines("memwatch_gpu_memory_limit_bytes", UUID_0), 1);
    assert_eq!(lines("memwatch_workload_memory_used_bytes", "slurm_job=\"4242\""), 1);
    assert_eq!(lines("memwatch_workload_memory_preexisting_bytes", ""), 1);
    assert_eq!(lines("memwatch_workload_last_oom_timestamp_seconds", ""), 1);
    assert_eq!((lines("memwatch_process_", ""), lines("process_", "")), (0, 0));
}

/// Returns the same node with an exited process whose memory two of its forked children keep.
pub(super) fn node_with_a_dead() -> Snapshot {
    let mut snapshot = node();
    let left = LeftOnGpu { uuid: GpuUuid::new(UUID_0), used_bytes: 11 * GIB };
    let (process, forked) = (&mut snapshot.processes[0], vec![Tgid(19_853), Tgid(19_854)]);
    process.ended_ns = Some(fixture::at(14, 3, 0));
    process.left_behind = Some(Box::new(LeftBehindView { gpus: vec![left], forked }));
    snapshot
}

#[test]
fn metrics_left_behind_memory_names_the_pids_that_keep_it() {
    assert!(!text(&node(), ExpositionFormat::Plain).contains("left_behind"));
    let snapshot = node_with_a_dead();
    let text = text(&snapshot, ExpositionFormat::Plain);
    let own = format!("pid=\"{}\"", snapshot.processes[0].tgid.0);
    let lines: Vec<_> =
        text.lines().filter(|line| line.starts_with("memwatch_gpu_memory_left_behind_bytes{")).collect();
    assert!(lines.len() == 1 && lines[0].ends_with(" 11811160064"), "{lines:?}");
    assert!(lines[0].contains(&own) && lines[0].contains("kept_by_pid=\"19853,19854\""), "{lines:?}");
}

#[test]
fn libraries_beyond_the_first_are_summed_and_one_path_is_one_series() {
    let mut snapshot = node();
    let library = snapshot.coverage.libraries[0].clone();
    let path = |number: usize| format!("/{}/{number}", "x".repeat(if number == 40 { 5000 } else { 3 }));
    let libraries = (0..50).map(|number| LibraryCoverage { path: path(number % 45), ..library.clone() });
    snapshot.coverage.libraries = libraries.collect();
    let text = text(&snapshot, ExpositionFormat::Plain);
    let probes: Vec<_> =
        series(&text).into_iter().filter(|(name, _)| name.starts_with("memwatch_agent_probes")).collect();
    assert_eq!(probes.len(), OWN_LIBRARIES + 1, "{probes:#?}");
    let sum: u64 = probes.iter().map(|(_, count)| count.parse::<u64>().expect("a number")).sum();
    assert_eq!(sum, 50 * 78);
    assert!(probes.iter().all(|(name, _)| name.len() < 400));
}

#[test]
fn metrics_series_are_unique_and_bounded() {
    let mut snapshot = node();
    let names = ["a", "a", "\u{1b}a", "\u{7}a", "", "é", "\"", "\\"];
    let many = (0..3000).map(|number| workload(&format!("{}{}", names[number % 8], number / 20), number as u64));
    snapshot.workloads = many.collect();
    for form in [ExpositionFormat::Plain, ExpositionFormat::OpenMetrics] {
        let text = text(&snapshot, form);
        let all = series(&text);
        let different: BTreeSet<&str> = all.iter().map(|(name, _)| *name).collect();
        assert_eq!(different.len(), all.len());
        // 201 workloads with 4 gauges, 1 kind of 5 numbers and 2 of refusals, and the series of the
        // node itself.
        assert!(all.len() <= 201 * 11 + 100, "{}", all.len());
    }
}

#[test]
fn metrics_sum_known_framework_bytes_and_omit_unknown_ones() {
    let mut snapshot = node();
    let sums = |allocated_bytes, ooms| FrameworkSums { allocated_bytes, ooms, ..FrameworkSums::default() };
    snapshot.workloads[0].gpus[0].framework = Some(sums(Some(30 * GIB), Some(2)));
    let text = text(&snapshot, ExpositionFormat::Plain);
    let of = |name: &str| -> Vec<&str> {
        let lines = text.lines().filter(|line| line.starts_with(&format!("memwatch_workload_framework_{name}{{")));
        lines.map(|line| line.rsplit(' ').next().expect("a number")).collect()
    };
    assert_eq!((of("allocated_bytes"), of("ooms")), (vec!["32212254720"], vec!["2"]));
    assert!(of("reserved_bytes").is_empty() && of("alloc_retries").is_empty());
    assert_eq!(sums(Some(1), None).and(sums(None, Some(2))), sums(Some(1), Some(2)));
}
