//! How the free memory of a caching allocator lies: what of it a request could have, and what only joins once its neighbours are freed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::driver::DriverShapes;
use super::pins::{Pins, pins, unit_bytes};
use crate::allocators::TensorLedger;
use crate::allocators::pytorch::{BlockState, Memory, PoolSize, Segment};
use crate::attribution::process::Process;
use crate::words::{Ordinal, Tgid};

/// So many moments are kept of one allocator; of more, every second goes.
const KEPT: usize = 256;

/// How memory lies in the segments of one kind, in bytes and numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Segments; of the ones that grow, pieces without a gap.
    pub segments: u64,
    /// What they have of the driver.
    pub reserved_bytes: u64,
    /// What the program has of that.
    pub allocated_bytes: u64,
    /// What it has given back and a stream uses still.
    pub pending_bytes: u64,
    /// What lies free.
    pub free_bytes: u64,
    /// In so many blocks.
    pub free_blocks: u64,
    /// The largest of them.
    pub largest_free_bytes: u64,
    /// Free beside blocks in use, so that it cannot go back: `inactive_split_bytes`, and of segments that grow what is in no whole page.
    pub split_bytes: u64,
    /// In so many blocks.
    pub split_blocks: u64,
    /// Free in segments of which nothing is used, and in whole pages of the ones that grow, but for private pools in use: what `empty_cache` gives back.
    pub unused_segment_bytes: u64,
    /// Free in private pools, and not given back by `empty_cache`: only the CUDA graph or `MemPool` gets it.
    #[serde(default)]
    pub stranded_bytes: u64,
    /// What of it is in segments that grow.
    pub expandable_bytes: u64,
    /// Addresses without memory between mapped pieces of segments that grow.
    pub hole_bytes: u64,
}

impl Shape {
    /// Both together.
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

    /// Free beside blocks in use, in no private pool: what the next requests on the same stream can have, and `empty_cache` does not give back. With the
    /// other two this is all that is free.
    pub const fn reusable_bytes(&self) -> u64 {
        self.free_bytes.saturating_sub(self.unused_segment_bytes).saturating_sub(self.stranded_bytes)
    }

    /// Blocks are determined by where they begin within the segment, and their size.
    pub(super) fn add(
        &mut self,
        (segment, is_kept): (&Segment, bool),
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

/// How the memory lies: segments of the small pool, and of the large one.
pub fn shapes(memory: &Memory) -> [Shape; 2] {
    shapes_of(memory, |_| true)
}

/// The same of what is in no private pool.
pub fn usual_shapes(memory: &Memory) -> [Shape; 2] {
    shapes_of(memory, |segment| segment.private_pool == (0, 0))
}

fn shapes_of(memory: &Memory, is_meant: impl Fn(&Segment) -> bool) -> [Shape; 2] {
    let mut shapes = [Shape::default(); 2];
    let mut ends: BTreeMap<(u64, (u64, u64), PoolSize), u64> = BTreeMap::new();
    for (begin, segment) in memory.segments().iter().filter(|(_, segment)| is_meant(segment)) {
        let shape = &mut shapes[usize::from(segment.pool == PoolSize::Large)];
        let end = begin.saturating_add(segment.bytes);
        let cells = memory.cells().range(*begin..end);
        let segment_and_kept = (segment, memory.is_kept(segment));
        shape.add(segment_and_kept, cells.map(|(address, cell)| (address - begin, cell.bytes, cell.state)));
        if segment.is_expandable {
            // One for each stream and pool, in pieces.
            let before = ends.insert((segment.stream, segment.private_pool, segment.pool), end);
            shape.hole_bytes += before.map_or(0, |before| begin.saturating_sub(before));
        }
    }
    shapes
}

/// What goes back to the driver when the cache is emptied, in bytes.
pub fn releasable_bytes(memory: &Memory) -> u64 {
    let [small, large] = shapes(memory);
    small.and(large).unused_segment_bytes
}

/// How it lay at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Small and large pools together.
    pub shape: Shape,
}

/// The moment with most memory in pieces between blocks in use.
#[derive(Clone, Debug)]
pub struct Worst {
    /// The moment.
    pub moment: Moment,
    /// How it lay then.
    pub memory: Memory,
    /// And whose blocks held it together.
    pub pins: Pins,
}

/// Moments of one allocator, oldest first.
#[derive(Clone, Debug)]
pub struct Moments {
    kept: Vec<Moment>,
    /// Of so many moments one is kept.
    every: u64,
    seen: u64,
    worst: Option<Worst>,
    /// What lay free when the driver was asked for more and it was looked at how it lies, in bytes.
    free_bytes: u64,
}

impl Default for Moments {
    fn default() -> Self {
        Self { kept: Vec::new(), every: 1, seen: 0, worst: None, free_bytes: 0 }
    }
}

impl Moments {
    /// The ones that are kept.
    pub fn kept(&self) -> &[Moment] {
        &self.kept
    }

