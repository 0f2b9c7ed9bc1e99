//! Fragmentation of a caching allocator's memory: free bytes that a request can use, and free bytes
//! split by blocks in use.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::driver::DriverShapes;
use super::pins::{PinnedMemory, pins, unit_bytes};
use crate::allocators::TensorLedger;
use crate::allocators::pytorch::{AllocatorMemory, AllocatorSegment, BlockState, PoolSize};
use crate::attribution::process::Process;
use crate::words::{Ordinal, Tgid};

/// Maximum number of moments kept per allocator; beyond it every second one is dropped.
const KEPT: usize = 256;

/// Sums over the segments of one kind, in bytes and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentationShape {
    /// Number of segments; of expandable segments, number of contiguous mapped pieces.
    pub segments: u64,
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
    /// Bytes allocated by the program.
    pub allocated_bytes: u64,
    /// Bytes freed by the program that a stream still uses.
    pub pending_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Number of free blocks.
    pub free_blocks: u64,
    /// Size of the largest free block.
    pub largest_free_bytes: u64,
    /// Free bytes beside blocks in use, which cannot be released: `inactive_split_bytes`, and in
    /// expandable segments the free bytes outside of whole free pages.
    pub split_bytes: u64,
    /// Number of blocks with such bytes.
    pub split_blocks: u64,
    /// Bytes that `empty_cache` releases: wholly free segments and whole free pages of expandable
    /// segments, except in private pools in use.
    pub unused_segment_bytes: u64,
    /// Free bytes in private pools that `empty_cache` does not release; only the CUDA graph or
    /// `MemPool` can use them.
    #[serde(default)]
    pub stranded_bytes: u64,
    /// Reserved bytes in expandable segments.
    pub expandable_bytes: u64,
    /// Addresses without memory between mapped pieces of expandable segments.
    pub hole_bytes: u64,
}

impl FragmentationShape {
    /// Returns the sum of two shapes.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            segments: self.segments + other.segments,
            reserved_bytes: self.reserved_bytes + other.reserved_bytes,
            allocated_bytes: self.allocated_bytes + other.allocated_bytes,
            pending_bytes: self.pending_bytes + other.pending_bytes,
            free_bytes: self.free_bytes + other.free_bytes,
            free_blocks: self.free_blocks + other.free_blocks,
            largest_free_bytes: self.largest_free_bytes.max(other.largest_free_bytes),
            split_bytes: self.split_bytes + other.split_bytes,
            split_blocks: self.split_blocks + other.split_blocks,
            unused_segment_bytes: self.unused_segment_bytes + other.unused_segment_bytes,
            stranded_bytes: self.stranded_bytes + other.stranded_bytes,
            expandable_bytes: self.expandable_bytes + other.expandable_bytes,
            hole_bytes: self.hole_bytes + other.hole_bytes,
        }
    }

    /// Returns the free bytes beside blocks in use outside of private pools: later requests on the
    /// same stream can use them, and `empty_cache` does not release them. Together with
    /// `unused_segment_bytes` and `stranded_bytes` these are all free bytes.
    pub const fn reusable_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.unused_segment_bytes).saturating_sub(self.stranded_bytes)
    }

    /// Adds a segment with its blocks, each as its offset within the segment, its size and its
    /// state.
    pub(super) fn add(
        &mut self,
        (segment, is_kept): (&AllocatorSegment, bool),
        blocks: impl Iterator<Item = (u64, u64, BlockState)>,
    ) {
        self.segments += 1;
        self.reserved_bytes += segment.bytes;
        self.expandable_bytes += if segment.is_expandable { segment.bytes } else { 0 };
        let unit_bytes = unit_bytes(segment).max(1);
        for (begin, bytes, state) in blocks {
            match state {
                BlockState::Allocated => self.allocated_bytes += bytes,
                BlockState::Pending => self.pending_bytes += bytes,
                BlockState::Inactive => {
                    self.free_bytes += bytes;
                    self.free_blocks += 1;
                    self.largest_free_bytes = self.largest_free_bytes.max(bytes);
                    let (first, end) = (begin.div_ceil(unit_bytes), (begin + bytes) / unit_bytes);
                    let whole_bytes = end.saturating_sub(first) * unit_bytes;
                    let released_bytes = if is_kept { 0 } else { whole_bytes };
                    self.unused_segment_bytes += released_bytes;
                    if segment.private_pool != (0, 0) {
                        self.stranded_bytes += bytes - released_bytes;
                    }
                    self.split_bytes += bytes - whole_bytes;
                    self.split_blocks += u64::from(whole_bytes < bytes);
                }
            }
        }
    }
}

/// Returns the shapes of the small and of the large segments.
pub fn shapes(memory: &AllocatorMemory) -> [FragmentationShape; 2] {
    shapes_of(memory, |_| true)
}

/// Returns the shapes of the small and of the large segments outside of private pools.
pub fn usual_shapes(memory: &AllocatorMemory) -> [FragmentationShape; 2] {
    shapes_of(memory, |segment| segment.private_pool == (0, 0))
}

