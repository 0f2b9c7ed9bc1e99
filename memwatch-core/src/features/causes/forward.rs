//! Graphs that nothing goes backward through: a program that only evaluates, and does not say so.

use super::moment::{of, of_stage, places};
use super::{Cause, CauseKind, Confidence, Evidence};
use crate::features::oom::view::OomView;
use crate::input::holdings::HoldingClass;
use crate::snapshot::DevicePlacesView;

/// A first pass of training fails before a backward pass, too. What it allocates and frees again is a small multiple of what it keeps; after so
/// many times as much, others went before it.
const PASSES: u64 = 8;
/// Graphs have at least this part of all tensors.
const LEAST_PART: u64 = 10;

/// All bytes that were allocated in a stage.
fn total_of(places: &DevicePlacesView, stage: &str) -> u64 {
    places.stages.iter().filter(|view| view.stage == stage).map(|view| view.sum.total_bytes).sum()
}

/// Forward passes that save for a backward pass which never came.
pub(super) fn without_backward(evidence: &Evidence<'_>) -> Vec<Cause> {
    let cause = |failure: &OomView| {
        let places = places(failure)?;
        let has_trained = ["backward", "optimizer"].iter().any(|stage| total_of(places, stage) > 0);
        let (live, total) = (of_stage(places, "forward"), total_of(places, "forward"));
        let is_after_others = live > 0 && total / live >= PASSES;
        let saved = evidence.rows.iter().filter(|row| row.class == HoldingClass::SavedForBackward);
        let (bytes, count) =
            saved.fold((0_u64, 0), |(bytes, count), row| (bytes.saturating_add(row.block_bytes), count + 1));
        let is_much = bytes > 0 && bytes >= places.total.live_bytes / LEAST_PART;
        let own_line = failure.whose.as_ref().and_then(|whose| whose.site.name.clone());
        (!has_trained && is_after_others && is_much).then(|| Cause {
            count: Some(count),
            line: own_line,
            confidence: Confidence::Likely,
            ..of(CauseKind::NoBackward, failure, bytes)
        })
    };
    evidence.failure.and_then(cause).into_iter().collect()
}
