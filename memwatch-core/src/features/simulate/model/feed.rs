//! What the program asked of one device's allocator, distinguished from that allocator's events, and what it took as it ran.

use std::collections::{BTreeSet, HashSet};

use super::meter::Capacity;
use super::{Operation, Plan, Replay, Request};
use crate::decode::{TensorChange, TensorEvent, TraceAction, Traced};
use crate::input::books::{BookSegment, BookState};
use crate::words::{Ordinal, Tid};

/// What the program's own allocator has taken, in bytes and calls: as far as it was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// What it has of the driver now.
    pub reserved_bytes: u64,
    /// The most it had.
    pub peak_reserved_bytes: u64,
    /// The most the program had of it while that was so.
    pub allocated_at_peak_bytes: u64,
    /// What the program has now.
    pub allocated_bytes: u64,
    /// The most it had.
    pub peak_allocated_bytes: u64,
    /// Requests served without the driver.
    pub hits: u64,
    /// Requests that were not.
    pub misses: u64,
    /// Segments had, or memory mapped.
    pub driver_allocations: u64,
    /// Segments given back, or memory unmapped.
    pub driver_frees: u64,
    /// The driver refused, and was asked again.
    pub retries: u64,
    /// Requests that failed.
    pub refused: u64,
    /// Its segments grow.
    pub is_expandable: bool,
}

/// What was there before the first event, and is in no replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Older {
    /// What the program had, in bytes.
    pub allocated_bytes: u64,
    /// What its allocator had of the driver, in bytes.
    pub reserved_bytes: u64,
}

/// Who says how much the driver has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CapacitySource {
    /// NVML, now and then.
    Reading,
    /// The allocator, when it gave up.
    Allocator,
    /// Who wants to know of a card of another size.
    Caller,
}

/// One device's allocator as it ran, and as it would have run.
#[derive(Clone, Debug)]
pub struct DeviceRun {
    replays: Vec<Replay>,
    measured: Measured,
    older: Option<Older>,
    begun_with: Option<Older>,
    capacity: Capacity,
    capacity_source: CapacitySource,
    operations: u64,
    /// Blocks that the program has, or that are pending.
    held: HashSet<u64, foldhash::fast::FixedState>,
    /// Threads that have asked the driver for a segment, and have no block yet.
    wanting: BTreeSet<Tid>,
    /// The streams were waited for outside a request: what comes next says what was emptied.
    is_emptying: bool,
    is_fresh: bool,
    /// Taken of the driver since the first event, less what was given back, in bytes.
    seen_segment_bytes: i64,
    is_traced: bool,
}

/// The allocator that an event names.
pub(super) const fn allocator_of(change: &TensorChange) -> Option<u64> {
    match change {
        TensorChange::Traced(Traced { allocator, .. })
        | TensorChange::SegmentWanted { allocator, .. }
        | TensorChange::Synchronized { allocator } => Some(*allocator),
        _ => None,
    }
}

/// The device that an event names.
pub(super) const fn ordinal_of(change: &TensorChange) -> Option<Ordinal> {
    match change {
        TensorChange::Traced(traced) if !matches!(traced.action, TraceAction::Snapshot | TraceAction::Other(_)) => {
            Some(traced.ordinal)
        }
        TensorChange::Reported { ordinal, .. } | TensorChange::OutOfMemory { ordinal, .. } => Some(*ordinal),
        _ => None,
    }
}

impl DeviceRun {
    /// One that has seen nothing yet.
    pub(super) fn new(plans: &[Plan], capacity_source: CapacitySource) -> Self {
        Self {
            replays: plans.iter().map(Replay::new).collect(),
            measured: Measured::default(),
            older: None,
            begun_with: None,
            capacity: Capacity::default(),
            capacity_source,
            operations: 0,
            held: HashSet::default(),
            wanting: BTreeSet::new(),
            is_emptying: false,
            is_fresh: false,
            seen_segment_bytes: 0,
            is_traced: false,
        }
    }

    /// Whether replays have not begun with all that was there: something is older, and in none.
    pub(super) fn may_begin_with_books(&self) -> bool {
        self.begun_with.is_none() && self.older.is_none_or(|older| older.reserved_bytes > 0)
    }

