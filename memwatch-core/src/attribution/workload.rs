//! Workloads: groups of processes that belong together for their user, such as a job or a
//! container. Their counters outlive the processes.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::input::DeviceFacts;
use crate::ledger::refusals::Refusals;
use crate::ledger::totals::AllocationKind;
use crate::owner::{Container, ContainerKey, Owner};
use crate::words::{GpuUuid, Tgid};

use super::device::{OnGpu, by_gpu};
use super::process::Process;

/// Time for which a workload is kept after its last process, nanoseconds.
const KEPT_NS: u64 = 300_000_000_000;

/// Maximum number of workloads kept without a process.
const ENDED_KEPT: usize = 1024;

/// Kind of a workload, strongest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum WorkloadKind {
    /// A Slurm job, whatever pod or container it runs in.
    Slurm,
    /// A container of a Kubernetes pod.
    Kubernetes,
    /// Another container.
    Container,
    /// A systemd service.
    Systemd,
    /// A user's login session.
    Session,
    /// A process outside all of these.
    #[default]
    Host,
}

impl WorkloadKind {
    /// Returns the name in JSON and in labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Slurm => "slurm",
            Self::Kubernetes => "kubernetes",
            Self::Container => "container",
            Self::Systemd => "systemd",
            Self::Session => "session",
            Self::Host => "host",
        }
    }
}

/// Identity of a workload: ids, which do not change when names become known.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct WorkloadKey {
    kind: WorkloadKind,
    job: Option<String>,
    pod: Option<String>,
    container: Option<ContainerKey>,
    unit: Option<String>,
}

impl WorkloadKey {
    /// Returns the workload of a process with this owner.
    pub fn of(owner: &Owner) -> Self {
        let job = owner.slurm.as_ref().and_then(|job| job.number().map(str::to_owned));
        let pod = owner.pod.as_ref().map(|pod| pod.uid.clone());
        let container = owner.container.as_ref().map(Container::key);
        let (kind, unit) = match (&job, &pod, &container, &owner.unit, &owner.session) {
            (Some(_), ..) => (WorkloadKind::Slurm, None),
            (_, Some(_), ..) => (WorkloadKind::Kubernetes, None),
            (_, _, Some(_), ..) => (WorkloadKind::Container, None),
            (_, _, _, Some(unit), _) => (WorkloadKind::Systemd, Some(unit.clone())),
            (_, _, _, _, Some(session)) => (WorkloadKind::Session, Some(session.clone())),
            _ => (WorkloadKind::Host, None),
        };
        Self { kind, job, pod, container, unit }
    }

    /// Returns the kind.
    pub const fn kind(&self) -> WorkloadKind {
        self.kind
    }

    /// Returns the systemd service, or the scope of the login session.
    pub fn unit(&self) -> Option<&str> {
        self.unit.as_deref()
    }
}

/// Totals of exited processes on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedTotals {
    /// Number of allocations and their requested bytes, by kind. All are freed.
    pub kinds: BTreeMap<AllocationKind, (u64, u64)>,
    /// Requests that the driver refused.
    pub refusals: Refusals,
}

impl EndedTotals {
    fn add(&mut self, row: &OnGpu) {
        for kind in AllocationKind::ALL {
            let counter = row.totals.kind(kind);
            if counter.total_bytes > 0 {
                let (allocations, bytes) = self.kinds.entry(kind).or_default();
                *allocations += counter.allocations;
                *bytes = bytes.saturating_add(counter.total_bytes);
            }
        }
        self.refusals.add(&row.refusals);
    }
}

/// A workload and its counters.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Workload {
    /// Owner of its latest process, with names.
    pub owner: Owner,
    /// Its living processes.
    pub processes: BTreeSet<Tgid>,
    /// Totals of its exited processes by GPU.
    pub gone: BTreeMap<Option<GpuUuid>, EndedTotals>,
    /// Peak by GPU: the maximum that was live at a tick, and at least the peak of each exited
    /// process.
    pub peaks_bytes: BTreeMap<Option<GpuUuid>, u64>,
    /// Live bytes by GPU at the last tick at which one of its processes had changed.
    #[serde(skip)]
    pub live_bytes: BTreeMap<Option<GpuUuid>, u64>,
    /// Time at which its last process exited: `CLOCK_BOOTTIME`, nanoseconds; `None` while it has a
    /// process.
    pub ended_ns: Option<u64>,
    /// Whether an exited process lost records.
    pub lost: bool,
    /// Users of its exited processes; `None` for an unknown user.
    pub gone_uids: BTreeSet<Option<u32>>,
}

