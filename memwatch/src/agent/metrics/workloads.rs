//! Selects the pairs of workload and GPU that have series of their own, and computes their values.
//!
//! The number of pairs on a node is unbounded. 200 pairs have series of their own; the smallest
//! pairs beyond that are summed by GPU. A pair keeps its series until a pair that is more than
//! twice as large replaces it, or the pair of a user with fewer series ([`displaced`]). Increments
//! are credited to the series in which the pair is shown at that time. Therefore no counter
//! decreases when a pair changes series or ends, and every increment is counted once.

use std::collections::{BTreeMap, BTreeSet};

use memwatch_core::input::NvmlState;
use memwatch_core::kernel_driver::labels::MemoryPurpose;
use memwatch_core::snapshot::{FrameworkSums, KvCacheSums, PREEXISTING, Snapshot, WorkloadGpuView, WorkloadView};
use memwatch_core::words::{GpuUuid, OUT_OF_MEMORY, sum_of_known};

use super::gpus::Gpus;
use super::label::label_value;
use crate::sources::login_users::login_user;

/// Maximum number of pairs with series of their own.
pub(super) const OWN_SERIES: usize = 200;

/// Time for which a workload has series after its last process has ended, in nanoseconds.
const GONE_KEPT_NS: u64 = 300_000_000_000;

/// Value of `workload_kind` for pairs without series of their own.
const OTHER: &str = "other";

/// Label of the driver's out-of-memory error.
const OOM_LABEL: &str = "out_of_memory";

/// Kinds in the snapshot, and their labels.
const KINDS: [(&str, &str); 7] = [
    ("array", "array"),
    ("device", "device"),
    ("graph", "graph"),
    ("managed", "managed"),
    ("physical", "vmm"),
    ("pinned", "pinned"),
    ("pool", "async_pool"),
];

/// Names of `CUresult` without `CUDA_ERROR_`, for errors that allocations return. Other errors are
/// labelled `other`.
const ERRORS: [(i32, &str); 14] = [
    (1, "invalid_value"),
    (OUT_OF_MEMORY, OOM_LABEL),
    (3, "not_initialized"),
    (4, "deinitialized"),
    (100, "no_device"),
    (101, "invalid_device"),
    (201, "invalid_context"),
    (400, "invalid_handle"),
    (700, "illegal_address"),
    (719, "launch_failed"),
    (800, "not_permitted"),
    (801, "not_supported"),
    (900, "stream_capture_unsupported"),
    (999, "unknown"),
];

/// Labels: `gpu, uuid, workload_kind, namespace, pod, container, slurm_job, unit`.
pub(super) type WorkloadLabels = [String; 8];

/// Quantity that a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum CounterQuantity {
    /// Allocations, by kind.
    Allocations,
    /// Frees, by kind.
    Frees,
    /// Bytes of allocations, by kind.
    AllocatedBytes,
    /// Bytes of frees, by kind.
    FreedBytes,
    /// Failed allocations, by error.
    Failures,
    /// Out-of-memory failures.
    Ooms,
    /// Failed allocations that succeeded on a retry.
    Retries,
}

/// Key of a counter: the quantity, and its kind or error.
pub(super) type CounterKey = (CounterQuantity, &'static str);

type WorkloadCounters = BTreeMap<CounterKey, u64>;

/// Values of a pair's series. `None` is unknown or not applicable.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct WorkloadRow {
    pub(super) driver_bytes: Option<u64>,
    /// Live bytes by kind.
    pub(super) live_bytes: BTreeMap<&'static str, u64>,
    /// Used bytes by purpose.
    pub(super) part_bytes: BTreeMap<&'static str, u64>,
    pub(super) peak_bytes: Option<u64>,
    pub(super) preexisting_bytes: Option<u64>,
    pub(super) growth_bytes_per_second: Option<f64>,
    pub(super) processes: Option<u64>,
    pub(super) framework: Option<FrameworkSums>,
    pub(super) kv_cache: Option<KvCacheSums>,
    /// Time of the last out-of-memory failure: `CLOCK_BOOTTIME`, nanoseconds.
    pub(super) last_oom_ns: Option<u64>,
    pub(super) counts: WorkloadCounters,
    size_bytes: u64,
    /// User who is responsible for the workload, if it is a single one.
    user: Option<u32>,
}

