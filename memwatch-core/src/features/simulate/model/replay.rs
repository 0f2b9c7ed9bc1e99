//! Replays a program's requests through one policy.

use std::collections::HashMap;

use super::meter::{Capacity, Meter};
use super::{AllocationPolicy, BlockHandle, GrantedBlock, Operation, PolicyPlan, SimulatedRequest};
use crate::input::allocator_state::{StateBlock, StateBlockUse, StateSegment};

/// A request that a policy could not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PredictedFailure {
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    pub time_ns: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Bytes that the policy had reserved from the driver.
    pub reserved_bytes: u64,
    /// Bytes allocated by the program.
    pub allocated_bytes: u64,
}

/// Result of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayOutcome {
    /// Counters of driver memory.
    pub meter: Meter,
    /// Requests served from the cache.
    pub hits: u64,
    /// Requests that needed memory from the driver.
    pub misses: u64,
    /// Requests that failed in the program and in the replay.
    pub refused: u64,
    /// Requests that failed in the program, but not in the replay.
    pub granted_refused: u64,
    /// The first request that failed in the replay, but not in the program. The program would have
    /// continued differently, so later operations are not replayed.
    pub failure: Option<PredictedFailure>,
    /// Size of the largest free block at the end, in bytes.
    pub largest_free_bytes: u64,
    /// Free bytes at the end.
    pub free_bytes: u64,
}

/// Replay of one policy.
#[derive(Clone, Debug)]
pub struct PolicyReplay {
    policy: Box<dyn AllocationPolicy>,
    /// Allocated and pending blocks by their address in the program's run.
    blocks: HashMap<u64, BlockHandle, foldhash::fast::FixedState>,
    outcome: ReplayOutcome,
    /// The blocks from before the first event are not where this policy would have placed them.
    begins_otherwise: bool,
}

impl PolicyReplay {
    /// Creates a replay without operations.
    pub fn new(plan: &PolicyPlan) -> Self {
        Self {
            policy: plan.policy(),
            blocks: HashMap::default(),
            outcome: ReplayOutcome::default(),
            begins_otherwise: false,
        }
    }

    /// Sets the memory that the driver has.
    pub fn set_capacity(&mut self, capacity: Capacity) {
        self.policy.set_capacity(capacity);
    }

    /// Replays one operation.
    pub fn step(&mut self, time_ns: u64, operation: &Operation) {
        if self.outcome.failure.is_some() {
            return;
        }
        match *operation {
            Operation::Allocate { address, request } => self.allocate(time_ns, address, &request),
            Operation::Refused(request) => {
                let granted = self.policy.allocate(&request);
                if let Some(GrantedBlock { handle, .. }) = granted {
                    self.outcome.granted_refused += 1;
                    self.policy.give_back(handle);
                    self.policy.complete(handle);
                } else {
                    self.outcome.refused += 1;
                }
            }
            Operation::GiveBack { address } => {
                if let Some(handle) = self.blocks.get(&address) {
                    self.policy.give_back(*handle);
                }
            }
            Operation::Complete { address } => {
                if let Some(handle) = self.blocks.remove(&address) {
                    self.policy.complete(handle);
                }
            }
            Operation::Segment { address, bytes } => self.policy.note_segment(address, bytes, true),
            Operation::SegmentGone { address, bytes } => self.policy.note_segment(address, bytes, false),
            Operation::EmptyCache => self.policy.empty_cache(),
            Operation::ReleasePool { private_pool } => self.policy.release_pool(private_pool),
        }
    }

    /// Begins with the blocks of the program's own allocator: with their layout if the policy
    /// creates such segments itself, else as if the program had requested them in the order of
    /// addresses.
    pub fn begin_with(&mut self, time_ns: u64, segments: &[StateSegment]) {
        if let Some(blocks) = self.policy.take_over(segments) {
            self.blocks.extend(blocks);
        } else {
            self.begins_otherwise = true;
            for segment in segments {
                for block in &segment.blocks {
                    self.ask_again(time_ns, segment, block);
                }
            }
        }
        self.policy.begin();
        (self.outcome.hits, self.outcome.misses) = (0, 0);
    }

    fn ask_again(&mut self, time_ns: u64, segment: &StateSegment, block: &StateBlock) {
        let StateSegment { stream, private_pool, .. } = *segment;
        let address = block.address;
        if block.state == StateBlockUse::Inactive {
            return;
        }
        let request = SimulatedRequest { bytes: block.requested_bytes, stream, private_pool };
        self.step(time_ns, &Operation::Allocate { address, request });
        if block.state == StateBlockUse::ActivePendingFree {
            self.step(time_ns, &Operation::GiveBack { address });
        }
    }

    fn allocate(&mut self, time_ns: u64, address: u64, request: &SimulatedRequest) {
        if let Some(granted) = self.policy.allocate(request) {
            *(if granted.is_hit { &mut self.outcome.hits } else { &mut self.outcome.misses }) += 1;
            self.blocks.insert(address, granted.handle);
            return;
        }
        let &Meter { reserved_bytes, allocated_bytes, .. } = self.policy.meter();
        self.outcome.failure =
            Some(PredictedFailure { time_ns, bytes: request.bytes, reserved_bytes, allocated_bytes });
    }

    /// Returns whether the first blocks are not where this policy would have placed them, so that
    /// its reserved bytes are unknown.
    pub const fn begins_otherwise(&self) -> bool {
        self.begins_otherwise
    }

    /// Returns the result so far.
    pub fn outcome(&self) -> ReplayOutcome {
        let (largest_free_bytes, free_bytes) = self.policy.free_bytes();
        ReplayOutcome { meter: *self.policy.meter(), largest_free_bytes, free_bytes, ..self.outcome }
    }
}
