//! Metrics of the agent for Prometheus. Only `own_use` performs I/O. [`families`] is the table of
//! all metrics, from which `docs/reference/metrics.md` is generated. The number of series is bounded
//! regardless of the machine's load.

pub(crate) mod accept;
mod exposition;
mod families;
mod gpus;
mod label;
pub(crate) mod otlp;
pub(crate) mod own_use;
mod samples;
mod workloads;

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;
use memwatch_core::features::checks::ContradictionKind;
use memwatch_core::snapshot::{GpuView, ProcessGpuView, ProcessView, Snapshot};
use memwatch_core::words::GpuUuid;

use self::exposition::Exposition;
pub(crate) use self::exposition::ExpositionFormat;
use self::families::MetricFamily;
use self::gpus::Gpus;
use self::label::label_value;
use self::otlp::messages::Metric;
use self::otlp::{Collection, CounterStates};
use self::own_use::OwnUse;
use self::samples::{MetricSink, Number};
use self::workloads::{CounterQuantity, WorkloadLabels, WorkloadRow, WorkloadSeries};
use super::flight_recorder::FlightRecorderState;
use super::history::HistoryState;

/// Maximum number of driver libraries with series of their own.
const OWN_LIBRARIES: usize = 32;

/// Input of an exposition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MetricsInput<'a> {
    /// Snapshot of the session.
    pub(crate) snapshot: &'a Snapshot,
    /// Offset from the snapshot's times to nanoseconds since 1970.
    pub(crate) boottime_to_unix_ns: i128,
    /// Time to collect the snapshot in nanoseconds; `None` if it does not come from an agent.
    pub(crate) collect_ns: Option<u64>,
    /// Driver version; empty if unknown.
    pub(crate) driver_version: &'a str,
    /// State of the agent's history; `None` without one.
    pub(crate) history: Option<HistoryState>,
    /// Whether the session survives a kill of the agent; `None` if the snapshot does not come from
    /// an agent.
    pub(crate) survives: Option<bool>,
    /// Number of events that exceeded their user's share; `None` if the snapshot does not come from
    /// an agent.
    pub(crate) events_left_out: Option<u64>,
    /// Counters of the flight recorder; `None` without one.
    pub(crate) flight_recorder: Option<FlightRecorderState>,
    /// State of the OTLP pushes; `None` without OTLP.
    pub(crate) pushes: Option<PushState>,
    /// Number of contradictions in the agent's reports by kind; `None` if the snapshot does not
    /// come from an agent.
    pub(crate) contradictions: Option<[u64; ContradictionKind::ALL.len()]>,
    /// Resource use of the agent itself.
    pub(crate) own: OwnUse,
}

/// State of the OTLP pushes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct PushState {
    /// Whether the last push was accepted; `None` before the first one.
    pub(crate) is_up: Option<bool>,
    /// Number of failed pushes.
    pub(crate) failures_total: u64,
}

/// State that is kept between expositions.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    gpus: Gpus,
    workloads: WorkloadSeries,
    /// Maximum number of pairs of process and GPU with series.
    processes: usize,
}

impl Metrics {
    /// Creates an empty state. The largest `processes` pairs of process and GPU get series; the
    /// usual value is 0.
    pub(crate) fn new(processes: usize) -> Self {
        Self { processes, ..Self::default() }
    }

    /// Returns all metrics as text.
    pub(crate) fn text(&mut self, facts: &MetricsInput<'_>, form: ExpositionFormat) -> String {
        self.gpus.update(facts.snapshot);
        self.workloads.update(facts.snapshot, &self.gpus);
        self.written(facts, Exposition::new(form)).finish()
    }

    /// Returns all metrics as OpenMetrics text, each with the time of the snapshot, for outputs
    /// other than scrapes.
    pub(crate) fn text_of_its_time(mut self, facts: &MetricsInput<'_>) -> String {
        self.gpus.update(facts.snapshot);
        self.workloads.update(facts.snapshot, &self.gpus);
        let unix_ns = facts.boottime_to_unix_ns.saturating_add(facts.snapshot.time_ns.into());
        self.written(facts, Exposition::of_time(unix_ns)).finish()
    }

