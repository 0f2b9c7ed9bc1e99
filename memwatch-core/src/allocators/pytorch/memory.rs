//! Segments and the blocks that tile them, as the allocator manages the driver's memory.
//!
//! Memory from before the attach has no segment here. Its blocks are known from allocation to free.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::statistics::PoolSize;
use crate::decode::StackRef;
use crate::words::Tid;

/// Driver memory: a `cudaMalloc` allocation, or a contiguously mapped part of an expandable
/// segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorSegment {
    /// Size in bytes.
    pub bytes: u64,
    /// Pool of the segment.
    pub pool: PoolSize,
    /// The segment is expandable: it grows and shrinks.
    pub is_expandable: bool,
    /// Stream of the segment.
    pub stream: u64,
    /// Private pool of the segment; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Stack of the allocation that made it necessary.
    pub stack: StackRef,
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockState {
    /// Allocated by the program.
    Allocated,
    /// Freed by the program but still used by a stream.
    Pending,
    /// Free.
    Inactive,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentCell {
    /// Size in bytes.
    pub bytes: u64,
    /// Size in bytes that the program requested; for an inactive block, the last one; `None` if
    /// unknown.
    pub requested_bytes: Option<u64>,
    /// State of the block.
    pub state: BlockState,
    /// Stack of the allocation.
    pub stack: StackRef,
    /// Allocating thread.
    pub tid: Tid,
    /// Time of the allocation: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

impl SegmentCell {
    const fn free(bytes: u64) -> Self {
        Self {
            bytes,
            requested_bytes: Some(0),
            state: BlockState::Inactive,
            stack: StackRef::NotAsked,
            tid: Tid(0),
            time_ns: 0,
        }
    }
}

/// Effect of a grant or a free on the statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The block.
    pub cell: SegmentCell,
    /// Pool of the block.
    pub pool: PoolSize,
    /// Change in the number of inactive split blocks.
    pub splits: i64,
    /// Change in the bytes of inactive split blocks.
    pub split_bytes: i64,
    /// The block is in a segment known from its start, so its neighbours are known.
    pub is_known: bool,
}

/// Memory of one allocator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AllocatorMemory {
    segments: BTreeMap<u64, AllocatorSegment>,
    cells: BTreeMap<u64, SegmentCell>,
    reserved_bytes: u64,
    allocated_bytes: u64,
    /// Private pools known to be unused by any graph or `MemPool`.
    idle_pools: BTreeSet<(u64, u64)>,
}

impl AllocatorMemory {
    /// Creates the memory from segments and the blocks that tile them.
    pub(super) fn new(segments: BTreeMap<u64, AllocatorSegment>, cells: BTreeMap<u64, SegmentCell>) -> Self {
        let reserved_bytes = segments.values().map(|segment| segment.bytes).fold(0, u64::saturating_add);
        let allocated = cells.values().filter(|cell| cell.state == BlockState::Allocated);
        let allocated_bytes = allocated.map(|cell| cell.bytes).fold(0, u64::saturating_add);
        Self { segments, cells, reserved_bytes, allocated_bytes, idle_pools: BTreeSet::new() }
    }

    /// Sets the private pools that no graph and no `MemPool` uses.
    pub(super) fn with_idle_pools(self, idle_pools: BTreeSet<(u64, u64)>) -> Self {
        Self { idle_pools, ..self }
    }

    /// Returns whether `empty_cache` keeps this segment even if it is free, because its private
    /// pool may be in use.
    pub fn is_kept(&self, segment: &AllocatorSegment) -> bool {
        segment.private_pool != (0, 0) && !self.idle_pools.contains(&segment.private_pool)
    }

    /// Returns the known segments by address.
    pub const fn segments(&self) -> &BTreeMap<u64, AllocatorSegment> {
        &self.segments
    }

    /// Returns the known blocks by address.
    pub const fn cells(&self) -> &BTreeMap<u64, SegmentCell> {
        &self.cells
    }

    /// Returns the bytes of the known segments.
    pub const fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Returns the bytes of the known allocated blocks.
    pub const fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// Adds a segment allocated with `cudaMalloc`.
    pub fn add_segment(&mut self, address: u64, segment: AllocatorSegment) {
        self.forget(address, segment.bytes);
        self.drop_cells(address, segment.bytes);
        self.reserved_bytes = self.reserved_bytes.saturating_add(segment.bytes);
        self.segments.insert(address, segment);
        self.cells.insert(address, SegmentCell::free(segment.bytes));
    }