    /// The worst of all.
    pub const fn worst(&self) -> Option<&Worst> {
        self.worst.as_ref()
    }

    /// A moment that is kept only where it is the worst: most is free that `empty_cache` does not give back.
    fn look(&mut self, moment: Moment, memory: &Memory, pins: impl FnOnce() -> Pins) {
        let kept = |shape: &Shape| shape.free_bytes.saturating_sub(shape.unused_segment_bytes);
        let rank = |moment: &Moment| (kept(&moment.shape), moment.shape.reserved_bytes);
        if self.worst.as_ref().is_none_or(|worst| rank(&moment) > rank(&worst.moment)) {
            self.worst = Some(Worst { moment, memory: memory.clone(), pins: pins() });
        }
    }

    fn push(&mut self, moment: Moment, memory: &Memory, pins: impl FnOnce() -> Pins) {
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

/// Whose allocator: a process, since when it is watched, and its number of the device.
pub type Whose = (Tgid, u64, Ordinal);

/// Whose blocks of a device hold its free memory together now.
pub fn pinned(tensors: &TensorLedger, ordinal: Ordinal, memory: &Memory) -> Pins {
    pins(memory, |address| tensors.places().live(ordinal, address).map(|block| block.whose))
}

/// How the memory of all allocators has lain.
#[derive(Clone, Debug, Default)]
pub struct Fragments {
    series: BTreeMap<Whose, Moments>,
    /// And what is had of the driver itself.
    pub drivers: DriverShapes,
}

impl Fragments {
    /// Takes in how it lies now.
    pub fn observe(&mut self, process: &Process, now_ns: u64) {
        let Some(tensors) = process.current_tensors() else { return };
        for (ordinal, allocator) in tensors.allocators() {
            let [small, large] = shapes(allocator.memory());
            let whose = (process.tgid, process.observed_since_ns, *ordinal);
            let moment = Moment { time_ns: now_ns, shape: small.and(large) };
            let memory = allocator.memory();
            self.series.entry(whose).or_default().push(moment, memory, || pinned(tensors, *ordinal, memory));
        }
    }

    /// An allocator asks the driver, or gives back to it: what lies free now was of no use. It is looked at only where that is more than before
    /// by a sixteenth, so that it costs nothing to speak of.
    pub fn look(&mut self, process: &Process, now_ns: u64) {
        let Some(tensors) = process.current_tensors() else { return };
        for (ordinal, allocator) in tensors.allocators() {
            let memory = allocator.memory();
            let free_bytes = memory.reserved_bytes().saturating_sub(memory.allocated_bytes());
            let moments = self.series.entry((process.tgid, process.observed_since_ns, *ordinal)).or_default();
            if free_bytes > moments.free_bytes.saturating_add(moments.free_bytes / 16) {
                moments.free_bytes = free_bytes;
                let [small, large] = shapes(memory);
                let moment = Moment { time_ns: now_ns, shape: small.and(large) };
                moments.look(moment, memory, || pinned(tensors, *ordinal, memory));
            }
        }
    }

    /// How it has lain.
    pub fn moments(&self, whose: &Whose) -> Option<&Moments> {
        self.series.get(whose)
    }
}

#[cfg(test)]
mod tests {
    use super::{KEPT, Moment, Moments, Pins, Shape, shapes};
    use crate::allocators::pytorch::{BlockState, Cell, Memory, PoolSize, Segment};
    use crate::decode::StackRef;
    use crate::words::Tid;

    const MIB: u64 = 1 << 20;

    fn segment(bytes: u64, is_expandable: bool) -> Segment {
        let (pool, stack) = (PoolSize::Large, StackRef::NotAsked);
        Segment { bytes, pool, is_expandable, stream: 0, private_pool: (0, 0), stack }
    }

    fn block(bytes: u64) -> Cell {
        let (state, stack) = (BlockState::Allocated, StackRef::NotAsked);
        Cell { bytes, requested_bytes: Some(bytes), state, stack, tid: Tid(1), time_ns: 0 }
    }

    #[test]
    fn free_memory_is_parted_into_what_goes_back_and_what_lies_between_blocks() {
        let mut memory = Memory::default();
        memory.add_segment(0, segment(20 * MIB, false));
        memory.add_segment(40 * MIB, segment(30 * MIB, false));
        memory.grant(0, block(9 * MIB));
        memory.grant(9 * MIB, block(9 * MIB));
        memory.give_back(0);
        memory.complete(0);
        let [small, large] = shapes(&memory);
        assert_eq!(small, Shape::default());
        let of = Shape {
            segments: 2,
            reserved_bytes: 50 * MIB,
            allocated_bytes: 9 * MIB,
            free_bytes: 41 * MIB,
            free_blocks: 3,
            largest_free_bytes: 30 * MIB,
            split_bytes: 11 * MIB,
            split_blocks: 2,
            unused_segment_bytes: 30 * MIB,
            ..Shape::default()
        };
        assert_eq!(large, of);
    }

    #[test]
    fn holes_are_addresses_between_the_pieces_of_one_segment() {
        let mut memory = Memory::default();
        memory.map(0, segment(20 * MIB, true));
        memory.map(60 * MIB, segment(20 * MIB, true));
        memory.map(1 << 40, Segment { stream: 7, ..segment(20 * MIB, true) });
        let [_, large] = shapes(&memory);
        assert_eq!((large.hole_bytes, large.expandable_bytes, large.segments), (40 * MIB, 60 * MIB, 3));
    }

    #[test]
    fn of_a_segment_that_grows_whole_pages_go_back() {
        let mut memory = Memory::default();
        memory.map(0, segment(80 * MIB, true));
        memory.grant(0, block(25 * MIB));
        memory.grant(25 * MIB, block(5 * MIB));
        memory.give_back(0);
        memory.complete(0);
        let [_, large] = shapes(&memory);
        // Free are 0 to 25 and 30 to 80: the pages of 20 MiB from 0, from 40 and from 60 go back.
        let lies = (large.unused_segment_bytes, large.split_bytes, large.split_blocks);
        assert_eq!(lies, (60 * MIB, 15 * MIB, 2));
    }

    #[test]
    fn a_long_watch_keeps_few_moments_and_the_worst_of_all() {
        let mut moments = Moments::default();
        for time_ns in 0..10_000 {
            let free_bytes = if time_ns == 777 { 9 } else { 1 };
            let moment = Moment { time_ns, shape: Shape { free_bytes, ..Shape::default() } };
            moments.push(moment, &Memory::default(), Pins::default);
        }
        assert!((KEPT / 4..KEPT).contains(&moments.kept().len()));
        assert_eq!(moments.worst().map(|worst| worst.moment.time_ns), Some(777));
        let times: Vec<u64> = moments.kept().iter().map(|moment| moment.time_ns).collect();
        let apart = times[1] - times[0];
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == apart), "{times:?}");
    }
}