    /// Returns all metrics as OpenTelemetry messages. `series` keeps the state between collections.
    pub(crate) fn messages(&mut self, facts: &MetricsInput<'_>, series: &mut CounterStates) -> Vec<Metric> {
        self.gpus.update(facts.snapshot);
        self.workloads.update(facts.snapshot, &self.gpus);
        self.written(facts, Collection::begin(series, facts)).finish()
    }

    fn written<S: MetricSink>(&self, facts: &MetricsInput<'_>, mut out: S) -> S {
        let revision = option_env!("MEMWATCH_REVISION").unwrap_or_default();
        out.family(&families::BUILD, [([env!("CARGO_PKG_VERSION"), revision], Number::Whole(1))]);
        self.gpus(&mut out, facts);
        self.workloads(&mut out, facts);
        self.processes(&mut out, facts.snapshot);
        self.agent(&mut out, facts);
        own(&mut out, facts);
        out
    }

    fn gpus(&self, out: &mut impl MetricSink, facts: &MetricsInput<'_>) {
        let described: Vec<_> = self.gpus.listed().map(|(labels, gpu)| (labels, Described::of(gpu))).collect();
        let fixed = described.iter().map(|([place, uuid], gpu)| {
            let Described { pci_bus_id, model, mig_profile } = gpu;
            ([*place, *uuid, *uuid, pci_bus_id, model, mig_profile, facts.driver_version], Number::Whole(1))
        });
        out.family(&families::GPU_FACTS, fixed);
        let states = self.gpus.states().map(|(labels, is_up)| (labels, Number::Whole(u64::from(is_up))));
        out.family(&families::GPU_UP, states);
        let mut gauge = |family: &MetricFamily, value: fn(&GpuView) -> Option<Number>| {
            let listed = self.gpus.listed();
            out.family(family, listed.filter_map(|(labels, gpu)| Some((labels, value(gpu)?))));
        };
        gauge(&families::GPU_LIMIT, |gpu| gpu.total_bytes.map(Number::Whole));
        gauge(&families::GPU_USED, |gpu| gpu.used_bytes.map(Number::Whole));
        gauge(&families::GPU_UNATTRIBUTED, |gpu| gpu.unattributed_bytes.map(Number::Signed));
        let left: Vec<_> = left_behind(facts.snapshot);
        let rows = left.iter().map(|own| {
            let labels = [self.gpus.place(&own.uuid), &*own.uuid, &*own.tgid, &*own.comm, &*own.kept_by];
            (labels, Number::Whole(own.bytes))
        });
        out.family(&families::GPU_LEFT_BEHIND, rows);
        let mut gauge = |family: &MetricFamily, value: fn(&GpuView) -> Option<Number>| {
            let listed = self.gpus.listed();
            out.family(family, listed.filter_map(|(labels, gpu)| Some((labels, value(gpu)?))));
        };
        gauge(&families::GPU_UTILIZATION, |gpu| {
            gpu.sensors.utilization_percent.map(|percent| Number::Real(f64::from(percent) / 100.0))
        });
        gauge(&families::GPU_SECONDS_TO_FULL, |gpu| gpu.seconds_to_full.map(Number::Real));
    }

