use std::collections::BTreeMap;

use memwatch_core::snapshot::Snapshot;

use super::*;
use crate::agent::metrics::tests::{on, workload};
use crate::render::fixture::{self, UUID_0, UUID_1};

const ALLOCATIONS: CounterKey = (CounterQuantity::Allocations, "device");

/// Returns a node with this number of workloads, the later ones larger.
fn crowd(number: u64) -> Snapshot {
    let mut snapshot = fixture::busy_node();
    snapshot.workloads = (0..number).map(|one| workload(&format!("pod-{one:03}"), (one + 1) << 20)).collect();
    snapshot
}

fn counted(workload: &mut WorkloadView, allocations: u64) {
    workload.gpus[0].kinds.values_mut().for_each(|kind| kind.allocations = allocations);
}

struct ScrapedNode {
    gpus: Gpus,
    workloads: WorkloadSeries,
}

impl ScrapedNode {
    fn new() -> Self {
        Self { gpus: Gpus::default(), workloads: WorkloadSeries::default() }
    }

    fn see(&mut self, snapshot: &Snapshot) -> BTreeMap<WorkloadLabels, WorkloadRow> {
        self.gpus.update(snapshot);
        self.workloads.update(snapshot, &self.gpus);
        self.workloads.rows().map(|(labels, row)| (labels.clone(), row.clone())).collect()
    }
}

fn others(rows: &BTreeMap<WorkloadLabels, WorkloadRow>) -> Vec<&WorkloadRow> {
    rows.iter().filter(|(labels, _)| labels[2] == OTHER).map(|(_, row)| row).collect()
}

fn pod<'a>(rows: &'a BTreeMap<WorkloadLabels, WorkloadRow>, name: &str) -> Option<&'a WorkloadRow> {
    rows.iter().find(|(labels, _)| labels[4] == name).map(|(_, row)| row)
}

fn total(rows: &BTreeMap<WorkloadLabels, WorkloadRow>) -> u64 {
    rows.values().filter_map(|row| row.counts.get(&ALLOCATIONS)).sum()
}

#[test]
fn metrics_sum_the_smallest_workloads_past_the_series_limit() {
    let mut node = ScrapedNode::new();
    let rows = node.see(&crowd(300));
    assert_eq!((rows.len(), node.workloads.suppressed()), (OWN_SERIES + 1, 100));
    let [other] = others(&rows)[..] else { panic!("one sum: {rows:#?}") };
    let live = |row: &WorkloadRow| row.live_bytes["device"];
    assert_eq!(live(other), (1..=100).map(|one| one << 20).sum::<u64>());
    assert_eq!(rows.values().map(live).sum::<u64>(), (1..=300).map(|one| one << 20).sum::<u64>());
    assert_eq!((other.processes, other.counts[&ALLOCATIONS], total(&rows)), (Some(200), 1000, 3000));
    assert!(pod(&rows, "pod-099").is_none() && pod(&rows, "pod-100").is_some());
}

#[test]
fn metrics_user_with_many_workloads_does_not_take_the_series_of_others() {
    let (greedy, other) = (4_000_000_001, 4_000_000_002);
    let mut snapshot = crowd(300);
    snapshot.workloads.iter_mut().for_each(|workload| workload.uids = [Some(greedy)].into());
    let mut small = workload("small", 1);
    small.uids = [Some(other)].into();
    let mut late = snapshot.clone();
    snapshot.workloads.push(small);
    let mut node = ScrapedNode::new();
    assert!(pod(&node.see(&snapshot), "small").is_some(), "among as many as there are series");
    assert!(pod(&node.see(&snapshot), "small").is_some());

    let mut node = ScrapedNode::new();
    assert!(pod(&node.see(&late), "small").is_none());
    late.workloads.push(snapshot.workloads[300].clone());
    let rows = node.see(&late);
    assert!(pod(&rows, "small").is_some(), "who comes late has a place of the one who has most");
    assert_eq!((rows.len(), node.workloads.suppressed()), (OWN_SERIES + 1, 101));
}

#[test]
fn metrics_summed_workloads_have_a_row_per_gpu() {
    let mut snapshot = crowd(300);
    for workload in snapshot.workloads.iter_mut().take(50) {
        workload.gpus = vec![on(UUID_1, 1)];
    }
    let mut node = ScrapedNode::new();
    let rows = node.see(&snapshot);
    assert_eq!(others(&rows).iter().map(|row| row.processes).collect::<Vec<_>>(), [Some(100), Some(100)]);
}

#[test]
fn metrics_workload_keeps_its_series_until_another_is_twice_as_large() {
    let mut node = ScrapedNode::new();
    let mut snapshot = crowd(201);
    snapshot.workloads.iter_mut().for_each(|workload| workload.gpus = vec![on(UUID_0, 1 << 30)]);
    let rows = node.see(&snapshot);
    assert!(pod(&rows, "pod-200").is_none());
    snapshot.workloads[200].gpus = vec![on(UUID_0, 3 << 29)];
    assert!(pod(&node.see(&snapshot), "pod-200").is_none());
    snapshot.workloads[200].gpus = vec![on(UUID_0, 10 << 30)];
    let rows = node.see(&snapshot);
    assert!(pod(&rows, "pod-200").is_some());
    assert_eq!((rows.len(), others(&rows).len()), (OWN_SERIES + 1, 1));
}