/// A pair that is a candidate for series of its own.
struct SeriesCandidate {
    labels: WorkloadLabels,
    bytes: u64,
    user: Option<u32>,
}

/// State of a pair.
#[derive(Debug, Default)]
struct PairState {
    /// Whether the pair has series of its own.
    is_own: bool,
    /// Counters of the pair's own series.
    own: WorkloadCounters,
    /// Counters of the last snapshot, one entry per workload with these labels.
    seen: Vec<WorkloadCounters>,
}

/// State of all pairs.
#[derive(Debug, Default)]
pub(super) struct WorkloadSeries {
    pairs: BTreeMap<WorkloadLabels, PairState>,
    /// Counters of the sums over pairs without own series, by the labels of the sum.
    others: BTreeMap<WorkloadLabels, WorkloadCounters>,
    rows: BTreeMap<WorkloadLabels, WorkloadRow>,
    suppressed: usize,
}

impl WorkloadSeries {
    /// Updates the state from a snapshot. Updating twice with the same snapshot has no effect.
    pub(super) fn update(&mut self, snapshot: &Snapshot, gpus: &Gpus) {
        let mut present: BTreeMap<WorkloadLabels, Vec<WorkloadRow>> = BTreeMap::new();
        // The labels contain the GPUs' numbers, which are unknown until NVML has answered.
        let known = snapshot.workloads.iter().filter(|_| snapshot.nvml != NvmlState::Starting);
        for workload in known.filter(|workload| is_recent(workload, snapshot.time_ns)) {
            for gpu in &workload.gpus {
                present.entry(labels(workload, gpu, gpus)).or_default().push(WorkloadRow::of(workload, gpu));
            }
        }
        if snapshot.nvml != NvmlState::Starting {
            self.pairs.retain(|labels, _| present.contains_key(labels));
        }
        let is_known =
            |labels: &WorkloadLabels| gpus.knows(&labels[1]) || present.keys().any(|pair| pair[1] == labels[1]);
        self.others.retain(|labels, _| is_known(labels));
        let wanted = present.iter().map(|(labels, rows)| SeriesCandidate {
            labels: labels.clone(),
            bytes: rows.iter().fold(0, |sum, row| sum.saturating_add(row.size_bytes)),
            user: rows.first().and_then(|row| row.user),
        });
        self.admit(wanted.collect());
        self.credit(present);
    }

    /// Returns the values of all series, including the sums over the other pairs.
    pub(super) fn rows(&self) -> impl Iterator<Item = (&WorkloadLabels, &WorkloadRow)> + Clone {
        self.rows.iter()
    }

    /// Returns the number of pairs without series of their own.
    pub(super) fn suppressed(&self) -> usize {
        self.suppressed
    }

    /// Selects the pairs with series of their own.
    fn admit(&mut self, wanted: Vec<SeriesCandidate>) {
        let is_own = |pair: &SeriesCandidate| self.pairs.get(&pair.labels).is_some_and(|pair| pair.is_own);
        let (mut own, mut waiting): (Vec<_>, Vec<_>) = wanted.into_iter().partition(is_own);
        // Candidates are sorted by size, largest first, and by labels if sizes are equal.
        waiting.sort_by(|one, other| other.bytes.cmp(&one.bytes).then_with(|| one.labels.cmp(&other.labels)));
        for pair in waiting {
            let out = if own.len() < OWN_SERIES { None } else { displaced(&own, &pair).map(|at| own.swap_remove(at)) };
            let has_room = own.len() < OWN_SERIES;
            if let Some(out) = out {
                log::debug!("{} bytes make room for {}", out.bytes, pair.bytes);
                self.pairs.entry(out.labels).or_default().is_own = false;
            }
            self.pairs.entry(pair.labels.clone()).or_default().is_own = has_room;
            if has_room {
                own.push(pair);
            }
        }
    }

    /// Credits the increments since the last snapshot and computes the rows.
    fn credit(&mut self, present: BTreeMap<WorkloadLabels, Vec<WorkloadRow>>) {
        self.rows.clear();
        self.suppressed = 0;
        for (labels, rows) in present {
            let pair = self.pairs.entry(labels.clone()).or_default();
            let grown = grown(&mut pair.seen, rows.iter().map(|row| row.counts.clone()).collect());
            let place = if pair.is_own { labels } else { other(&labels) };
            let counts = if pair.is_own { &mut pair.own } else { self.others.entry(place.clone()).or_default() };
            add(counts, grown);
            self.suppressed += usize::from(!pair.is_own);
            let sum = self.rows.entry(place).or_default();
            for row in rows {
                sum.add(row);
            }
            if pair.is_own {
                sum.counts.clone_from(&pair.own);
            }
        }
        for (labels, counts) in &self.others {
            self.rows.entry(labels.clone()).or_default().counts.clone_from(counts);
        }
    }
}