impl Workload {
    fn raise_peak(&mut self, gpu: Option<GpuUuid>, bytes: u64) {
        let peak = self.peaks_bytes.entry(gpu).or_insert(0);
        *peak = bytes.max(*peak);
    }

    fn measure(&mut self, processes: &BTreeMap<Tgid, Process>, devices: &[DeviceFacts]) {
        let mut live: BTreeMap<Option<GpuUuid>, u64> = BTreeMap::new();
        for process in self.processes.iter().filter_map(|tgid| processes.get(tgid)) {
            for row in by_gpu(process, devices) {
                let sum_bytes = live.entry(row.uuid).or_insert(0);
                *sum_bytes = sum_bytes.saturating_add(row.totals.owned.live_bytes);
            }
        }
        for (gpu, bytes) in &live {
            self.raise_peak(gpu.clone(), *bytes);
        }
        self.live_bytes = live;
    }
}

/// All workloads with processes, and workloads that had processes recently.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Workloads {
    known: BTreeMap<WorkloadKey, Workload>,
    of: BTreeMap<Tgid, WorkloadKey>,
}

impl Workloads {
    /// Adds a living process with this owner.
    pub fn enter(&mut self, tgid: Tgid, owner: &Owner) {
        let key = WorkloadKey::of(owner);
        let workload = self.known.entry(key.clone()).or_default();
        workload.owner.clone_from(owner);
        workload.processes.insert(tgid);
        workload.ended_ns = None;
        self.of.insert(tgid, key);
    }

    /// Removes a process that has exited or whose owner has changed. Its earlier allocations stay
    /// counted in this workload. A process that changes its workload takes its live memory along,
    /// and counts in full in the new workload.
    pub fn leave(&mut self, process: &Process, devices: &[DeviceFacts], time_ns: u64) {
        let Some(workload) = self.of.remove(&process.tgid).and_then(|key| self.known.get_mut(&key)) else { return };
        for row in by_gpu(process, devices) {
            workload.gone.entry(row.uuid.clone()).or_default().add(&row);
            workload.raise_peak(row.uuid, row.totals.owned.peak_bytes);
        }
        workload.lost |= !process.is_exact();
        workload.gone_uids.insert(process.facts.as_ref().and_then(|facts| facts.uid));
        workload.processes.remove(&process.tgid);
        if workload.processes.is_empty() {
            workload.ended_ns = Some(time_ns);
        }
    }

    /// Adds the current peaks of a process to those of its workload.
    pub fn keep_peaks(&mut self, process: &Process, devices: &[DeviceFacts]) {
        let workload = self.of.get(&process.tgid).and_then(|key| self.known.get_mut(key));
        if let Some(workload) = workload {
            for row in by_gpu(process, devices) {
                workload.raise_peak(row.uuid, row.totals.owned.peak_bytes);
            }
        }
    }

    /// Whether a process with this owner belongs to another workload than before.
    pub fn is_elsewhere(&self, tgid: Tgid, owner: &Owner) -> bool {
        self.of.get(&tgid).is_none_or(|key| *key != WorkloadKey::of(owner))
    }

    /// Sets the owner of a workload after its names have become known.
    pub fn rename(&mut self, tgid: Tgid, owner: &Owner) {
        if let Some(workload) = self.of.get(&tgid).and_then(|key| self.known.get_mut(key)) {
            workload.owner.clone_from(owner);
        }
    }

    /// Advances to `now_ns`. `changed` are the processes that changed since the last tick.
    pub fn tick(
        &mut self,
        changed: &BTreeSet<Tgid>,
        processes: &BTreeMap<Tgid, Process>,
        devices: &[DeviceFacts],
        now_ns: u64,
    ) {
        let keys: BTreeSet<&WorkloadKey> = changed.iter().filter_map(|tgid| self.of.get(tgid)).collect();
        for key in keys {
            if let Some(workload) = self.known.get_mut(key) {
                workload.measure(processes, devices);
            }
        }
        self.known.retain(|_, workload| workload.ended_ns.is_none_or(|ended_ns| now_ns < ended_ns + KEPT_NS));
        let ended = self.known.values().filter_map(|workload| workload.ended_ns);
        let mut ended: Vec<u64> = ended.collect();
        if let Some(surplus) = ended.len().checked_sub(ENDED_KEPT).filter(|surplus| *surplus > 0) {
            let (_, last_dropped_ns, _) = ended.select_nth_unstable(surplus - 1);
            let last_dropped_ns = *last_dropped_ns;
            self.known.retain(|_, workload| workload.ended_ns.is_none_or(|ended_ns| ended_ns > last_dropped_ns));
        }
    }

    /// Returns all workloads.
    pub fn iter(&self) -> impl Iterator<Item = (&WorkloadKey, &Workload)> {
        self.known.iter()
    }
}
