//! Builds the views of workloads from their running processes and from the totals of exited ones.

use std::collections::{BTreeMap, BTreeSet};

use crate::attribution::workload::{EndedTotals, Workload, WorkloadKey, Workloads};
use crate::kernel_driver::trust::LedgerTrust;
use crate::owner::{Container, Owner};
use crate::snapshot::build::kind_name;
use crate::snapshot::{
    AllocatorView, ExplainedUse, FrameworkSums, KvCacheSums, PREEXISTING, ProcessGpuView, ProcessView, WorkloadGpuView,
    WorkloadKindView, WorkloadView,
};
use crate::words::{GpuUuid, Name, Tgid, sum_of_known};

/// Returns the views of all workloads, by key.
pub(crate) fn views(workloads: &Workloads, processes: &[ProcessView]) -> Vec<WorkloadView> {
    let living = processes.iter().filter(|process| process.ended_ns.is_none());
    let living: BTreeMap<Tgid, &ProcessView> = living.map(|process| (process.tgid, process)).collect();
    workloads.iter().map(|(key, workload)| view(key, workload, &living)).collect()
}

fn view(key: &WorkloadKey, workload: &Workload, living: &BTreeMap<Tgid, &ProcessView>) -> WorkloadView {
    let owner = &workload.owner;
    let own = || workload.processes.iter().filter_map(|tgid| living.get(tgid));
    let mut gpus: BTreeMap<Option<GpuUuid>, WorkloadGpuView> = BTreeMap::new();
    for (uuid, gone) in &workload.gone {
        add_gone(row(&mut gpus, uuid.as_ref()), gone);
    }
    for gpu in own().flat_map(|process| &process.gpus) {
        add_living(row(&mut gpus, gpu.uuid.as_ref()), gpu);
    }
    let explained = own().flat_map(|process| process.explained.iter().flat_map(|explained| &explained.gpus));
    for own in explained.filter(|own| own.trust == LedgerTrust::Trusted) {
        add_parts(row(&mut gpus, own.uuid.as_ref()), own);
    }
    let allocators = own().flat_map(|process| process.tensors.iter().flat_map(|tensors| &tensors.allocators));
    for allocator in allocators {
        let row = row(&mut gpus, allocator.uuid.as_ref());
        row.framework = Some(row.framework.unwrap_or_default().and(sums_of(allocator)));
    }
    add_kv_caches(&mut gpus, own());
    for row in gpus.values_mut() {
        // A peak from the time when a process's GPU was unknown has no row; the process's own peak
        // counts on its current GPU.
        let together = workload.peaks_bytes.get(&row.uuid).copied();
        row.peak_bytes = row.peak_bytes.max(together.unwrap_or(0));
    }
    let mut gpus: Vec<_> = gpus.into_values().collect();
    gpus.sort_by_key(|row| row.uuid.is_none());
    WorkloadView {
        kind: key.kind().name().into(),
        namespace: owner.pod.as_ref().and_then(|pod| pod.namespace.clone()),
        pod: owner.pod.as_ref().map(|pod| pod.name.clone().unwrap_or_else(|| pod.uid.clone())),
        container: container(owner),
        slurm_job: owner.slurm.as_ref().and_then(|job| job.number().map(str::to_owned)),
        unit: key.unit().map(str::to_owned),
        processes: u64::try_from(workload.processes.len()).unwrap_or(u64::MAX),
        ended_ns: workload.ended_ns,
        exact: !workload.lost && own().all(|process| process.exact),
        uids: own().map(|process| process.uid).chain(workload.gone_uids.iter().copied()).collect(),
        gpus,
    }
}

/// Returns the container's name in its pod, else its name in the runtime, else the beginning of its
/// id.
pub(crate) fn container(owner: &Owner) -> Option<String> {
    let in_pod = owner.pod.as_ref().and_then(|pod| pod.container.clone());
    in_pod.or_else(|| owner.container.as_ref().map(Container::label))
}

fn row<'a>(
    rows: &'a mut BTreeMap<Option<GpuUuid>, WorkloadGpuView>,
    uuid: Option<&GpuUuid>,
) -> &'a mut WorkloadGpuView {
    rows.entry(uuid.cloned()).or_insert_with(|| WorkloadGpuView {
        uuid: uuid.cloned(),
        used_bytes: None,
        live_bytes: 0,
        peak_bytes: 0,
        preexisting_bytes: None,
        refusals: BTreeMap::new(),
        last_oom_ns: None,
        ooms: 0,
        retries: 0,
        kinds: BTreeMap::new(),
        parts: BTreeMap::new(),
        framework: None,
        kv_cache: None,
        growth_bytes_per_second: None,
    })
}

