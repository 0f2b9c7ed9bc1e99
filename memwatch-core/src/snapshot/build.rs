//! Builds a snapshot from the pipeline's state: adds names, sums and differences, but no new facts.

pub(crate) mod explained;
mod fragmentation;
pub(crate) mod history;
mod libraries;
mod native;
pub(crate) mod places;
pub mod workloads;

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;

use crate::attribution::device::{OnGpu, by_gpu, resolve};
use crate::attribution::overhead::Cost;
use crate::attribution::process::Process;
use crate::input::{DeviceFacts, DeviceReading, ProcessUse};
use crate::kernel_driver::KernelDriver;
use crate::ledger::FailedAllocation;
use crate::ledger::alias::SharedOrigin;
use crate::ledger::pool::Backed;
use crate::ledger::refusals::Refusals;
use crate::ledger::totals::{AllocationKind, DeviceRef, DeviceTotals};
use crate::snapshot::{
    ContextLimits, FailureView, GpuView, HostView, ImportView, KindView, OverheadView, ProcessGpuView, ProcessView,
};
use crate::words::{GpuUuid, Name, Tgid};

use crate::attribution::reconcile::Reconciliation;

/// Name among a process's losses for a process whose calls may not be traced.
pub const UNPROBED: &str = "unprobed";

/// State of the machine that a process's view depends on.
pub(crate) struct Surroundings<'a> {
    /// Last device reading.
    pub(crate) reading: &'a DeviceReading,
    /// Results of all device readings.
    pub(crate) reconciliation: &'a Reconciliation,
    /// All running processes, which may share memory.
    pub(crate) processes: &'a BTreeMap<Tgid, Process>,
    /// Requests of the processes to the kernel driver.
    pub(crate) kernel_driver: &'a KernelDriver,
}

/// Returns whether the owner of shared memory still holds it.
pub(crate) fn still_holds(processes: &BTreeMap<Tgid, Process>, origin: &SharedOrigin) -> bool {
    processes.get(&origin.tgid).is_some_and(|owner| owner.ledger.still_holds(origin.object))
}

/// Returns NVML's bytes of a process on a GPU, if NVML lists it there.
pub(crate) fn used_bytes(device: &DeviceFacts, tgid: Tgid) -> Option<u64> {
    device.processes.iter().flatten().find(|entry| entry.tgid == tgid)?.used_bytes
}

/// Returns `used - live`, without clamping to 0.
fn difference(used: u64, live: u64) -> i64 {
    i64::try_from(i128::from(used) - i128::from(live)).unwrap_or(if used > live { i64::MAX } else { i64::MIN })
}

/// Returns losses by name, for JSON.
pub(crate) fn named(losses: &BTreeMap<Loss, u64>) -> BTreeMap<Name, u64> {
    losses.iter().map(|(loss, count)| (loss.name().into(), *count)).collect()
}

/// Returns a process's losses, with [`UNPROBED`] if nothing proves that its calls are traced.
fn losses(process: &Process) -> BTreeMap<Name, u64> {
    let mut losses = named(&process.losses);
    if process.unproven {
        losses.insert(UNPROBED.into(), 1);
    }
    losses
}