    /// Removes a freed segment; `None` if it was not known.
    pub fn remove_segment(&mut self, address: u64, bytes: u64) -> Option<AllocatorSegment> {
        let known = self.segments.get(&address).copied();
        let all_bytes = known.map_or(bytes, |segment| segment.bytes.max(bytes));
        self.forget(address, all_bytes);
        self.drop_cells(address, all_bytes);
        if let Some(segment) = known.filter(|segment| segment.private_pool != (0, 0)) {
            // Segments of a private pool are freed only if nothing uses the pool.
            self.idle_pools.insert(segment.private_pool);
        }
        known
    }

    /// Maps memory into an expandable segment.
    pub fn map(&mut self, address: u64, mut segment: AllocatorSegment) {
        self.forget(address, segment.bytes);
        self.drop_cells(address, segment.bytes);
        self.reserved_bytes = self.reserved_bytes.saturating_add(segment.bytes);
        let (mut begin, mut cell_begin, mut cell) = (address, address, SegmentCell::free(segment.bytes));
        if let Some((before, lower)) = self.expandable_that_ends_at(address) {
            self.segments.remove(&before);
            (begin, segment) = (before, AllocatorSegment { bytes: lower.bytes.saturating_add(segment.bytes), ..lower });
            if let Some((start, free)) = self.inactive_that_ends_at(address) {
                self.cells.remove(&start);
                (cell_begin, cell.bytes) = (start, cell.bytes.saturating_add(free.bytes));
            }
        }
        let end = begin.saturating_add(segment.bytes);
        if let Some(upper) = self.segments.get(&end).copied().filter(|upper| upper.is_expandable) {
            self.segments.remove(&end);
            segment.bytes = segment.bytes.saturating_add(upper.bytes);
            if let Some(free) = self.cells.get(&end).copied().filter(|cell| cell.state == BlockState::Inactive) {
                self.cells.remove(&end);
                cell.bytes = cell.bytes.saturating_add(free.bytes);
            }
        }
        self.segments.insert(begin, segment);
        self.cells.insert(cell_begin, cell);
    }