fn add_gone(row: &mut WorkloadGpuView, gone: &EndedTotals) {
    for (kind, (allocations, bytes)) in &gone.kinds {
        let kind = row.kinds.entry(kind_name(*kind).into()).or_default();
        kind.allocations += allocations;
        kind.frees += allocations;
        kind.allocated_bytes = kind.allocated_bytes.saturating_add(*bytes);
        kind.freed_bytes = kind.freed_bytes.saturating_add(*bytes);
    }
    let outcomes = (gone.refusals.ooms(), gone.refusals.retries());
    add_refusals(row, &gone.refusals.by_status, gone.refusals.last_oom_ns, outcomes);
}

fn add_living(row: &mut WorkloadGpuView, gpu: &ProcessGpuView) {
    row.used_bytes = sum_of_known(row.used_bytes, gpu.used_bytes);
    row.preexisting_bytes = sum_of_known(row.preexisting_bytes, gpu.preexisting_bytes);
    row.live_bytes = row.live_bytes.saturating_add(gpu.live_bytes);
    row.peak_bytes = row.peak_bytes.max(gpu.peak_bytes);
    for (name, of_process) in &gpu.kinds {
        let kind: &mut WorkloadKindView = row.kinds.entry(Name::clone(name)).or_default();
        kind.live_bytes = kind.live_bytes.saturating_add(of_process.live_bytes);
        kind.allocations += of_process.allocations;
        kind.frees += of_process.frees;
        kind.allocated_bytes = kind.allocated_bytes.saturating_add(of_process.total_bytes);
        let freed_bytes = of_process.total_bytes.saturating_sub(of_process.live_bytes);
        kind.freed_bytes = kind.freed_bytes.saturating_add(freed_bytes);
    }
    add_refusals(row, &gpu.refusals, gpu.last_oom_ns, (gpu.ooms, gpu.retries));
}

fn add_parts(row: &mut WorkloadGpuView, own: &ExplainedUse) {
    let older = own.older_bytes.filter(|older| *older > 0).map(|older| (PREEXISTING, older));
    let parts = own.parts.iter().map(|part| (part.label.name(), part.bytes));
    for (name, bytes) in parts.chain(older) {
        let sum = row.parts.entry(name.into()).or_default();
        *sum = sum.saturating_add(bytes);
    }
}

fn sums_of(allocator: &AllocatorView) -> FrameworkSums {
    let number = |key| u64::try_from(allocator.statistic(key)?).ok();
    FrameworkSums {
        allocated_bytes: allocator.allocated_bytes,
        reserved_bytes: allocator.reserved_bytes,
        active_bytes: number("active_bytes.all.current"),
        inactive_split_bytes: allocator.inactive_split_bytes,
        retries: number("num_alloc_retries"),
        ooms: number("num_ooms"),
    }
}

/// Adds the KV caches of processes with memory on one GPU. Tensors on several are not divided
/// among them. Requests are those of a scheduler, which may be that of several processes.
fn add_kv_caches<'a>(
    gpus: &mut BTreeMap<Option<GpuUuid>, WorkloadGpuView>,
    processes: impl Iterator<Item = &'a &'a ProcessView>,
) {
    let mut schedulers = BTreeSet::new();
    for process in processes {
        let ([gpu], Some(Ok(pool))) = (&process.gpus[..], process.kv_cache.as_ref().map(|read| &read.pool)) else {
            continue;
        };
        let is_first = schedulers.insert((&gpu.uuid, pool.scheduler));
        let requests = |count: u64| if is_first { count } else { 0 };
        let own = KvCacheSums {
            size_bytes: pool.size_bytes(),
            used_bytes: pool.used_bytes(),
            reusable_bytes: pool.reusable_bytes(),
            running_requests: requests(pool.fill.running),
            waiting_requests: requests(pool.fill.waiting),
        };
        let row = row(gpus, gpu.uuid.as_ref());
        row.kv_cache = Some(row.kv_cache.unwrap_or_default().and(own));
    }
}

fn add_refusals(
    row: &mut WorkloadGpuView,
    by_status: &BTreeMap<i32, u64>,
    last_oom_ns: Option<u64>,
    (ooms, retries): (u64, u64),
) {
    for (status, count) in by_status {
        *row.refusals.entry(*status).or_insert(0) += count;
    }
    row.last_oom_ns = row.last_oom_ns.max(last_oom_ns);
    row.ooms += ooms;
    row.retries += retries;
}
