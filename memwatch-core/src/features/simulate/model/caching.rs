//! Model of PyTorch's caching allocator: best fit in a pool per stream and size class. Blocks of
//! driver segments are split and merged.

use std::collections::BTreeSet;

use super::arena::{BlockArena, SimulatedBlock, SimulatedBlockState};
use super::meter::{Capacity, Meter};
use super::settings::{LEAST_BYTES, SMALL_SEGMENT_BYTES, Settings};
use super::{AllocationPolicy, BlockHandle, GrantedBlock, SimulatedRequest};
use crate::allocators::pytorch::PoolSize;
use crate::input::allocator_state::StateSegment;

/// `kSmallSize`: minimum remainder for splitting a block of the large pool.
pub(super) const SMALL_BYTES: u64 = 1 << 20;
/// `kMinLargeAlloc`: minimum size of requests with a segment of their own.
pub const OWN_SEGMENT_BYTES: u64 = 10 << 20;

/// Caching allocator of one device.
#[derive(Clone, Debug)]
pub(super) struct Caching {
    pub(super) settings: Settings,
    pub(super) meter: Meter,
    pub(super) arena: BlockArena,
    /// Freed blocks that a stream still uses.
    pending: BTreeSet<BlockHandle>,
}

/// A request with its rounded size and its pool.
#[derive(Clone, Copy, Debug)]
pub(super) struct RoundedRequest {
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) pool: usize,
}

impl Caching {
    /// Creates an allocator without memory.
    pub(super) fn new(settings: Settings) -> Self {
        let mut arena = BlockArena::default();
        // These pools come first: the cache is emptied in the order of pools.
        arena.pool((0, 0), PoolSize::Large);
        arena.pool((0, 0), PoolSize::Small);
        Self { settings, meter: Meter::default(), arena, pending: BTreeSet::new() }
    }

    /// Marks a freed block as still used by a stream.
    pub(super) fn pend(&mut self, handle: BlockHandle) {
        self.pending.insert(handle);
    }

    pub(super) fn pool_size(&self, pool: usize) -> PoolSize {
        self.arena.pools[pool].size
    }

    /// Removes the best fitting free block from its pool and returns it.
    fn find(&mut self, wanted: RoundedRequest) -> Option<BlockHandle> {
        let RoundedRequest { bytes, stream, pool } = wanted;
        if self.collects() {
            self.arena.pools[pool].looked += 1;
        }
        let mut fits = self.arena.pools[pool].free.range((stream, bytes, 0, BlockHandle(0))..);
        let (_, size, _, mut handle) = *fits.next().filter(|(own, ..)| *own == stream)?;
        if self.settings.expandable_segments {
            handle = self.least_expandable(handle, stream, fits.copied());
        }
        let size = if self.settings.expandable_segments { self.arena.get(handle).bytes } else { size };
        if let Some(limit) = self.settings.max_split_bytes {
            let is_oversize = bytes < limit && size >= limit;
            let is_too_loose = bytes >= limit && size >= bytes.saturating_add(self.settings.loose_bytes());
            if is_oversize || is_too_loose {
                return None;
            }
        }
        self.arena.unshelve(handle);
        Some(handle)
    }

    /// Allocates driver memory for the request; the block is in no pool.
    fn extend(&mut self, wanted: RoundedRequest) -> Option<BlockHandle> {
        let bytes = self.segment_bytes(wanted.bytes);
        if self
            .settings
            .allowed_bytes(self.meter.capacity)
            .is_some_and(|allowed| self.meter.reserved_bytes + bytes > allowed)
        {
            return None;
        }
        if self.settings.expandable_segments {
            return self.expand(wanted);
        }
        if !self.meter.take(bytes) {
            return None;
        }
        let RoundedRequest { stream, pool, .. } = wanted;
        let address = self.arena.addresses.take(bytes);
        let (state, before, after, segment, born) = (SimulatedBlockState::Free, None, None, None, 0);
        Some(self.arena.add(SimulatedBlock { address, bytes, stream, pool, state, before, after, segment, born }))
    }

    /// Returns the size of a new segment for a rounded request.
    fn segment_bytes(&self, bytes: u64) -> u64 {
        if bytes <= SMALL_BYTES {
            SMALL_SEGMENT_BYTES
        } else if bytes < OWN_SEGMENT_BYTES {
            self.settings.large_segment_bytes
        } else {
            bytes.next_multiple_of(SMALL_SEGMENT_BYTES)
        }
    }

    /// Returns whether a block is split and its remainder kept free.
    fn splits(&self, handle: BlockHandle, bytes: u64) -> bool {
        let block = self.arena.get(handle);
        let rest = block.bytes - bytes;
        if self.pool_size(block.pool) == PoolSize::Small || self.settings.expandable_segments {
            return rest >= LEAST_BYTES;
        }
        rest > SMALL_BYTES && self.settings.max_split_bytes.is_none_or(|limit| bytes < limit)
    }

    /// Releases a segment that consists of one free block.
    pub(super) fn release(&mut self, handle: BlockHandle) {
        self.arena.unshelve(handle);
        let SimulatedBlock { address, bytes, .. } = *self.arena.get(handle);
        self.arena.addresses.give(address, bytes);
        self.arena.drop_block(handle);
        self.meter.part(bytes);
    }

