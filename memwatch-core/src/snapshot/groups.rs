//! Groups a snapshot by owner: the memory of each group on each GPU, and the remainder that no
//! group is charged with, so that the rows add up.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::owner::Owner;
use crate::snapshot::{GpuView, ProcessGpuView, ProcessView, Snapshot};
use crate::words::{GpuUuid, json, sum_of_known};

/// Property that rows are grouped by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnerGrouping {
    /// Containers, in pods or not.
    Container,
    /// Kubernetes pods.
    Pod,
    /// Slurm jobs.
    Job,
    /// Users.
    User,
    /// GPUs: one row for all processes on each.
    Gpu,
}

/// Processes of one owner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OwnerGroup<'a> {
    /// Owner's id; `None` for processes without such an owner, and for rows of GPUs.
    pub id: Option<String>,
    /// A process of the group that names its owner; `None` for processes without such an owner.
    #[serde(skip)]
    pub owner: Option<&'a ProcessView>,
    /// Memory by GPU, unknown GPUs last.
    pub gpus: Vec<GroupGpu>,
    /// Number of running processes.
    pub processes: u64,
    /// Whether every record of the processes arrived.
    pub exact: bool,
}

/// Memory of a group on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupGpu {
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Number of running processes on the GPU.
    pub processes: u64,
    /// NVML's bytes for the processes; `None` if NVML reports none of them.
    pub used_bytes: Option<u64>,
    /// Requested bytes of live memory.
    #[serde(serialize_with = "json::driver_allocated_bytes")]
    pub live_bytes: u64,
    /// Bytes charged to the group: NVML's bytes, and live bytes of processes that NVML does not
    /// list. They add up over the groups.
    pub charged_bytes: u64,
    /// Sum of the processes' peaks: an upper bound of the group's peak.
    pub at_most_peak_bytes: u64,
    /// Bytes allocated before the attach; `None` if they are unknown for all processes.
    pub preexisting_bytes: Option<u64>,
    /// Whether `preexisting_bytes` includes the memory of contexts.
    pub preexisting_includes_context: bool,
    /// Number of allocations that the driver refused.
    pub failed_allocations: u64,
}

/// Used bytes of a GPU that no group is charged with: the driver's own, and those of other users
/// and of processes that were not selected.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UngroupedBytes {
    /// The GPU.
    pub uuid: GpuUuid,
    /// `used - charged`; `None` if NVML does not report the used bytes.
    pub bytes: Option<i64>,
}

/// Returns the groups of a snapshot's running processes, most charged bytes first, and the
/// remainder of each GPU.
pub fn groups(snapshot: &Snapshot, by: OwnerGrouping) -> (Vec<OwnerGroup<'_>>, Vec<UngroupedBytes>) {
    let mut groups: BTreeMap<OwnerGroupKey, OwnerGroup<'_>> = BTreeMap::new();
    for process in snapshot.processes.iter().filter(|process| process.ended_ns.is_none()) {
        if by == OwnerGrouping::Gpu {
            for gpu in &process.gpus {
                let key = OwnerGroupKey { gpu: gpu.uuid.clone(), ..OwnerGroupKey::default() };
                add(groups.entry(key).or_insert_with(|| blank(None, None)), process, [gpu]);
            }
        } else {
            let key = OwnerGroupKey { owner: owner(by, process), gpu: None };
            let (id, shown) = (key.owner.clone(), key.owner.is_some().then_some(process));
            add(groups.entry(key).or_insert_with(|| blank(id, shown)), process, &process.gpus);
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    let charged = |group: &OwnerGroup<'_>| group.gpus.iter().map(|gpu| gpu.charged_bytes).fold(0, u64::saturating_add);
    groups.sort_by_key(|group| (group.owner.is_none() && by != OwnerGrouping::Gpu, std::cmp::Reverse(charged(group))));
    let rest = snapshot.gpus.iter().map(|gpu| rest(gpu, &groups)).collect();
    (groups, rest)
}

/// Key of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct OwnerGroupKey {
    owner: Option<String>,
    gpu: Option<GpuUuid>,
}

fn owner(by: OwnerGrouping, process: &ProcessView) -> Option<String> {
    let Owner { container, pod, slurm, .. } = &process.owner;
    match by {
        OwnerGrouping::Container => container.as_ref().map(|container| container.id.clone()),
        OwnerGrouping::Pod => pod.as_ref().map(|pod| pod.uid.clone()),
        OwnerGrouping::Job => slurm.as_ref().and_then(|job| job.number().map(str::to_owned)),
        OwnerGrouping::User => process.uid.map(|uid| uid.to_string()).or_else(|| process.user.clone()),
        OwnerGrouping::Gpu => None,
    }
}

fn blank(id: Option<String>, owner: Option<&ProcessView>) -> OwnerGroup<'_> {
    OwnerGroup { id, owner, gpus: Vec::new(), processes: 0, exact: true }
}

fn add<'g>(group: &mut OwnerGroup<'_>, process: &ProcessView, gpus: impl IntoIterator<Item = &'g ProcessGpuView>) {
    group.processes += 1;
    group.exact &= process.exact;
    for gpu in gpus {
        let place = group.gpus.iter().position(|row| row.uuid == gpu.uuid).unwrap_or_else(|| {
            group.gpus.push(GroupGpu { uuid: gpu.uuid.clone(), ..GroupGpu::default() });
            group.gpus.len() - 1
        });
        add_gpu(&mut group.gpus[place], gpu);
    }
    group.gpus.sort_by_key(|row| row.uuid.is_none());
}

fn add_gpu(row: &mut GroupGpu, gpu: &ProcessGpuView) {
    row.processes += 1;
    row.used_bytes = sum_of_known(row.used_bytes, gpu.used_bytes);
    row.preexisting_bytes = sum_of_known(row.preexisting_bytes, gpu.preexisting_bytes);
    row.preexisting_includes_context |= gpu.preexisting_includes_context;
    row.live_bytes = row.live_bytes.saturating_add(gpu.live_bytes);
    row.charged_bytes = row.charged_bytes.saturating_add(gpu.used_bytes.unwrap_or(gpu.confirmed_bytes()));
    row.at_most_peak_bytes = row.at_most_peak_bytes.saturating_add(gpu.peak_bytes);
    row.failed_allocations += gpu.failed_allocations;
}

fn rest(gpu: &GpuView, groups: &[OwnerGroup<'_>]) -> UngroupedBytes {
    let there = groups.iter().flat_map(|group| &group.gpus).filter(|row| row.uuid.as_ref() == Some(&gpu.uuid));
    let charged: i128 = there.map(|row| i128::from(row.charged_bytes)).sum();
    let rest = |used: u64| i64::try_from(i128::from(used) - charged).unwrap_or(i64::MIN);
    UngroupedBytes { uuid: gpu.uuid.clone(), bytes: gpu.used_bytes.map(rest) }
}
