//! Sentences on a failed allocation: the GPU's memory by process, and what would have helped.

use std::collections::BTreeSet;

use memwatch_core::Pipeline;
use memwatch_core::features::causes::Cause;
use memwatch_core::features::forecast::view::{ForecastChangeView, ForecastsView};
use memwatch_core::features::oom::view::{CacheView, OomView, SurvivedView};
use memwatch_core::snapshot::{ArenaView, ProcessView, Snapshot};
use memwatch_core::words::{Framework, Tgid};
use serde::Serialize;

use crate::options::Selected;
use crate::render::format::bytes;
use crate::render::sentences;
use crate::watch::selection::Selection;

/// Content of `memwatch oom`'s report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OomReport<'a> {
    /// Failures.
    pub(crate) failed: &'a Failed,
    /// Forecasts.
    pub(crate) forecasts: &'a ForecastsView,
    /// Changes of the forecasts, oldest first.
    pub(crate) changes: &'a [ForecastChangeView],
}

/// Failed allocations, and requests that the kernel driver refused without one; oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failed {
    /// Failed allocations.
    pub(crate) ooms: Vec<OomView>,
    /// Number of older failures that were forgotten.
    pub(crate) forgotten: u64,
    /// Refused requests without a failure.
    pub(crate) survived: Vec<SurvivedView>,
    /// Number of older refused requests that were forgotten.
    pub(crate) survived_forgotten: u64,
    /// Processes in which PyTorch has counted more failures than were seen.
    pub(crate) unseen: Vec<Unseen>,
    /// Causes of the failures, by process.
    pub(crate) causes: Vec<Cause>,
}

/// Failures that PyTorch counted without an event: before the session, or between its polls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Unseen {
    /// Process id.
    #[serde(rename = "pid")]
    pub(crate) tgid: Tgid,
    /// Number of failures.
    pub(crate) ooms: u64,
}

impl Failed {
    /// Returns the failures that the pipeline has stored.
    pub(crate) fn of(pipeline: &Pipeline) -> Self {
        let ((ooms, forgotten), (survived, survived_forgotten)) = (pipeline.ooms(), pipeline.survived());
        Self {
            ooms: ooms.cloned().collect(),
            forgotten,
            survived: survived.collect(),
            survived_forgotten,
            unseen: Vec::new(),
            causes: pipeline.causes(),
        }
    }

    /// Whether a cause of the process's failure is known.
    pub(crate) fn has_cause(&self, tgid: Tgid) -> bool {
        self.causes.iter().any(|cause| cause.tgid == tgid)
    }

    /// Leaves out processes that are not in the snapshot. Of a process that a recording has no longer at
    /// its end, failures stay if it is one of the selected.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot, selected: &Selected) {
        let is_there = |tgid: Tgid| snapshot.processes.iter().any(|process| process.tgid == tgid);
        self.ooms
            .retain(|oom| is_there(oom.tgid) || oom.process().is_some_and(|process| is_selected(process, selected)));
        let failed: BTreeSet<Tgid> = self.ooms.iter().map(|oom| oom.tgid).collect();
        let is_of = |tgid: Tgid| is_there(tgid) || failed.contains(&tgid);
        self.survived.retain(|one| is_of(one.tgid));
        self.unseen = snapshot.processes.iter().filter_map(|process| self.unseen_of(process)).collect();
        self.causes.retain(|cause| is_of(cause.tgid));
    }

    fn unseen_of(&self, process: &ProcessView) -> Option<Unseen> {
        let allocators = &process.tensors.as_ref()?.allocators;
        let counted = allocators.iter().filter_map(|one| u64::try_from(one.statistic("num_ooms")?).ok()).sum::<u64>();
        let seen: u64 = self.ooms.iter().filter(|oom| oom.tgid == process.tgid).map(|oom| 1 + oom.more).sum();
        let ooms = counted.checked_sub(seen).filter(|ooms| *ooms > 0)?;
        // One of the forgotten failures may be this process's.
        (self.forgotten == 0).then_some(Unseen { tgid: process.tgid, ooms })
    }
}

