//! The whole pipeline on random histories of two processes.

use memwatch_common::record::{CallRecord, RingRecord};
use proptest::collection::vec;
use proptest::prelude::*;

use super::{GPU_A, GPU_B, device};
use crate::input::{DeviceReading, Input, NvmlState, ProcessFacts};
use crate::pipeline::Pipeline;
use crate::snapshot::Snapshot;
use crate::test_calls::device_get_uuid;
use crate::test_driver::{DriverStep, Focus, Habits, play};

const TGIDS: [u32; 2] = [7, 8];
const ENDED_NS: u64 = 1_000_000_000;

/// Returns the records of a process with two devices. Only the first device reports its UUID.
pub(super) fn records(tgid: u32, threads: usize, steps: &[DriverStep]) -> Vec<Input> {
    let habits = Habits { threads, teardown: true, fresh_handles: false, stateful: true, focus: Focus::Everything };
    let history = play(habits, steps);
    let reported = device_get_uuid(0, GPU_A).process(tgid).input();
    let input = |mut record: CallRecord| {
        record.tgid = tgid;
        Input::Record(RingRecord::Call(record))
    };
    std::iter::once(reported).chain(history.moments.iter().map(|moment| input(moment.record))).collect()
}

/// Returns the snapshot after these records, with a tick in the middle, and a reading and another
/// tick at the end.
fn outcome(records: &[Input]) -> Snapshot {
    let mut pipeline = Pipeline::new(false);
    pipeline.step(Input::Attached { time_ns: 1 });
    for tgid in TGIDS {
        pipeline.step(Input::Process(ProcessFacts { tgid, start_ns: 2, ..ProcessFacts::default() }));
    }
    for (index, record) in records.iter().enumerate() {
        pipeline.step(record.clone());
        if index == records.len() / 2 {
            pipeline.step(Input::Tick { time_ns: ENDED_NS / 2 });
        }
    }
    let devices = vec![device(GPU_A, 90_000, [(7, 50_000), (8, 40_000)]), device(GPU_B, 70_000, [(8, 70_000)])];
    let (begin_ns, end_ns) = (ENDED_NS, ENDED_NS + 1);
    pipeline.step(Input::Devices(DeviceReading { begin_ns, end_ns, state: NvmlState::Ok, devices }));
    pipeline.step(Input::Tick { time_ns: ENDED_NS });
    pipeline.snapshot()
}

pub(super) fn steps() -> impl Strategy<Value = Vec<DriverStep>> {
    vec(any::<DriverStep>(), 0..120)
}

/// Interleaves two sequences, keeping the order within each.
pub(super) fn interleave(first: &[Input], second: &[Input], turns: &[bool]) -> Vec<Input> {
    let (mut first, mut second) = (first.iter(), second.iter());
    let taken = turns.iter().filter_map(|turn| if *turn { first.next() } else { second.next() }).cloned();
    let mut all: Vec<Input> = taken.collect();
    all.extend(first.chain(second).cloned());
    all
}

/// Removes rates and workload peaks. Both depend on the records between ticks, and so on the order.
fn without_ticks(mut snapshot: Snapshot) -> String {
    for process in &mut snapshot.processes {
        (process.allocations_per_second, process.frees_per_second) = (None, None);
    }
    for gpu in snapshot.workloads.iter_mut().flat_map(|workload| &mut workload.gpus) {
        gpu.peak_bytes = 0;
    }
    format!("{snapshot:#?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_same_inputs_give_the_same_snapshot_to_the_byte(steps in steps(), threads in 1..4_usize) {
        let records = records(TGIDS[0], threads, &steps);
        prop_assert_eq!(format!("{:#?}", outcome(&records)), format!("{:#?}", outcome(&records)));
    }

    #[test]
    fn calls_taken_in_together_are_calls_taken_in_one_by_one(
        first in steps(),
        second in steps(),
        turns in vec(any::<bool>(), 0..200),
        together in 1..70_usize,
    ) {
        let mixed = interleave(&records(TGIDS[0], 2, &first), &records(TGIDS[1], 3, &second), &turns);
        let (mut one_by_one, mut in_batches) = (Pipeline::new(true), Pipeline::new(true));
        let mut calls = Vec::new();
        for input in mixed {
            if let Input::Record(RingRecord::Call(call)) = &input {
                calls.push(*call);
            }
            one_by_one.step(input);
        }
        for batch in calls.chunks(together) {
            in_batches.step_calls(batch);
        }
        prop_assert_eq!(format!("{:#?}", one_by_one.snapshot()), format!("{:#?}", in_batches.snapshot()));
    }

    #[test]
    fn the_order_across_processes_does_not_matter(
        first in steps(),
        second in steps(),
        turns in vec(any::<bool>(), 0..200),
    ) {
        let (first, second) = (records(TGIDS[0], 2, &first), records(TGIDS[1], 3, &second));
        let apart = outcome(&[first.clone(), second.clone()].concat());
        let mixed = outcome(&interleave(&first, &second, &turns));
        prop_assert_eq!(without_ticks(apart), without_ticks(mixed));
    }
}