fn shapes_of(memory: &AllocatorMemory, is_meant: impl Fn(&AllocatorSegment) -> bool) -> [FragmentationShape; 2] {
    let mut shapes = [FragmentationShape::default(); 2];
    let mut ends: BTreeMap<(u64, (u64, u64), PoolSize), u64> = BTreeMap::new();
    for (begin, segment) in memory.segments().iter().filter(|(_, segment)| is_meant(segment)) {
        let shape = &mut shapes[usize::from(segment.pool == PoolSize::Large)];
        let end = begin.saturating_add(segment.bytes);
        let cells = memory.cells().range(*begin..end);
        let segment_and_kept = (segment, memory.is_kept(segment));
        shape.add(segment_and_kept, cells.map(|(address, cell)| (address - begin, cell.bytes, cell.state)));
        if segment.is_expandable {
            // Each stream and pool has one expandable segment, which is recorded in pieces.
            let before = ends.insert((segment.stream, segment.private_pool, segment.pool), end);
            shape.hole_bytes += before.map_or(0, |before| begin.saturating_sub(before));
        }
    }
    shapes
}

/// Returns the bytes that go back to the driver when the cache is emptied.
pub fn releasable_bytes(memory: &AllocatorMemory) -> u64 {
    let [small, large] = shapes(memory);
    small.and(large).unused_segment_bytes
}

/// Shape of an allocator's memory at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FragmentationMoment {
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    pub time_ns: u64,
    /// Sum of the small and the large pool.
    pub shape: FragmentationShape,
}

/// The most fragmented moment: most free memory that cannot be released.
#[derive(Clone, Debug)]
pub struct WorstMoment {
    /// The moment.
    pub moment: FragmentationMoment,
    /// Memory map at that moment.
    pub memory: AllocatorMemory,
    /// Owners of the blocks that pinned the free memory at that moment.
    pub pins: PinnedMemory,
}

/// Moments of one allocator, oldest first.
#[derive(Clone, Debug)]
pub struct Moments {
    kept: Vec<FragmentationMoment>,
    /// One of this many moments is kept.
    every: u64,
    seen: u64,
    worst: Option<WorstMoment>,
    /// Free bytes when the layout was last examined at a driver request.
    free_bytes: u64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { kept: Vec::new(), every: 1, seen: 0, worst: None, free_bytes: 0 }
    }
}

impl Moments {
    /// Returns the kept moments.
    pub fn kept(&self) -> &[FragmentationMoment] {
        &self.kept
    }

    /// Returns the most fragmented moment.
    pub const fn worst(&self) -> Option<&WorstMoment> {
        self.worst.as_ref()
    }

    /// Records a moment only if it is the worst so far: most free bytes that `empty_cache` does not
    /// release.
    fn look(&mut self, moment: FragmentationMoment, memory: &AllocatorMemory, pins: impl FnOnce() -> PinnedMemory) {
        let kept = |shape: &FragmentationShape| shape.free_bytes.saturating_sub(shape.unused_segment_bytes);
        let rank = |moment: &FragmentationMoment| (kept(&moment.shape), moment.shape.reserved_bytes);
        if self.worst.as_ref().is_none_or(|worst| rank(&moment) > rank(&worst.moment)) {
            self.worst = Some(WorstMoment { moment, memory: memory.clone(), pins: pins() });
        }
    }

    fn push(&mut self, moment: FragmentationMoment, memory: &AllocatorMemory, pins: impl FnOnce() -> PinnedMemory) {
        self.look(moment, memory, pins);
        if self.seen.is_multiple_of(self.every) {
            self.kept.push(moment);
        }
        self.seen += 1;
        if self.kept.len() >= KEPT {
            let mut is_kept = false;
            self.kept.retain(|_| {
                is_kept = !is_kept;
                is_kept
            });
            self.every *= 2;
        }
    }
}

/// Key of an allocator: the process, its start of observation, and its number of the device.
pub type AllocatorKey = (Tgid, u64, Ordinal);

/// Returns the owners of the blocks that pin free memory of a device now.
pub fn pinned(tensors: &TensorLedger, ordinal: Ordinal, memory: &AllocatorMemory) -> PinnedMemory {
    pins(memory, |address| tensors.attribution().live(ordinal, address).map(|block| block.whose))
}

/// Fragmentation of all allocators over time.
#[derive(Clone, Debug, Default)]
pub struct Fragments {
    series: BTreeMap<AllocatorKey, Moments>,
    /// Shapes of memory allocated from the driver directly.
    pub drivers: DriverShapes,
}

impl Fragments {
    /// Adds a moment for each allocator of the process.
    pub fn observe(&mut self, process: &Process, now_ns: u64) {
        let Some(tensors) = process.current_tensors() else { return };
        for (ordinal, allocator) in tensors.allocators() {
            let [small, large] = shapes(allocator.memory());
            let whose = (process.tgid, process.observed_since_ns, *ordinal);
            let moment = FragmentationMoment { time_ns: now_ns, shape: small.and(large) };
            let memory = allocator.memory();
            self.series.entry(whose).or_default().push(moment, memory, || pinned(tensors, *ordinal, memory));
        }
    }

