//! Segments and the blocks that tile them: what the allocator does with the driver's memory.
//!
//! Memory that was there before the watch has no segment here; blocks in it are known from when they are granted until they are freed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::statistics::PoolSize;
use crate::decode::StackRef;
use crate::words::Tid;

/// A piece of memory of the driver: of one `cudaMalloc`, or what is mapped without a gap in an expandable segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// Its size in bytes.
    pub bytes: u64,
    /// The pool that it is in.
    pub pool: PoolSize,
    /// It grows and shrinks.
    pub is_expandable: bool,
    /// The stream it is for.
    pub stream: u64,
    /// The private pool it is for; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Where in the program it became necessary.
    pub stack: StackRef,
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BlockState {
    /// The program has it.
    Allocated,
    /// The program has given it back, and a stream uses it still.
    Pending,
    /// Nothing.
    Inactive,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cell {
    /// Its size in bytes.
    pub bytes: u64,
    /// As the program asked for it, in bytes; of an inactive block what was asked for last; `None` where that is not known.
    pub requested_bytes: Option<u64>,
    /// What it is used for.
    pub state: BlockState,
    /// Where in the program it was granted.
    pub stack: StackRef,
    /// To which thread.
    pub tid: Tid,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

impl Cell {
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

/// What a grant or a free did besides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effect {
    /// The block.
    pub cell: Cell,
    /// Its pool.
    pub pool: PoolSize,
    /// Inactive split blocks more or less.
    pub splits: i64,
    /// Their bytes.
    pub split_bytes: i64,
    /// The block lies in a segment seen from its beginning, so that what is beside it is known.
    pub is_known: bool,
}

/// The memory of one allocator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Memory {
    segments: BTreeMap<u64, Segment>,
    cells: BTreeMap<u64, Cell>,
    reserved_bytes: u64,
    allocated_bytes: u64,
    /// Private pools of which it is known that no graph and no `MemPool` uses them any more.
    idle_pools: BTreeSet<(u64, u64)>,
}

impl Memory {
    /// These segments, tiled by these blocks.
    pub(super) fn new(segments: BTreeMap<u64, Segment>, cells: BTreeMap<u64, Cell>) -> Self {
        let reserved_bytes = segments.values().map(|segment| segment.bytes).fold(0, u64::saturating_add);
        let allocated = cells.values().filter(|cell| cell.state == BlockState::Allocated);
        let allocated_bytes = allocated.map(|cell| cell.bytes).fold(0, u64::saturating_add);
        Self { segments, cells, reserved_bytes, allocated_bytes, idle_pools: BTreeSet::new() }
    }

    /// No graph and no `MemPool` uses these private pools any more.
    pub(super) fn with_idle_pools(self, idle_pools: BTreeSet<(u64, u64)>) -> Self {
        Self { idle_pools, ..self }
    }

    /// Whether `empty_cache` leaves this segment alone, however much of it is free: its private pool is in use, as far as is known.
    pub fn is_kept(&self, segment: &Segment) -> bool {
        segment.private_pool != (0, 0) && !self.idle_pools.contains(&segment.private_pool)
    }

    /// The segments known, by address.
    pub const fn segments(&self) -> &BTreeMap<u64, Segment> {
        &self.segments
    }

    /// The blocks known, by address.
    pub const fn cells(&self) -> &BTreeMap<u64, Cell> {
        &self.cells
    }

    /// Bytes of the segments known.
    pub const fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Bytes of the blocks known that the program has.
    pub const fn allocated_bytes(&self) -> u64 {
        self.allocated_bytes
    }

    /// A segment of one `cudaMalloc`.
    pub fn add_segment(&mut self, address: u64, segment: Segment) {
        self.forget(address, segment.bytes);
        self.drop_cells(address, segment.bytes);
        self.reserved_bytes = self.reserved_bytes.saturating_add(segment.bytes);
        self.segments.insert(address, segment);
        self.cells.insert(address, Cell::free(segment.bytes));
    }

    /// It is given back; `None` where it was not known.
    pub fn remove_segment(&mut self, address: u64, bytes: u64) -> Option<Segment> {
        let known = self.segments.get(&address).copied();
        let all_bytes = known.map_or(bytes, |segment| segment.bytes.max(bytes));
        self.forget(address, all_bytes);
        self.drop_cells(address, all_bytes);
        if let Some(segment) = known.filter(|segment| segment.private_pool != (0, 0)) {
            // Only of a pool that nothing uses any more do segments go back.
            self.idle_pools.insert(segment.private_pool);
        }
        known
    }

    /// Memory is mapped into an expandable segment.
    pub fn map(&mut self, address: u64, mut segment: Segment) {
        self.forget(address, segment.bytes);
        self.drop_cells(address, segment.bytes);
        self.reserved_bytes = self.reserved_bytes.saturating_add(segment.bytes);
        let (mut begin, mut cell_begin, mut cell) = (address, address, Cell::free(segment.bytes));
        if let Some((before, lower)) = self.expandable_that_ends_at(address) {
            self.segments.remove(&before);
            (begin, segment) = (before, Segment { bytes: lower.bytes.saturating_add(segment.bytes), ..lower });
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

    /// Memory of an expandable segment is unmapped; `None` where it was not known to be mapped and free.
    pub fn unmap(&mut self, address: u64, bytes: u64) -> Option<Segment> {
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
                self.segments.insert(part, Segment { bytes: part_end - part, ..segment });
            }
            if from < to {
                self.cells.insert(from, Cell::free(to - from));
            }
        }
        Some(segment)
    }

    /// A block is granted: the front of a free one, or one in memory that was there before.
    pub fn grant(&mut self, address: u64, cell: Cell) -> Effect {
        self.allocated_bytes = self.allocated_bytes.saturating_add(cell.bytes);
        let fits = |free: &Cell| free.state == BlockState::Inactive && free.bytes >= cell.bytes;
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
            self.cells.insert(address + cell.bytes, Cell { bytes: rest, ..free });
        }
        let (splits, split_bytes) = match (segment.is_expandable, was_split, rest > 0) {
            (true, ..) | (false, false, false) => (0, 0),
            (false, true, true) => (0, -signed(cell.bytes)),
            (false, false, true) => (1, signed(rest)),
            (false, true, false) => (-1, -signed(cell.bytes)),
        };
        Effect { cell, pool: segment.pool, splits, split_bytes, is_known: true }
    }

    /// The program gives a block back; a stream may use it still. `None` where the program is not known to have it.
    pub fn give_back(&mut self, address: u64) -> Option<(Cell, PoolSize)> {
        let cell = self.cells.get_mut(&address).filter(|cell| cell.state == BlockState::Allocated)?;
        cell.state = BlockState::Pending;
        let cell = *cell;
        self.allocated_bytes = self.allocated_bytes.saturating_sub(cell.bytes);
        Some((cell, self.pool_of(address, cell.bytes)))
    }

    /// A segment that became necessary for the block that is granted there has its stack.
    pub fn explain(&mut self, address: u64, stack: StackRef) {
        if let Some((_, segment)) = self.segments.range_mut(..=address).next_back()
            && segment.stack == StackRef::NotAsked
        {
            segment.stack = stack;
        }
    }

    /// A block that was there before the watch is given back, and a stream uses it still.
    pub fn linger(&mut self, address: u64, cell: Cell) {
        self.forget(address, cell.bytes);
        self.drop_cells(address, cell.bytes);
        self.cells.insert(address, Cell { state: BlockState::Pending, ..cell });
    }

    /// No stream uses the block any more: it goes together with free neighbours. `None` where it is not known to be pending.
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

    /// Whether a block that is known lies at these addresses, or on some of them.
    pub(super) fn has_cell_within(&self, address: u64, bytes: u64) -> bool {
        self.cell_of(address).is_some() || self.cells.range(address..address.saturating_add(bytes)).next().is_some()
    }

    /// A block that the program has had since before the watch.
    pub(super) fn add_older(&mut self, address: u64, cell: Cell) {
        self.allocated_bytes = self.allocated_bytes.saturating_add(cell.bytes);
        self.cells.insert(address, cell);
    }

    /// The segment around an address.
    pub fn segment_of(&self, address: u64) -> Option<(u64, Segment)> {
        let (&begin, segment) = self.segments.range(..=address).next_back()?;
        (address - begin < segment.bytes).then_some((begin, *segment))
    }

    /// Segments that nothing of is in use, by address.
    pub fn unused_segments(&self) -> impl Iterator<Item = (u64, Segment)> {
        let is_whole = |(begin, segment): &(u64, Segment)| {
            self.cells.get(begin).is_some_and(|cell| cell.state == BlockState::Inactive && cell.bytes == segment.bytes)
        };
        self.segments.iter().map(|(begin, segment)| (*begin, *segment)).filter(is_whole)
    }

    /// Nothing is known any more of what is beside what; the blocks that are in use stay known.
    pub fn forget_segments(&mut self) {
        self.segments.clear();
        self.reserved_bytes = 0;
        self.cells.retain(|_, cell| cell.state != BlockState::Inactive);
    }

    /// Bytes of the blocks known that were given back while a stream used them.
    pub fn pending_bytes(&self) -> u64 {
        self.cells
            .values()
            .filter(|cell| cell.state == BlockState::Pending)
            .fold(0, |sum, cell| sum.saturating_add(cell.bytes))
    }

    /// It is not known any more that a block was given back while a stream used it: the one at this address, or all of them.
    pub fn forget_pending(&mut self, address: Option<u64>) {
        let is_meant = |at: u64| address.is_none_or(|address| address == at);
        let gone: Vec<(u64, Cell)> = self
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

    fn cell_of(&self, address: u64) -> Option<(u64, Cell)> {
        let (&begin, cell) = self.cells.range(..=address).next_back()?;
        (address - begin < cell.bytes).then_some((begin, *cell))
    }

    fn expandable_that_ends_at(&self, address: u64) -> Option<(u64, Segment)> {
        let (&begin, segment) = self.segments.range(..address).next_back()?;
        (segment.is_expandable && address - begin == segment.bytes).then_some((begin, *segment))
    }

    fn inactive_that_ends_at(&self, address: u64) -> Option<(u64, Cell)> {
        let (&begin, cell) = self.cells.range(..address).next_back()?;
        (cell.state == BlockState::Inactive && address - begin == cell.bytes).then_some((begin, *cell))
    }

    /// Segments in this range are not as they were thought to be: what of them the program has stays known, the rest does not.
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

    /// Blocks in this range are no more.
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

/// The pool that so much of an expandable segment was surely, or probably, unmapped from: it is made of pages of 2 MiB in the small pool, and of
/// `kLargeBuffer`, 20 MiB, in the large one.
pub(super) fn unmapped_pool(bytes: u64) -> PoolSize {
    if bytes.is_multiple_of(20 << 20) { PoolSize::Large } else { PoolSize::Small }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
