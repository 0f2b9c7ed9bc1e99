//! A naive caching allocator that reports what PyTorch's would, and counts by examining all its
//! blocks after every step.

use memwatch_common::tensor::STATISTICS_WORDS;

use crate::allocators::pytorch::{AllocatorStat, AllocatorStatistics, PoolSize, StatFamily, StatScope};
use crate::decode::{TensorChange, TraceAction, Traced};
use crate::input::allocator_state::{DeviceAllocatorState, StateBlock, StateBlockUse, StateSegment};
use crate::words::{Ordinal, Tid};

const MIB: u64 = 1 << 20;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockUse {
    Free,
    Program,
    Stream,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct NaiveBlock {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) used: BlockUse,
}

#[derive(Clone, Debug)]
struct NaiveSegment {
    pool: (PoolSize, u64, u64),
    is_expandable: bool,
    blocks: Vec<NaiveBlock>,
}

impl NaiveSegment {
    fn begin(&self) -> u64 {
        self.blocks[0].address
    }

    fn bytes(&self) -> u64 {
        self.blocks.iter().map(|block| block.bytes).sum()
    }

    fn merge(&mut self) {
        self.blocks.dedup_by(|next, before| {
            let both_free = next.used == BlockUse::Free && before.used == BlockUse::Free;
            before.bytes += if both_free { next.bytes } else { 0 };
            both_free
        });
    }
}

/// A device's allocator and its reports.
#[derive(Clone, Debug)]
pub(crate) struct NaiveAllocator {
    pub(crate) allocator: u64,
    pub(crate) ordinal: Ordinal,
    pub(crate) is_expandable: bool,
    segments: Vec<NaiveSegment>,
    next_address: u64,
    pub(crate) truth: AllocatorStatistics,
    pub(crate) reported: Vec<(Tid, TensorChange)>,
}

impl NaiveAllocator {
    pub(crate) fn new(ordinal: i32, is_expandable: bool) -> Self {
        let at = u64::try_from(ordinal).expect("a small number") + 1;
        Self {
            allocator: 0x55aa_0000 * at,
            ordinal: Ordinal(ordinal),
            is_expandable,
            segments: Vec::new(),
            next_address: at << 45,
            truth: AllocatorStatistics::default(),
            reported: Vec::new(),
        }
    }

    pub(crate) fn request(&mut self, tid: Tid, bytes: u64) {
        self.reported.push((tid, TensorChange::Requested { allocator: self.allocator, words: [bytes, 0] }));
    }

    /// Grants the block after the request, within the allocator's lock.
    pub(crate) fn grant(&mut self, tid: Tid, requested: u64, stream: u64, private: u64) {
        let bytes = requested.next_multiple_of(512);
        let pool = (PoolSize::of_request(bytes), stream, private);
        let (segment, block) = self.find(pool, bytes).unwrap_or_else(|| {
            self.reported.push((tid, TensorChange::SegmentWanted { allocator: self.allocator, is_retry: false }));
            self.gain(tid, pool, bytes);
            self.find(pool, bytes).expect("there is room now")
        });
        let is_expandable = self.segments[segment].is_expandable;
        let blocks = &mut self.segments[segment].blocks;
        let rest = blocks[block].bytes - bytes;
        let splits = if pool.0 == PoolSize::Small || is_expandable { rest >= 512 } else { rest > MIB };
        blocks[block].used = BlockUse::Program;
        blocks[block].requested = requested;
        if splits {
            blocks[block].bytes = bytes;
            let address = blocks[block].address + bytes;
            blocks.insert(block + 1, NaiveBlock { address, bytes: rest, requested: 0, used: BlockUse::Free });
        }
        let block = blocks[block];
        self.trace(tid, TraceAction::Alloc, block.address, requested);
        self.count();
        self.report(tid, block.address, i64::try_from(block.bytes).expect("small"));
    }

    /// Frees a block that a stream may still use.
    pub(crate) fn give_back(&mut self, tid: Tid, which: usize, stream_uses_it: bool) {
        let Some((segment, index)) = self.pick(which, BlockUse::Program) else { return };
        let block = self.segments[segment].blocks[index];
        self.segments[segment].blocks[index].used = BlockUse::Stream;
        self.trace(tid, TraceAction::FreeRequested, block.address, block.requested);
        self.count();
        if !stream_uses_it {
            self.complete_at(tid, segment, index);
        }
        self.report(tid, block.address, -i64::try_from(block.bytes).expect("small"));
    }

    pub(crate) fn complete(&mut self, tid: Tid, which: usize) {
        if let Some((segment, index)) = self.pick(which, BlockUse::Stream) {
            self.complete_at(tid, segment, index);
        }
    }