    /// Releases blocks above the split limit first; returns whether that may be enough.
    fn release_oversize(&mut self, wanted: RoundedRequest) -> bool {
        let Some(limit) = self.settings.max_split_bytes else { return false };
        let needed = wanted.bytes.max(limit);
        let of_stream = (wanted.stream, needed, 0, BlockHandle(0));
        let fits = self.arena.pools[wanted.pool].free.range(of_stream..).next();
        if let Some((.., handle)) = fits.copied().filter(|(stream, ..)| *stream == wanted.stream) {
            self.release_if_whole(handle);
            return true;
        }
        let mut released = 0;
        while released < needed {
            let last = self.arena.pools[wanted.pool].free.range(..of_stream).next_back().copied();
            let Some((.., bytes, _, handle)) =
                last.filter(|(stream, bytes, ..)| *stream == wanted.stream && *bytes >= limit)
            else {
                return false;
            };
            released += bytes;
            if !self.release_if_whole(handle) {
                return false;
            }
        }
        true
    }

    fn release_if_whole(&mut self, handle: BlockHandle) -> bool {
        let block = self.arena.get(handle);
        let is_whole = !block.is_split() && block.segment.is_none();
        if is_whole {
            self.release(handle);
        }
        is_whole
    }

    /// Releases all releasable memory of a pool.
    fn release_all(&mut self, pool: usize) {
        let free: Vec<BlockHandle> = self.arena.pools[pool].free.iter().map(|(.., handle)| *handle).collect();
        let (growing, fixed): (Vec<BlockHandle>, Vec<BlockHandle>) =
            free.into_iter().partition(|handle| self.arena.get(*handle).segment.is_some());
        for handle in fixed {
            self.release_if_whole(handle);
        }
        for handle in growing {
            self.unmap(handle);
        }
    }
}

impl AllocationPolicy for Caching {
    fn allocate(&mut self, request: &SimulatedRequest) -> Option<GrantedBlock> {
        let bytes = self.settings.rounded(request.bytes);
        let pool = self.arena.pool(request.private_pool, PoolSize::of_request(bytes));
        let wanted = RoundedRequest { bytes, stream: request.stream, pool };
        let cached = self.find(wanted);
        let is_hit = cached.is_some();
        let handle = cached.or_else(|| {
            self.collect();
            self.extend(wanted).or_else(|| {
                let released = if self.release_oversize(wanted) { self.extend(wanted) } else { None };
                released.or_else(|| {
                    // During a graph capture the allocator cannot synchronise with streams.
                    if request.private_pool != (0, 0) {
                        return None;
                    }
                    self.empty_cache();
                    self.meter.retries += 1;
                    self.extend(wanted)
                })
            })
        })?;
        if self.splits(handle, bytes) {
            let rest = self.arena.cut(handle, bytes);
            self.arena.get_mut(rest).state = SimulatedBlockState::Free;
            self.arena.shelve(rest);
        }
        let block = self.arena.get_mut(handle);
        block.state = SimulatedBlockState::Used;
        let bytes = block.bytes;
        self.meter.grant(bytes);
        Some(GrantedBlock { handle, is_hit })
    }

    fn give_back(&mut self, handle: BlockHandle) {
        let block = self.arena.get_mut(handle);
        block.state = SimulatedBlockState::Pending;
        let bytes = block.bytes;
        self.meter.give_back(bytes);
        self.pend(handle);
    }

    fn complete(&mut self, handle: BlockHandle) {
        if self.pending.remove(&handle) {
            self.arena.get_mut(handle).state = SimulatedBlockState::Free;
            self.arena.join(handle);
            self.arena.shelve(handle);
        }
    }

    fn empty_cache(&mut self) {
        // Synchronises with all streams.
        while let Some(handle) = self.pending.first().copied() {
            self.complete(handle);
        }
        self.release_all(0);
        self.release_all(1);
    }

    fn note_segment(&mut self, address: u64, bytes: u64, is_there: bool) {
        if is_there {
            self.arena.addresses.learn(address, bytes);
        } else {
            self.arena.addresses.forget(address, bytes);
        }
    }

    fn release_pool(&mut self, private_pool: (u64, u64)) {
        for size in [PoolSize::Small, PoolSize::Large] {
            let pool = self.arena.pool(private_pool, size);
            self.release_all(pool);
        }
    }

    fn set_capacity(&mut self, capacity: Capacity) {
        self.meter.capacity = capacity;
    }

    fn meter(&self) -> &Meter {
        &self.meter
    }

    fn free_bytes(&self) -> (u64, u64) {
        self.arena.free_bytes()
    }

    fn take_over(&mut self, segments: &[StateSegment]) -> Option<Vec<(u64, BlockHandle)>> {
        Self::take_over(self, segments)
    }

    fn begin(&mut self) {
        self.meter.begin();
    }

    fn copied(&self) -> Box<dyn AllocationPolicy> {
        Box::new(self.clone())
    }
}
