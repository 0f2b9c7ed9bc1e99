//! The agent's numbers for a Prometheus: pure but for `own_use`. [`families`] is the table of all metrics; `docs/metrics.md` is made
//! from it. How many series there are is bounded, whatever runs on the machine.

pub(crate) mod accept;
mod exposition;
mod families;
mod gpus;
pub(crate) mod own_use;
mod workloads;

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;
use memwatch_core::snapshot::{GpuView, ProcessGpuView, ProcessView, Snapshot};
use memwatch_core::words::GpuUuid;

pub(crate) use self::exposition::Form;
use self::exposition::{Exposition, Number, label_value};
use self::families::Family;
use self::gpus::Gpus;
use self::own_use::OwnUse;
use self::workloads::{Counted, Labels, OUT_OF_MEMORY, Row, Workloads};
use super::history::HistoryState;

/// So many driver libraries have series of their own.
const OWN_LIBRARIES: usize = 32;

/// What an exposition is made of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts<'a> {
    /// The watch.
    pub(crate) snapshot: &'a Snapshot,
    /// What to add to its times to get nanoseconds since 1970.
    pub(crate) boottime_to_unix_ns: i128,
    /// How long it took to make, nanoseconds; `None` where no agent has made it.
    pub(crate) collect_ns: Option<u64>,
    /// The driver's version; empty where that is not known.
    pub(crate) driver_version: &'a str,
    /// Its history, if it keeps one.
    pub(crate) history: Option<HistoryState>,
    /// Its watch goes on when it is killed; `None` where no agent has made it.
    pub(crate) survives: Option<bool>,
    /// The agent itself.
    pub(crate) own: OwnUse,
}

/// What has to be known from one exposition to the next.
#[derive(Debug, Default)]
pub(crate) struct Metrics {
    gpus: Gpus,
    workloads: Workloads,
    /// So many pairs of process and GPU have series.
    processes: usize,
}

impl Metrics {
    /// Nothing known yet. The largest `processes` pairs of process and GPU get series: usually none.
    pub(crate) fn new(processes: usize) -> Self {
        Self { processes, ..Self::default() }
    }

    /// All metrics as text.
    pub(crate) fn text(&mut self, facts: &Facts<'_>, form: Form) -> String {
        self.gpus.update(facts.snapshot);
        self.workloads.update(facts.snapshot, &self.gpus);
        self.written(facts, Exposition::new(form))
    }

    /// All metrics as OpenMetrics, each with the time of the snapshot: for what is no scrape.
    pub(crate) fn text_of_its_time(mut self, facts: &Facts<'_>) -> String {
        self.gpus.update(facts.snapshot);
        self.workloads.update(facts.snapshot, &self.gpus);
        let unix_ns = facts.boottime_to_unix_ns.saturating_add(facts.snapshot.time_ns.into());
        self.written(facts, Exposition::of_time(unix_ns))
    }

    fn written(&self, facts: &Facts<'_>, mut text: Exposition) -> String {
        let revision = option_env!("MEMWATCH_REVISION").unwrap_or_default();
        text.family(&families::BUILD, [([env!("CARGO_PKG_VERSION"), revision], Number::Whole(1))]);
        self.gpus(&mut text, facts);
        self.workloads(&mut text, facts);
        self.processes(&mut text, facts.snapshot);
        self.agent(&mut text, facts);
        own(&mut text, facts);
        text.finish()
    }

    fn gpus(&self, text: &mut Exposition, facts: &Facts<'_>) {
        let described: Vec<_> = self.gpus.listed().map(|(labels, gpu)| (labels, Described::of(gpu))).collect();
        let fixed = described.iter().map(|([place, uuid], gpu)| {
            let Described { pci_bus_id, model, mig_profile } = gpu;
            ([*place, *uuid, *uuid, pci_bus_id, model, mig_profile, facts.driver_version], Number::Whole(1))
        });
        text.family(&families::GPU_FACTS, fixed);
        let states = self.gpus.states().map(|(labels, is_up)| (labels, Number::Whole(u64::from(is_up))));
        text.family(&families::GPU_UP, states);
        let mut gauge = |family: &Family, value: fn(&GpuView) -> Option<Number>| {
            let listed = self.gpus.listed();
            text.family(family, listed.filter_map(|(labels, gpu)| Some((labels, value(gpu)?))));
        };
        gauge(&families::GPU_LIMIT, |gpu| gpu.total_bytes.map(Number::Whole));
        gauge(&families::GPU_USED, |gpu| gpu.used_bytes.map(Number::Whole));
        gauge(&families::GPU_UNATTRIBUTED, |gpu| gpu.unattributed_bytes.map(Number::Signed));
        gauge(&families::GPU_UTILIZATION, |gpu| {
            gpu.sensors.utilization_percent.map(|percent| Number::Real(f64::from(percent) / 100.0))
        });
        gauge(&families::GPU_SECONDS_TO_FULL, |gpu| gpu.seconds_to_full.map(Number::Real));
    }