#[test]
fn metrics_counts_of_a_label_pair_are_credited_to_its_current_series() {
    let mut node = ScrapedNode::new();
    let mut snapshot = crowd(201);
    counted(&mut snapshot.workloads[0], 100);
    let other = |rows: &BTreeMap<WorkloadLabels, WorkloadRow>| others(rows)[0].counts[&ALLOCATIONS];
    assert_eq!(other(&node.see(&snapshot)), 100);
    // The pair gets its own series, which count from here on.
    snapshot.workloads[0].gpus = vec![on(UUID_0, 1 << 40)];
    counted(&mut snapshot.workloads[0], 130);
    let rows = node.see(&snapshot);
    assert_eq!(pod(&rows, "pod-000").expect("it is large").counts[&ALLOCATIONS], 30);
    // pod-001 has lost its series; what they reported stays reported.
    assert_eq!(other(&rows), 100);
    counted(&mut snapshot.workloads[1], 17);
    assert_eq!(other(&node.see(&snapshot)), 107);
    // A workload without own series ends, and the sum keeps its count.
    snapshot.workloads.remove(1);
    assert_eq!(other(&node.see(&snapshot)), 107);
}

#[test]
fn metrics_counters_never_decrease_and_sum_to_every_count() {
    let mut node = ScrapedNode::new();
    let mut snapshot = crowd(260);
    let count = |row: &WorkloadRow| row.counts.get(&ALLOCATIONS).copied().unwrap_or_default();
    let first = node.see(&snapshot);
    let mut before: BTreeMap<WorkloadLabels, u64> =
        first.iter().map(|(labels, row)| (labels.clone(), count(row))).collect();
    let (mut state, mut counted_in_all) = (7_u64, 2600);
    assert_eq!(total(&first), counted_in_all);
    for _ in 0..60 {
        for workload in &mut snapshot.workloads {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let (more, bytes) = ((state >> 40) % 5, 1_u64 << ((state >> 50) % 30));
            let gpu = &mut workload.gpus[0];
            gpu.live_bytes = bytes;
            gpu.used_bytes = None;
            gpu.kinds.values_mut().for_each(|kind| kind.allocations += more);
            counted_in_all += more;
        }
        let rows = node.see(&snapshot);
        assert_eq!(node.see(&snapshot), rows, "the same snapshot twice");
        for (labels, row) in &rows {
            let now = count(row);
            let earlier = before.insert(labels.clone(), now).unwrap_or_default();
            assert!(now >= earlier, "{labels:?}: {now} after {earlier}");
        }
        // What a pair's series reported before the pair lost them stays reported.
        assert_eq!(before.values().sum::<u64>(), counted_in_all);
    }
    assert!(before.len() > 250, "pairs have changed places");
}

#[test]
fn metrics_workloads_with_equal_labels_are_summed_across_an_end() {
    let mut snapshot = crowd(1);
    let twin = snapshot.workloads[0].clone();
    snapshot.workloads.push(twin);
    counted(&mut snapshot.workloads[0], 50);
    counted(&mut snapshot.workloads[1], 20);
    let mut node = ScrapedNode::new();
    let count = |rows: BTreeMap<WorkloadLabels, WorkloadRow>| pod(&rows, "pod-000").map(|row| row.counts[&ALLOCATIONS]);
    assert_eq!(count(node.see(&snapshot)), Some(70));
    counted(&mut snapshot.workloads[1], 25);
    snapshot.workloads.remove(0);
    assert_eq!(count(node.see(&snapshot)), Some(75));
    // The workload's counter started over.
    counted(&mut snapshot.workloads[0], 3);
    assert_eq!(count(node.see(&snapshot)), Some(78));
}

#[test]
fn a_workload_has_series_for_five_minutes_after_its_end() {
    let mut node = ScrapedNode::new();
    let mut snapshot = crowd(2);
    snapshot.workloads[1].ended_ns = Some(snapshot.time_ns);
    assert_eq!(node.see(&snapshot).len(), 2);
    snapshot.time_ns += GONE_KEPT_NS - 1;
    assert_eq!(node.see(&snapshot).len(), 2);
    snapshot.time_ns += 1;
    assert_eq!(node.see(&snapshot).len(), 1);
}

#[test]
fn before_nvml_is_asked_no_workload_has_series() {
    let mut node = ScrapedNode::new();
    let mut snapshot = crowd(2);
    snapshot.nvml = NvmlState::Starting;
    assert!(node.see(&snapshot).is_empty());
}

#[test]
fn metrics_workload_labels_stay_the_same_without_nvml() {
    let mut node = ScrapedNode::new();
    let mut snapshot = crowd(2);
    let labels = |rows: BTreeMap<WorkloadLabels, WorkloadRow>| rows.into_keys().collect::<Vec<_>>();
    let before = labels(node.see(&snapshot));
    snapshot.gpus.clear();
    snapshot.nvml = NvmlState::Unavailable(String::new());
    assert_eq!(labels(node.see(&snapshot)), before);
    assert_eq!(before[0][0], "0");
}