    /// Unmaps memory of an expandable segment; `None` if it was not known to be mapped and free.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Option<AllocatorSegment> {
        let end = address.saturating_add(bytes);
        let known = self
            .segment_of(address)
            .filter(|(begin, segment)| segment.is_expandable && end <= begin.saturating_add(segment.bytes));
        let free = self
            .cell_of(address)
            .filter(|(begin, cell)| cell.state == BlockState::Inactive && end <= begin.saturating_add(cell.bytes));
        let (Some((begin, segment)), Some((start, cell))) = (known, free) else {
            self.forget(address, bytes);
            return None;
        };
        self.segments.remove(&begin);
        self.cells.remove(&start);
        self.reserved_bytes = self.reserved_bytes.saturating_sub(bytes);
        let pieces = [(begin, start, address), (end, end, start.saturating_add(cell.bytes))];
        let segment_end = begin.saturating_add(segment.bytes);
        for (index, (part, from, to)) in pieces.into_iter().enumerate() {
            let part_end = if index == 0 { address } else { segment_end };
            if part < part_end {
                self.segments.insert(part, AllocatorSegment { bytes: part_end - part, ..segment });
            }
            if from < to {
                self.cells.insert(from, SegmentCell::free(to - from));
            }
        }
        Some(segment)
    }

    /// Allocates a block: the front of a free one, or one in unknown memory.
    pub fn grant(&mut self, address: u64, cell: SegmentCell) -> Effect {
        self.allocated_bytes = self.allocated_bytes.saturating_add(cell.bytes);
        let fits = |free: &SegmentCell| free.state == BlockState::Inactive && free.bytes >= cell.bytes;
        let place = self.segment_of(address);
        let Some(((begin, segment), free)) = place.zip(self.cells.get(&address).copied().filter(fits)) else {
            self.forget(address, cell.bytes);
            self.drop_cells(address, cell.bytes);
            self.cells.insert(address, cell);
            let pool = PoolSize::of_request(cell.bytes);
            return Effect { cell, pool, splits: 0, split_bytes: 0, is_known: false };
        };
        let was_split = begin != address || free.bytes != segment.bytes;
        self.idle_pools.remove(&segment.private_pool);
        let rest = free.bytes - cell.bytes;
        self.cells.insert(address, cell);
        if rest > 0 {
            self.cells.insert(address + cell.bytes, SegmentCell { bytes: rest, ..free });
        }
        let (splits, split_bytes) = match (segment.is_expandable, was_split, rest > 0) {
            (true, ..) | (false, false, false) => (0, 0),
            (false, true, true) => (0, -signed(cell.bytes)),
            (false, false, true) => (1, signed(rest)),
            (false, true, false) => (-1, -signed(cell.bytes)),
        };
        Effect { cell, pool: segment.pool, splits, split_bytes, is_known: true }
    }

    /// Marks a block freed by the program as pending, since a stream may still use it. `None` if it
    /// is not known to be allocated.
    pub fn give_back(&mut self, address: u64) -> Option<(SegmentCell, PoolSize)> {
        let cell = self.cells.get_mut(&address).filter(|cell| cell.state == BlockState::Allocated)?;
        cell.state = BlockState::Pending;
        let cell = *cell;
        self.allocated_bytes = self.allocated_bytes.saturating_sub(cell.bytes);
        Some((cell, self.pool_of(address, cell.bytes)))
    }

    /// Sets the stack of the segment that was allocated for the block at this address.
    pub fn explain(&mut self, address: u64, stack: StackRef) {
        if let Some((_, segment)) = self.segments.range_mut(..=address).next_back()
            && segment.stack == StackRef::NotAsked
        {
            segment.stack = stack;
        }
    }

    /// Adds a block from before the attach that the program freed and a stream still uses.
    pub fn linger(&mut self, address: u64, cell: SegmentCell) {
        self.forget(address, cell.bytes);
        self.drop_cells(address, cell.bytes);
        self.cells.insert(address, SegmentCell { state: BlockState::Pending, ..cell });
    }

    /// Frees a pending block and merges it with free neighbours; `None` if it is not known to be
    /// pending.
    pub fn complete(&mut self, address: u64) -> Option<Effect> {
        let cell = self.cells.get(&address).copied().filter(|cell| cell.state == BlockState::Pending)?;
        let pool = self.pool_of(address, cell.bytes);
        self.cells.remove(&address);
        let Some((begin, segment)) = self.segment_of(address) else {
            return Some(Effect { cell, pool, splits: 0, split_bytes: 0, is_known: false });
        };
        let (mut start, mut merged, mut splits, mut split_bytes) = (address, cell, 0, 0);
        merged.state = BlockState::Inactive;
        if let Some((before, free)) = self.inactive_that_ends_at(address).filter(|(before, _)| *before >= begin) {
            self.cells.remove(&before);
            (start, merged.bytes) = (before, merged.bytes + free.bytes);
            (splits, split_bytes) = (splits - 1, split_bytes - signed(free.bytes));
        }
        let end = address + cell.bytes;
        let inside = end < begin.saturating_add(segment.bytes);
        if let Some(free) = self.cells.get(&end).copied().filter(|free| inside && free.state == BlockState::Inactive) {
            self.cells.remove(&end);
            merged.bytes += free.bytes;
            (splits, split_bytes) = (splits - 1, split_bytes - signed(free.bytes));
        }
        if merged.bytes != segment.bytes {
            (splits, split_bytes) = (splits + 1, split_bytes + signed(merged.bytes));
        }
        if segment.is_expandable {
            (splits, split_bytes) = (0, 0);
        }
        self.cells.insert(start, merged);
        Some(Effect { cell, pool, splits, split_bytes, is_known: true })
    }

    /// Returns whether a known block overlaps this range.
    pub(super) fn has_cell_within(&self, address: u64, bytes: u64) -> bool {
        self.cell_of(address).is_some() || self.cells.range(address..address.saturating_add(bytes)).next().is_some()
    }

    /// Adds a block that was allocated before the attach.
    pub(super) fn add_older(&mut self, address: u64, cell: SegmentCell) {
        self.allocated_bytes = self.allocated_bytes.saturating_add(cell.bytes);
        self.cells.insert(address, cell);
    }

    /// Returns the segment that contains an address.
    pub fn segment_of(&self, address: u64) -> Option<(u64, AllocatorSegment)> {
        let (&begin, segment) = self.segments.range(..=address).next_back()?;
        (address - begin < segment.bytes).then_some((begin, *segment))
    }

    /// Returns the segments without blocks in use, by address.
    pub fn unused_segments(&self) -> impl Iterator<Item = (u64, AllocatorSegment)> {
        let is_whole = |(begin, segment): &(u64, AllocatorSegment)| {
            self.cells.get(begin).is_some_and(|cell| cell.state == BlockState::Inactive && cell.bytes == segment.bytes)
        };
        self.segments.iter().map(|(begin, segment)| (*begin, *segment)).filter(is_whole)
    }

    /// Forgets segments and free blocks. Blocks in use stay known.
    pub fn forget_segments(&mut self) {
        self.segments.clear();
        self.reserved_bytes = 0;
        self.cells.retain(|_, cell| cell.state != BlockState::Inactive);
    }

    /// Returns the bytes of known blocks that were freed while a stream used them.
    pub fn pending_bytes(&self) -> u64 {
        self.cells
            .values()
            .filter(|cell| cell.state == BlockState::Pending)
            .fold(0, |sum, cell| sum.saturating_add(cell.bytes))
    }

    /// Forgets the pending block at this address, or all pending blocks.
    pub fn forget_pending(&mut self, address: Option<u64>) {
        let is_meant = |at: u64| address.is_none_or(|address| address == at);
        let gone: Vec<(u64, SegmentCell)> = self
            .cells
            .iter()
            .filter(|(at, cell)| cell.state == BlockState::Pending && is_meant(**at))
            .map(|(at, cell)| (*at, *cell))
            .collect();
        for (at, cell) in gone {
            self.forget(at, cell.bytes);
            self.cells.remove(&at);
        }
    }

    fn pool_of(&self, address: u64, bytes: u64) -> PoolSize {
        self.segment_of(address).map_or(PoolSize::of_request(bytes), |(_, segment)| segment.pool)
    }

    fn cell_of(&self, address: u64) -> Option<(u64, SegmentCell)> {
        let (&begin, cell) = self.cells.range(..=address).next_back()?;
        (address - begin < cell.bytes).then_some((begin, *cell))
    }

    fn expandable_that_ends_at(&self, address: u64) -> Option<(u64, AllocatorSegment)> {
        let (&begin, segment) = self.segments.range(..address).next_back()?;
        (segment.is_expandable && address - begin == segment.bytes).then_some((begin, *segment))
    }

    fn inactive_that_ends_at(&self, address: u64) -> Option<(u64, SegmentCell)> {
        let (&begin, cell) = self.cells.range(..address).next_back()?;
        (cell.state == BlockState::Inactive && address - begin == cell.bytes).then_some((begin, *cell))
    }

    /// Forgets segments that overlap this range, since they are not as assumed. Their blocks in use
    /// stay known.
    fn forget(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let before = self.segment_of(address).map(|(begin, _)| begin);
        let inside: Vec<u64> = self.segments.range(address..end).map(|(begin, _)| *begin).chain(before).collect();
        for begin in inside {
            let Some(segment) = self.segments.remove(&begin) else { continue };
            self.reserved_bytes = self.reserved_bytes.saturating_sub(segment.bytes);
            let segment_end = begin.saturating_add(segment.bytes);
            let free: Vec<u64> = self
                .cells
                .range(begin..segment_end)
                .filter(|(_, cell)| cell.state == BlockState::Inactive)
                .map(|(address, _)| *address)
                .collect();
            for address in free {
                self.cells.remove(&address);
            }
        }
    }

    /// Removes the blocks that overlap this range.
    fn drop_cells(&mut self, address: u64, bytes: u64) {
        let end = address.saturating_add(bytes);
        let before = self.cell_of(address).map(|(begin, _)| begin);
        let inside: Vec<u64> = self.cells.range(address..end).map(|(begin, _)| *begin).chain(before).collect();
        for begin in inside {
            if let Some(cell) = self.cells.remove(&begin).filter(|cell| cell.state == BlockState::Allocated) {
                self.allocated_bytes = self.allocated_bytes.saturating_sub(cell.bytes);
            }
        }
    }
}

/// Returns the pool from which this size of an expandable segment was unmapped, certainly or
/// probably. Pages are 2 MiB in the small pool and 20 MiB (`kLargeBuffer`) in the large one.
pub(super) fn unmapped_pool(bytes: u64) -> PoolSize {
    if bytes.is_multiple_of(20 << 20) { PoolSize::Large } else { PoolSize::Small }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
