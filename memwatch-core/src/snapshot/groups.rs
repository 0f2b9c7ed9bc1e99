//! A snapshot by owner: who has how much of each GPU, and what of it nobody is charged with, so that the rows add up.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::owner::Owner;
use crate::snapshot::{GpuView, ProcessGpuView, ProcessView, Snapshot};
use crate::words::{GpuUuid, json, sum_of_known};

/// What the rows are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Containers, of pods or not.
    Container,
    /// Kubernetes pods.
    Pod,
    /// Slurm jobs.
    Job,
    /// Users.
    User,
    /// GPUs: one row for all processes of each.
    Gpu,
}

/// Processes of one owner.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Group<'a> {
    /// The owner's id; `None` for processes without such an owner, and where the rows are GPUs.
    pub id: Option<String>,
    /// One of them that shows whose they are; `None` for processes without such an owner.
    #[serde(skip)]
    pub owner: Option<&'a ProcessView>,
    /// By GPU, unknown ones last.
    pub gpus: Vec<GroupGpu>,
    /// Living processes.
    pub processes: u64,
    /// Every record of them arrived.
    pub exact: bool,
}

/// A group on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GroupGpu {
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// Living processes there.
    pub processes: u64,
    /// NVML's bytes for them; `None` where it says of none of them.
    pub used_bytes: Option<u64>,
    /// Requested bytes of live memory.
    #[serde(serialize_with = "json::driver_allocated_bytes")]
    pub live_bytes: u64,
    /// What the group is charged with: NVML's bytes, and live bytes of processes that it does not list. These add up.
    pub charged_bytes: u64,
    /// The sum of the processes' peaks: what the group had at once was at most this.
    pub at_most_peak_bytes: u64,
    /// What is older than the attach; `None` where that is known of none of them.
    pub preexisting_bytes: Option<u64>,
    /// Contexts' own memory is part of that.
    pub preexisting_includes_context: bool,
    /// Allocations the driver refused.
    pub failed_allocations: u64,
}

/// What of a GPU's used bytes is charged to none of the groups: the driver's own, other users' processes, and the ones that were not chosen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rest {
    /// The GPU.
    pub uuid: GpuUuid,
    /// `used - charged`; `None` where NVML does not say what is used.
    pub bytes: Option<i64>,
}

/// The groups of a snapshot's living processes, the ones that are charged most first, and what remains of each GPU.
pub fn groups(snapshot: &Snapshot, by: By) -> (Vec<Group<'_>>, Vec<Rest>) {
    let mut groups: BTreeMap<Key, Group<'_>> = BTreeMap::new();
    for process in snapshot.processes.iter().filter(|process| process.ended_ns.is_none()) {
        if by == By::Gpu {
            for gpu in &process.gpus {
                let key = Key { gpu: gpu.uuid.clone(), ..Key::default() };
                add(groups.entry(key).or_insert_with(|| blank(None, None)), process, [gpu]);
            }
        } else {
            let key = Key { owner: owner(by, process), gpu: None };
            let (id, shown) = (key.owner.clone(), key.owner.is_some().then_some(process));
            add(groups.entry(key).or_insert_with(|| blank(id, shown)), process, &process.gpus);
        }
    }
    let mut groups: Vec<_> = groups.into_values().collect();
    let charged = |group: &Group<'_>| group.gpus.iter().map(|gpu| gpu.charged_bytes).fold(0, u64::saturating_add);
    groups.sort_by_key(|group| (group.owner.is_none() && by != By::Gpu, std::cmp::Reverse(charged(group))));
    let rest = snapshot.gpus.iter().map(|gpu| rest(gpu, &groups)).collect();
    (groups, rest)
}

/// What distinguishes groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    owner: Option<String>,
    gpu: Option<GpuUuid>,
}

fn owner(by: By, process: &ProcessView) -> Option<String> {
    let Owner { container, pod, slurm, .. } = &process.owner;
    match by {
        By::Container => container.as_ref().map(|container| container.id.clone()),
        By::Pod => pod.as_ref().map(|pod| pod.uid.clone()),
        By::Job => slurm.as_ref().and_then(|job| job.number().map(str::to_owned)),
        By::User => process.uid.map(|uid| uid.to_string()).or_else(|| process.user.clone()),
        By::Gpu => None,
    }
}

fn blank(id: Option<String>, owner: Option<&ProcessView>) -> Group<'_> {
    Group { id, owner, gpus: Vec::new(), processes: 0, exact: true }
}

fn add<'g>(group: &mut Group<'_>, process: &ProcessView, gpus: impl IntoIterator<Item = &'g ProcessGpuView>) {
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

fn rest(gpu: &GpuView, groups: &[Group<'_>]) -> Rest {
    let there = groups.iter().flat_map(|group| &group.gpus).filter(|row| row.uuid.as_ref() == Some(&gpu.uuid));
    let charged: i128 = there.map(|row| i128::from(row.charged_bytes)).sum();
    let rest = |used: u64| i64::try_from(i128::from(used) - charged).unwrap_or(i64::MIN);
    Rest { uuid: gpu.uuid.clone(), bytes: gpu.used_bytes.map(rest) }
}