    /// Called when an allocator requests memory from the driver or releases some: its free memory
    /// was of no use for the request. Examines the layout only if the free bytes have grown by more
    /// than a sixteenth since the last time, which keeps the overhead negligible.
    pub fn look(&mut self, process: &Process, now_ns: u64) {
        let Some(tensors) = process.current_tensors() else { return };
        for (ordinal, allocator) in tensors.allocators() {
            let memory = allocator.memory();
            let free_bytes = memory.reserved_bytes().saturating_sub(memory.allocated_bytes());
            let moments = self.series.entry((process.tgid, process.observed_since_ns, *ordinal)).or_default();
            if free_bytes > moments.free_bytes.saturating_add(moments.free_bytes / 16) {
                moments.free_bytes = free_bytes;
                let [small, large] = shapes(memory);
                let moment = FragmentationMoment { time_ns: now_ns, shape: small.and(large) };
                moments.look(moment, memory, || pinned(tensors, *ordinal, memory));
            }
        }
    }

    /// Returns the moments of an allocator.
    pub fn moments(&self, whose: &AllocatorKey) -> Option<&Moments> {
        self.series.get(whose)
    }
}

#[cfg(test)]
mod tests {
    use super::{FragmentationMoment, FragmentationShape, KEPT, Moments, PinnedMemory, shapes};
    use crate::allocators::pytorch::{AllocatorMemory, AllocatorSegment, BlockState, PoolSize, SegmentCell};
    use crate::decode::StackRef;
    use crate::words::Tid;

    const MIB: u64 = 1 << 20;

    fn segment(bytes: u64, is_expandable: bool) -> AllocatorSegment {
        let (pool, stack) = (PoolSize::Large, StackRef::NotAsked);
        AllocatorSegment { bytes, pool, is_expandable, stream: 0, private_pool: (0, 0), stack }
    }

    fn block(bytes: u64) -> SegmentCell {
        let (state, stack) = (BlockState::Allocated, StackRef::NotAsked);
        SegmentCell { bytes, requested_bytes: Some(bytes), state, stack, tid: Tid(1), time_ns: 0 }
    }

    #[test]
    fn fragmentation_splits_free_memory_into_unused_segments_and_gaps() {
        let mut memory = AllocatorMemory::default();
        memory.add_segment(0, segment(20 * MIB, false));
        memory.add_segment(40 * MIB, segment(30 * MIB, false));
        memory.grant(0, block(9 * MIB));
        memory.grant(9 * MIB, block(9 * MIB));
        memory.give_back(0);
        memory.complete(0);
        let [small, large] = shapes(&memory);
        assert_eq!(small, FragmentationShape::default());
        let of = FragmentationShape {
            segments: 2,
            reserved_bytes: 50 * MIB,
            allocated_bytes: 9 * MIB,
            free_bytes: 41 * MIB,
            free_blocks: 3,
            largest_free_bytes: 30 * MIB,
            split_bytes: 11 * MIB,
            split_blocks: 2,
            unused_segment_bytes: 30 * MIB,
            ..FragmentationShape::default()
        };
        assert_eq!(large, of);
    }

    #[test]
    fn holes_are_addresses_between_the_pieces_of_one_segment() {
        let mut memory = AllocatorMemory::default();
        memory.map(0, segment(20 * MIB, true));
        memory.map(60 * MIB, segment(20 * MIB, true));
        memory.map(1 << 40, AllocatorSegment { stream: 7, ..segment(20 * MIB, true) });
        let [_, large] = shapes(&memory);
        assert_eq!((large.hole_bytes, large.expandable_bytes, large.segments), (40 * MIB, 60 * MIB, 3));
    }

    #[test]
    fn fragmentation_of_an_expandable_segment_frees_whole_pages() {
        let mut memory = AllocatorMemory::default();
        memory.map(0, segment(80 * MIB, true));
        memory.grant(0, block(25 * MIB));
        memory.grant(25 * MIB, block(5 * MIB));
        memory.give_back(0);
        memory.complete(0);
        let [_, large] = shapes(&memory);
        // Free are 0 to 25 MiB and 30 to 80 MiB: the pages of 20 MiB at 0, 40 and 60 are released.
        let lies = (large.unused_segment_bytes, large.split_bytes, large.split_blocks);
        assert_eq!(lies, (60 * MIB, 15 * MIB, 2));
    }

    #[test]
    fn a_long_watch_keeps_few_moments_and_the_worst_of_all() {
        let mut moments = Moments::default();
        for time_ns in 0..10_000 {
            let free_bytes = if time_ns == 777 { 9 } else { 1 };
            let moment = FragmentationMoment {
                time_ns,
                shape: FragmentationShape { free_bytes, ..FragmentationShape::default() },
            };
            moments.push(moment, &AllocatorMemory::default(), PinnedMemory::default);
        }
        assert!((KEPT / 4..KEPT).contains(&moments.kept().len()));
        assert_eq!(moments.worst().map(|worst| worst.moment.time_ns), Some(777));
        let times: Vec<u64> = moments.kept().iter().map(|moment| moment.time_ns).collect();
        let apart = times[1] - times[0];
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == apart), "{times:?}");
    }
}
