//! Restricts a snapshot to what a user of a shared machine may see: the user's own processes, and
//! the total memory of all others.
//!
//! Processes of unknown users count as others. The GPU's own numbers are kept, so that the visible
//! and the hidden parts add up to them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ProcessView, Snapshot};
use crate::input::{LibraryCoverage, ProbeCoverage};
use crate::kernel_driver::labels::MemoryPurpose;
use crate::owner::Promise;
use crate::words::{GpuUuid, Tgid, sum_of_known};

/// Folders in which systems keep the driver library. A path elsewhere may reveal the project or
/// container of another user.
const SYSTEM_FOLDERS: [&str; 9] = [
    "/usr/lib/",
    "/usr/lib64/",
    "/lib/",
    "/lib64/",
    "/usr/local/cuda",
    "/usr/local/nvidia/",
    "/run/opengl-driver/",
    "/run/nvidia/",
    "/var/lib/snapd/lib/gl/",
];

/// Replacement for a path that may reveal another user.
const ELSEWHERE: &str = "(a libcuda outside of the system's folders)";

/// The user that a snapshot is restricted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Viewer {
    /// May see everything.
    Everything,
    /// May see the processes of this user number.
    User(u32),
}

/// Running processes that the viewer may not see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenView {
    /// Number of processes.
    pub processes: u64,
    /// Memory of the processes by GPU.
    pub gpus: Vec<HiddenGpuView>,
}

/// Memory of hidden processes on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenGpuView {
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Number of hidden processes on the GPU.
    pub processes: u64,
    /// NVML's bytes of the processes; `None` if NVML reports none of them.
    pub used_bytes: Option<u64>,
    /// Live bytes of the processes.
    #[serde(rename = "driver_allocated_bytes")]
    pub live_bytes: u64,
    /// Live bytes of the processes at the time of the NVML reading.
    pub attributed_bytes: u64,
}

impl ProcessView {
    /// Returns whether the viewer may see the process.
    pub fn is_shown_to(&self, viewer: Viewer) -> bool {
        match viewer {
            Viewer::Everything => true,
            Viewer::User(uid) => self.uid == Some(uid),
        }
    }
}

impl Snapshot {
    /// Returns the part of the snapshot that the viewer may see.
    #[must_use]
    pub fn observed_by(&self, viewer: Viewer) -> Self {
        let Viewer::User(uid) = viewer else { return self.clone() };
        let (own, others): (Vec<_>, Vec<_>) = self.processes.iter().partition(|process| process.is_shown_to(viewer));
        let alone = BTreeSet::from([Some(uid)]);
        let tgids = |of: &[&ProcessView]| of.iter().map(|process| process.tgid).collect::<BTreeSet<Tgid>>();
        // A pid may have been reused.
        let (own_tgids, others_tgids) = (tgids(&own), tgids(&others));
        let seen = &own_tgids - &others_tgids;
        let show = |process: &&ProcessView| {
            let mut process = (*process).clone();
            process.imports.retain(|import| seen.contains(&import.from_tgid));
            cut_origins(&mut process, &seen, &others_tgids);
            process
        };
        // The lists of losses, GPUs and probes reveal nothing about a user.
        Self {
            processes: own.iter().map(show).collect(),
            hidden: Some(hidden(&others)),
            workloads: self.workloads.iter().filter(|workload| workload.uids == alone).cloned().collect(),
            promised: self.promised.iter().filter(|promise| is_promised_to(&own, promise)).cloned().collect(),
            cgroup_memory: {
                let groups = self.cgroup_memory.iter();
                groups.filter(|memory| is_group_of(&own, &others, &memory.cgroup)).cloned().collect()
            },
            coverage: ProbeCoverage {
                libraries: self.coverage.libraries.iter().map(public).collect(),
                ..self.coverage.clone()
            },
            gpus: self.gpus.clone(),
            losses: self.losses.clone(),
            nvml: self.nvml.clone(),
            ..*self
        }
    }
}

/// Removes the previous owner of inherited memory that the viewer may not see: its program name and
/// its pid. The bytes stay.
fn cut_origins(process: &mut ProcessView, seen: &BTreeSet<Tgid>, others: &BTreeSet<Tgid>) {
    let is_seen = |left_by: &Option<Tgid>| left_by.is_some_and(|tgid| seen.contains(&tgid));
    for gpu in process.explained.iter_mut().flat_map(|explained| &mut explained.gpus) {
        let mut is_cut = false;
        for part in
            gpu.parts.iter_mut().filter(|part| part.label == MemoryPurpose::Inherited && !is_seen(&part.left_by))
        {
            (part.owner, part.left_by, is_cut) = (None, None, true);
        }
        // A row of objects does not name the part that it belongs to.
        let inherited = gpu.pieces.iter_mut().filter(|piece| piece.label == MemoryPurpose::Inherited);
        inherited.filter(|_| is_cut).for_each(|piece| piece.owner = None);
    }
    if let Some(left_behind) = &mut process.left_behind {
        left_behind.forked.retain(|tgid| !others.contains(tgid));
    }
}

fn hidden(others: &[&ProcessView]) -> HiddenView {
    let living = || others.iter().filter(|process| process.ended_ns.is_none());
    let mut gpus: BTreeMap<Option<GpuUuid>, HiddenGpuView> = BTreeMap::new();
    for gpu in living().flat_map(|process| &process.gpus) {
        let blank = || HiddenGpuView { uuid: gpu.uuid.clone(), ..HiddenGpuView::default() };
        let sum = gpus.entry(gpu.uuid.clone()).or_insert_with(blank);
        sum.processes += 1;
        sum.used_bytes = sum_of_known(sum.used_bytes, gpu.used_bytes);
        sum.live_bytes = sum.live_bytes.saturating_add(gpu.live_bytes);
        sum.attributed_bytes = sum.attributed_bytes.saturating_add(gpu.confirmed_bytes());
    }
    HiddenView { processes: u64::try_from(living().count()).unwrap_or(u64::MAX), gpus: gpus.into_values().collect() }
}

fn is_promised_to(own: &[&ProcessView], promise: &Promise) -> bool {
    own.iter()
        .filter_map(|process| process.owner.pod.as_ref())
        .any(|pod| pod.namespace.as_ref() == Some(&promise.namespace) && pod.name.as_ref() == Some(&promise.pod))
}

/// Returns whether a control group with its descendants contains processes of the viewer, and of no
/// other user.
fn is_group_of(own: &[&ProcessView], others: &[&ProcessView], group: &str) -> bool {
    let within = |process: &&ProcessView| {
        let rest = process.owner.cgroup.as_deref().and_then(|path| path.strip_prefix(group.trim_end_matches('/')));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // A process with an unknown control group may be in any.
    let unknown = |process: &&ProcessView| process.ended_ns.is_none() && process.owner.cgroup.is_none();
    own.iter().any(within) && !others.iter().any(|process| within(process) || unknown(process))
}

/// Returns a library file; outside of the system folders without its path and counters.
pub(crate) fn public(library: &LibraryCoverage) -> LibraryCoverage {
    if SYSTEM_FOLDERS.iter().any(|folder| library.path.starts_with(folder)) && !library.path.contains("/../") {
        return library.clone();
    }
    let error = library.error.as_ref().map(|_| "hidden: only the owner may see the reason".to_owned());
    let all = library.clone();
    LibraryCoverage { path: ELSEWHERE.to_owned(), build_id: None, error, kernel_calls: None, ..all }
}
