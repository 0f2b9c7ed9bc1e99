//! Follows the caching allocator of one device.

use serde::{Deserialize, Serialize};

use super::ROUNDING;
use super::driver::Mapped;
use super::history::{AllocatorHistory, LineAction};
use super::memory::{AllocatorMemory, AllocatorSegment, BlockState, Effect, SegmentCell, unmapped_pool};
use super::pools::PrivatePools;
use super::statistics::{AllocatorStatistics, OwnPeaks, PoolSize, StatFamily, StatScope, Tail};
use super::trust::{Doubt, ObservedEvents};
use crate::allocators::{BlockChange, ReportedTotals, TensorBlock};
use crate::decode::{StackRef, TensorChange, TensorEvent, TraceAction, Traced};
use crate::words::Ordinal;

/// Origin of the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Base {
    /// None: the program allocated before the attach.
    None,
    /// The allocator's creation.
    Start,
    /// A reading of the allocator's statistics at this time: `CLOCK_BOOTTIME`, nanoseconds.
    Read(u64),
}

/// Traced parts of a thread's request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SeenRequest {
    pub(super) bytes: Option<u64>,
    /// Whether the allocator looked for a segment to serve the request.
    pub(super) is_segment_wanted: Option<bool>,
}

/// A grant that was traced and is not reported yet.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Granting {
    address: u64,
    requested_bytes: u64,
}

/// A free that was traced and is not reported yet.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Returning {
    address: u64,
    requested_bytes: u64,
    /// The block was known, and its free is counted.
    is_known: bool,
    is_completed: bool,
}

/// Caching allocator of one device.
#[expect(clippy::struct_excessive_bools, reason = "each says something of its last event")]
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct DeviceAllocator {
    ordinal: Ordinal,
    pub(super) memory: AllocatorMemory,
    pub(super) statistics: AllocatorStatistics,
    pub(super) base: Base,
    pub(super) tail: Option<Tail>,
    pub(super) reported: Option<ReportedTotals>,
    /// The totals are those of its last report, or of a later reading.
    pub(super) is_reported_last: bool,
    pub(super) is_just_read: bool,
    /// The statistics were read at process exit: they are final and correct.
    pub(super) is_settled: bool,
    granting: Option<Granting>,
    returning: Option<Returning>,
    /// A segment was allocated for the next grant.
    pub(super) is_fresh: bool,
    /// Freed block that returned to its pool before the free was reported, without a trace.
    pub(super) early: Option<u64>,
    pub(super) sight: ObservedEvents,
    pub(super) doubts: Vec<Doubt>,
    /// Table rows of probes that are not attached, if known.
    pub(super) missing: Vec<u16>,
    pub(super) hits: u64,
    pub(super) misses: u64,
    pub(super) peaks: OwnPeaks,
    pub(super) pools: PrivatePools,
    pub(super) history: AllocatorHistory,
    pub(super) out_of_step: u64,
    pub(super) refused_readouts: u64,
}

impl DeviceAllocator {
    /// Creates an unknown allocator; `from_start` is set if it has done nothing yet.
    pub fn new(ordinal: Ordinal, from_start: bool) -> Self {
        Self {
            ordinal,
            memory: AllocatorMemory::default(),
            statistics: AllocatorStatistics::default(),
            base: if from_start { Base::Start } else { Base::None },
            tail: None,
            reported: None,
            is_reported_last: false,
            is_just_read: false,
            is_settled: false,
            granting: None,
            returning: None,
            is_fresh: false,
            early: None,
            sight: ObservedEvents::default(),
            doubts: Vec::new(),
            missing: Vec::new(),
            hits: 0,
            misses: 0,
            peaks: OwnPeaks::default(),
            pools: PrivatePools::new(from_start),
            history: AllocatorHistory::default(),
            out_of_step: 0,
            refused_readouts: 0,
        }
    }