/// Returns the login user of a workload if all its processes have the same one.
fn only_user(workload: &WorkloadView) -> Option<u32> {
    let users: BTreeSet<Option<u32>> = workload.uids.iter().map(|uid| uid.map(login_user)).collect();
    users.first().copied().flatten().filter(|_| users.len() == 1)
}

impl WorkloadRow {
    fn of(workload: &WorkloadView, gpu: &WorkloadGpuView) -> Self {
        let mut row = Self {
            driver_bytes: gpu.used_bytes,
            peak_bytes: Some(gpu.peak_bytes),
            preexisting_bytes: gpu.preexisting_bytes,
            growth_bytes_per_second: gpu.growth_bytes_per_second,
            processes: Some(workload.processes),
            framework: gpu.framework,
            kv_cache: gpu.kv_cache,
            last_oom_ns: gpu.last_oom_ns,
            size_bytes: gpu.live_bytes.max(gpu.used_bytes.unwrap_or_default()),
            user: only_user(workload),
            ..Self::default()
        };
        for (name, view) in &gpu.kinds {
            let kind = kind_label(name);
            *row.live_bytes.entry(kind).or_default() += view.live_bytes;
            let counts = [
                ((CounterQuantity::Allocations, kind), view.allocations),
                ((CounterQuantity::Frees, kind), view.frees),
                ((CounterQuantity::AllocatedBytes, kind), view.allocated_bytes),
                ((CounterQuantity::FreedBytes, kind), view.freed_bytes),
            ];
            add(&mut row.counts, counts);
        }
        for (name, bytes) in &gpu.parts {
            *row.part_bytes.entry(part_label(name)).or_default() += bytes;
        }
        // The series exists from the start, so that the first failure is an increase.
        row.counts.insert((CounterQuantity::Failures, OOM_LABEL), 0);
        row.counts.insert((CounterQuantity::Ooms, ""), gpu.ooms);
        row.counts.insert((CounterQuantity::Retries, ""), gpu.retries);
        let failures = gpu.refusals.iter();
        add(
            &mut row.counts,
            failures.map(|(status, count)| ((CounterQuantity::Failures, error_label(*status)), *count)),
        );
        row
    }

    /// Returns the counters of one quantity by kind or error.
    pub(super) fn counts_of(&self, what: CounterQuantity) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.iter().filter(move |((counted, _), _)| *counted == what).map(|((_, label), count)| (*label, *count))
    }

    fn add(&mut self, other: Self) {
        self.driver_bytes = sum_of_known(self.driver_bytes, other.driver_bytes);
        self.peak_bytes = sum_of_known(self.peak_bytes, other.peak_bytes);
        self.preexisting_bytes = sum_of_known(self.preexisting_bytes, other.preexisting_bytes);
        let growth = self.growth_bytes_per_second.into_iter().chain(other.growth_bytes_per_second);
        self.growth_bytes_per_second = growth.reduce(|one, other| one + other);
        self.processes = sum_of_known(self.processes, other.processes);
        self.framework = self.framework.into_iter().chain(other.framework).reduce(FrameworkSums::and);
        self.kv_cache = self.kv_cache.into_iter().chain(other.kv_cache).reduce(KvCacheSums::and);
        self.last_oom_ns = self.last_oom_ns.max(other.last_oom_ns);
        add_up(&mut self.live_bytes, other.live_bytes);
        add_up(&mut self.part_bytes, other.part_bytes);
    }
}

fn add_up(sums: &mut BTreeMap<&'static str, u64>, others: BTreeMap<&'static str, u64>) {
    for (name, bytes) in others {
        let sum = sums.entry(name).or_default();
        *sum = sum.saturating_add(bytes);
    }
}

/// Returns the label of a part. The set of labels is fixed; an unknown part counts as the driver's.
fn part_label(name: &str) -> &'static str {
    let known = MemoryPurpose::ALL.map(MemoryPurpose::name).into_iter().chain([PREEXISTING]);
    known.into_iter().find(|known| *known == name).unwrap_or(MemoryPurpose::Driver.name())
}

