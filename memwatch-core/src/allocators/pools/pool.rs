//! A single pool: the blocks allocated from it and its own counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::bfc::Home;
use crate::decode::{PoolBlock, PoolCounter, PoolKind};

/// A block that the program holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LivePoolBlock {
    pub(super) bytes: u64,
    /// Another allocator divides the block, and its sums include it.
    pub(super) is_divided: bool,
}

/// A memory pool of RAPIDS or CuPy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemoryPool {
    kind: PoolKind,
    pub(super) home: Home,
    pub(super) blocks: BTreeMap<u64, LivePoolBlock>,
    known_bytes: u64,
    divided_bytes: u64,
    peak_bytes: u64,
    granted: u64,
    counter: Option<PoolCounter>,
    /// Bytes of blocks from before the attach, if the pool counts its allocated bytes.
    older_bytes: Option<u64>,
    /// The pool was seen before its first block, and no event was lost.
    is_whole: bool,
    is_lossy: bool,
    out_of_step: u64,
    pub(super) time_ns: u64,
}

impl MemoryPool {
    /// Creates a pool; `is_whole` is set if it has allocated nothing before.
    pub(super) const fn met(kind: PoolKind, is_whole: bool) -> Self {
        Self {
            kind,
            home: Home::Unknown,
            blocks: BTreeMap::new(),
            known_bytes: 0,
            divided_bytes: 0,
            peak_bytes: 0,
            granted: 0,
            counter: None,
            older_bytes: None,
            is_whole,
            is_lossy: false,
            out_of_step: 0,
            time_ns: 0,
        }
    }

    /// Returns the kind of pool.
    pub const fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Returns where the pool's memory is.
    pub const fn home(&self) -> Home {
        self.home
    }

    /// Returns the number of blocks known individually.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the bytes of the known blocks.
    pub const fn known_bytes(&self) -> u64 {
        self.known_bytes
    }

    /// Returns the bytes of known blocks that another allocator divides.
    pub const fn divided_bytes(&self) -> u64 {
        self.divided_bytes
    }

    /// Returns the bytes the program holds: the pool's own count, or the sum of the blocks if all
    /// are known; otherwise `None`.
    pub fn bytes_in_use(&self) -> Option<u64> {
        match self.counter {
            Some(PoolCounter::SizeAndUse(_, used)) => Some(used),
            _ => self.is_whole.then_some(self.known_bytes),
        }
    }