impl Surroundings<'_> {
    fn device(&self, uuid: &GpuUuid) -> Option<&DeviceFacts> {
        self.reading.devices.iter().find(|device| device.uuid == *uuid)
    }

    fn is_mps_client(&self, tgid: Tgid) -> bool {
        let mut entries = self.reading.devices.iter().flat_map(|device| device.processes.iter().flatten());
        entries.any(|entry| entry.tgid == tgid && entry.mps_client)
    }

    /// Returns the view of a process.
    pub(crate) fn process(&self, process: &Process) -> ProcessView {
        let facts = process.facts.as_ref();
        let rate = process.ledger.rate();
        ProcessView {
            tgid: process.tgid,
            start_ns: facts.map(|facts| facts.start_ns),
            comm: facts.map_or_else(String::new, |facts| facts.comm.clone()),
            command: facts.map_or_else(String::new, |facts| facts.command.clone()),
            user: facts.and_then(|facts| facts.user.clone()),
            uid: facts.and_then(|facts| facts.uid),
            inner_tgid: facts.and_then(|facts| facts.inner_tgid),
            frameworks: process.frameworks.iter().copied().collect(),
            ancestors: facts.map_or_else(Vec::new, |facts| facts.ancestors.clone()),
            owner: process.owner.clone(),
            target: facts.is_some_and(|facts| facts.target),
            mps_client: process.ended.is_none() && self.is_mps_client(process.tgid),
            observed_since_ns: process.observed_since_ns,
            from_start: process.is_from_start(),
            driver_changed_ns: process.ledger.changed_ns(),
            main_thread_ended: process.ended.is_none() && facts.is_some_and(|facts| facts.main_thread_ended),
            exact: process.is_exact(),
            losses: losses(process),
            anchored_ns: process.anchored_ns,
            peaks_begun_ns: process.peaks_begun_ns,
            ended_ns: process.ended.map(|ended| ended.time_ns),
            gpus: self.gpus_of(process),
            host: host(process),
            checkpointed: process.checkpointed,
            imports: self.imports(process),
            aliases: u64::try_from(process.ledger.aliases()).unwrap_or(u64::MAX),
            reservation_bytes: process.ledger.reservation_bytes(),
            modules: u64::try_from(process.ledger.modules()).unwrap_or(u64::MAX),
            context_limits: context_limits(process),
            unknown_frees: process.ledger.unknown_frees(),
            implicit_frees: process.ledger.implicit_frees(),
            failures: self.failures(process),
            allocations_per_second: rate.map(|rate| rate.allocations_per_second),
            frees_per_second: rate.map(|rate| rate.frees_per_second),
            overhead: overhead(process),
            level: process.level,
            kv_cache: process.kv_cache.clone(),
            tensors: process.tensors.as_ref().map(|ledger| {
                let uuid = |ordinal| resolve(process, DeviceRef::Ordinal(ordinal), &self.reading.devices);
                Box::new(places::tensors(ledger, uuid))
            }),
            explained: explained::process(self, process).map(Box::new),
            left_behind: explained::left_behind(self, process).map(Box::new),
        }
    }

    fn imports(&self, process: &Process) -> Vec<ImportView> {
        let mut imports: BTreeMap<Tgid, ImportView> = BTreeMap::new();
        for origin in process.ledger.origins() {
            let blank = ImportView { from_tgid: origin.tgid, aliases: 0, bytes: 0, orphaned_bytes: 0 };
            let import = imports.entry(origin.tgid).or_insert(blank);
            import.aliases += 1;
            import.bytes = import.bytes.saturating_add(origin.bytes);
            if !still_holds(self.processes, &origin) {
                import.orphaned_bytes = import.orphaned_bytes.saturating_add(origin.bytes);
            }
        }
        imports.into_values().collect()
    }

    /// Returns the GPUs on which a process has memory, by its own calls or by NVML's list; in
    /// NVML's order, unknown GPUs last.
    fn gpus_of(&self, process: &Process) -> Vec<ProcessGpuView> {
        let mut rows = by_gpu(process, &self.reading.devices);
        let left_behind = explained::left_behind(self, process).is_some();
        if process.ended.is_none() || left_behind {
            for device in &self.reading.devices {
                let listed = device.lists(process.tgid);
                if listed && !rows.iter().any(|row| row.uuid.as_ref() == Some(&device.uuid)) {
                    let (totals, refusals) = (DeviceTotals::default(), Refusals::default());
                    rows.push(OnGpu { uuid: Some(device.uuid.clone()), totals, pool_backed: None, refusals });
                }
            }
        }
        let place =
            |row: &OnGpu| self.reading.devices.iter().position(|device| Some(&device.uuid) == row.uuid.as_ref());
        rows.sort_by_key(|row| place(row).unwrap_or(usize::MAX));
        rows.iter().map(|row| self.process_gpu(process, row, left_behind)).collect()
    }

    /// Returns the view of a process on a GPU. Bytes that NVML still charges to an exited process
    /// are attributed to that process, whichever process keeps them.
    fn process_gpu(&self, process: &Process, row: &OnGpu, left_behind: bool) -> ProcessGpuView {
        let device = row.uuid.as_ref().and_then(|uuid| self.device(uuid));
        let is_charged = process.ended.is_none() || left_behind;
        let used = device.filter(|_| is_charged).and_then(|device| used_bytes(device, process.tgid));
        let before = row.uuid.as_ref().and_then(|uuid| self.reconciliation.preexisting(process.tgid, uuid));
        let totals = &row.totals;
        let held = row.uuid.as_ref().and_then(|uuid| self.reconciliation.held_at_reading(process.tgid, uuid));
        let live = if process.checkpointed { 0 } else { totals.owned.live_bytes };
        let accounted = held.filter(|_| !process.checkpointed).unwrap_or(live);
        let accounted = used.filter(|_| left_behind).unwrap_or(accounted);
        let beyond = row.uuid.as_ref().map_or(0, |uuid| self.reconciliation.unconfirmed(process.tgid, uuid));
        let unconfirmed_bytes = if process.ended.is_some() { 0 } else { beyond.min(live) };
        ProcessGpuView {
            uuid: row.uuid.clone(),
            used_bytes: used,
            live_bytes: live,
            checkpointed_bytes: process.checkpointed.then_some(totals.owned.live_bytes),
            peak_bytes: totals.owned.peak_bytes,
            preexisting_bytes: if process.is_from_start() { Some(0) } else { before.map(|before| before.bytes) },
            preexisting_includes_context: !process.is_from_start()
                && before.is_some_and(|before| before.includes_context),
            attributed_bytes: accounted,
            unconfirmed_bytes,
            unattributed_bytes: used.map(|used| difference(used, accounted)),
            allocations: totals.allocations,
            frees: totals.frees,
            failed_allocations: totals.failed_allocations,
            refusals: row.refusals.by_status.clone(),
            last_oom_ns: row.refusals.last_oom_ns,
            ooms: row.refusals.ooms(),
            retries: row.refusals.retries(),
            kinds: kinds(row),
        }
    }

    fn failures(&self, process: &Process) -> Vec<FailureView> {
        let gpus = by_gpu(process, &self.reading.devices);
        let only = match gpus.as_slice() {
            [one] => one.uuid.clone(),
            _ => None,
        };
        let uuid = |device| resolve(process, device, &self.reading.devices).or_else(|| only.clone());
        let view = |failure: &FailedAllocation| FailureView {
            time_ns: failure.time_ns,
            symbol: failure.symbol.into(),
            requested_bytes: failure.requested_bytes,
            status: failure.status,
            uuid: failure.device.and_then(uuid),
            is_retried: failure.is_retried,
        };
        process.ledger.failures().map(view).collect()
    }

    /// Returns the view of a GPU with all its processes.
    pub(crate) fn gpu(&self, device: &DeviceFacts, processes: &[ProcessView]) -> GpuView {
        let on_it = || {
            let gpus = processes.iter().flat_map(|process| &process.gpus);
            gpus.filter(|gpu| gpu.uuid.as_ref() == Some(&device.uuid))
        };
        let accounted = on_it().fold(0, |sum: u64, gpu| sum.saturating_add(gpu.confirmed_bytes()));
        let watched = |tgid| processes.iter().any(|process| process.tgid == tgid);
        let unwatched: Option<Vec<&ProcessUse>> =
            device.processes.as_ref().map(|list| list.iter().filter(|entry| !watched(entry.tgid)).collect());
        GpuView {
            uuid: device.uuid.clone(),
            nvml_index: device.nvml_index,
            name: device.name.clone(),
            pci_bus_id: device.pci_bus_id.clone(),
            mig: device.mig.clone(),
            total_bytes: device.total_bytes,
            used_bytes: device.used_bytes,
            live_bytes: on_it().fold(0, |sum, gpu| sum.saturating_add(gpu.confirmed_live_bytes())),
            attributed_bytes: accounted,
            unattributed_bytes: device.used_bytes.map(|used| difference(used, accounted)),
            remainder: explained::remainder(self, device),
            context_bytes: self.reconciliation.context_bytes(&device.uuid),
            sampled_ns: self.reading.begin_ns,
            unwatched_processes: unwatched.as_ref().and_then(|list| u64::try_from(list.len()).ok()),
            unwatched_bytes: unwatched.and_then(|list| list.iter().map(|entry| entry.used_bytes).sum()),
            sensors: device.sensors,
            seconds_to_full: None,
        }
    }
}