    /// Applies an event other than a report; `asked_bytes` is the thread's pending request.
    pub(super) fn observe(&mut self, event: &TensorEvent, asked_bytes: Option<u64>) {
        self.history.begin(event);
        self.is_just_read = false;
        match event.what {
            TensorChange::Traced(traced) => self.trace(&traced, asked_bytes),
            TensorChange::SegmentWanted { is_retry, .. } => {
                self.sight.attempts = true;
                self.statistics.counters.retries += i64::from(is_retry);
            }
            TensorChange::Synchronized { .. } => self.statistics.counters.synchronizations += 1,
            TensorChange::PeaksReset { .. } => self.follow_peaks_reset(),
            TensorChange::AccumulatedReset { .. } => {
                self.statistics.reset_accumulated();
                self.pools.reset_accumulated();
            }
            TensorChange::BlockFreed { address: Some(address), .. } => self.pooled(address),
            _ => {}
        }
    }

    /// Applies the report of a grant or a free.
    pub(super) fn report(
        &mut self,
        event: &TensorEvent,
        request: SeenRequest,
        mapped: &mut Mapped,
    ) -> Option<BlockChange> {
        let TensorChange::Reported { address, block_bytes, allocated_bytes, reserved_bytes, .. } = event.what else {
            return None;
        };
        self.history.begin(event);
        self.is_just_read = false;
        self.sight.reports = true;
        let now = ReportedTotals { allocated_bytes, reserved_bytes, time_ns: event.time_ns };
        let bytes = block_bytes.unsigned_abs();
        let change = if block_bytes > 0 {
            let granting = self.granting.take().filter(|granting| granting.address == address);
            let requested_bytes = granting.map(|granting| granting.requested_bytes).or(request.bytes);
            // Before 2.4 the trace may end: it lasts only while the program records it.
            self.sight.trace &= granting.is_some() || self.doubts.contains(&Doubt::EventsLost);
            if !self.sight.trace {
                self.is_fresh = self.settle_segments(&now, address, bytes, mapped);
            }
            let cached = self.cached(granting.is_some(), request.is_segment_wanted);
            let state = BlockState::Allocated;
            let (stack, tid, time_ns) = (event.stack, event.tid, event.time_ns);
            if requested_bytes.is_none() {
                self.doubt(Doubt::RoundedOnly);
            }
            self.memory.explain(address, stack);
            self.grant(address, SegmentCell { bytes, requested_bytes, state, stack, tid, time_ns });
            BlockChange::Granted(TensorBlock {
                ordinal: self.ordinal,
                address,
                block_bytes: bytes,
                requested_bytes,
                cached,
                tid,
                stack,
                is_sampled: event.is_sampled,
                time_ns,
            })
        } else {
            self.take_back(event, address, bytes);
            BlockChange::Freed { ordinal: self.ordinal, address, block_bytes: bytes }
        };
        self.check(now);
        Some(change)
    }

    /// Applies a failed allocation.
    pub(super) fn refuse(&mut self, event: &TensorEvent) {
        let TensorChange::OutOfMemory { wanted_bytes, allocated_bytes, reserved_bytes, .. } = event.what else {
            return;
        };
        self.history.begin(event);
        self.is_just_read = false;
        (self.granting, self.is_fresh) = (None, false);
        // A reading right before the failure already counts it.
        self.statistics.counters.ooms += i64::from(self.base != Base::Read(event.time_ns));
        let now = ReportedTotals { allocated_bytes, reserved_bytes, time_ns: event.time_ns };
        if self.is_stopped() {
            return self.follow_totals(now);
        }
        if !self.sight.trace {
            self.settle_segments(&now, 0, 0, &mut Mapped::default());
        }
        self.history.failure(wanted_bytes, event.stack);
        self.check(now);
    }

    /// Drops pending state.
    pub(super) const fn forget_course(&mut self) {
        (self.granting, self.returning, self.early, self.is_fresh) = (None, None, None, false);
    }

    /// Records that the allocator may have done something unseen.
    pub(super) const fn may_have_changed(&mut self) {
        self.is_reported_last = false;
    }

    pub(super) fn is_missing(&self, row: u16) -> bool {
        self.missing.contains(&row)
    }

