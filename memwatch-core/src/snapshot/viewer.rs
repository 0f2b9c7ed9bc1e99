//! What a person gets to see of a machine that others use, too: their own processes, and of the others how much they hold.
//!
//! Whoever is not known is somebody else. A GPU's own numbers stay, so that what is seen and what is hidden add up to them.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::{ProcessView, Snapshot};
use crate::input::{Coverage, LibraryCoverage};
use crate::kernel_driver::labels::Label;
use crate::owner::Promise;
use crate::words::{GpuUuid, Tgid, sum_of_known};

/// Where systems keep the driver library. A path elsewhere may name somebody's project or container.
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

/// What stands for a path that is nobody else's business.
const ELSEWHERE: &str = "(a libcuda outside of the system's folders)";

/// Who looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Viewer {
    /// Somebody who may see everything.
    Everything,
    /// A user who sees what is their own: the user's number.
    User(u32),
}

/// Living processes that this viewer does not get to see.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenView {
    /// Their number.
    pub processes: u64,
    /// What they hold, by GPU.
    pub gpus: Vec<HiddenGpuView>,
}

/// What hidden processes hold on one GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HiddenGpuView {
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// How many of them are there.
    pub processes: u64,
    /// NVML's bytes of them; `None` where NVML says of none of them.
    pub used_bytes: Option<u64>,
    /// Their live bytes.
    #[serde(rename = "driver_allocated_bytes")]
    pub live_bytes: u64,
    /// Their live bytes at the time of the NVML reading.
    pub attributed_bytes: u64,
}

impl ProcessView {
    /// Whether this viewer gets to see it.
    pub fn is_shown_to(&self, viewer: Viewer) -> bool {
        match viewer {
            Viewer::Everything => true,
            Viewer::User(uid) => self.uid == Some(uid),
        }
    }
}

impl Snapshot {
    /// What this viewer gets to see of it.
    #[must_use]
    pub fn observed_by(&self, viewer: Viewer) -> Self {
        let Viewer::User(uid) = viewer else { return self.clone() };
        let (own, others): (Vec<_>, Vec<_>) = self.processes.iter().partition(|process| process.is_shown_to(viewer));
        let alone = BTreeSet::from([Some(uid)]);
        let tgids = |of: &[&ProcessView]| of.iter().map(|process| process.tgid).collect::<BTreeSet<Tgid>>();
        // A number may have been used again.
        let (own_tgids, others_tgids) = (tgids(&own), tgids(&others));
        let seen = &own_tgids - &others_tgids;
        let show = |process: &&ProcessView| {
            let mut process = (*process).clone();
            process.imports.retain(|import| seen.contains(&import.from_tgid));
            cut_origins(&mut process, &seen, &others_tgids);
            process
        };
        // Lists of all losses, GPUs and probes say nothing of anybody.
        Self {
            processes: own.iter().map(show).collect(),
            hidden: Some(hidden(&others)),
            workloads: self.workloads.iter().filter(|workload| workload.uids == alone).cloned().collect(),
            promised: self.promised.iter().filter(|promise| is_promised_to(&own, promise)).cloned().collect(),
            cgroup_memory: {
                let groups = self.cgroup_memory.iter();
                groups.filter(|memory| is_group_of(&own, &others, &memory.cgroup)).cloned().collect()
            },
            coverage: Coverage {
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

/// What a process has of others' memory that they have freed stays, without whose it was: their program's name, or their number.
fn cut_origins(process: &mut ProcessView, seen: &BTreeSet<Tgid>, others: &BTreeSet<Tgid>) {
    let is_seen = |left_by: &Option<Tgid>| left_by.is_some_and(|tgid| seen.contains(&tgid));
    for gpu in process.explained.iter_mut().flat_map(|explained| &mut explained.gpus) {
        let mut is_cut = false;
        for part in gpu.parts.iter_mut().filter(|part| part.label == Label::Inherited && !is_seen(&part.left_by)) {
            (part.owner, part.left_by, is_cut) = (None, None, true);
        }
        // A row of objects does not say which part it is of.
        let inherited = gpu.pieces.iter_mut().filter(|piece| piece.label == Label::Inherited);
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

/// Whether a control group, with those below it, has processes of the viewer's and of nobody else.
fn is_group_of(own: &[&ProcessView], others: &[&ProcessView], group: &str) -> bool {
    let within = |process: &&ProcessView| {
        let rest = process.owner.cgroup.as_deref().and_then(|path| path.strip_prefix(group.trim_end_matches('/')));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    // Whose group is not known may be in any.
    let unknown = |process: &&ProcessView| process.ended_ns.is_none() && process.owner.cgroup.is_none();
    own.iter().any(within) && !others.iter().any(|process| within(process) || unknown(process))
}

/// A library file without its counters.
fn public(library: &LibraryCoverage) -> LibraryCoverage {
    if SYSTEM_FOLDERS.iter().any(|folder| library.path.starts_with(folder)) && !library.path.contains("/../") {
        return library.clone();
    }
    let error = library.error.as_ref().map(|_| "the reason is for its owner".to_owned());
    let all = library.clone();
    LibraryCoverage { path: ELSEWHERE.to_owned(), build_id: None, error, kernel_calls: None, ..all }
}