    fn workloads<S: MetricSink>(&self, out: &mut S, facts: &MetricsInput<'_>) {
        let rows = || self.workloads.rows();
        let gauge = |out: &mut S, family: &MetricFamily, value: fn(&WorkloadRow) -> Option<u64>| {
            out.family(family, rows().filter_map(|(labels, row)| Some((words(labels), Number::Whole(value(row)?)))));
        };
        let counter = |out: &mut S, family: &MetricFamily, what: CounterQuantity| {
            out.family(family, rows().flat_map(|(labels, row)| of(labels, row.counts_of(what))));
        };
        gauge(out, &families::WORKLOAD_DRIVER, |row| row.driver_bytes);
        let live =
            rows().flat_map(|(labels, row)| of(labels, row.live_bytes.iter().map(|(kind, bytes)| (*kind, *bytes))));
        out.family(&families::WORKLOAD_LIVE, live);
        let parts =
            rows().flat_map(|(labels, row)| of(labels, row.part_bytes.iter().map(|(part, bytes)| (*part, *bytes))));
        out.family(&families::WORKLOAD_PARTS, parts);
        gauge(out, &families::WORKLOAD_PEAK, |row| row.peak_bytes);
        gauge(out, &families::WORKLOAD_PREEXISTING, |row| row.preexisting_bytes);
        let growth =
            rows().filter_map(|(labels, row)| Some((words(labels), Number::Real(row.growth_bytes_per_second?))));
        out.family(&families::WORKLOAD_GROWTH, growth);
        gauge(out, &families::WORKLOAD_PROCESSES, |row| row.processes);
        counter(out, &families::WORKLOAD_ALLOCATIONS, CounterQuantity::Allocations);
        counter(out, &families::WORKLOAD_FREES, CounterQuantity::Frees);
        counter(out, &families::WORKLOAD_ALLOCATED, CounterQuantity::AllocatedBytes);
        counter(out, &families::WORKLOAD_FREED, CounterQuantity::FreedBytes);
        counter(out, &families::WORKLOAD_FAILURES, CounterQuantity::Failures);
        gauge(out, &families::WORKLOAD_OOM, |row| row.counts.get(&(CounterQuantity::Ooms, "")).copied());
        gauge(out, &families::WORKLOAD_RETRIES, |row| row.counts.get(&(CounterQuantity::Retries, "")).copied());
        let last = rows().filter_map(|(labels, row)| Some((words(labels), facts.date(row.last_oom_ns?))));
        out.family(&families::WORKLOAD_LAST_OOM, last);
        gauge(out, &families::FRAMEWORK_ALLOCATED, |row| row.framework?.allocated_bytes);
        gauge(out, &families::FRAMEWORK_RESERVED, |row| row.framework?.reserved_bytes);
        gauge(out, &families::FRAMEWORK_ACTIVE, |row| row.framework?.active_bytes);
        gauge(out, &families::FRAMEWORK_INACTIVE_SPLIT, |row| row.framework?.inactive_split_bytes);
        gauge(out, &families::FRAMEWORK_RETRIES, |row| row.framework?.retries);
        gauge(out, &families::FRAMEWORK_OOMS, |row| row.framework?.ooms);
        gauge(out, &families::KV_CACHE_SIZE, |row| row.kv_cache?.size_bytes);
        gauge(out, &families::KV_CACHE_USED, |row| row.kv_cache?.used_bytes);
        gauge(out, &families::KV_CACHE_REUSABLE, |row| row.kv_cache?.reusable_bytes);
        gauge(out, &families::KV_CACHE_RUNNING, |row| Some(row.kv_cache?.running_requests));
        gauge(out, &families::KV_CACHE_WAITING, |row| Some(row.kv_cache?.waiting_requests));
    }

    fn processes(&self, out: &mut impl MetricSink, snapshot: &Snapshot) {
        let living = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
        let mut pairs: Vec<_> = living.flat_map(|process| process.gpus.iter().map(move |gpu| (process, gpu))).collect();
        pairs.sort_by_key(|(process, gpu)| {
            (std::cmp::Reverse(gpu.live_bytes.max(gpu.used_bytes.unwrap_or_default())), process.tgid)
        });
        pairs.truncate(self.processes);
        let named: Vec<ProcessSeries<'_>> = pairs.into_iter().map(|(process, gpu)| self.named(process, gpu)).collect();
        let driver = named.iter().filter_map(|named| Some((named.labels(), Number::Whole(named.gpu.used_bytes?))));
        out.family(&families::PROCESS_DRIVER, driver);
        let live = named.iter().map(|named| (named.labels(), Number::Whole(named.gpu.live_bytes)));
        out.family(&families::PROCESS_LIVE, live);
    }

    fn named<'a>(&'a self, process: &ProcessView, gpu: &'a ProcessGpuView) -> ProcessSeries<'a> {
        let uuid = gpu.uuid.as_ref().map_or("", GpuUuid::as_str);
        let (tgid, comm) = (process.tgid.0.to_string(), label_value(&process.comm));
        ProcessSeries { place: self.gpus.place(uuid), uuid, tgid, comm, gpu }
    }