    /// Records that events were lost.
    pub(super) fn lose(&mut self) {
        self.forget_course();
        (self.is_reported_last, self.is_just_read) = (false, false);
        self.memory.forget_segments();
        self.history.forget();
        self.doubt(Doubt::EventsLost);
    }

    fn trace(&mut self, traced: &Traced, asked_bytes: Option<u64>) {
        self.sight.trace = true;
        let Traced { address, bytes, .. } = *traced;
        match traced.action {
            TraceAction::SegmentAlloc | TraceAction::SegmentMap => {
                self.is_fresh = true;
                let pool = asked_bytes.map_or_else(|| segment_pool(bytes), PoolSize::of_request);
                self.take(address, traced_segment(traced, pool));
            }
            TraceAction::SegmentFree => {
                let known = self.memory.remove_segment(address, bytes).map(|segment| segment.pool);
                self.part(address, traced_segment(traced, known.unwrap_or_else(|| segment_pool(bytes))));
            }
            TraceAction::SegmentUnmap => {
                let known = self.memory.unmap(address, bytes).map(|segment| segment.pool);
                if known.is_none() && unmapped_pool(bytes) == PoolSize::Large {
                    self.doubt(Doubt::OlderSegments);
                }
                self.part(address, traced_segment(traced, known.unwrap_or_else(|| unmapped_pool(bytes))));
            }
            TraceAction::Alloc => self.granting = Some(Granting { address, requested_bytes: bytes }),
            TraceAction::FreeRequested => {
                let is_known = self.give_back(address);
                if !is_known {
                    self.memory.forget_pending(Some(address));
                    if traced.is_rounded {
                        self.doubt(Doubt::OlderBlocks);
                    }
                }
                self.returning = Some(Returning { address, requested_bytes: bytes, is_known, is_completed: false });
            }
            TraceAction::FreeCompleted => self.complete_traced(address, bytes),
            TraceAction::OutOfMemory => self.history.note_device_free(address),
            TraceAction::Snapshot | TraceAction::Other(_) => {}
        }
    }

    /// Adds memory taken from the driver.
    pub(super) fn take(&mut self, address: u64, segment: AllocatorSegment) {
        self.pools.change(segment.private_pool, segment.pool, signed(segment.bytes));
        self.statistics.counters.device_allocations += 1;
        self.statistics.change(StatFamily::ReservedBytes, segment.pool, signed(segment.bytes));
        if segment.is_expandable {
            self.history.segment(LineAction::SegmentMap, address, &segment);
            self.memory.map(address, segment);
        } else {
            self.history.segment(LineAction::SegmentAlloc, address, &segment);
            self.statistics.change(StatFamily::Segment, segment.pool, 1);
            if self.is_oversize(segment.bytes) {
                self.statistics.oversize_segments.change(1);
            }
            self.memory.add_segment(address, segment);
        }
    }

    /// Removes memory returned to the driver.
    pub(super) fn part(&mut self, address: u64, segment: AllocatorSegment) {
        let (pool, bytes) = (segment.pool, signed(segment.bytes));
        self.pools.change(segment.private_pool, pool, -bytes);
        self.statistics.counters.device_frees += 1;
        self.statistics.change(StatFamily::ReservedBytes, pool, -bytes);
        if segment.is_expandable {
            self.history.segment(LineAction::SegmentUnmap, address, &segment);
            return;
        }
        self.history.segment(LineAction::SegmentFree, address, &segment);
        self.statistics.change(StatFamily::Segment, pool, -1);
        if self.is_oversize(segment.bytes) {
            self.statistics.oversize_segments.change(-1);
        }
    }

