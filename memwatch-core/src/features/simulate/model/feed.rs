//! Splits the events of one device's allocator into requests of the program, which are replayed,
//! and the allocator's own actions, which are measured.

use std::collections::{BTreeSet, HashSet};

use super::meter::Capacity;
use super::{Operation, PolicyPlan, PolicyReplay, SimulatedRequest};
use crate::decode::{TensorChange, TensorEvent, TraceAction, Traced};
use crate::input::allocator_state::{StateBlockUse, StateSegment};
use crate::words::{Ordinal, Tid};

/// Memory and calls of the program's own allocator, as far as they were observed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeasuredRun {
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
    /// Peak of the reserved bytes.
    pub peak_reserved_bytes: u64,
    /// Maximum bytes allocated by the program while the reserved bytes were at their peak.
    pub allocated_at_peak_bytes: u64,
    /// Bytes allocated by the program.
    pub allocated_bytes: u64,
    /// Peak of the allocated bytes.
    pub peak_allocated_bytes: u64,
    /// Requests served from the cache.
    pub hits: u64,
    /// Requests that needed memory from the driver.
    pub misses: u64,
    /// Segments allocated, or memory mapped.
    pub driver_allocations: u64,
    /// Segments freed, or memory unmapped.
    pub driver_frees: u64,
    /// Requests that the driver refused and the allocator repeated.
    pub retries: u64,
    /// Requests that failed.
    pub refused: u64,
    /// Whether the allocator uses expandable segments.
    pub is_expandable: bool,
}

/// Memory that existed before the first event and is in no replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PreexistingBytes {
    /// Bytes allocated by the program.
    pub allocated_bytes: u64,
    /// Bytes that the allocator reserved from the driver.
    pub reserved_bytes: u64,
}

/// Source of the capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CapacitySource {
    /// NVML, read from time to time.
    Reading,
    /// The allocator, at a failed request.
    Allocator,
    /// The caller, to simulate a card of another size.
    Caller,
}

/// The measured run of one device's allocator, and its replays.
#[derive(Clone, Debug)]
pub struct DeviceRun {
    replays: Vec<PolicyReplay>,
    measured: MeasuredRun,
    older: Option<PreexistingBytes>,
    begun_with: Option<PreexistingBytes>,
    capacity: Capacity,
    capacity_source: CapacitySource,
    operations: u64,
    /// Addresses of blocks that are allocated or pending.
    held: HashSet<u64, foldhash::fast::FixedState>,
    /// Threads that have requested a segment from the driver and have no block yet.
    wanting: BTreeSet<Tid>,
    /// A synchronisation outside of a request: the next event shows what is emptied.
    is_emptying: bool,
    is_fresh: bool,
    /// Bytes allocated from the driver since the first event, minus bytes freed.
    seen_segment_bytes: i64,
    is_traced: bool,
}

/// Returns the allocator that an event names.
pub(super) const fn allocator_of(change: &TensorChange) -> Option<u64> {
    match change {
        TensorChange::Traced(Traced { allocator, .. })
        | TensorChange::SegmentWanted { allocator, .. }
        | TensorChange::Synchronized { allocator } => Some(*allocator),
        _ => None,
    }
}

/// Returns the device that an event names.
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
    /// Creates a run without events.
    pub(super) fn new(plans: &[PolicyPlan], capacity_source: CapacitySource) -> Self {
        Self {
            replays: plans.iter().map(PolicyReplay::new).collect(),
            measured: MeasuredRun::default(),
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

    /// Returns whether replays can still begin with the allocator state: they have not, and memory
    /// exists that is in no replay.
    pub(super) fn may_begin_with_allocator_state(&self) -> bool {
        self.begun_with.is_none() && self.older.is_none_or(|older| older.reserved_bytes > 0)
    }

    /// Begins with the memory that the program's allocator held before the first event, from its
    /// allocator state.
    pub(super) fn begin_with(&mut self, segments: &[StateSegment], time_ns: u64) {
        let reserved_bytes = segments.iter().map(|segment| segment.bytes).fold(0, u64::saturating_add);
        self.replays.iter_mut().for_each(|replay| replay.begin_with(time_ns, segments));
        let blocks = || segments.iter().flat_map(|segment| &segment.blocks);
        let allocated = blocks().filter(|block| block.state == StateBlockUse::ActiveAllocated);
        let allocated_bytes = allocated.map(|block| block.bytes).fold(0, u64::saturating_add);
        self.held =
            blocks().filter(|block| block.state != StateBlockUse::Inactive).map(|block| block.address).collect();
        self.measured.is_expandable = segments.iter().any(|segment| segment.is_expandable);
        self.note(reserved_bytes, allocated_bytes);
        self.begun_with = Some(PreexistingBytes { allocated_bytes, reserved_bytes });
        self.older = Some(PreexistingBytes::default());
    }

    /// Returns the memory before the first event with which all replays began; `None` if it is
    /// unknown.
    pub const fn begun_with(&self) -> Option<PreexistingBytes> {
        self.begun_with
    }

    /// Returns the measured run.
    pub const fn measured(&self) -> &MeasuredRun {
        &self.measured
    }

    /// Returns the memory that existed before the first event; `None` before the first report.
    pub const fn older(&self) -> Option<PreexistingBytes> {
        self.older
    }

    /// Returns the replays, by plan.
    pub fn replays(&self) -> &[PolicyReplay] {
        &self.replays
    }

    /// Returns the memory available to the allocator.
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// Returns the number of replayed operations.
    pub const fn operations(&self) -> u64 {
        self.operations
    }

    /// Returns whether the allocator's trace is available; without it, streams and requested sizes
    /// are unknown.
    pub const fn is_traced(&self) -> bool {
        self.is_traced
    }

    /// Sets the available memory, unless the allocator itself has reported it.
    pub(super) fn set_capacity(&mut self, capacity: Capacity) {
        if self.capacity_source != CapacitySource::Allocator {
            self.take_capacity(capacity);
        }
    }

    /// Processes an event of the allocator.
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
                    // The free of the previous block at this address was lost.
                    self.step(now_ns, &Operation::GiveBack { address });
                    self.step(now_ns, &Operation::Complete { address });
                }
                self.step(
                    now_ns,
                    &Operation::Allocate { address, request: SimulatedRequest { bytes, stream, private_pool } },
                );
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
                // The event's address field holds the free bytes of the driver.
                self.report_capacity(address);
                self.step(now_ns, &Operation::Refused(SimulatedRequest { bytes, stream, private_pool }));
            }
            TraceAction::Snapshot | TraceAction::Other(_) => {}
        }
    }

    /// Handles the event after a synchronisation. If the event releases memory, `freed_of` is its
    /// private pool, (0, 0) for none.
    fn settle(&mut self, time_ns: u64, freed_of: Option<(u64, u64)>) {
        // If only a private pool is emptied, its segments are freed first.
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

    /// Adopts the allocator's own totals.
    fn report(&mut self, allocated_before: u64, allocated_bytes: u64, reserved_bytes: u64) {
        if self.older.is_none() {
            let reserved_bytes = reserved_bytes.saturating_add_signed(-self.seen_segment_bytes);
            self.older = Some(PreexistingBytes { allocated_bytes: allocated_before, reserved_bytes });
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

    /// Sets the exact capacity from the driver's free bytes.
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
