//! A history of all inputs of the pipeline: the ledger's invariants hold after every input, and the
//! same history gives the same result.

use std::collections::BTreeMap;

use memwatch_common::record::{ProcessEvent, RingRecord};
use memwatch_core::Pipeline;
use memwatch_core::decode::decode;
use memwatch_core::input::Input;
use memwatch_core::ledger::ProcessLedger;
use memwatch_core::ledger::totals::{AllocationKind, DeviceTotals, Totals};
use memwatch_core::snapshot::{ProcessGpuView, ProcessView, Snapshot};

use crate::history;

/// Kinds that make up a GPU's live bytes, as snapshots name them.
const OWNED: [&str; 4] = ["device", "pool", "physical", "array"];

/// Plays the history that the bytes encode.
///
/// # Panics
/// When an invariant of the ledger does not hold, or the same history gives two different
/// snapshots.
pub fn run(data: &[u8]) {
    let inputs = history::inputs(data);
    let mut pipeline = Pipeline::new(false);
    let mut ledgers: BTreeMap<u32, ProcessLedger> = BTreeMap::new();
    for input in &inputs {
        pipeline.step(input.clone());
        apply(&mut ledgers, input);
        if matches!(input, Input::Tick { .. }) {
            check_snapshot(&pipeline.snapshot());
        }
    }
    let snapshot = pipeline.snapshot();
    check_snapshot(&snapshot);
    assert_eq!(format!("{snapshot:?}"), format!("{:?}", in_batches(inputs)), "the same inputs, the same snapshot");
}

/// Plays the history with all calls between two other inputs applied together.
fn in_batches(inputs: Vec<Input>) -> Snapshot {
    let mut pipeline = Pipeline::new(false);
    let mut calls = Vec::new();
    for input in inputs {
        if let Input::Record(RingRecord::Call(call)) = input {
            calls.push(call);
        } else {
            pipeline.step_calls(&calls);
            calls.clear();
            pipeline.step(input);
        }
    }
    pipeline.step_calls(&calls);
    pipeline.snapshot()
}

/// Applies an input to the ledgers alone, since a snapshot does not show all of their numbers.
fn apply(ledgers: &mut BTreeMap<u32, ProcessLedger>, input: &Input) {
    match input {
        Input::Record(RingRecord::Call(record)) => {
            let Ok(call) = decode(record) else { return };
            let ledger = ledgers.entry(record.tgid).or_insert_with(|| ProcessLedger::new(record.tgid % 2 == 0));
            let before = (ledger.unknown_frees(), ledger.implicit_frees());
            ledger.apply(&call);
            assert!(before.0 <= ledger.unknown_frees() && before.1 <= ledger.implicit_frees(), "{call:?}");
            check_totals(ledger.totals());
        }
        Input::Record(RingRecord::Process(record)) => {
            let ends = matches!(record.event(), Some(ProcessEvent::Exec | ProcessEvent::Exit));
            if let Some(ledger) = ledgers.get_mut(&record.tgid).filter(|_| ends) {
                ledger.end(record.time_ns);
                check_totals(ledger.totals());
                assert!(live(ledger.totals().whole()).all(|bytes| bytes == 0), "nothing outlives its process");
            }
        }
        _ => {}
    }
}

fn live(totals: &DeviceTotals) -> impl Iterator<Item = u64> {
    AllocationKind::ALL.map(|kind| totals.kind(kind).live_bytes).into_iter()
}

fn check_totals(totals: &Totals) {
    let whole = totals.whole();
    for part in totals.devices().map(|(_, part)| part).chain([whole, totals.host()]) {
        for counter in AllocationKind::ALL.map(|kind| *part.kind(kind)).into_iter().chain([part.owned]) {
            assert!(counter.live_bytes <= counter.peak_bytes && counter.peak_bytes <= counter.total_bytes, "{part:?}");
        }
        let owned = AllocationKind::ALL.into_iter().filter(|kind| kind.is_owned_device_memory());
        assert_eq!(owned.map(|kind| part.kind(kind).live_bytes).sum::<u64>(), part.owned.live_bytes, "{part:?}");
    }
    let sum = |of: &dyn Fn(&DeviceTotals) -> u64| totals.devices().map(|(_, part)| of(part)).sum::<u64>();
    for kind in AllocationKind::ALL {
        assert_eq!(sum(&|part| part.kind(kind).live_bytes), whole.kind(kind).live_bytes, "{kind:?}");
        assert_eq!(sum(&|part| part.kind(kind).total_bytes), whole.kind(kind).total_bytes, "{kind:?}");
        assert!(sum(&|part| part.kind(kind).peak_bytes) >= whole.kind(kind).peak_bytes, "{kind:?}");
    }
    assert_eq!(sum(&|part| part.allocations), whole.allocations);
    assert_eq!(sum(&|part| part.frees), whole.frees);
    assert_eq!(sum(&|part| part.failed_allocations), whole.failed_allocations);
}

fn check_snapshot(snapshot: &Snapshot) {
    let mut living = snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
    assert_eq!(snapshot.complete, snapshot.losses.is_empty() && !living.any(ProcessView::is_unprobed));
    for process in &snapshot.processes {
        assert_eq!(process.exact, process.losses.is_empty());
        assert!(process.host.pinned_live_bytes <= process.host.pinned_peak_bytes, "{process:?}");
        for gpu in &process.gpus {
            check_gpu(process, gpu);
        }
    }
    for gpu in &snapshot.gpus {
        let there = snapshot.processes.iter().flat_map(|process| &process.gpus);
        let there = there.filter(|own| own.uuid.as_ref() == Some(&gpu.uuid));
        // Memory that NVML does not charge is in no total.
        assert_eq!(gpu.live_bytes, there.map(ProcessGpuView::confirmed_live_bytes).sum::<u64>(), "{gpu:?}");
    }
}

fn check_gpu(process: &ProcessView, gpu: &ProcessGpuView) {
    assert!(gpu.unconfirmed_bytes <= gpu.live_bytes && gpu.live_bytes <= gpu.peak_bytes, "{gpu:?}");
    let owned = gpu.kinds.iter().filter(|(name, _)| OWNED.contains(&name.as_ref()));
    // Memory that a checkpoint has moved off the device still counts in its kind.
    let held_bytes = gpu.live_bytes + gpu.checkpointed_bytes.unwrap_or(0);
    assert_eq!(owned.map(|(_, kind)| kind.live_bytes).sum::<u64>(), held_bytes, "{gpu:?}");
    for kind in gpu.kinds.values() {
        assert!(kind.live_bytes <= kind.peak_bytes && kind.peak_bytes <= kind.total_bytes, "{gpu:?}");
    }
    assert!(process.ended_ns.is_none() || gpu.live_bytes == 0, "nothing outlives its process: {process:?}");
}
