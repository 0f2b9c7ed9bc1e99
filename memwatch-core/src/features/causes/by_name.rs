//! Causes of a failed allocation in a process without traced tensors, from a reading of its live objects
//! by name.

use std::collections::BTreeMap;

use super::moment::{of, places};
use super::{Cause, CauseEvidence, CauseKind, Confidence};
use crate::features::oom::view::OomView;
use crate::input::held_names::{HeldGroup, HeldNames};
use crate::input::holdings::HoldingClass;

/// Minimum fraction of all blocks for a dominating part, as its inverse.
const MOSTLY: u64 = 2;
/// Tolerance for a part that is as large as another, as an inverse fraction.
const NEARLY: u64 = 10;
/// Maximum time between a failure and the reading after it that shows the same free memory, in
/// nanoseconds.
const SOON_NS: u64 = 5_000_000_000;

/// Returns the evidence, if names alone explain the failure.
fn names<'a>(evidence: &CauseEvidence<'a>) -> Option<(&'a OomView, &'a HeldNames)> {
    let failure = evidence.failure.filter(|failure| places(failure).is_none() && failure.whose.is_none())?;
    Some((failure, evidence.held?))
}

/// Finds an optimizer in its first step: it has state for fewer tensors than have gradients.
pub(super) fn first_step(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let Some((failure, held)) = names(evidence) else { return Vec::new() };
    let [parameters, gradients, state, saved] =
        [HoldingClass::Parameter, HoldingClass::Gradient, HoldingClass::OptimizerState, HoldingClass::SavedForBackward]
            .map(|class| held.bytes_of(class));
    let is_after_backward = gradients >= parameters - parameters / NEARLY && saved < gradients / NEARLY;
    let is_most = parameters.saturating_add(gradients).saturating_add(state) >= held.bytes() / MOSTLY;
    let all = held.blocks_of(HoldingClass::Gradient);
    let is_incomplete = state > 0 && with_state(held) < all - all / NEARLY;
    let cause = Cause {
        confidence: Confidence::Likely,
        ..of(CauseKind::OptimizerState, failure, state.saturating_add(failure.wanted_bytes))
    };
    (is_after_backward && is_most && is_incomplete).then_some(cause).into_iter().collect()
}

/// Returns the maximum number of tensors for which an optimizer has state of one kind, such as
/// `exp_avg`. Groups without a name may be of any kind.
fn with_state(held: &HeldNames) -> u64 {
    let (mut kinds, mut unknown) = (BTreeMap::<&str, u64>::new(), 0);
    for HeldGroup { name, blocks, .. } in held.groups.iter().filter(|one| one.class == HoldingClass::OptimizerState) {
        match name.as_deref().and_then(|name| name.split_once(" of ")) {
            Some((kind, _)) => *kinds.entry(kind).or_default() += blocks,
            None => unknown += blocks,
        }
    }
    kinds.into_values().max().unwrap_or(0).saturating_add(unknown)
}

/// Finds memory saved for a backward pass, if it is most of what the process holds.
pub(super) fn activations(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let Some((failure, held)) = names(evidence) else { return Vec::new() };
    let saved = held.bytes_of(HoldingClass::SavedForBackward);
    // Graphs of other steps are kept by mistake.
    let is_kept = held.findings.iter().any(|finding| finding.kind == CauseKind::GraphsKept);
    let is_of_a_pass = !is_kept && evidence.grown.is_empty();
    let cause = Cause { confidence: Confidence::Likely, ..of(CauseKind::Activations, failure, saved) };
    (saved > 0 && saved >= held.bytes() / MOSTLY && is_of_a_pass).then_some(cause).into_iter().collect()
}

/// Returns the bytes of all free pieces and of the largest one, if the reading is of the failure's
/// moment and its process has one device.
pub(super) fn pieces(failure: &OomView, held: &HeldNames) -> Option<(u64, u64)> {
    let is_of_then = held.time_ns >= failure.time_ns && held.time_ns - failure.time_ns < SOON_NS;
    let [totals] = &held.totals[..] else { return None };
    let pieces = totals.pieces.filter(|_| is_of_then)?;
    Some((pieces.bytes, pieces.largest_bytes))
}
