//! An allocation that failed, in words: who held the GPU, and what would have helped.

use memwatch_core::Pipeline;
use memwatch_core::features::causes::Cause;
use memwatch_core::features::forecast::view::{ForecastChangeView, ForecastsView};
use memwatch_core::features::oom::view::{CacheView, OomView, SurvivedView};
use memwatch_core::snapshot::{ArenaView, ProcessView, Snapshot};
use memwatch_core::words::{Framework, Tgid};
use serde::Serialize;

use crate::render::format::bytes;
use crate::render::sentences;

/// All that `memwatch oom` reports.
#[derive(Clone, Copy, Debug)]
pub(crate) struct OomReport<'a> {
    /// What has failed.
    pub(crate) failed: &'a Failed,
    /// What is to be expected.
    pub(crate) forecasts: &'a ForecastsView,
    /// What has changed of that, oldest first.
    pub(crate) changes: &'a [ForecastChangeView],
}

/// Allocations that failed, and what the kernel driver refused without one; oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failed {
    /// The failures.
    pub(crate) ooms: Vec<OomView>,
    /// How many older ones are forgotten.
    pub(crate) forgotten: u64,
    /// Refused requests behind which there is none.
    pub(crate) survived: Vec<SurvivedView>,
    /// How many older ones of these are forgotten.
    pub(crate) survived_forgotten: u64,
    /// Processes whose PyTorch has counted more failures than were seen.
    pub(crate) unseen: Vec<Unseen>,
    /// Why, of each process.
    pub(crate) causes: Vec<Cause>,
}

/// Failures that PyTorch has counted and no event showed: they were before the watch, or between its looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Unseen {
    /// The process.
    #[serde(rename = "pid")]
    pub(crate) tgid: Tgid,
    /// How many.
    pub(crate) ooms: u64,
}

impl Failed {
    /// What the pipeline has kept.
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

    /// Whether it is known with evidence why a process failed.
    pub(crate) fn has_cause(&self, tgid: Tgid) -> bool {
        self.causes.iter().any(|cause| cause.tgid == tgid)
    }

    /// Leaves out other processes than those of the snapshot.
    pub(crate) fn keep(&mut self, snapshot: &Snapshot) {
        let is_of = |tgid: Tgid| snapshot.processes.iter().any(|process| process.tgid == tgid);
        self.ooms.retain(|oom| is_of(oom.tgid));
        self.survived.retain(|one| is_of(one.tgid));
        self.unseen = snapshot.processes.iter().filter_map(|process| self.unseen_of(process)).collect();
        self.causes.retain(|cause| is_of(cause.tgid));
    }

    fn unseen_of(&self, process: &ProcessView) -> Option<Unseen> {
        let allocators = &process.tensors.as_ref()?.allocators;
        let counted = allocators.iter().filter_map(|one| u64::try_from(one.statistic("num_ooms")?).ok()).sum::<u64>();
        let seen: u64 = self.ooms.iter().filter(|oom| oom.tgid == process.tgid).map(|oom| 1 + oom.more).sum();
        let ooms = counted.checked_sub(seen).filter(|ooms| *ooms > 0)?;
        // A forgotten failure may be one of this process.
        (self.forgotten == 0).then_some(Unseen { tgid: process.tgid, ooms })
    }
}

/// What became of a call for which the kernel driver refused memory, and whose failure nobody reports.
pub(crate) fn outcome(survived: &SurvivedView) -> String {
    match survived.status {
        Some(0) => "the call succeeded all the same".to_owned(),
        Some(status) => format!("the call failed with {status}, and its caller went on"),
        None => "what came of it was not seen".to_owned(),
    }
}

/// A process that held memory of the GPU on which there was too little.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Holder<'a> {
    /// The process.
    pub(crate) process: &'a ProcessView,
    /// What it had there by NVML's last reading or by its own calls, whichever is more; in bytes.
    pub(crate) held_bytes: u64,
}

/// Who held memory of it, those with most first.
pub(crate) fn holders(oom: &OomView) -> Vec<Holder<'_>> {
    let Some(gpu) = oom.gpu() else { return Vec::new() };
    let on_it = |process: &'_ ProcessView| {
        let own = process.gpus.iter().find(|own| own.uuid.as_ref() == Some(&gpu.uuid))?;
        Some(own.used_bytes.unwrap_or(0).max(own.live_bytes))
    };
    let alive = oom.snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
    let mut holders: Vec<Holder<'_>> =
        alive.filter_map(|process| Some(Holder { process, held_bytes: on_it(process)? })).collect();
    holders.retain(|holder| holder.held_bytes > 0);
    holders.sort_by_key(|holder| std::cmp::Reverse(holder.held_bytes));
    holders
}

/// What of it no process that is watched had at NVML's last reading, in bytes: others', or the driver's own; `None` where NVML does not say.
///
/// A process may have taken much more since that reading, so it is compared with what the same reading says of it.
pub(crate) fn unwatched_bytes(oom: &OomView) -> Option<u64> {
    let gpu = oom.gpu()?;
    let used_bytes = gpu.used_bytes?;
    let alive = oom.snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
    let own = alive.flat_map(|process| &process.gpus).filter(|own| own.uuid.as_ref() == Some(&gpu.uuid));
    let read_bytes: u64 = own.map(|own| own.used_bytes.unwrap_or(own.attributed_bytes)).sum();
    Some(used_bytes.saturating_sub(read_bytes))
}

/// What processes other than the one that failed had of it, watched or not, in bytes.
pub(crate) fn others_bytes(oom: &OomView) -> u64 {
    let others = holders(oom).into_iter().filter(|holder| holder.process.tgid != oom.tgid);
    others.map(|holder| holder.held_bytes).sum::<u64>() + unwatched_bytes(oom).unwrap_or(0)
}

/// Sentences on what would have helped, by the numbers at that moment; at least one, unless a cause is known that says it.
pub(crate) fn advice(oom: &OomView, has_cause: bool) -> Vec<String> {
    let mut advice = Vec::new();
    let wanted = oom.wanted_bytes;
    if let Some(cache) = &oom.cache {
        advice.extend(of_cache(cache, wanted));
        advice.extend(of_private_pools(cache, wanted));
    }
    advice.extend(of_arena(oom));
    let others = holders(oom).into_iter().filter(|holder| holder.process.tgid != oom.tgid);
    let others: Vec<Holder<'_>> = others.collect();
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
        let is_optimizer = oom.whose.as_ref().is_some_and(|whose| whose.stage == "optimizer");
        advice.push(if is_optimizer { OPTIMIZER } else { PROGRAM }.to_owned());
    }
    advice
}

/// What helps where the program itself has the memory.
const PROGRAM: &str =
    "the program itself uses the memory: a smaller batch, activation checkpointing, or fewer copies of the lines above";
/// The same where the optimizer asks for its state, which does not depend on the batch.
const OPTIMIZER: &str = "the optimizer's step asked for it: its state is as large as the parameters, whatever the batch; an 8-bit optimizer, \
                         sharding (FSDP, ZeRO) or offloading takes less";

/// The arena that gave up: the only one of its framework on that device.
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

/// What the pools of CUDA graphs keep: a request that failed was not served from it.
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
