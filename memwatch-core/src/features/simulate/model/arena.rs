//! Blocks that tile segments, and the pools of free blocks.

use std::collections::{BTreeMap, BTreeSet};

use super::BlockHandle;
use super::addresses::SegmentAddresses;
use crate::allocators::pytorch::PoolSize;

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedBlockState {
    /// Free, in its pool.
    Free,
    /// Allocated by the program.
    Used,
    /// Freed by the program and still used by a stream.
    Pending,
    /// Addresses without memory.
    Unmapped,
}

/// A block, and its neighbours in its segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct SimulatedBlock {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) stream: u64,
    pub(super) pool: usize,
    pub(super) state: SimulatedBlockState,
    pub(super) before: Option<BlockHandle>,
    pub(super) after: Option<BlockHandle>,
    /// Start and maximum size of the expandable segment that contains the block.
    pub(super) segment: Option<(u64, u64)>,
    /// Value of the pool's `looked` counter when the block entered the pool.
    pub(super) born: u64,
}

impl SimulatedBlock {
    /// Returns whether the block shares its segment with others.
    pub(super) const fn is_split(&self) -> bool {
        self.before.is_some() || self.after.is_some()
    }
}

/// Free blocks of one pool.
#[derive(Clone, Debug)]
pub(super) struct SimulatedPool {
    pub(super) size: PoolSize,
    /// Free blocks by stream, size and address.
    pub(super) free: BTreeSet<(u64, u64, u64, BlockHandle)>,
    /// Unmapped blocks by stream and address.
    pub(super) unmapped: BTreeSet<(u64, u64, BlockHandle)>,
    /// Number of searches in the pool.
    pub(super) looked: u64,
}

/// Blocks and pools of one allocator.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockArena {
    blocks: Vec<SimulatedBlock>,
    vacant: Vec<BlockHandle>,
    pub(super) pools: Vec<SimulatedPool>,
    by_name: BTreeMap<((u64, u64), PoolSize), usize>,
    /// Addresses of the segments.
    pub(super) addresses: SegmentAddresses,
}

impl BlockArena {
    /// Returns the index of a pool, and creates the pool if necessary.
    pub(super) fn pool(&mut self, private_pool: (u64, u64), size: PoolSize) -> usize {
        let Self { pools, by_name, .. } = self;
        *by_name.entry((private_pool, size)).or_insert_with(|| {
            let (free, unmapped) = (BTreeSet::new(), BTreeSet::new());
            pools.push(SimulatedPool { size, free, unmapped, looked: 0 });
            pools.len() - 1
        })
    }

    /// Returns a block.
    pub(super) fn get(&self, handle: BlockHandle) -> &SimulatedBlock {
        &self.blocks[handle.0 as usize]
    }

    /// Returns a block for modification. It must be in no pool.
    pub(super) fn get_mut(&mut self, handle: BlockHandle) -> &mut SimulatedBlock {
        &mut self.blocks[handle.0 as usize]
    }

    /// Adds a block that is in no pool yet.
    pub(super) fn add(&mut self, block: SimulatedBlock) -> BlockHandle {
        if let Some(handle) = self.vacant.pop() {
            *self.get_mut(handle) = block;
            return handle;
        }
        let handle = BlockHandle(u32::try_from(self.blocks.len()).unwrap_or(u32::MAX));
        self.blocks.push(block);
        handle
    }

    /// Removes a block. It must be in no pool.
    pub(super) fn drop_block(&mut self, handle: BlockHandle) {
        self.vacant.push(handle);
    }

    /// Returns all blocks by address.
    #[cfg(test)]
    pub(super) fn in_use(&self) -> Vec<SimulatedBlock> {
        let vacant: BTreeSet<BlockHandle> = self.vacant.iter().copied().collect();
        let all = (0..).zip(&self.blocks).filter(|(number, _)| !vacant.contains(&BlockHandle(*number)));
        let mut blocks: Vec<SimulatedBlock> = all.map(|(_, block)| *block).collect();
        blocks.sort_unstable_by_key(|block| block.address);
        blocks
    }

    /// Puts a free or unmapped block into its pool.
    pub(super) fn shelve(&mut self, handle: BlockHandle) {
        let SimulatedBlock { stream, bytes, address, pool, state, .. } = *self.get(handle);
        let place = &mut self.pools[pool];
        if state == SimulatedBlockState::Unmapped {
            place.unmapped.insert((stream, address, handle));
        } else {
            place.free.insert((stream, bytes, address, handle));
            let looked = place.looked;
            self.get_mut(handle).born = looked;
        }
    }

    /// Removes a free or unmapped block from its pool.
    pub(super) fn unshelve(&mut self, handle: BlockHandle) {
        let SimulatedBlock { stream, bytes, address, pool, state, .. } = *self.get(handle);
        let place = &mut self.pools[pool];
        if state == SimulatedBlockState::Unmapped {
            place.unmapped.remove(&(stream, address, handle));
        } else {
            place.free.remove(&(stream, bytes, address, handle));
        }
    }

    /// Splits the first `bytes` bytes off a block that is in no pool. Returns the remainder, which
    /// follows the block, is in no pool either and keeps its state.
    pub(super) fn cut(&mut self, handle: BlockHandle, bytes: u64) -> BlockHandle {
        let whole = *self.get(handle);
        let (address, rest) = (whole.address + bytes, whole.bytes - bytes);
        let rest = self.add(SimulatedBlock { address, bytes: rest, before: Some(handle), ..whole });
        if let Some(after) = whole.after {
            self.get_mut(after).before = Some(rest);
        }
        let block = self.get_mut(handle);
        (block.bytes, block.after) = (bytes, Some(rest));
        rest
    }

    /// Merges a block that is in no pool with neighbours of the same state.
    pub(super) fn join(&mut self, handle: BlockHandle) {
        let SimulatedBlock { before, after, state, .. } = *self.get(handle);
        for other in [before, after].into_iter().flatten() {
            let gone = *self.get(other);
            if gone.state != state {
                continue;
            }
            self.unshelve(other);
            let is_before = Some(other) == before;
            let block = self.get_mut(handle);
            block.bytes += gone.bytes;
            if is_before {
                (block.address, block.before) = (gone.address, gone.before);
                if let Some(first) = gone.before {
                    self.get_mut(first).after = Some(handle);
                }
            } else {
                block.after = gone.after;
                if let Some(last) = gone.after {
                    self.get_mut(last).before = Some(handle);
                }
            }
            self.drop_block(other);
        }
    }

    /// Returns the size of the largest free block and of all free blocks, in bytes.
    pub(super) fn free_bytes(&self) -> (u64, u64) {
        let sizes = self.pools.iter().flat_map(|pool| pool.free.iter().map(|(_, bytes, ..)| *bytes));
        sizes.fold((0, 0), |(largest, sum), bytes| (bytes.max(largest), sum + bytes))
    }
}
