//! Causes of failed allocations: each cause, and a failure that looks similar.

use super::super::CauseKind::{self, *};
use super::super::{Cause, CauseEvidence, causes, held_names};
use super::{kinds, row};
use crate::features::oom::fixture::{GIB, MIB, failure, unasked, whose};
use crate::features::oom::view::{CacheView, OomView};
use crate::input::holdings::{Holding, HoldingClass, Holdings};
use crate::snapshot::{ImportView, LeftBehindView, LeftOnGpu, ProcessView};
use crate::words::{Framework, Tgid};

fn of(failure: &OomView, rows: &[Holding]) -> Vec<Cause> {
    let held = held_names(&Holdings { rows: rows.to_vec(), ..Holdings::default() }, &[]);
    causes(&CauseEvidence { tgid: Tgid(7), failure: Some(failure), held: Some(&held), ..CauseEvidence::default() })
}

fn first(failure: &OomView) -> Option<CauseKind> {
    kinds(&of(failure, &[])).first().copied()
}

fn process(failure: &mut OomView, tgid: u32) -> &mut ProcessView {
    let mut all = failure.snapshot.processes.iter_mut();
    all.find(|process| process.tgid == Tgid(tgid)).expect("it is there")
}

#[test]
fn optimizer_state_is_the_cause_only_during_the_first_optimizer_step() {
    // An Adam optimizer of 24 GiB of parameters, with half of its state allocated.
    let phases = [("outside", 24 * GIB, 24 * GIB), ("backward", 24 * GIB, 24 * GIB), ("optimizer", 20 * GIB, 20 * GIB)];
    let failed = |steps, phase| {
        OomView { whose: Some(whose(phase, "train.py:31 step")), ..failure(9 * GIB) }.in_phases(steps, &phases)
    };
    let found = of(&failed(0, "optimizer"), &[]);
    assert_eq!((kinds(&found), found[0].bytes), (vec![OptimizerState], 29 * GIB));
    assert_eq!((found[0].line.as_deref(), found[0].wanted_bytes), (Some("train.py:31 step"), Some(9 * GIB)));
    assert_eq!(first(&failed(1, "optimizer")), None, "its state is there after a step");
    assert_eq!(first(&failed(0, "backward")), None, "a gradient");
}

#[test]
fn weights_that_do_not_fit_fail_before_a_pass_and_activations_in_one() {
    let weights: Vec<Holding> =
        (0..60).map(|_| Holding { block_bytes: GIB, ..row(HoldingClass::Parameter, "h.weight", &[1]) }).collect();
    let loading = failure(9 * GIB).in_phases(0, &[("outside", 62 * GIB, 62 * GIB)]);
    let found = of(&loading, &weights);
    assert_eq!((kinds(&found), found[0].bytes), (vec![WeightsAlone], 60 * GIB));
    assert_eq!(kinds(&of(&loading, &weights[..20])), [], "most of it is something else");
    let forward = [("outside", 20 * GIB, 20 * GIB), ("forward", 45 * GIB, 60 * GIB)];
    assert_eq!(kinds(&of(&failure(9 * GIB).in_phases(0, &forward), &weights)), [Activations]);
    let little = [("outside", 50 * GIB, 50 * GIB), ("forward", 15 * GIB, 60 * GIB)];
    assert_eq!(kinds(&of(&failure(9 * GIB).in_phases(3, &little), &weights)), [], "a fifth of it");
}

#[test]
fn fragmentation_is_the_cause_if_free_pieces_suffice_only_together() {
    let of_cache = |split_bytes, largest_free_bytes| {
        let cache = CacheView { split_bytes, largest_free_bytes, reserved_bytes: 2_000 * MIB, ..CacheView::default() };
        first(&OomView { cache: Some(cache), ..failure(9 * GIB) })
    };
    assert_eq!(of_cache(10 * GIB, GIB), Some(Fragmentation));
    assert_eq!(of_cache(8 * GIB, GIB), None, "not enough");
    assert_eq!(of_cache(10 * GIB, 9 * GIB), None, "one is large enough");
}

#[test]
fn other_processes_are_the_cause_if_the_request_fits_without_them() {
    let found = of(&failure(2 * GIB), &[]);
    assert_eq!((kinds(&found), found[0].bytes, found[0].count), (vec![OtherProcesses], 2 * GIB, Some(8)));
    assert_eq!(first(&failure(3 * GIB)), None, "not without them either");
    assert_eq!(first(&failure(81 * GIB)), Some(LargerThanGpu));
}

#[test]
fn an_allocator_that_does_not_ask_the_driver_has_a_limit() {
    // `set_per_process_memory_fraction(0.9)` while 8 GiB of the GPU are free.
    let found = of(&unasked(4 * GIB), &[]);
    assert_eq!((kinds(&found), found[0].bytes, found[0].count), (vec![OwnLimit], 69 * GIB, Some(8 * GIB)));
    assert_ne!(first(&failure(4 * GIB)), Some(OwnLimit), "the driver has refused it");
    assert_ne!(first(&unasked(9 * GIB)), Some(OwnLimit), "the GPU has not as much");
    let jax = OomView { framework: Some(Framework::Jax), ..unasked(4 * GIB) };
    assert_ne!(first(&jax), Some(OwnLimit), "an arena asks once");
    let mut lossy = unasked(4 * GIB);
    process(&mut lossy, 7).exact = false;
    assert_ne!(first(&lossy), Some(OwnLimit), "its call may be lost");
}