    fn grant(&mut self, address: u64, cell: SegmentCell) {
        let effect = self.memory.grant(address, cell);
        if effect.pool != PoolSize::of_request(cell.bytes) {
            // Segment sizes are not as expected (`segment_pool`).
            self.out_of_step += 1;
            self.doubt(Doubt::OutOfStep);
        }
        self.history.block(LineAction::Alloc, address, (cell.bytes, cell.requested_bytes), cell.stack);
        let (pool, bytes) = (effect.pool, signed(cell.bytes));
        self.split(&effect);
        self.statistics.change(StatFamily::Allocation, pool, 1);
        self.statistics.change(StatFamily::AllocatedBytes, pool, bytes);
        self.statistics.change(StatFamily::Active, pool, 1);
        self.statistics.change(StatFamily::ActiveBytes, pool, bytes);
        self.statistics.change(StatFamily::RequestedBytes, pool, cell.requested_bytes.map_or(0, signed));
        if self.is_oversize(cell.bytes) {
            self.statistics.oversize_allocations.change(1);
        }
    }

    /// Counts a block that the program frees. Returns whether it was known.
    pub(super) fn give_back(&mut self, address: u64) -> bool {
        let Some((cell, pool)) = self.memory.give_back(address) else { return false };
        self.history.block(LineAction::FreeRequested, address, (cell.bytes, cell.requested_bytes), cell.stack);
        self.give(pool, cell.bytes);
        true
    }

    fn give(&mut self, pool: PoolSize, bytes: u64) {
        self.statistics.change(StatFamily::Allocation, pool, -1);
        self.statistics.change(StatFamily::AllocatedBytes, pool, -signed(bytes));
        if self.is_oversize(bytes) {
            self.statistics.oversize_allocations.change(-1);
        }
    }

    /// Counts a block that no stream uses any more. Returns whether it was known to be pending.
    pub(super) fn complete(&mut self, address: u64) -> bool {
        let Some(effect) = self.memory.complete(address) else { return false };
        let SegmentCell { bytes, requested_bytes, stack, .. } = effect.cell;
        self.history.block(LineAction::FreeCompleted, address, (bytes, requested_bytes), stack);
        self.split(&effect);
        self.free(effect.pool, bytes, requested_bytes.unwrap_or(0));
        true
    }

    fn free(&mut self, pool: PoolSize, bytes: u64, requested_bytes: u64) {
        self.statistics.change(StatFamily::Active, pool, -1);
        self.statistics.change(StatFamily::ActiveBytes, pool, -signed(bytes));
        self.statistics.change(StatFamily::RequestedBytes, pool, -signed(requested_bytes));
    }

    fn complete_traced(&mut self, address: u64, requested_bytes: u64) {
        if self.complete(address) {
            return;
        }
        match &mut self.returning {
            Some(returning) if returning.address == address => returning.is_completed = true,
            // Its return to the pool has already been reported.
            _ if self.early == Some(address) => {}
            _ => {
                // It was freed before the attach, and its size was never reported.
                let bytes = requested_bytes.next_multiple_of(ROUNDING);
                let sizes = (bytes, Some(requested_bytes));
                self.history.block(LineAction::FreeCompleted, address, sizes, StackRef::NotAsked);
                self.free(PoolSize::of_request(bytes), bytes, requested_bytes);
                self.doubt(Doubt::OlderBlocks);
                self.doubt_neighbours();
            }
        }
    }

    /// Applies a reported free, including the parts that the trace has not shown.
    fn take_back(&mut self, event: &TensorEvent, address: u64, bytes: u64) {
        if self.early.take_if(|early| *early == address).is_some() {
            return;
        }
        if let Some(returning) = self.returning.take().filter(|returning| returning.address == address) {
            if !returning.is_known {
                self.take_back_older(event, bytes, &returning);
            }
        } else if self.give_back(address) {
            if !self.sight.block_frees {
                self.complete(address);
            }
        } else {
            let requested_bytes = bytes;
            self.doubt(Doubt::OlderBlocks);
            let is_completed = !self.sight.block_frees;
            self.take_back_older(event, bytes, &Returning { address, requested_bytes, is_known: false, is_completed });
        }
    }