    /// Returns all unused memory to the driver.
    pub(crate) fn empty_cache(&mut self, tid: Tid) {
        let mut kept = Vec::new();
        for segment in std::mem::take(&mut self.segments) {
            let is_unused = segment.blocks.iter().all(|block| block.used == BlockUse::Free);
            if is_unused {
                let action = if segment.is_expandable { TraceAction::SegmentUnmap } else { TraceAction::SegmentFree };
                self.trace(tid, action, segment.begin(), segment.bytes());
                self.truth.counters.device_frees += 1;
            } else {
                kept.push(segment);
            }
        }
        self.segments = kept;
        self.count();
    }

    pub(crate) fn refuse(&mut self, tid: Tid, wanted_bytes: u64) {
        for is_retry in [false, true] {
            self.reported.push((tid, TensorChange::SegmentWanted { allocator: self.allocator, is_retry }));
        }
        self.truth.counters.retries += 1;
        self.truth.counters.ooms += 1;
        let (allocated_bytes, reserved_bytes) = self.totals();
        let ordinal = self.ordinal;
        self.reported.push((tid, TensorChange::OutOfMemory { ordinal, wanted_bytes, allocated_bytes, reserved_bytes }));
    }

    pub(crate) fn reset(&mut self, tid: Tid, peaks: bool) {
        let ordinal = self.ordinal;
        if peaks {
            self.truth.reset_peaks();
            self.reported.push((tid, TensorChange::PeaksReset { ordinal }));
        } else {
            self.truth.reset_accumulated();
            self.reported.push((tid, TensorChange::AccumulatedReset { ordinal }));
        }
    }

    /// Returns the allocator's state as its own structures have it.
    pub(crate) fn allocator_state(&self, map_words: usize) -> DeviceAllocatorState {
        let block = |block: &NaiveBlock| StateBlock {
            address: block.address,
            bytes: block.bytes,
            requested_bytes: block.requested,
            state: match block.used {
                BlockUse::Free => StateBlockUse::Inactive,
                BlockUse::Program => StateBlockUse::ActiveAllocated,
                BlockUse::Stream => StateBlockUse::ActivePendingFree,
            },
        };
        let segment = |segment: &NaiveSegment| StateSegment {
            address: segment.begin(),
            bytes: segment.bytes(),
            stream: segment.pool.1,
            is_small: segment.pool.0 == PoolSize::Small,
            is_expandable: segment.is_expandable,
            private_pool: (segment.pool.2, 0),
            is_pool_idle: false,
            blocks: segment.blocks.iter().map(block).collect(),
        };
        DeviceAllocatorState {
            ordinal: self.ordinal,
            allocator: self.allocator,
            words: self.words(map_words).to_vec(),
            segments: self.segments.iter().map(segment).collect(),
        }
    }

    /// Returns the counters as they are in memory, with a map of `map_words` words before the
    /// active bytes.
    pub(crate) fn words(&self, map_words: usize) -> Box<[u64; STATISTICS_WORDS]> {
        let mut words = vec![0x7fff_1234_5678; STATISTICS_WORDS];
        let mut at = 0;
        for family in StatFamily::ALL {
            at += if family == StatFamily::ActiveBytes { map_words } else { 0 };
            for scope in StatScope::ALL {
                let AllocatorStat { current, peak, allocated, freed } = self.truth.get(family, scope);
                words[at..at + 4].copy_from_slice(&[current, peak, allocated, freed].map(i64::cast_unsigned));
                at += 4;
            }
        }
        let counters = self.truth.counters;
        let calls = [counters.synchronizations, counters.device_allocations, counters.device_frees];
        let mut tail = vec![counters.retries, counters.ooms, 0, 0, 0, 0, 0, 0, 0, 0];
        tail.extend(calls);
        tail.extend((map_words > 0).then_some(0));
        tail.push(-1);
        for (word, number) in words[at..].iter_mut().zip(tail) {
            *word = number.cast_unsigned();
        }
        words.try_into().expect("so many")
    }

    pub(crate) fn blocks(&self) -> impl Iterator<Item = NaiveBlock> {
        self.segments.iter().flat_map(|segment| segment.blocks.iter().copied())
    }

    fn pick(&self, which: usize, used: BlockUse) -> Option<(usize, usize)> {
        let places = self.segments.iter().enumerate().flat_map(|(segment, inner)| {
            let with_index = inner.blocks.iter().enumerate();
            with_index.filter(|(_, block)| block.used == used).map(move |(index, _)| (segment, index))
        });
        let places: Vec<_> = places.collect();
        places.get(which.checked_rem(places.len())?).copied()
    }

