//! One pool: the blocks that the program has of it, and what it counts itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::bfc::Home;
use crate::decode::{PoolBlock, PoolCounter, PoolKind};

/// A block that the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) bytes: u64,
    /// Another allocator divides it: it is in that one's sums.
    pub(super) is_divided: bool,
}

/// A pool of RAPIDS' memory manager, or of CuPy.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pool {
    kind: PoolKind,
    pub(super) home: Home,
    pub(super) blocks: BTreeMap<u64, Held>,
    known_bytes: u64,
    divided_bytes: u64,
    peak_bytes: u64,
    granted: u64,
    counter: Option<PoolCounter>,
    /// Blocks from before the watch, where the pool counts what it has granted.
    older_bytes: Option<u64>,
    /// It was met before its first block, and no event is missing.
    is_whole: bool,
    is_lossy: bool,
    out_of_step: u64,
    pub(super) time_ns: u64,
}

impl Pool {
    /// First heard of; `is_whole` where it has granted nothing before.
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

    /// Which sort of pool it is.
    pub const fn kind(&self) -> PoolKind {
        self.kind
    }

    /// Where its memory is.
    pub const fn home(&self) -> Home {
        self.home
    }

    /// How many blocks are known one by one.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Their sum, in bytes.
    pub const fn known_bytes(&self) -> u64 {
        self.known_bytes
    }

    /// What of that another allocator divides.
    pub const fn divided_bytes(&self) -> u64 {
        self.divided_bytes
    }

    /// What the program has of it, in bytes: by its own count, or the sum of all blocks where all are known. `None` where neither is.
    pub fn bytes_in_use(&self) -> Option<u64> {
        match self.counter {
            Some(PoolCounter::SizeAndUse(_, used)) => Some(used),
            _ => self.is_whole.then_some(self.known_bytes),
        }
    }

    /// The most that the program had; `None` where blocks from before the watch are not known.
    pub fn peak_bytes(&self) -> Option<u64> {
        self.is_whole.then_some(self.peak_bytes)
    }

    /// How many blocks it has granted, likewise.
    pub fn granted(&self) -> Option<u64> {
        self.is_whole.then_some(self.granted)
    }

    /// What it has of the memory above it, by its own count; `None` where it counts none or this build does not show it.
    pub const fn size_bytes(&self) -> Option<u64> {
        match self.counter {
            Some(PoolCounter::Size(bytes) | PoolCounter::SizeAndUse(bytes, _)) => Some(bytes),
            Some(PoolCounter::BlockSize(_)) | None => None,
        }
    }

    /// How large each of its blocks is, where they are of one size.
    pub const fn block_size_bytes(&self) -> Option<u64> {
        if let Some(PoolCounter::BlockSize(bytes)) = self.counter { Some(bytes) } else { None }
    }

    /// How often its numbers contradicted an event, or one event another.
    pub const fn out_of_step(&self) -> u64 {
        self.out_of_step
    }

    /// Whether all its blocks are known, none of its events is missing, and nothing contradicted another.
    pub fn is_exact(&self) -> bool {
        self.out_of_step == 0 && !self.is_lossy && self.bytes_in_use() == Some(self.known_bytes)
    }

    /// Whether there may be blocks that are not known one by one.
    pub fn has_older(&self) -> bool {
        self.bytes_in_use() != Some(self.known_bytes)
    }

    /// The program has this block now; returns its size. What was at its addresses before has gone without an event.
    pub(super) fn grant(&mut self, block: &PoolBlock) -> (u64, Vec<(u64, Held)>) {
        let bytes = match block.counter {
            Some(PoolCounter::BlockSize(size)) => {
                self.doubt(size < block.bytes);
                size.max(block.bytes)
            }
            _ => block.bytes,
        };
        let end = block.address.saturating_add(bytes);
        let before = self.blocks.range(..end).rev();
        let overlaps = |(start, held): &(&u64, &Held)| start.saturating_add(held.bytes) > block.address;
        let addresses: Vec<u64> = before.take_while(overlaps).map(|(start, _)| *start).collect();
        let gone: Vec<(u64, Held)> = addresses.into_iter().filter_map(|at| Some((at, self.release(at)?))).collect();
        self.doubt(!gone.is_empty());
        self.blocks.insert(block.address, Held { bytes, is_divided: false });
        self.known_bytes = self.known_bytes.saturating_add(bytes);
        self.granted += 1;
        self.count(block.counter);
        self.peak_bytes = self.peak_bytes.max(self.known_bytes);
        (bytes, gone)
    }

    /// Compares what it counts with what is known.
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

    /// The program gives this block back; `None` where it was not known.
    pub(super) fn take_back(&mut self, block: &PoolBlock) -> Option<Held> {
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

    fn release(&mut self, address: u64) -> Option<Held> {
        let held = self.blocks.remove(&address)?;
        self.known_bytes = self.known_bytes.saturating_sub(held.bytes);
        self.divided_bytes = self.divided_bytes.saturating_sub(if held.is_divided { held.bytes } else { 0 });
        Some(held)
    }

    /// The blocks that begin in this range have gone without an event.
    pub(super) fn drop_missed(&mut self, begin: u64, end: u64) -> Vec<(u64, Held)> {
        let addresses: Vec<u64> = self.blocks.range(begin..end.max(begin)).map(|(at, _)| *at).collect();
        let gone: Vec<_> = addresses.into_iter().filter_map(|at| Some((at, self.release(at)?))).collect();
        self.doubt(!gone.is_empty());
        gone
    }

    /// All that it has goes with it.
    pub(super) fn end(&mut self) -> Vec<(u64, Held)> {
        (self.known_bytes, self.divided_bytes) = (0, 0);
        std::mem::take(&mut self.blocks).into_iter().collect()
    }

    /// Another allocator's memory begins at an address; says which block holds that, where nobody was known to divide it.
    pub(super) fn divide(&mut self, address: u64) -> Option<(u64, u64)> {
        let (start, held) = self.blocks.range_mut(..=address).next_back()?;
        if held.is_divided || address - *start >= held.bytes {
            return None;
        }
        held.is_divided = true;
        self.divided_bytes = self.divided_bytes.saturating_add(held.bytes);
        Some((*start, held.bytes))
    }

    /// The block that holds an address.
    pub(super) fn block_at(&self, address: u64) -> Option<(u64, u64)> {
        let (start, held) = self.blocks.range(..=address).next_back()?;
        (address - *start < held.bytes).then_some((*start, held.bytes))
    }

    /// Whether a block begins in this range of addresses.
    pub(super) fn has_block_between(&self, begin: u64, end: u64) -> bool {
        self.blocks.range(begin..end.max(begin)).next().is_some()
    }

    /// A contradiction is one only where no event is missing.
    fn doubt(&mut self, contradicts: bool) {
        self.out_of_step += u64::from(contradicts && !self.is_lossy);
    }

    /// Events did not arrive: blocks may be there that are not known, and others gone.
    pub(super) fn lose(&mut self) {
        (self.is_lossy, self.is_whole, self.older_bytes) = (true, false, None);
    }

    pub(super) fn begin_peak(&mut self) {
        self.peak_bytes = self.known_bytes;
    }
}