    fn agent(&self, out: &mut impl MetricSink, facts: &MetricsInput<'_>) {
        let snapshot = facts.snapshot;
        // All reasons are exposed from the start, so that the first loss is an increase.
        let lost = |loss: Loss| snapshot.losses.get(loss.name()).copied().unwrap_or_default();
        let dropped = Loss::ALL.into_iter().map(|loss| ([loss.name()], Number::Whole(lost(loss))));
        out.family(&families::AGENT_DROPPED, dropped);
        let probes = probes(snapshot);
        out.family(&families::AGENT_PROBES, probes.iter().map(|(library, count)| ([library.as_str()], number(*count))));
        let libraries = &snapshot.coverage.libraries;
        let refused = libraries.iter().filter(|library| library.error.is_some()).count();
        let working = libraries.iter().filter(|library| library.error.is_none());
        let refused_functions = working.map(|library| library.probes_refused.len()).sum();
        let failures = [(["function_refused"], number(refused_functions)), (["library_refused"], number(refused))];
        out.family(&families::AGENT_PROBE_FAILURES, failures);
        let living = snapshot.processes.iter().filter(|process| process.ended_ns.is_none()).count();
        out.family(&families::AGENT_PROCESSES, [([], number(living))]);
        out.family(&families::AGENT_SUPPRESSED, [([], number(self.workloads.suppressed()))]);
        let history = facts.history;
        out.family(&families::AGENT_HISTORY_UP, history.map(|own| ([], Number::Whole(own.is_written.into()))));
        let failures = history.map(|own| ([], Number::Whole(own.failures_total)));
        out.family(&families::AGENT_HISTORY_FAILURES, failures);
        let oldest = history.and_then(|own| own.oldest_unix_ns);
        out.family(&families::AGENT_HISTORY_OLDEST, oldest.map(|unix_ns| ([], seconds(unix_ns))));
        let left_out = facts.events_left_out.map(|count| ([], Number::Whole(count)));
        out.family(&families::AGENT_EVENTS_LEFT_OUT, left_out);
        flight_recorder(out, facts.flight_recorder);
        out.family(&families::AGENT_SURVIVES, facts.survives.map(|survives| ([], Number::Whole(survives.into()))));
        let pushes = facts.pushes;
        let is_up = pushes.and_then(|pushes| pushes.is_up);
        out.family(&families::AGENT_PUSH_UP, is_up.map(|is_up| ([], Number::Whole(is_up.into()))));
        let failures = pushes.map(|pushes| ([], Number::Whole(pushes.failures_total)));
        out.family(&families::AGENT_PUSH_FAILURES, failures);
        let contradictions = facts.contradictions.map(|counts| ContradictionKind::ALL.into_iter().zip(counts));
        let contradictions = contradictions.into_iter().flatten();
        out.family(
            &families::AGENT_CONTRADICTIONS,
            contradictions.map(|(kind, count)| ([kind.name()], Number::Whole(count))),
        );
        out.family(&families::AGENT_SNAPSHOT, [([], facts.date(snapshot.time_ns))]);
        out.family(&families::AGENT_COLLECT, facts.collect_ns.map(|time_ns| ([], seconds(time_ns.into()))));
    }
}

/// Maximum number of processes that have ended with series.
const MOST_LEFT_BEHIND: usize = 16;

/// Memory on a GPU charged to a process that has ended.
struct LeftBehindSeries {
    uuid: String,
    tgid: String,
    comm: String,
    kept_by: String,
    bytes: u64,
}

/// Returns the largest charges to processes that have ended.
fn left_behind(snapshot: &Snapshot) -> Vec<LeftBehindSeries> {
    let mut all = Vec::new();
    for process in &snapshot.processes {
        for (own, left) in process.left_behind.iter().flat_map(|left| left.gpus.iter().map(move |own| (own, left))) {
            let kept_by: Vec<_> = left.forked.iter().map(|retainer| retainer.0.to_string()).collect();
            all.push(LeftBehindSeries {
                uuid: label_value(own.uuid.as_str()),
                tgid: process.tgid.0.to_string(),
                comm: label_value(&process.comm),
                kept_by: kept_by.join(","),
                bytes: own.used_bytes,
            });
        }
    }
    all.sort_by_key(|own| std::cmp::Reverse(own.bytes));
    all.truncate(MOST_LEFT_BEHIND);
    all
}