#[test]
fn missing_backward_is_the_cause_only_after_earlier_forward_passes() {
    let saved: Vec<Holding> = (0..40)
        .map(|_| Holding { block_bytes: GIB, ..row(HoldingClass::SavedForBackward, "AddmmBackward0", &[1]) })
        .collect();
    let evaluated = |live, total, more: &[(&'static str, u64, u64)]| {
        let phases = [&[("outside", 20 * GIB, 20 * GIB), ("forward", live, total)][..], more].concat();
        let failed = OomView { whose: Some(whose("forward", "eval.py:14 answer")), ..failure(9 * GIB) };
        of(&failed.in_phases(0, &phases), &saved)
    };
    let found = evaluated(45 * GIB, 900 * GIB, &[]);
    assert_eq!((kinds(&found), found[0].bytes, found[0].count), (vec![NoBackward], 40 * GIB, Some(40)));
    assert_eq!(kinds(&evaluated(45 * GIB, 90 * GIB, &[])), [Activations], "the first pass of a training");
    assert_eq!(kinds(&evaluated(45 * GIB, 900 * GIB, &[("backward", 0, 5 * GIB)])), [Activations], "a training");
}

#[test]
fn the_memory_of_a_process_that_has_ended_is_kept_by_what_it_forked() {
    let dies = |used_bytes, forked: &[u32]| {
        let mut failed = failure(2 * GIB);
        let uuid = failed.uuid.clone().expect("there is one");
        let dead = process(&mut failed, 8);
        dead.ended_ns = Some(1);
        dead.gpus.clear();
        let gpus = vec![LeftOnGpu { uuid, used_bytes }];
        dead.left_behind = Some(Box::new(LeftBehindView { gpus, forked: forked.iter().copied().map(Tgid).collect() }));
        failed
    };
    let found = of(&dies(2 * GIB, &[41, 42]), &[]);
    assert_eq!((kinds(&found), found[0].count), (vec![ForkedKeep], Some(41)));
    assert_eq!(found[0].subject.as_deref(), Some("PID 8 python3 job8.py"));
    assert_eq!(of(&dies(2 * GIB, &[]), &[])[0].count, None);
    assert_eq!(first(&dies(GIB, &[41])), None, "that alone would not have been enough");
}

#[test]
fn ipc_memory_released_by_its_owner_is_attributed_to_the_importer() {
    let opened = |orphaned_bytes| {
        let mut failed = failure(4 * GIB);
        process(&mut failed, 8).imports =
            vec![ImportView { from_tgid: Tgid(7), aliases: 3, bytes: 6 * GIB, orphaned_bytes }];
        of(&failed, &[])
    };
    let found = opened(5 * GIB);
    assert_eq!((kinds(&found), found[0].bytes, found[0].count), (vec![IpcKept], 5 * GIB, Some(8)));
    assert_eq!(opened(0), [], "its owner has it still");
}

#[test]
fn the_largest_request_that_fits_is_less_than_what_was_refused() {
    let cache = |largest_free_bytes| Some(CacheView { largest_free_bytes, ..CacheView::default() });
    let fits = |failed: OomView, largest| OomView { cache: cache(largest), ..failed }.largest_fitting_bytes();
    assert_eq!(fits(failure(9 * GIB), GIB), Some(8 * GIB), "the driver's");
    let mut odd = failure(9 * GIB);
    odd.snapshot.gpus[0].used_bytes = Some(72 * GIB + 1);
    assert_eq!(fits(odd, GIB), Some(8 * GIB - 2 * MIB), "in segments");
    assert_eq!(fits(failure(9 * GIB), 8 * GIB + MIB), Some(8 * GIB + MIB), "a free block");
    let mut grown = failure(9 * GIB);
    let own = grown.snapshot.processes.iter_mut().find(|process| process.tgid == Tgid(7)).expect("it runs");
    // Of the 70 GiB in NVML's reading, 68 were the process's allocations; it has allocated 6 GiB
    // more since.
    (own.gpus[0].unattributed_bytes, own.gpus[0].live_bytes) = (Some(2 << 30), 74 * GIB);
    assert_eq!(fits(grown, GIB), Some(2 * GIB), "what was taken since the reading is not free");
    assert_eq!(fits(unasked(4 * GIB), GIB), Some(GIB), "it may not take more");
    assert_eq!(fits(failure(3 * GIB), GIB), None, "what NVML has read is not what there was");
    assert_eq!(OomView { cache: None, ..failure(9 * GIB) }.largest_fitting_bytes(), None);
}