/// Returns the index of the pair that loses its series to this candidate when all series are taken;
/// `None` if the candidate gets none. If the user with the most series has at least two more than
/// the candidate's user, the smallest pair of that user loses. Otherwise the candidate must be more
/// than twice as large as the smallest pair of its own user, or of all pairs if its user has none.
fn displaced(own: &[SeriesCandidate], pair: &SeriesCandidate) -> Option<usize> {
    let mut counts: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for one in own {
        *counts.entry(one.user).or_default() += 1;
    }
    let mine = counts.get(&pair.user).copied().unwrap_or(0);
    let (greedy, most) = counts.into_iter().max_by_key(|(_, count)| *count)?;
    let is_greedy = mine + 1 < most;
    let candidates = own
        .iter()
        .enumerate()
        .filter(|(_, one)| if is_greedy { one.user == greedy } else { mine == 0 || one.user == pair.user });
    let (at, smallest) = candidates
        .min_by(|(_, one), (_, other)| one.bytes.cmp(&other.bytes).then_with(|| other.labels.cmp(&one.labels)))?;
    (is_greedy || pair.bytes / 2 > smallest.bytes).then_some(at)
}

fn is_recent(workload: &WorkloadView, now_ns: u64) -> bool {
    workload.ended_ns.is_none_or(|ended_ns| now_ns.saturating_sub(ended_ns) < GONE_KEPT_NS)
}

fn labels(workload: &WorkloadView, gpu: &WorkloadGpuView, gpus: &Gpus) -> WorkloadLabels {
    let word = |word: &Option<String>| label_value(word.as_deref().unwrap_or_default());
    let uuid = gpu.uuid.as_ref().map_or("", GpuUuid::as_str);
    [
        gpus.place(uuid).to_owned(),
        label_value(uuid),
        label_value(&workload.kind),
        word(&workload.namespace),
        word(&workload.pod),
        word(&workload.container),
        word(&workload.slurm_job),
        word(&workload.unit),
    ]
}

/// Returns the labels of the sum that includes a pair without own series.
fn other(labels: &WorkloadLabels) -> WorkloadLabels {
    let mut other = WorkloadLabels::default();
    other[0].clone_from(&labels[0]);
    other[1].clone_from(&labels[1]);
    OTHER.clone_into(&mut other[2]);
    other
}

fn kind_label(name: &str) -> &'static str {
    KINDS.iter().find(|(kind, _)| *kind == name).map_or(OTHER, |(_, label)| label)
}

fn error_label(status: i32) -> &'static str {
    ERRORS.iter().find(|(number, _)| *number == status).map_or(OTHER, |(_, label)| label)
}

fn add(counts: &mut WorkloadCounters, more: impl IntoIterator<Item = (CounterKey, u64)>) {
    for (count, number) in more {
        let sum = counts.entry(count).or_default();
        *sum = sum.saturating_add(number);
    }
}

/// Returns the increments since the last snapshot over workloads with the same labels. Nothing else
/// identifies these workloads. Each one is matched to the earlier workload with the largest
/// counters that do not exceed its own; a workload without a match counts from 0.
fn grown(seen: &mut Vec<WorkloadCounters>, mut now: Vec<WorkloadCounters>) -> WorkloadCounters {
    let total = |counts: &WorkloadCounters| counts.values().fold(0_u64, |sum, number| sum.saturating_add(*number));
    let mut before = std::mem::take(seen);
    let mut grown = WorkloadCounters::new();
    now.sort_by_key(|counts| std::cmp::Reverse(total(counts)));
    for counts in &now {
        let fits = |earlier: &WorkloadCounters| earlier.iter().all(|(count, number)| counts.get(count) >= Some(number));
        let fitting = before.iter().enumerate().filter(|(_, earlier)| fits(earlier));
        let earlier = fitting.max_by_key(|(_, earlier)| total(earlier)).map(|(index, _)| index);
        let earlier = earlier.map(|index| before.swap_remove(index)).unwrap_or_default();
        let since = counts.iter().map(|(count, number)| (*count, number - earlier.get(count).unwrap_or(&0)));
        add(&mut grown, since);
    }
    *seen = now;
    grown
}

#[cfg(test)]
mod tests;
