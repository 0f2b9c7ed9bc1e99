//! One policy, and what came of the program's requests under it.

use std::collections::HashMap;

use super::meter::{Capacity, Meter};
use super::{Granted, Handle, Operation, Plan, Policy, Request};
use crate::input::books::{BookBlock, BookSegment, BookState};

/// A request that a policy could not grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// What was wanted, in bytes.
    pub bytes: u64,
    /// What the policy had of the driver then.
    pub reserved_bytes: u64,
    /// What the program had of that.
    pub allocated_bytes: u64,
}

/// What a policy would have taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes and calls.
    pub meter: Meter,
    /// Requests that were served without the driver.
    pub hits: u64,
    /// Requests that were not.
    pub misses: u64,
    /// Requests that were refused, in the program and here.
    pub refused: u64,
    /// Requests that were refused in the program, and would not have been.
    pub granted_refused: u64,
    /// The first request that the program got, and would not have got: the program would have gone on otherwise, so what comes after is not
    /// replayed.
    pub failure: Option<Failure>,
    /// The largest free block at the end, in bytes.
    pub largest_free_bytes: u64,
    /// All free blocks at the end, in bytes.
    pub free_bytes: u64,
}

/// A policy at work.
#[derive(Clone, Debug)]
pub struct Replay {
    policy: Box<dyn Policy>,
    /// Blocks that the program has, or that are pending, by where the program had them.
    blocks: HashMap<u64, Handle, foldhash::fast::FixedState>,
    outcome: Outcome,
    /// What the program had before is not where this policy would have had it.
    begins_otherwise: bool,
}

impl Replay {
    /// One that has replayed nothing yet.
    pub fn new(plan: &Plan) -> Self {
        Self { policy: plan.policy(), blocks: HashMap::default(), outcome: Outcome::default(), begins_otherwise: false }
    }

    /// How much the driver has from now on.
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
                if let Some(Granted { handle, .. }) = granted {
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

    /// Begins with what the program's own allocator has: as it has it, where this policy makes such segments itself; else as if the program had asked
    /// for it in the order of its addresses.
    pub fn begin_with(&mut self, time_ns: u64, segments: &[BookSegment]) {
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

    fn ask_again(&mut self, time_ns: u64, segment: &BookSegment, block: &BookBlock) {
        let BookSegment { stream, private_pool, .. } = *segment;
        let address = block.address;
        if block.state == BookState::Inactive {
            return;
        }
        let request = Request { bytes: block.requested_bytes, stream, private_pool };
        self.step(time_ns, &Operation::Allocate { address, request });
        if block.state == BookState::ActivePendingFree {
            self.step(time_ns, &Operation::GiveBack { address });
        }
    }

    fn allocate(&mut self, time_ns: u64, address: u64, request: &Request) {
        if let Some(granted) = self.policy.allocate(request) {
            *(if granted.is_hit { &mut self.outcome.hits } else { &mut self.outcome.misses }) += 1;
            self.blocks.insert(address, granted.handle);
            return;
        }
        let &Meter { reserved_bytes, allocated_bytes, .. } = self.policy.meter();
        self.outcome.failure = Some(Failure { time_ns, bytes: request.bytes, reserved_bytes, allocated_bytes });
    }

    /// Whether what the program had before is not where this policy would have had it: how much it would have had of the driver is not known.
    pub const fn begins_otherwise(&self) -> bool {
        self.begins_otherwise
    }

    /// What it would have taken so far.
    pub fn outcome(&self) -> Outcome {
        let (largest_free_bytes, free_bytes) = self.policy.free_bytes();
        Outcome { meter: *self.policy.meter(), largest_free_bytes, free_bytes, ..self.outcome }
    }
}