    /// Begins with what the program's allocator had before its first event, as its own books have it.
    pub(super) fn begin_with(&mut self, segments: &[BookSegment], time_ns: u64) {
        let reserved_bytes = segments.iter().map(|segment| segment.bytes).fold(0, u64::saturating_add);
        self.replays.iter_mut().for_each(|replay| replay.begin_with(time_ns, segments));
        let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
        let allocated = blocks().filter(|block| block.state == BookState::ActiveAllocated);
        let allocated_bytes = allocated.map(|block| block.bytes).fold(0, u64::saturating_add);
        self.held = blocks().filter(|block| block.state != BookState::Inactive).map(|block| block.address).collect();
        self.measured.is_expandable = segments.iter().any(|segment| segment.is_expandable);
        self.note(reserved_bytes, allocated_bytes);
        self.begun_with = Some(Older { allocated_bytes, reserved_bytes });
        self.older = Some(Older::default());
    }

    /// What was there before the first event, and stands at the beginning of all replays; `None` where that is not known.
    pub const fn begun_with(&self) -> Option<Older> {
        self.begun_with
    }

    /// As it ran.
    pub const fn measured(&self) -> &Measured {
        &self.measured
    }

    /// What was there before the first event; nothing before the first report.
    pub const fn older(&self) -> Option<Older> {
        self.older
    }

    /// As it would have run, by plan.
    pub fn replays(&self) -> &[Replay] {
        &self.replays
    }

    /// How much the driver has for it.
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// How many operations were replayed.
    pub const fn operations(&self) -> u64 {
        self.operations
    }

    /// Whether its trace is seen: without it, streams and requested sizes are not known.
    pub const fn is_traced(&self) -> bool {
        self.is_traced
    }

    /// How much the driver has for it from now on, unless the allocator itself has reported that.
    pub(super) fn set_capacity(&mut self, capacity: Capacity) {
        if self.capacity_source != CapacitySource::Allocator {
            self.take_capacity(capacity);
        }
    }

    /// Takes one of its events into account.
    pub(super) fn observe(&mut self, event: &TensorEvent) {
        match event.what {
            TensorChange::Traced(traced) => self.trace(event, &traced),
            TensorChange::SegmentWanted { is_retry, .. } => {
                self.settle(event.time_ns, None);
                self.wanting.insert(event.tid);
                self.measured.retries += u64::from(is_retry);
            }
            TensorChange::Synchronized { .. } if !self.wanting.contains(&event.tid) => {
                self.settle(event.time_ns, None);
                self.is_emptying = true;
            }
            TensorChange::Reported { block_bytes, allocated_bytes, reserved_bytes, .. } => {
                self.settle(event.time_ns, None);
                let before = allocated_bytes.saturating_add_signed(block_bytes.saturating_neg());
                self.report(before, allocated_bytes, reserved_bytes);
            }
            TensorChange::OutOfMemory { allocated_bytes, reserved_bytes, .. } => {
                self.wanting.remove(&event.tid);
                self.measured.refused += 1;
                self.report(allocated_bytes, allocated_bytes, reserved_bytes);
            }
            _ => {}
        }
    }

