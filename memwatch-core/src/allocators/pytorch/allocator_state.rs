//! Applies readings of an allocator's state from the process's memory: all segments and blocks at
//! one moment, including those from before the attach.

use std::collections::BTreeMap;

use super::device::{Base, DeviceAllocator};
use super::memory::{AllocatorMemory, AllocatorSegment, BlockState, SegmentCell};
use super::pools::PrivatePools;
use super::readout;
use super::statistics::{PoolSize, StatFamily, StatScope};
use super::trust::Doubt;
use crate::allocators::ReportedTotals;
use crate::decode::StackRef;
use crate::input::allocator_state::{DeviceAllocatorState, StateBlock, StateBlockUse, StateSegment};
use crate::words::Tid;

impl DeviceAllocator {
    /// Replaces the state with a reading of this time. No event applied so far is later than it.
    /// Returns whether the reading is plausible.
    pub(super) fn learn_allocator_state(&mut self, allocator_state: &DeviceAllocatorState, time_ns: u64) -> bool {
        let words = allocator_state.words().map(|words| (words, readout::totals(words)));
        let read = words.and_then(|(words, (allocated, reserved))| readout::read(words, allocated, reserved));
        let Some(mut read) = read else {
            self.refused_readouts += 1;
            return false;
        };
        self.keep_own_peaks(&mut read.statistics);
        if read.tail.is_some_and(|tail| tail.pools == Some(0)) {
            self.pools = PrivatePools::new(true);
        }
        let current = |family| u64::try_from(read.statistics.get(family, StatScope::All).current).unwrap_or(0);
        let (allocated_bytes, reserved_bytes) =
            (current(StatFamily::AllocatedBytes), current(StatFamily::ReservedBytes));
        self.forget_course();
        self.memory = AllocatorMemory::of_allocator_state(&allocator_state.segments, &self.memory);
        self.statistics = read.statistics;
        self.tail = read.tail;
        self.base = Base::Read(time_ns);
        self.doubts.clear();
        self.reported = Some(ReportedTotals { allocated_bytes, reserved_bytes, time_ns });
        (self.is_reported_last, self.is_just_read) = (true, true);
        true
    }

    /// Returns whether all blocks are known individually: they add up to the reported total.
    pub fn knows_blocks(&self) -> bool {
        self.reported.is_none_or(|reported| reported.allocated_bytes == self.memory.allocated_bytes())
    }

    /// Adopts those of the blocks that no event mentioned, if all known blocks then add up to the
    /// total. Returns the adopted blocks.
    pub(super) fn adopt_older(&mut self, blocks: &[StateBlock]) -> Vec<StateBlock> {
        let is_unknown = |block: &&StateBlock| !self.memory.has_cell_within(block.address, block.bytes);
        let older: Vec<StateBlock> = blocks.iter().filter(is_unknown).copied().collect();
        let ends = |[before, after]: &[StateBlock; 2]| before.address.saturating_add(before.bytes) <= after.address;
        let older_bytes = older.iter().map(|block| block.bytes).fold(0, u64::saturating_add);
        let all_bytes = self.memory.allocated_bytes().saturating_add(older_bytes);
        let add_up = self.reported.is_some_and(|reported| reported.allocated_bytes == all_bytes);
        if !add_up || !older.array_windows::<2>().all(ends) {
            return Vec::new();
        }
        for block in &older {
            self.memory.add_older(block.address, cell_of(block, None));
        }
        older
    }

    /// Returns whether a reading of the allocator state would add information.
    pub(super) fn wants_allocator_state(&self) -> bool {
        // If the trace shows sizes, only few blocks from before it are unknown.
        self.base == Base::None || self.doubts.iter().any(|doubt| *doubt != Doubt::RoundedOnly || self.sight.trace)
    }

    /// Returns whether all segments are known, from the trace, the observed calls or a reading.
    pub fn knows_segments(&self) -> bool {
        let reserved_bytes = self.statistics.get(StatFamily::ReservedBytes, StatScope::All).current;
        let are_all = u64::try_from(reserved_bytes) == Ok(self.memory.reserved_bytes());
        !self.shows_totals_alone() || (self.base != Base::None && are_all)
    }

    /// Returns the bytes of blocks from before the attach that are known individually.
    pub(super) fn older_bytes(&self) -> u64 {
        let is_older = |cell: &&SegmentCell| cell.state == BlockState::Allocated && cell.time_ns == 0;
        self.memory.cells().values().filter(is_older).map(|cell| cell.bytes).fold(0, u64::saturating_add)
    }
}

impl AllocatorMemory {
    /// Creates the memory from a reading. Known blocks and segments keep their stacks.
    fn of_allocator_state(segments: &[StateSegment], known: &Self) -> Self {
        let cell = |block: &StateBlock| {
            let before = known.cells().get(&block.address).filter(|cell| cell.bytes == block.bytes);
            let is_same = |cell: &&SegmentCell| cell.state == BlockState::Allocated && cell.state == block.state.into();
            cell_of(block, before.filter(is_same))
        };
        let segment = |segment: &StateSegment| {
            let before = known.segments().get(&segment.address).filter(|before| before.bytes == segment.bytes);
            let read = AllocatorSegment {
                bytes: segment.bytes,
                pool: if segment.is_small { PoolSize::Small } else { PoolSize::Large },
                is_expandable: segment.is_expandable,
                stream: segment.stream,
                private_pool: segment.private_pool,
                stack: before.map_or(StackRef::NotAsked, |before| before.stack),
            };
            (segment.address, read)
        };
        let blocks = segments.iter().flat_map(|segment| &segment.blocks);
        let cells: BTreeMap<u64, SegmentCell> = blocks.map(|block| (block.address, cell(block))).collect();
        let idle = segments.iter().filter(|segment| segment.is_pool_idle).map(|segment| segment.private_pool);
        Self::new(segments.iter().map(segment).collect(), cells).with_idle_pools(idle.collect())
    }
}

impl From<StateBlockUse> for BlockState {
    fn from(state: StateBlockUse) -> Self {
        match state {
            StateBlockUse::ActiveAllocated => Self::Allocated,
            StateBlockUse::ActivePendingFree => Self::Pending,
            StateBlockUse::Inactive => Self::Inactive,
        }
    }
}

/// Creates a block from a reading, with the origin of the block known before.
fn cell_of(block: &StateBlock, before: Option<&SegmentCell>) -> SegmentCell {
    SegmentCell {
        bytes: block.bytes,
        requested_bytes: Some(block.requested_bytes),
        state: block.state.into(),
        stack: before.map_or(StackRef::NotAsked, |cell| cell.stack),
        tid: before.map_or(Tid(0), |cell| cell.tid),
        time_ns: before.map_or(0, |cell| cell.time_ns),
    }
}
