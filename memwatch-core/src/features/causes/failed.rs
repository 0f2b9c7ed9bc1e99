//! Causes of a failed allocation, from the memory in use at that moment.

use super::by_name;
use super::elsewhere::left_bytes;
use super::forward::without_backward;
use super::moment::{of, of_phase, places, steps};
use super::{Cause, CauseEvidence, CauseKind, Confidence};
use crate::features::oom::room::held_bytes;
use crate::features::oom::view::OomView;
use crate::input::holdings::HoldingClass;
use crate::snapshot::{PhaseView, ProcessView};

/// Minimum fraction of all tensors for a dominating part, as its inverse.
const MOSTLY: u64 = 2;

/// Finds the state that an optimizer creates at its first step, which a smaller batch does not
/// reduce.
pub(super) fn optimizer(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let cause = |failure: &OomView| {
        let whose = failure.whose.as_ref().filter(|whose| whose.phase == "optimizer")?;
        // After a step all state exists.
        (steps(failure) == 0).then(|| Cause {
            subject: whose.module.name.clone(),
            line: whose.site.name.clone(),
            ..of(
                CauseKind::OptimizerState,
                failure,
                places(failure).map_or(0, |places| of_phase(places, "optimizer")).saturating_add(failure.wanted_bytes),
            )
        })
    };
    evidence.failure.and_then(cause).into_iter().collect()
}

/// Finds the dominating part of the tensors.
pub(super) fn parts(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let Some((failure, places)) = evidence.failure.and_then(|failure| Some((failure, places(failure)?))) else {
        return Vec::new();
    };
    let all = places.total.live_bytes;
    let is_training = |phase: &&PhaseView| matches!(&*phase.phase, "forward" | "backward" | "optimizer");
    let has_begun = places.phases.iter().filter(is_training).any(|phase| phase.sum.total_bytes > 0);
    let parameter_bytes = evidence.held.map_or(0, |held| held.bytes_of(HoldingClass::Parameter));
    if !has_begun && steps(failure) == 0 && parameter_bytes > 0 && parameter_bytes >= all / MOSTLY {
        return vec![of(CauseKind::WeightsAlone, failure, parameter_bytes)];
    }
    let forward = of_phase(places, "forward");
    // A smaller batch is no remedy for memory saved for a backward pass that never comes.
    if forward == 0 || forward < all / MOSTLY || !without_backward(evidence).is_empty() {
        return Vec::new();
    }
    let made = |module: &&crate::snapshot::ModuleView| module.phases.get("forward").map_or(0, |phase| phase.live_bytes);
    let largest = places.modules.iter().filter(|module| module.kind == "module").max_by_key(made);
    let subject = largest.filter(|module| made(module) > 0).and_then(|module| module.name.clone());
    vec![Cause { subject, confidence: Confidence::Likely, ..of(CauseKind::Activations, failure, forward) }]
}

/// Finds fragmentation: enough memory is free, but not contiguous.
pub(super) fn pieces(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let cause = |failure: &OomView| {
        let of_cache = failure.cache.map(|cache| (cache.split_bytes, cache.largest_free_bytes));
        let (bytes, largest_bytes) = of_cache.or_else(|| by_name::pieces(failure, evidence.held?))?;
        let is_split = bytes >= failure.wanted_bytes && largest_bytes < failure.wanted_bytes;
        is_split.then(|| of(CauseKind::Fragmentation, failure, bytes))
    };
    evidence.failure.and_then(cause).into_iter().collect()
}

/// Finds memory of other processes that the request lacked, and requests larger than the GPU.
pub(super) fn others(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let cause = |failure: &OomView| {
        let gpu = failure.gpu()?;
        if gpu.total_bytes.is_some_and(|total| failure.wanted_bytes > total) {
            return Some(of(CauseKind::LargerThanGpu, failure, failure.wanted_bytes));
        }
        let alive = failure.snapshot.processes.iter();
        let others = alive.filter(|process| process.ended_ns.is_none() && process.tgid != failure.tgid);
        let others: Vec<(u64, &ProcessView)> = others.map(|process| (held_bytes(process, gpu), process)).collect();
        let bytes = others.iter().map(|(bytes, _)| *bytes).fold(gpu.unwatched_bytes.unwrap_or(0), u64::saturating_add);
        let largest = others.iter().filter(|(bytes, _)| *bytes > 0).max_by_key(|(bytes, _)| *bytes);
        // Memory left by exited processes is attributed to the processes that keep it.
        let bytes = bytes.saturating_sub(left_bytes(failure, gpu));
        (bytes >= failure.wanted_bytes.max(1)).then(|| Cause {
            count: largest.map(|(_, process)| u64::from(process.tgid.0)),
            subject: largest.map(|(_, process)| process.command.clone()),
            ..of(CauseKind::OtherProcesses, failure, bytes)
        })
    };
    evidence.failure.and_then(cause).into_iter().collect()
}