    fn complete_at(&mut self, tid: Tid, segment: usize, index: usize) {
        let block = self.segments[segment].blocks[index];
        self.segments[segment].blocks[index].used = BlockUse::Free;
        self.segments[segment].merge();
        self.trace(tid, TraceAction::FreeCompleted, block.address, block.requested);
        self.count();
    }

    fn find(&self, pool: (PoolSize, u64, u64), bytes: u64) -> Option<(usize, usize)> {
        let of_pool = self.segments.iter().enumerate().filter(|(_, segment)| segment.pool == pool);
        let fitting = of_pool.flat_map(|(index, segment)| {
            let blocks = segment.blocks.iter().enumerate();
            blocks
                .filter(|(_, block)| block.used == BlockUse::Free && block.bytes >= bytes)
                .map(move |(place, block)| (block.bytes, block.address, (index, place)))
        });
        fitting.min_by_key(|(size, address, _)| (*size, *address)).map(|(.., place)| place)
    }

    fn gain(&mut self, tid: Tid, pool: (PoolSize, u64, u64), bytes: u64) {
        let page = if pool.0 == PoolSize::Small { 2 * MIB } else { 20 * MIB };
        let size = bytes.next_multiple_of(page);
        let own = self.segments.iter_mut().find(|segment| segment.is_expandable && segment.pool == pool);
        let grown = own.filter(|_| self.is_expandable).map(|segment| {
            let end = segment.begin() + segment.bytes();
            segment.blocks.push(NaiveBlock { address: end, bytes: size, requested: 0, used: BlockUse::Free });
            segment.merge();
            end
        });
        let address = grown.unwrap_or_else(|| {
            let address = self.next_address;
            self.next_address += 1 << 34;
            let blocks = vec![NaiveBlock { address, bytes: size, requested: 0, used: BlockUse::Free }];
            self.segments.push(NaiveSegment { pool, is_expandable: self.is_expandable, blocks });
            address
        });
        let action = if self.is_expandable { TraceAction::SegmentMap } else { TraceAction::SegmentAlloc };
        self.trace(tid, action, address, size);
        self.truth.counters.device_allocations += 1;
        self.count();
    }

    fn trace(&mut self, tid: Tid, action: TraceAction, address: u64, bytes: u64) {
        let (allocator, ordinal, stream, pool) = (self.allocator, self.ordinal, 0, None);
        let traced = Traced { allocator, action, address, bytes, stream, ordinal, pool, is_rounded: false };
        self.reported.push((tid, TensorChange::Traced(traced)));
    }

    fn report(&mut self, tid: Tid, address: u64, block_bytes: i64) {
        let (allocated_bytes, reserved_bytes) = self.totals();
        let ordinal = self.ordinal;
        let reported = TensorChange::Reported { ordinal, address, block_bytes, allocated_bytes, reserved_bytes };
        self.reported.push((tid, reported));
    }

    fn totals(&self) -> (u64, u64) {
        let current = |family| u64::try_from(self.truth.get(family, StatScope::All).current).expect("never below 0");
        (current(StatFamily::AllocatedBytes), current(StatFamily::ReservedBytes))
    }

    /// Counts everything again, and adds the differences to the totals.
    fn count(&mut self) {
        let mut now = [[0_i64; 3]; 9];
        for segment in &self.segments {
            let mut add = |family: StatFamily, number: u64| {
                let number = i64::try_from(number).expect("small");
                now[family as usize][0] += number;
                now[family as usize][if segment.pool.0 == PoolSize::Small { 1 } else { 2 }] += number;
            };
            add(StatFamily::Segment, u64::from(!segment.is_expandable));
            add(StatFamily::ReservedBytes, segment.bytes());
            for block in &segment.blocks {
                if block.used == BlockUse::Program {
                    add(StatFamily::Allocation, 1);
                    add(StatFamily::AllocatedBytes, block.bytes);
                }
                if block.used == BlockUse::Free && segment.blocks.len() > 1 && !segment.is_expandable {
                    add(StatFamily::InactiveSplit, 1);
                    add(StatFamily::InactiveSplitBytes, block.bytes);
                }
                if block.used != BlockUse::Free {
                    add(StatFamily::Active, 1);
                    add(StatFamily::ActiveBytes, block.bytes);
                    add(StatFamily::RequestedBytes, block.requested);
                }
            }
        }
        for family in StatFamily::ALL {
            for scope in StatScope::ALL {
                let stat = self.truth.get_mut(family, scope);
                stat.change(now[family as usize][scope as usize] - stat.current);
            }
        }
    }
}
