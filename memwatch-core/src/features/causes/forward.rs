//! Detects autograd graphs without a backward pass: a program that only evaluates, but does not
//! disable gradients.

use super::moment::{of, of_phase, places};
use super::{Cause, CauseEvidence, CauseKind, Confidence};
use crate::features::oom::view::OomView;
use crate::input::holdings::HoldingClass;
use crate::snapshot::DeviceAttributionView;

/// Minimum ratio of bytes allocated to live bytes in the forward phase. A training that fails in its
/// first forward pass has no backward pass either, but what the pass allocates and frees again is a
/// small multiple of what it keeps; a larger ratio shows that other passes preceded it.
const PASSES: u64 = 8;
/// Minimum fraction of all tensors in graphs, as its inverse.
const LEAST_PART: u64 = 10;

/// Returns the total bytes allocated in a phase.
fn total_of(places: &DeviceAttributionView, phase: &str) -> u64 {
    places.phases.iter().filter(|view| view.phase == phase).map(|view| view.sum.total_bytes).sum()
}

/// Finds forward passes that save memory for a backward pass that never comes.
pub(super) fn without_backward(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let cause = |failure: &OomView| {
        let places = places(failure)?;
        let has_trained = ["backward", "optimizer"].iter().any(|phase| total_of(places, phase) > 0);
        let (live, total) = (of_phase(places, "forward"), total_of(places, "forward"));
        let is_after_others = live > 0 && total / live >= PASSES;
        let held = evidence.held?;
        let bytes = held.bytes_of(HoldingClass::SavedForBackward);
        let is_much = bytes > 0 && bytes >= places.total.live_bytes / LEAST_PART;
        let own_line = failure.whose.as_ref().and_then(|whose| whose.site.name.clone());
        (!has_trained && is_after_others && is_much).then(|| Cause {
            count: Some(held.blocks_of(HoldingClass::SavedForBackward)),
            line: own_line,
            confidence: Confidence::Likely,
            ..of(CauseKind::NoBackward, failure, bytes)
        })
    };
    evidence.failure.and_then(cause).into_iter().collect()
}