    /// Counts the free of a block from before the attach.
    fn take_back_older(&mut self, event: &TensorEvent, bytes: u64, returning: &Returning) {
        let pool = PoolSize::of_request(bytes);
        self.give(pool, bytes);
        let (address, sizes) = (returning.address, (bytes, Some(returning.requested_bytes)));
        self.history.block(LineAction::FreeRequested, address, sizes, StackRef::NotAsked);
        if returning.is_completed {
            self.history.block(LineAction::FreeCompleted, address, sizes, StackRef::NotAsked);
            self.free(pool, bytes, returning.requested_bytes);
            self.doubt_neighbours();
        } else {
            let cell = SegmentCell {
                bytes,
                requested_bytes: Some(returning.requested_bytes),
                state: BlockState::Pending,
                stack: StackRef::NotAsked,
                tid: event.tid,
                time_ns: event.time_ns,
            };
            self.memory.linger(address, cell);
        }
    }

    fn split(&mut self, effect: &Effect) {
        self.statistics.change(StatFamily::InactiveSplit, effect.pool, effect.splits);
        self.statistics.change(StatFamily::InactiveSplitBytes, effect.pool, effect.split_bytes);
        if !effect.is_known {
            self.doubt_neighbours();
        }
    }

    /// Counts a grant as cache hit or miss, and returns whether it was a hit.
    fn cached(&mut self, is_traced: bool, is_segment_wanted: Option<bool>) -> Option<bool> {
        let is_fresh = std::mem::take(&mut self.is_fresh);
        if !is_traced && is_segment_wanted.is_none() && self.reported.is_none() {
            return None;
        }
        let hit = !is_segment_wanted.filter(|_| !is_traced).unwrap_or(is_fresh);
        *(if hit { &mut self.hits } else { &mut self.misses }) += 1;
        Some(hit)
    }

    /// Compares the reported totals with those computed from the events, and adopts them.
    fn check(&mut self, now: ReportedTotals) {
        for (family, bytes) in
            [(StatFamily::AllocatedBytes, now.allocated_bytes), (StatFamily::ReservedBytes, now.reserved_bytes)]
        {
            let stat = self.statistics.get_mut(family, StatScope::All);
            if stat.current != signed(bytes) {
                stat.current = signed(bytes);
                stat.peak = stat.peak.max(stat.current);
                if self.base != Base::None {
                    self.out_of_step += u64::from(!self.doubts.contains(&Doubt::EventsLost));
                    self.doubt(Doubt::OutOfStep);
                }
            }
        }
        (self.reported, self.is_reported_last) = (Some(now), true);
        let cached = now.reserved_bytes.saturating_sub(now.allocated_bytes);
        self.peaks.cached_bytes = self.peaks.cached_bytes.max(cached);
    }

    fn is_oversize(&self, bytes: u64) -> bool {
        self.tail.is_some_and(|tail| tail.max_split_size >= 0 && signed(bytes) >= tail.max_split_size)
    }

    pub(super) fn doubt(&mut self, doubt: Doubt) {
        if matches!(doubt, Doubt::EventsLost | Doubt::OutOfStep | Doubt::SegmentsUnseen) {
            self.pools.miss();
        }
        if !self.doubts.contains(&doubt) {
            self.doubts.push(doubt);
        }
    }

    /// Records doubt about neighbours from before the attach, unless all are expandable.
    fn doubt_neighbours(&mut self) {
        let plain = self.memory.segments().values().filter(|segment| !segment.is_expandable).count();
        let segments = self.statistics.get(StatFamily::Segment, StatScope::All).current;
        if self.base == Base::None || i64::try_from(plain) != Ok(segments) {
            self.doubt(Doubt::OlderNeighbours);
        }
    }
}

/// Returns the segment of a trace entry.
fn traced_segment(traced: &Traced, pool: PoolSize) -> AllocatorSegment {
    AllocatorSegment {
        bytes: traced.bytes,
        pool,
        is_expandable: matches!(traced.action, TraceAction::SegmentMap | TraceAction::SegmentUnmap),
        stream: traced.stream,
        private_pool: traced.pool.unwrap_or((0, 0)),
        stack: StackRef::NotAsked,
    }
}

/// Returns the pool of a segment of this size: up to `kSmallBuffer`, 2 MiB, the small pool.
fn segment_pool(bytes: u64) -> PoolSize {
    if bytes <= 2 << 20 { PoolSize::Small } else { PoolSize::Large }
}

pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