fn is_selected(process: &ProcessView, selected: &Selected) -> bool {
    let line = process.ancestors.iter().map(|ancestor| ancestor.tgid).chain([process.tgid]);
    let is_of_targets = selected.tgids.is_empty() || line.into_iter().any(|tgid| selected.tgids.contains(&tgid));
    is_of_targets && Selection::new(&selected.choice, &[]).chooses(process)
}

/// Describes the outcome of a call for which the kernel driver refused memory, if no failure was
/// reported.
pub(crate) fn outcome(survived: &SurvivedView) -> String {
    match survived.status {
        Some(0) => "the call succeeded anyway".to_owned(),
        Some(status) => format!("the call failed with {status}, and its caller continued"),
        None => "its result was not seen".to_owned(),
    }
}

/// A process with memory on the GPU that ran out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OomHolder<'a> {
    /// The process.
    pub(crate) process: &'a ProcessView,
    /// Bytes on the GPU: the larger of NVML's last reading and the process's own calls, as far as NVML
    /// does not contradict these.
    pub(crate) held_bytes: u64,
}

/// Returns the processes with memory on the GPU, the largest first.
pub(crate) fn holders(oom: &OomView) -> Vec<OomHolder<'_>> {
    let Some(gpu) = oom.gpu() else { return Vec::new() };
    let on_it = |process: &'_ ProcessView| {
        let own = process.gpus.iter().find(|own| own.uuid.as_ref() == Some(&gpu.uuid))?;
        Some(own.used_bytes.unwrap_or(0).max(own.confirmed_live_bytes()))
    };
    let alive = oom.snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
    let mut holders: Vec<OomHolder<'_>> =
        alive.filter_map(|process| Some(OomHolder { process, held_bytes: on_it(process)? })).collect();
    holders.retain(|holder| holder.held_bytes > 0);
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_bytes));
    holders
}

/// Returns the bytes that no traced process had at NVML's last reading: memory of other processes,
/// or the driver's own. `None` if NVML does not report it.
///
/// A process may have allocated much more since that reading, so the processes' values of the same
/// reading are subtracted.
pub(crate) fn unwatched_bytes(oom: &OomView) -> Option<u64> {
    let gpu = oom.gpu()?;
    let used_bytes = gpu.used_bytes?;
    let alive = oom.snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
    let own = alive.flat_map(|process| &process.gpus).filter(|own| own.uuid.as_ref() == Some(&gpu.uuid));
    let read_bytes: u64 = own.map(|own| own.used_bytes.unwrap_or(own.attributed_bytes)).sum();
    Some(used_bytes.saturating_sub(read_bytes))
}

/// Returns the bytes of all processes except the failed one, traced or not.
pub(crate) fn others_bytes(oom: &OomView) -> u64 {
    let others = holders(oom).into_iter().filter(|holder| holder.process.tgid != oom.tgid);
    others.map(|holder| holder.held_bytes).sum::<u64>() + unwatched_bytes(oom).unwrap_or(0)
}