    fn trace(&mut self, event: &TensorEvent, traced: &Traced) {
        let Traced { address, bytes, stream, pool, .. } = *traced;
        let private_pool = pool.unwrap_or((0, 0));
        self.is_traced |= traced.action.is_of_memory();
        let now_ns = event.time_ns;
        match traced.action {
            TraceAction::Alloc => {
                self.settle(now_ns, None);
                self.wanting.remove(&event.tid);
                let is_fresh = std::mem::take(&mut self.is_fresh);
                *(if is_fresh { &mut self.measured.misses } else { &mut self.measured.hits }) += 1;
                if !self.held.insert(address) {
                    // Its free was lost.
                    self.step(now_ns, &Operation::GiveBack { address });
                    self.step(now_ns, &Operation::Complete { address });
                }
                self.step(now_ns, &Operation::Allocate { address, request: Request { bytes, stream, private_pool } });
            }
            TraceAction::FreeRequested => {
                self.settle(now_ns, None);
                self.step(now_ns, &Operation::GiveBack { address });
            }
            TraceAction::FreeCompleted => {
                if self.held.remove(&address) {
                    self.step(now_ns, &Operation::Complete { address });
                }
            }
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                self.settle(now_ns, None);
                if traced.action == TraceAction::SegmentAlloc {
                    self.pass_on(now_ns, &Operation::Segment { address, bytes });
                }
                self.is_fresh = true;
                self.measured.is_expandable |= traced.action == TraceAction::SegmentMap;
                self.measured.driver_allocations += 1;
                self.reserve(signed(bytes));
            }
            TraceAction::SegmentFree | TraceAction::SegmentUnmap => {
                self.settle(now_ns, Some(private_pool));
                if private_pool != (0, 0) {
                    self.step(now_ns, &Operation::ReleasePool { private_pool });
                }
                self.pass_on(now_ns, &Operation::SegmentGone { address, bytes });
                self.measured.driver_frees += 1;
                self.reserve(-signed(bytes));
            }
            TraceAction::OutOfMemory => {
                // The address is what the driver has left.
                self.report_capacity(address);
                self.step(now_ns, &Operation::Refused(Request { bytes, stream, private_pool }));
            }
            TraceAction::Snapshot | TraceAction::Other(_) => {}
        }
    }

    /// The streams were waited for, and this is what came next: memory of this private pool went back, or of no pool.
    fn settle(&mut self, time_ns: u64, freed_of: Option<(u64, u64)>) {
        // Where a pool alone was emptied, its segments are the first that go.
        if std::mem::take(&mut self.is_emptying) && freed_of.is_none_or(|pool| pool == (0, 0)) {
            self.step(time_ns, &Operation::EmptyCache);
        }
    }

    fn step(&mut self, time_ns: u64, operation: &Operation) {
        self.operations += 1;
        self.pass_on(time_ns, operation);
    }

    fn pass_on(&mut self, time_ns: u64, operation: &Operation) {
        self.replays.iter_mut().for_each(|replay| replay.step(time_ns, operation));
    }

    fn reserve(&mut self, by: i64) {
        self.seen_segment_bytes = self.seen_segment_bytes.saturating_add(by);
        let reserved_bytes = self.measured.reserved_bytes.saturating_add_signed(by);
        self.note(reserved_bytes, self.measured.allocated_bytes);
    }

    /// The allocator's own totals.
    fn report(&mut self, allocated_before: u64, allocated_bytes: u64, reserved_bytes: u64) {
        if self.older.is_none() {
            let reserved_bytes = reserved_bytes.saturating_add_signed(-self.seen_segment_bytes);
            self.older = Some(Older { allocated_bytes: allocated_before, reserved_bytes });
        }
        self.note(reserved_bytes, allocated_bytes);
    }

    fn note(&mut self, reserved_bytes: u64, allocated_bytes: u64) {
        let own = &mut self.measured;
        (own.reserved_bytes, own.allocated_bytes) = (reserved_bytes, allocated_bytes);
        own.peak_allocated_bytes = own.peak_allocated_bytes.max(allocated_bytes);
        if reserved_bytes > own.peak_reserved_bytes {
            (own.peak_reserved_bytes, own.allocated_at_peak_bytes) = (reserved_bytes, allocated_bytes);
        } else if reserved_bytes == own.peak_reserved_bytes {
            own.allocated_at_peak_bytes = own.allocated_at_peak_bytes.max(allocated_bytes);
        }
    }

    /// What the driver has left says exactly how much there is for the allocator.
    fn report_capacity(&mut self, free_bytes: u64) {
        if self.capacity_source != CapacitySource::Caller {
            let available_bytes = self.measured.reserved_bytes.saturating_add(free_bytes);
            self.capacity_source = CapacitySource::Allocator;
            self.take_capacity(Capacity { available_bytes, ..self.capacity });
        }
    }

    fn take_capacity(&mut self, capacity: Capacity) {
        self.capacity = capacity;
        self.replays.iter_mut().for_each(|replay| replay.set_capacity(capacity));
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