fn kinds(row: &OnGpu) -> BTreeMap<Name, KindView> {
    let seen = AllocationKind::ALL.into_iter().filter(|kind| row.totals.kind(*kind).total_bytes > 0);
    seen.map(|kind| (kind_name(kind).into(), kind_view(row, kind))).collect()
}

fn kind_view(row: &OnGpu, kind: AllocationKind) -> KindView {
    let counter = row.totals.kind(kind);
    let backed = row.pool_backed.filter(|_| kind == AllocationKind::Pool);
    KindView {
        live_bytes: counter.live_bytes,
        peak_bytes: counter.peak_bytes,
        total_bytes: counter.total_bytes,
        allocations: counter.allocations,
        frees: counter.frees,
        estimated: matches!(kind, AllocationKind::Array | AllocationKind::Graph),
        backed_bytes: backed.map(|Backed { bytes, .. }| bytes),
        backed_estimated: backed.is_some_and(|backed| backed.estimated),
    }
}

fn overhead(process: &Process) -> Option<OverheadView> {
    let ended_ns = process.ended.map(|ended| ended.time_ns);
    let Cost { events, total_ns, ns_per_second, stacks_left_out } =
        process.overhead.cost((process.observed_since_ns, ended_ns), process.level.and_then(|level| level.trap_ns))?;
    Some(OverheadView { events, total_ns, ns_per_second, stacks_left_out })
}

