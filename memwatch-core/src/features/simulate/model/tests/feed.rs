//! The simulation separates the program's requests from its allocator's own events.

use super::MIB;
use crate::decode::{StackRef, TensorChange, TensorEvent, TraceAction, Traced};
use crate::features::simulate::model::{
    Capacity, DeviceRun, MeasuredRun, PolicyPlan, PreexistingBytes, Settings, Simulations,
};
use crate::words::{Ordinal, Tgid, Tid};

const ALLOCATOR: u64 = 0xa110;

/// Events of one process with one allocator, and the simulations fed with them.
struct SimulatedProgram {
    simulations: Simulations,
    time_ns: u64,
}

impl SimulatedProgram {
    fn new(capacity_bytes: Option<u64>) -> Self {
        let plans = vec![PolicyPlan::PyTorch(Settings::default())];
        Self { simulations: Simulations::new(plans, capacity_bytes), time_ns: 0 }
    }

    fn observe(&mut self, what: TensorChange) {
        self.time_ns += 1;
        let event = TensorEvent::made((Tgid(1), Tid(2)), self.time_ns, StackRef::NotAsked, what);
        let capacity = |_| Capacity { total_bytes: 64 * MIB, available_bytes: 64 * MIB };
        self.simulations.observe(0, &event, capacity);
    }

    fn trace(&mut self, action: TraceAction, address: u64, bytes: u64, pool: (u64, u64)) {
        let (allocator, ordinal, pool) = (ALLOCATOR, Ordinal(0), Some(pool));
        self.observe(TensorChange::Traced(Traced {
            allocator,
            action,
            address,
            bytes,
            stream: 0,
            ordinal,
            pool,
            is_rounded: false,
        }));
    }

    fn report(&mut self, block_bytes: i64, allocated_bytes: u64, reserved_bytes: u64) {
        self.observe(TensorChange::Reported {
            ordinal: Ordinal(0),
            address: 1,
            block_bytes,
            allocated_bytes,
            reserved_bytes,
        });
    }

    fn allocate(&mut self, address: u64, bytes: u64) {
        self.trace(TraceAction::Alloc, address, bytes, (0, 0));
    }

    fn free(&mut self, address: u64, bytes: u64) {
        self.trace(TraceAction::FreeRequested, address, bytes, (0, 0));
        self.trace(TraceAction::FreeCompleted, address, bytes, (0, 0));
    }

    fn run(&self) -> &DeviceRun {
        self.simulations.runs().values().next().expect("it was met")
    }

    fn reserved(&self) -> u64 {
        self.run().replays()[0].outcome().meter.reserved_bytes
    }
}

#[test]
fn simulation_reports_preexisting_bytes_without_replaying_them() {
    let mut program = SimulatedProgram::new(None);
    program.trace(TraceAction::SegmentAlloc, 0x100_0000, 12 * MIB, (0, 0));
    program.allocate(0x100_0000, 12 * MIB);
    program.report(12 << 20, 42 * MIB, 62 * MIB);
    program.free(0x500_0000, 7 * MIB);
    program.report(-(7 << 20), 35 * MIB, 62 * MIB);
    let run = program.run();
    assert_eq!(run.older(), Some(PreexistingBytes { allocated_bytes: 30 * MIB, reserved_bytes: 50 * MIB }));
    assert_eq!(program.reserved(), 12 * MIB);
    let MeasuredRun { peak_reserved_bytes, allocated_bytes, misses, .. } = *run.measured();
    assert_eq!((peak_reserved_bytes, allocated_bytes, misses), (62 * MIB, 35 * MIB, 1));
}

#[test]
fn simulation_empties_the_cache_on_synchronize_outside_a_request() {
    let mut program = SimulatedProgram::new(None);
    program.allocate(1, 12 * MIB);
    program.free(1, 12 * MIB);
    // Within a request, the allocator itself synchronizes.
    program.observe(TensorChange::SegmentWanted { allocator: ALLOCATOR, is_retry: false });
    program.observe(TensorChange::Synchronized { allocator: ALLOCATOR });
    program.observe(TensorChange::SegmentWanted { allocator: ALLOCATOR, is_retry: true });
    program.allocate(2, 512);
    assert_eq!((program.reserved(), program.run().measured().retries), (14 * MIB, 1));
    program.observe(TensorChange::Synchronized { allocator: ALLOCATOR });
    program.report(512, 512, 2 * MIB);
    assert_eq!(program.reserved(), 2 * MIB);
}

#[test]
fn a_private_pool_that_is_emptied_leaves_the_others_alone() {
    let mut program = SimulatedProgram::new(None);
    program.allocate(1, 12 * MIB);
    program.free(1, 12 * MIB);
    program.trace(TraceAction::Alloc, 2, 20 * MIB, (0, 1));
    program.trace(TraceAction::FreeRequested, 2, 20 * MIB, (0, 1));
    program.trace(TraceAction::FreeCompleted, 2, 20 * MIB, (0, 1));
    program.observe(TensorChange::Synchronized { allocator: ALLOCATOR });
    program.trace(TraceAction::SegmentFree, 2, 20 * MIB, (0, 1));
    program.allocate(3, 512);
    assert_eq!(program.reserved(), 14 * MIB);
}

#[test]
fn a_refusal_says_how_much_there_is_and_a_smaller_card_says_where_it_ends() {
    let mut program = SimulatedProgram::new(None);
    program.trace(TraceAction::SegmentAlloc, 1, 12 * MIB, (0, 0));
    program.allocate(1, 12 * MIB);
    program.report(12 << 20, 12 * MIB, 12 * MIB);
    program.trace(TraceAction::OutOfMemory, 30 * MIB, 40 * MIB, (0, 0));
    let outcome = program.run().replays()[0].outcome();
    assert_eq!((program.run().capacity().available_bytes, outcome.refused, outcome.meter.retries), (42 * MIB, 1, 1));
    program.allocate(2, 30 * MIB);
    assert_eq!(program.run().replays()[0].outcome().failure, None);
    program.allocate(3, 10 * MIB);
    let failure = program.run().replays()[0].outcome().failure.expect("there is no more");
    assert_eq!((failure.bytes, failure.reserved_bytes, failure.time_ns), (10 * MIB, 42 * MIB, program.time_ns));
    let mut fixed = SimulatedProgram::new(Some(64 * MIB));
    fixed.trace(TraceAction::OutOfMemory, 0, 40 * MIB, (0, 0));
    assert_eq!(fixed.run().replays()[0].outcome().granted_refused, 1, "the card of another size has room");
}

#[test]
fn an_address_that_is_granted_again_was_free() {
    let mut program = SimulatedProgram::new(None);
    program.allocate(1, 12 * MIB);
    program.allocate(1, 12 * MIB);
    assert_eq!(program.reserved(), 12 * MIB);
}