/// Returns sentences on what would have helped, by the numbers at that time; at least one, unless a
/// known cause already says it.
pub(crate) fn advice(oom: &OomView, has_cause: bool) -> Vec<String> {
    let mut advice = Vec::new();
    let wanted = oom.wanted_bytes;
    if let Some(cache) = &oom.cache {
        advice.extend(of_cache(cache, wanted));
        advice.extend(of_private_pools(cache, wanted));
    }
    advice.extend(of_arena(oom));
    let others = holders(oom).into_iter().filter(|holder| holder.process.tgid != oom.tgid);
    let others: Vec<OomHolder<'_>> = others.collect();
    let theirs: u64 = others.iter().map(|holder| holder.held_bytes).sum();
    if let (Some(first), true) = (others.first(), theirs >= wanted) {
        let name = sentences::short_command(first.process);
        let most = bytes(first.held_bytes);
        advice.push(format!(
            "other processes held {} of this GPU, most of it PID {} ({name}): {most}",
            bytes(theirs),
            first.process.tgid.0
        ));
    }
    let unwatched = unwatched_bytes(oom).filter(|bytes| *bytes > 0 && theirs < wanted && others_bytes(oom) >= wanted);
    if let Some(unwatched) = unwatched {
        advice.push(format!(
            "processes outside this watch held {} of this GPU: without them the request fits; to list them: memwatch ps",
            bytes(unwatched)
        ));
    }
    if oom.gpu().and_then(|gpu| gpu.total_bytes).is_some_and(|total| wanted > total) {
        advice.insert(
            0,
            format!(
                "{} is more than the whole GPU has: no setting helps, the request itself must be smaller",
                bytes(wanted)
            ),
        );
    } else if advice.is_empty() && !has_cause {
        let is_optimizer = oom.whose.as_ref().is_some_and(|whose| whose.phase == "optimizer");
        advice.push(if is_optimizer { OPTIMIZER } else { PROGRAM }.to_owned());
    }
    advice
}

/// Advice if the program itself uses the memory.
const PROGRAM: &str =
    "the program itself uses the memory: a smaller batch, activation checkpointing, or fewer copies of the lines above";
/// Advice if the optimizer requests its state: the size does not depend on the batch.
const OPTIMIZER: &str = "the optimizer's step asked for it: its state is as large as the parameters, whatever the batch; an 8-bit optimizer, \
                         sharding (FSDP, ZeRO) or offloading takes less";

/// Returns the arena that failed: the only one of its framework on that device.
pub(crate) fn arena(oom: &OomView) -> Option<&ArenaView> {
    let framework = oom.framework?;
    let process = oom.snapshot.processes.iter().rfind(|process| process.tgid == oom.tgid)?;
    let arenas = &process.tensors.as_ref()?.arenas;
    let mut own = arenas.iter().filter(|arena| arena.framework == Some(framework) && arena.device == oom.device);
    own.next().filter(|_| own.next().is_none())
}

fn of_arena(oom: &OomView) -> Option<String> {
    let arena = arena(oom)?;
    let free = arena.pool_bytes.saturating_sub(arena.bytes_in_use?);
    if free >= oom.wanted_bytes {
        return Some(format!("{} of the arena were free, in pieces of which none is large enough", bytes(free)));
    }
    let gpu = oom.gpu()?;
    let outside = gpu.total_bytes?.saturating_sub(gpu.used_bytes?);
    let fits = free.saturating_add(outside) >= oom.wanted_bytes && oom.framework == Some(Framework::Jax);
    fits.then(|| {
        format!(
            "the GPU has {} that JAX's arena may not take: XLA_PYTHON_CLIENT_MEM_FRACTION says which part of the GPU it may (.75 by default)",
            bytes(outside)
        )
    })
}

/// Returns a sentence on memory in the pools of CUDA graphs, which could not serve the failed
/// request.
fn of_private_pools(cache: &CacheView, wanted: u64) -> Option<String> {
    (cache.stranded_bytes >= wanted).then(|| {
        format!(
            "{} were free in private pools of CUDA graphs or MemPools, which no other request gets: fewer captured shapes, or one pool for all graphs (torch.cuda.graph(g, pool=…)), leave more",
            bytes(cache.stranded_bytes)
        )
    })
}

fn of_cache(cache: &CacheView, wanted: u64) -> Option<String> {
    if cache.split_bytes < wanted {
        return None;
    }
    let (free, hole) = (bytes(cache.split_bytes), bytes(cache.largest_free_bytes));
    Some(if cache.is_expandable {
        format!(
            "{free} were free but split (inactive split), largest block {hole}: fewer sizes that change from step to step leave larger blocks"
        )
    } else {
        format!(
            "{free} were free but split (inactive split), largest block {hole}. To find a setting that fits: memwatch simulate"
        )
    })
}
