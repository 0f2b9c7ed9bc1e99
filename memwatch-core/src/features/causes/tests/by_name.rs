//! Causes of failures in processes of which only names are known.

use super::super::CauseKind::{self, *};
use super::super::{CauseEvidence, causes, held_names};
use super::row;
use crate::features::oom::fixture::{GIB, failure};
use crate::features::oom::view::OomView;
use crate::input::held_names::{HeldNames, HeldPieces, HeldTotals};
use crate::input::holdings::{Holding, HoldingClass, Holdings};
use crate::words::Ordinal;

/// Parameters, gradients, `exp_avg` and `exp_avg_sq` in this number, and memory saved for backward, of 1 GiB each.
fn training([gradients, average, square, saved]: [usize; 4]) -> HeldNames {
    let rows = |class, name: &'static str, count| {
        (0..count).map(move |number: usize| Holding {
            block_bytes: GIB,
            ..row(class, &format!("{name}h.{number}.weight"), &[1])
        })
    };
    let rows = rows(HoldingClass::Parameter, "", 10)
        .chain(rows(HoldingClass::Gradient, "", gradients))
        .chain(rows(HoldingClass::OptimizerState, "exp_avg of ", average))
        .chain(rows(HoldingClass::OptimizerState, "exp_avg_sq of ", square))
        .chain(rows(HoldingClass::SavedForBackward, "", saved));
    held_names(&Holdings { rows: rows.collect(), ..Holdings::default() }, &[])
}

fn first(held: &HeldNames) -> Option<CauseKind> {
    // The allocator's state is not known either.
    let failure = OomView { cache: None, ..failure(9 * GIB) };
    let evidence = CauseEvidence { failure: Some(&failure), held: Some(held), ..CauseEvidence::default() };
    causes(&evidence).first().map(|cause| cause.kind)
}

#[test]
fn optimizer_with_state_for_fewer_tensors_than_gradients_is_in_its_first_step() {
    assert_eq!(first(&training([10, 6, 5, 0])), Some(OptimizerState));
    assert_eq!(first(&training([10, 10, 0, 0])), None, "a kind of state for each tensor");
    assert_eq!(first(&training([10, 0, 0, 0])), None, "it may have no optimizer");
    assert_eq!(first(&training([3, 2, 2, 0])), None, "in a backward pass");
    assert_eq!(first(&training([10, 6, 5, 2])), None, "another forward pass has begun");
}

#[test]
fn memory_saved_for_backward_is_the_cause_if_it_is_most_of_all() {
    assert_eq!(first(&training([0, 0, 0, 11])), Some(Activations));
    assert_eq!(first(&training([0, 0, 0, 4])), None);
}

#[test]
fn free_pieces_of_the_failures_moment_show_fragmentation() {
    let time_ns = failure(9 * GIB).time_ns;
    let of = |later_ns: u64, pieces| {
        let totals = HeldTotals { ordinal: Ordinal(0), allocated_bytes: 0, reserved_bytes: 0, pieces };
        first(&HeldNames { time_ns: time_ns + later_ns, totals: vec![totals], ..HeldNames::default() })
    };
    let split = Some(HeldPieces { bytes: 20 * GIB, largest_bytes: GIB });
    assert_eq!(of(1_000_000_000, split), Some(Fragmentation));
    assert_eq!(of(9_000_000_000, split), None, "much may have changed");
    assert_eq!(of(0, Some(HeldPieces { bytes: GIB / 2, largest_bytes: GIB / 2 })), None);
    assert_eq!(of(0, None), None);
}