    /// Returns the peak of the bytes; `None` if there may be blocks from before the attach.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.is_whole.then_some(self.peak_bytes)
    }

    /// Returns the number of blocks allocated; `None` if there may be blocks from before the
    /// attach.
    pub fn granted(&self) -> Option<u64> {
        self.is_whole.then_some(self.granted)
    }

    /// Returns the bytes the pool reserved upstream, by its own count; `None` if it does not count
    /// them or this build does not show the count.
    pub const fn size_bytes(&self) -> Option<u64> {
        match self.counter {
            Some(PoolCounter::Size(bytes) | PoolCounter::SizeAndUse(bytes, _)) => Some(bytes),
            Some(PoolCounter::BlockSize(_)) | None => None,
        }
    }

    /// Returns the size of the blocks, if all have the same.
    pub const fn block_size_bytes(&self) -> Option<u64> {
        if let Some(PoolCounter::BlockSize(bytes)) = self.counter { Some(bytes) } else { None }
    }

    /// Returns how often counters contradicted an event, or one event another.
    pub const fn out_of_step(&self) -> u64 {
        self.out_of_step
    }

    /// Returns whether all blocks are known, no event was lost and nothing was contradictory.
    pub fn is_exact(&self) -> bool {
        self.out_of_step == 0 && !self.is_lossy && self.bytes_in_use() == Some(self.known_bytes)
    }

    /// Returns whether there may be blocks that are not known individually.
    pub fn has_older(&self) -> bool {
        self.bytes_in_use() != Some(self.known_bytes)
    }

    /// Adds a block and returns its size, together with overlapping blocks that must have been
    /// freed without an event.
    pub(super) fn grant(&mut self, block: &PoolBlock) -> (u64, Vec<(u64, LivePoolBlock)>) {
        let bytes = match block.counter {
            Some(PoolCounter::BlockSize(size)) => {
                self.doubt(size < block.bytes);
                size.max(block.bytes)
            }
            _ => block.bytes,
        };
        let end = block.address.saturating_add(bytes);
        let before = self.blocks.range(..end).rev();
        let overlaps = |(start, held): &(&u64, &LivePoolBlock)| start.saturating_add(held.bytes) > block.address;
        let addresses: Vec<u64> = before.take_while(overlaps).map(|(start, _)| *start).collect();
        let gone: Vec<(u64, LivePoolBlock)> =
            addresses.into_iter().filter_map(|at| Some((at, self.release(at)?))).collect();
        self.doubt(!gone.is_empty());
        self.blocks.insert(block.address, LivePoolBlock { bytes, is_divided: false });
        self.known_bytes = self.known_bytes.saturating_add(bytes);
        self.granted += 1;
        self.count(block.counter);
        self.peak_bytes = self.peak_bytes.max(self.known_bytes);
        (bytes, gone)
    }

    /// Checks the pool's counters against the known blocks.
    fn count(&mut self, counter: Option<PoolCounter>) {
        self.counter = counter.or(self.counter);
        match counter {
            Some(PoolCounter::Size(size)) => self.doubt(self.known_bytes > size),
            Some(PoolCounter::SizeAndUse(size, used)) => {
                let older_bytes = used.checked_sub(self.known_bytes);
                let is_expected = self.older_bytes.is_none_or(|before| older_bytes == Some(before));
                self.doubt(used > size || older_bytes.is_none() || !is_expected);
                self.older_bytes = older_bytes;
                self.is_whole &= older_bytes == Some(0);
                self.is_lossy &= older_bytes.is_none();
            }
            Some(PoolCounter::BlockSize(_)) | None => {}
        }
    }

    /// Removes a freed block; `None` if it was not known.
    pub(super) fn take_back(&mut self, block: &PoolBlock) -> Option<LivePoolBlock> {
        let held = self.release(block.address);
        let held_bytes = held.map_or(block.bytes, |held| held.bytes);
        let is_other = self.kind != PoolKind::FixedSize && held_bytes != block.bytes;
        self.doubt(is_other || (held.is_none() && self.is_whole));
        if let Some(PoolCounter::SizeAndUse(size, used)) = block.counter {
            let after = used.checked_sub(block.bytes);
            self.doubt(used > size || after.is_none());
            self.counter = Some(PoolCounter::SizeAndUse(size, after.unwrap_or(0)));
            if held.is_none()
                && let Some(older) = self.older_bytes
            {
                self.older_bytes = older.checked_sub(block.bytes);
                self.doubt(self.older_bytes.is_none());
            }
        } else {
            self.counter = block.counter.or(self.counter);
        }
        held
    }

    fn release(&mut self, address: u64) -> Option<LivePoolBlock> {
        let held = self.blocks.remove(&address)?;
        self.known_bytes = self.known_bytes.saturating_sub(held.bytes);
        self.divided_bytes = self.divided_bytes.saturating_sub(if held.is_divided { held.bytes } else { 0 });
        Some(held)
    }

    /// Removes the blocks that begin in this range and must have been freed without an event.
    pub(super) fn drop_missed(&mut self, begin: u64, end: u64) -> Vec<(u64, LivePoolBlock)> {
        let addresses: Vec<u64> = self.blocks.range(begin..end.max(begin)).map(|(at, _)| *at).collect();
        let gone: Vec<_> = addresses.into_iter().filter_map(|at| Some((at, self.release(at)?))).collect();
        self.doubt(!gone.is_empty());
        gone
    }

    /// Removes all blocks when the pool ends.
    pub(super) fn end(&mut self) -> Vec<(u64, LivePoolBlock)> {
        (self.known_bytes, self.divided_bytes) = (0, 0);
        std::mem::take(&mut self.blocks).into_iter().collect()
    }

    /// Marks the block that contains this address as divided by another allocator. Returns the
    /// block unless it was marked before.
    pub(super) fn divide(&mut self, address: u64) -> Option<(u64, u64)> {
        let (start, held) = self.blocks.range_mut(..=address).next_back()?;
        if held.is_divided || address - *start >= held.bytes {
            return None;
        }
        held.is_divided = true;
        self.divided_bytes = self.divided_bytes.saturating_add(held.bytes);
        Some((*start, held.bytes))
    }

    /// Returns the block that contains an address.
    pub(super) fn block_at(&self, address: u64) -> Option<(u64, u64)> {
        let (start, held) = self.blocks.range(..=address).next_back()?;
        (address - *start < held.bytes).then_some((*start, held.bytes))
    }

    /// Returns whether a block begins in this range of addresses.
    pub(super) fn has_block_between(&self, begin: u64, end: u64) -> bool {
        self.blocks.range(begin..end.max(begin)).next().is_some()
    }

    /// Counts a contradiction, unless events were lost.
    fn doubt(&mut self, contradicts: bool) {
        self.out_of_step += u64::from(contradicts && !self.is_lossy);
    }

    /// Records that events were lost: blocks may be missing, and known ones may have been freed.
    pub(super) fn lose(&mut self) {
        (self.is_lossy, self.is_whole, self.older_bytes) = (true, false, None);
    }

    pub(super) fn begin_peak(&mut self) {
        self.peak_bytes = self.known_bytes;
    }
}