    fn workloads(&self, text: &mut Exposition, facts: &Facts<'_>) {
        let rows = || self.workloads.rows();
        let gauge = |text: &mut Exposition, family: &Family, value: fn(&Row) -> Option<u64>| {
            text.family(family, rows().filter_map(|(labels, row)| Some((words(labels), Number::Whole(value(row)?)))));
        };
        let counter = |text: &mut Exposition, family: &Family, what: Counted| {
            text.family(family, rows().flat_map(|(labels, row)| of(labels, row.counts_of(what))));
        };
        gauge(text, &families::WORKLOAD_DRIVER, |row| row.driver_bytes);
        let live =
            rows().flat_map(|(labels, row)| of(labels, row.live_bytes.iter().map(|(kind, bytes)| (*kind, *bytes))));
        text.family(&families::WORKLOAD_LIVE, live);
        let parts =
            rows().flat_map(|(labels, row)| of(labels, row.part_bytes.iter().map(|(part, bytes)| (*part, *bytes))));
        text.family(&families::WORKLOAD_PARTS, parts);
        gauge(text, &families::WORKLOAD_PEAK, |row| row.peak_bytes);
        gauge(text, &families::WORKLOAD_PREEXISTING, |row| row.preexisting_bytes);
        let growth =
            rows().filter_map(|(labels, row)| Some((words(labels), Number::Real(row.growth_bytes_per_second?))));
        text.family(&families::WORKLOAD_GROWTH, growth);
        gauge(text, &families::WORKLOAD_PROCESSES, |row| row.processes);
        counter(text, &families::WORKLOAD_ALLOCATIONS, Counted::Allocations);
        counter(text, &families::WORKLOAD_FREES, Counted::Frees);
        counter(text, &families::WORKLOAD_ALLOCATED, Counted::AllocatedBytes);
        counter(text, &families::WORKLOAD_FREED, Counted::FreedBytes);
        counter(text, &families::WORKLOAD_FAILURES, Counted::Failures);
        gauge(text, &families::WORKLOAD_OOM, |row| row.counts.get(&(Counted::Failures, OUT_OF_MEMORY)).copied());
        let last = rows().filter_map(|(labels, row)| Some((words(labels), facts.date(row.last_oom_ns?))));
        text.family(&families::WORKLOAD_LAST_OOM, last);
        gauge(text, &families::FRAMEWORK_ALLOCATED, |row| row.framework?.allocated_bytes);
        gauge(text, &families::FRAMEWORK_RESERVED, |row| row.framework?.reserved_bytes);
        gauge(text, &families::FRAMEWORK_ACTIVE, |row| row.framework?.active_bytes);
        gauge(text, &families::FRAMEWORK_INACTIVE_SPLIT, |row| row.framework?.inactive_split_bytes);
        gauge(text, &families::FRAMEWORK_RETRIES, |row| row.framework?.retries);
        gauge(text, &families::FRAMEWORK_OOMS, |row| row.framework?.ooms);
    }

    fn processes(&self, text: &mut Exposition, snapshot: &Snapshot) {
        let living = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
        let mut pairs: Vec<_> = living.flat_map(|process| process.gpus.iter().map(move |gpu| (process, gpu))).collect();
        pairs.sort_by_key(|(process, gpu)| {
            (std::cmp::Reverse(gpu.live_bytes.max(gpu.used_bytes.unwrap_or_default())), process.tgid)
        });
        pairs.truncate(self.processes);
        let named: Vec<Named<'_>> = pairs.into_iter().map(|(process, gpu)| self.named(process, gpu)).collect();
        let driver = named.iter().filter_map(|named| Some((named.labels(), Number::Whole(named.gpu.used_bytes?))));
        text.family(&families::PROCESS_DRIVER, driver);
        let live = named.iter().map(|named| (named.labels(), Number::Whole(named.gpu.live_bytes)));
        text.family(&families::PROCESS_LIVE, live);
    }