/// `CUlimit` (cuda.h): 0 stack size, 1 printf FIFO size, 2 malloc heap size.
fn context_limits(process: &Process) -> ContextLimits {
    let limit = |number| process.ledger.limit(number);
    ContextLimits { stack_bytes_per_thread: limit(0), printf_bytes: limit(1), heap_bytes: limit(2) }
}

/// Returns the name of a kind in JSON and on screens.
pub(crate) fn kind_name(kind: AllocationKind) -> &'static str {
    match kind {
        AllocationKind::Device => "device",
        AllocationKind::Pool => "pool",
        AllocationKind::Physical => "physical",
        AllocationKind::Array => "array",
        AllocationKind::Graph => "graph",
        AllocationKind::Managed => "managed",
        AllocationKind::PinnedHost => "pinned",
        AllocationKind::Registered => "registered",
        AllocationKind::HostPhysical => "host_physical",
    }
}

fn host(process: &Process) -> HostView {
    let host = process.ledger.totals().host();
    HostView {
        pinned_live_bytes: host.kind(AllocationKind::PinnedHost).live_bytes,
        pinned_peak_bytes: host.kind(AllocationKind::PinnedHost).peak_bytes,
        registered_live_bytes: host.kind(AllocationKind::Registered).live_bytes,
        physical_live_bytes: host.kind(AllocationKind::HostPhysical).live_bytes,
    }
}