impl MetricsInput<'_> {
    /// Converts a time of the kernel's clock to seconds since 1970.
    fn date(&self, boottime_ns: u64) -> Number {
        seconds(self.boottime_to_unix_ns.saturating_add(boottime_ns.into()))
    }
}

/// A process on a GPU, with its label values.
struct ProcessSeries<'a> {
    place: &'a str,
    uuid: &'a str,
    tgid: String,
    comm: String,
    gpu: &'a ProcessGpuView,
}

impl ProcessSeries<'_> {
    fn labels(&self) -> [&str; 4] {
        [self.place, self.uuid, &self.tgid, &self.comm]
    }
}

/// Label values for the constant properties of a GPU.
struct Described {
    pci_bus_id: String,
    model: String,
    mig_profile: String,
}

impl Described {
    fn of(gpu: &GpuView) -> Self {
        let profile = gpu.mig.as_ref().and_then(|mig| mig.profile.as_deref());
        Self {
            pci_bus_id: label_value(gpu.pci_bus_id.as_deref().unwrap_or_default()),
            model: label_value(&gpu.name),
            mig_profile: label_value(profile.unwrap_or_default()),
        }
    }
}

fn flight_recorder(out: &mut impl MetricSink, state: Option<FlightRecorderState>) {
    let counts = state.map(|state| [("read", state.readings), ("failed", state.failed)]);
    let counts = counts.into_iter().flatten().map(|(result, count)| ([result], Number::Whole(count)));
    out.family(&families::AGENT_READINGS, counts);
    out.family(&families::AGENT_READINGS_LEFT_OUT, state.map(|state| ([], Number::Whole(state.left_out))));
    out.family(&families::AGENT_READINGS_CPU, state.map(|state| ([], seconds(state.processor_ns.into()))));
}

fn own(out: &mut impl MetricSink, facts: &MetricsInput<'_>) {
    let own = facts.own;
    let mut write = |family: &MetricFamily, number: Option<Number>| {
        out.family(family, number.map(|number| ([], number)));
    };
    write(&families::OWN_CPU, own.cpu_seconds.map(Number::Real));
    write(&families::OWN_RESIDENT, own.resident_bytes.map(Number::Whole));
    write(&families::OWN_VIRTUAL, own.virtual_bytes.map(Number::Whole));
    write(&families::OWN_START, own.start_ns.map(|start_ns| facts.date(start_ns)));
    write(&families::OWN_FILES, own.open_files.map(Number::Whole));
    write(&families::OWN_FILES_LIMIT, own.open_files_limit.map(Number::Whole));
}

/// Returns the number of probes by library. One path may name several files in different
/// containers.
fn probes(snapshot: &Snapshot) -> BTreeMap<String, usize> {
    let mut probes = BTreeMap::new();
    for library in &snapshot.coverage.libraries {
        *probes.entry(label_value(&library.path)).or_default() += library.probes_attached;
    }
    let last = probes.keys().nth(OWN_LIBRARIES).cloned();
    if let Some(rest) = last.map(|first| probes.split_off(&first)) {
        *probes.entry("other".to_owned()).or_default() += rest.values().sum::<usize>();
    }
    probes
}

fn words(labels: &WorkloadLabels) -> [&str; 8] {
    labels.each_ref().map(String::as_str)
}

/// Returns a row's samples of a family that has a ninth label for a kind, part or error.
fn of(
    labels: &WorkloadLabels,
    values: impl Iterator<Item = (&'static str, u64)>,
) -> impl Iterator<Item = ([&str; 9], Number)> {
    let [gpu, uuid, workload_kind, namespace, pod, container, slurm_job, unit] = words(labels);
    values.map(move |(last, value)| {
        ([gpu, uuid, workload_kind, namespace, pod, container, slurm_job, unit, last], Number::Whole(value))
    })
}

fn number(count: usize) -> Number {
    Number::Whole(count as u64)
}

fn seconds(ns: i128) -> Number {
    #[expect(clippy::cast_precision_loss, reason = "a double holds the seconds since 1970 to a microsecond")]
    Number::Real(ns as f64 / 1e9)
}

#[cfg(test)]
mod tests;