    fn named<'a>(&'a self, process: &ProcessView, gpu: &'a ProcessGpuView) -> Named<'a> {
        let uuid = gpu.uuid.as_ref().map_or("", GpuUuid::as_str);
        let (tgid, comm) = (process.tgid.0.to_string(), label_value(&process.comm));
        Named { place: self.gpus.place(uuid), uuid, tgid, comm, gpu }
    }

    fn agent(&self, text: &mut Exposition, facts: &Facts<'_>) {
        let snapshot = facts.snapshot;
        // All of them, so that the first loss is an increase.
        let lost = |loss: Loss| snapshot.losses.get(loss.name()).copied().unwrap_or_default();
        let dropped = Loss::ALL.into_iter().map(|loss| ([loss.name()], Number::Whole(lost(loss))));
        text.family(&families::AGENT_DROPPED, dropped);
        let probes = probes(snapshot);
        text.family(
            &families::AGENT_PROBES,
            probes.iter().map(|(library, count)| ([library.as_str()], number(*count))),
        );
        let libraries = &snapshot.coverage.libraries;
        let refused = libraries.iter().filter(|library| library.error.is_some()).count();
        let working = libraries.iter().filter(|library| library.error.is_none());
        let refused_functions = working.map(|library| library.probes_refused.len()).sum();
        let failures = [(["function_refused"], number(refused_functions)), (["library_refused"], number(refused))];
        text.family(&families::AGENT_PROBE_FAILURES, failures);
        let living = snapshot.processes.iter().filter(|process| process.ended_ns.is_none()).count();
        text.family(&families::AGENT_PROCESSES, [([], number(living))]);
        text.family(&families::AGENT_SUPPRESSED, [([], number(self.workloads.suppressed()))]);
        let history = facts.history;
        text.family(&families::AGENT_HISTORY_UP, history.map(|own| ([], Number::Whole(own.is_written.into()))));
        let failures = history.map(|own| ([], Number::Whole(own.failures_total)));
        text.family(&families::AGENT_HISTORY_FAILURES, failures);
        text.family(&families::AGENT_SURVIVES, facts.survives.map(|survives| ([], Number::Whole(survives.into()))));
        text.family(&families::AGENT_SNAPSHOT, [([], facts.date(snapshot.time_ns))]);
        text.family(&families::AGENT_COLLECT, facts.collect_ns.map(|time_ns| ([], seconds(time_ns.into()))));
    }
}

impl Facts<'_> {
    /// A time of the kernel's clock in seconds since 1970.
    fn date(&self, boottime_ns: u64) -> Number {
        seconds(self.boottime_to_unix_ns.saturating_add(boottime_ns.into()))
    }
}

/// A process on a GPU, with the values of its labels.
struct Named<'a> {
    place: &'a str,
    uuid: &'a str,
    tgid: String,
    comm: String,
    gpu: &'a ProcessGpuView,
}

impl Named<'_> {
    fn labels(&self) -> [&str; 4] {
        [self.place, self.uuid, &self.tgid, &self.comm]
    }
}

/// What does not change about a GPU, as values of labels.
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

fn own(text: &mut Exposition, facts: &Facts<'_>) {
    let own = facts.own;
    let mut write = |family: &Family, number: Option<Number>| {
        text.family(family, number.map(|number| ([], number)));
    };
    write(&families::OWN_CPU, own.cpu_seconds.map(Number::Real));
    write(&families::OWN_RESIDENT, own.resident_bytes.map(Number::Whole));
    write(&families::OWN_VIRTUAL, own.virtual_bytes.map(Number::Whole));
    write(&families::OWN_START, own.start_ns.map(|start_ns| facts.date(start_ns)));
    write(&families::OWN_FILES, own.open_files.map(Number::Whole));
    write(&families::OWN_FILES_LIMIT, own.open_files_limit.map(Number::Whole));
}

/// Probes by library; one path may name several files, in different containers.
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

fn words(labels: &Labels) -> [&str; 8] {
    labels.each_ref().map(String::as_str)
}

/// A row's samples of a family with one label more: a kind, or a reason.
fn of(labels: &Labels, values: impl Iterator<Item = (&'static str, u64)>) -> impl Iterator<Item = ([&str; 9], Number)> {
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
