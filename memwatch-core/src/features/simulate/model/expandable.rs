//! Expandable segments: address ranges larger than the whole device with pages mapped on demand.

use super::BlockHandle;
use super::arena::{SimulatedBlock, SimulatedBlockState};
use super::caching::{Caching, RoundedRequest};
use super::settings::SMALL_SEGMENT_BYTES;
use crate::allocators::pytorch::PoolSize;

impl Caching {
    /// Returns the first of the fitting free blocks that can grow least: a block that can grow
    /// counts with its maximum size.
    pub(super) fn least_expandable(
        &self,
        first: BlockHandle,
        stream: u64,
        others: impl Iterator<Item = (u64, u64, u64, BlockHandle)>,
    ) -> BlockHandle {
        let mut best = first;
        for (own, _, _, other) in others {
            if own != stream || self.could_have(other) >= self.could_have(best) {
                break;
            }
            best = other;
        }
        best
    }

    fn could_have(&self, handle: BlockHandle) -> u64 {
        let block = self.arena.get(handle);
        let after =
            block.after.map(|after| self.arena.get(after)).filter(|after| after.state == SimulatedBlockState::Unmapped);
        block.bytes + after.map_or(0, |after| after.bytes)
    }

    /// Maps memory for the request at the lowest address with enough space. The returned block is
    /// in no pool.
    pub(super) fn expand(&mut self, wanted: RoundedRequest) -> Option<BlockHandle> {
        let mut handle = self.lowest(wanted).unwrap_or_else(|| self.reserve(wanted));
        if self.arena.get(handle).state == SimulatedBlockState::Unmapped && !self.map(handle, wanted.bytes) {
            return None;
        }
        loop {
            let SimulatedBlock { bytes, after, .. } = *self.arena.get(handle);
            let Some(more) = wanted.bytes.checked_sub(bytes).filter(|more| *more > 0) else { break };
            // The next block is unmapped; once mapped it is merged with this one.
            let after = after?;
            if !self.map(after, more) {
                return None;
            }
            handle = after;
        }
        self.arena.unshelve(handle);
        Some(handle)
    }

    /// Returns the first of consecutive free and unmapped blocks that are large enough together.
    fn lowest(&self, wanted: RoundedRequest) -> Option<BlockHandle> {
        let unmapped = &self.arena.pools[wanted.pool].unmapped;
        let of_stream =
            unmapped.range((wanted.stream, 0, BlockHandle(0))..).take_while(|(own, ..)| *own == wanted.stream);
        let usable = |handle: &BlockHandle| {
            matches!(self.arena.get(*handle).state, SimulatedBlockState::Free | SimulatedBlockState::Unmapped)
        };
        let begins = of_stream.map(|(.., handle)| self.arena.get(*handle).before.filter(usable).unwrap_or(*handle));
        let has_room = |begin: &BlockHandle| {
            let mut bytes = 0;
            let mut next = Some(*begin);
            while let Some(handle) = next.filter(usable).filter(|_| bytes < wanted.bytes) {
                let block = self.arena.get(handle);
                bytes += block.bytes;
                next = block.after;
            }
            bytes >= wanted.bytes
        };
        let mut begins = begins;
        begins.find(has_room)
    }

    /// Returns the address space of a new segment: 9/8 of the device.
    pub(super) fn reserved_bytes(&self, pool: usize) -> u64 {
        let total_bytes = self.meter.capacity.total_bytes;
        (total_bytes + total_bytes / 8).next_multiple_of(self.page_bytes(pool))
    }

    fn reserve(&mut self, wanted: RoundedRequest) -> BlockHandle {
        let RoundedRequest { stream, pool, .. } = wanted;
        let bytes = self.reserved_bytes(pool);
        let address = self.arena.addresses.take(bytes);
        let (state, before, after, segment, born) =
            (SimulatedBlockState::Unmapped, None, None, Some((address, bytes)), 0);
        let handle =
            self.arena.add(SimulatedBlock { address, bytes, stream, pool, state, before, after, segment, born });
        self.arena.shelve(handle);
        handle
    }

    /// Returns the page size: 2 MiB for segments of the small pool, else the size of a segment that
    /// is not expandable.
    fn page_bytes(&self, pool: usize) -> u64 {
        match self.pool_size(pool) {
            PoolSize::Small => SMALL_SEGMENT_BYTES,
            PoolSize::Large => self.settings.large_segment_bytes,
        }
    }

    /// Maps pages for `bytes` bytes at the start of an unmapped block, or the whole block if it is
    /// smaller. Returns `false` if the driver has too little memory.
    fn map(&mut self, handle: BlockHandle, bytes: u64) -> bool {
        let SimulatedBlock { bytes: all, pool, .. } = *self.arena.get(handle);
        let bytes = bytes.min(all).next_multiple_of(self.page_bytes(pool));
        if !self.meter.take(bytes) {
            return false;
        }
        self.arena.unshelve(handle);
        if bytes < all {
            let rest = self.arena.cut(handle, bytes);
            self.arena.shelve(rest);
        }
        self.arena.get_mut(handle).state = SimulatedBlockState::Free;
        self.arena.join(handle);
        self.arena.shelve(handle);
        true
    }

    /// Unmaps the pages that are wholly inside a free block.
    pub(super) fn unmap(&mut self, mut handle: BlockHandle) {
        let SimulatedBlock { address, bytes, pool, segment, .. } = *self.arena.get(handle);
        let Some((begin, all)) = segment else { return };
        let page = self.page_bytes(pool);
        let front = (address - begin).next_multiple_of(page) - (address - begin);
        let Some(pages) = bytes.checked_sub(front).map(|rest| rest / page * page).filter(|pages| *pages > 0) else {
            return;
        };
        self.arena.unshelve(handle);
        if front > 0 {
            let rest = self.arena.cut(handle, front);
            self.arena.shelve(handle);
            handle = rest;
        }
        if bytes - front > pages {
            let rest = self.arena.cut(handle, pages);
            self.arena.shelve(rest);
        }
        self.arena.get_mut(handle).state = SimulatedBlockState::Unmapped;
        self.arena.join(handle);
        self.meter.part(pages);
        if self.arena.get(handle).is_split() {
            self.arena.shelve(handle);
        } else {
            self.arena.addresses.give(begin, all);
            self.arena.drop_block(handle);
        }
    }
}
