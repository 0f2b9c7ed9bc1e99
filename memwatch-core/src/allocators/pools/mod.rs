//! Follows the memory pools of RAPIDS (RMM) and CuPy: blocks in a few large driver allocations, or
//! in blocks of other pools.
//!
//! The driver allocation that contains a block's address gives its device. This excludes pools in
//! host memory. A block divided further by another allocator (PyTorch segments, arenas, or pools
//! whose memory comes from another pool) is shown in both, but only the innermost is in the sums.

mod pool;
#[cfg(test)]
mod tests;
pub(crate) mod view;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde::{Deserialize, Serialize};

use self::pool::LivePoolBlock;
pub use self::pool::MemoryPool;
pub use self::view::{PoolView, PoolsView};
use super::bfc::Home;
use super::pytorch::DriverChange;
use super::{AllocatorNotice, BlockChange, FrameworkAllocator, ReportedTotals, TensorBlock, TensorLedger};
use crate::decode::{PoolBlock, PoolChange, PoolKind, PoolTurn, StackRef, TensorChange, TensorEvent};
use crate::ledger::{DriverSegment, SegmentLocation};
use crate::words::{Framework, Ordinal, Tid};

/// Frameworks with pools.
const FRAMEWORKS: [Framework; 2] = [Framework::Rmm, Framework::CuPy];
/// Maximum number of pools. Processes have a handful of them, so more are implausible.
const MOST_POOLS: usize = 256;
/// Maximum number of segments, and of threads with a pending request.
const MOST_SEGMENTS: usize = 4096;
const MOST_ASKING: usize = 4096;
/// Multiple to which RAPIDS rounds sizes up (`CUDA_ALLOCATION_ALIGNMENT` in rmm/aligned.hpp).
const ALIGNMENT_BYTES: u64 = 256;

/// A thread's pending request to an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct ArenaRequest {
    pool: u64,
    bytes: u64,
    stack: StackRef,
    is_sampled: bool,
}

/// Pools of a process, by address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MemoryPools {
    /// Frameworks that are, or were, probed in this process.
    watched: BTreeSet<Framework>,
    /// Frameworks among these that may have had pools before.
    older: BTreeSet<Framework>,
    pools: BTreeMap<u64, MemoryPool>,
    wanted: BTreeMap<Tid, ArenaRequest>,
    /// Memory that contains the blocks, bytes by address: driver allocations or blocks of other
    /// pools.
    segments: BTreeMap<u64, u64>,
    sees_driver: bool,
    /// Driver allocation that contains the block of the next event.
    #[serde(skip)]
    segment: Option<DriverSegment>,
    /// Changes of other blocks caused by the last events.
    #[serde(skip)]
    also: VecDeque<BlockChange>,
}

impl MemoryPools {
    /// Returns the frameworks that are, or were, probed in this process.
    pub const fn watched(&self) -> &BTreeSet<Framework> {
        &self.watched
    }

    /// Returns the pools by address.
    pub const fn pools(&self) -> &BTreeMap<u64, MemoryPool> {
        &self.pools
    }

    /// Returns the bytes a pool reserved upstream: its own count, or else the memory that contains
    /// its blocks. `None` if neither is known.
    pub fn size_bytes(&self, pool: &MemoryPool) -> Option<u64> {
        let holds = |(start, bytes): &(&u64, &u64)| pool.has_block_between(**start, start.saturating_add(**bytes));
        let held = || self.segments.iter().filter(holds).map(|(_, bytes)| *bytes).reduce(u64::saturating_add);
        // Pools of these kinds count their size in all builds examined.
        let counts = matches!(pool.kind(), PoolKind::Pool | PoolKind::MemoryPool);
        if counts { pool.size_bytes() } else { held() }
    }

    /// Marks the block that contains this address as divided by another allocator.
    pub(super) fn divide(&mut self, address: u64) {
        self.divide_for(None, address);
    }

    fn divide_for(&mut self, by: Option<u64>, address: u64) {
        for (_, pool) in self.pools.iter_mut().filter(|(own, _)| Some(**own) != by) {
            if let (Some((address, block_bytes)), Some(ordinal)) = (pool.divide(address), pool.home.ordinal()) {
                self.also.push_back(BlockChange::Freed { ordinal, address, block_bytes });
            }
        }
    }

    /// Queues the removal of blocks from the sums by call site.
    fn drop_from_sums(&mut self, home: Home, gone: Vec<(u64, LivePoolBlock)>) {
        let Some(ordinal) = home.ordinal() else { return };
        let counted = gone.into_iter().filter(|(_, held)| !held.is_divided);
        let freed = counted.map(|(address, held)| BlockChange::Freed { ordinal, address, block_bytes: held.bytes });
        self.also.extend(freed);
    }

    fn begin_pool(&mut self, address: u64, kind: PoolKind) {
        self.end_pool(address);
        if self.pools.len() < MOST_POOLS {
            self.pools.insert(address, MemoryPool::met(kind, true));
        }
    }

    fn end_pool(&mut self, address: u64) {
        if let Some(mut pool) = self.pools.remove(&address) {
            self.drop_from_sums(pool.home, pool.end());
        }
    }

    /// Returns where a block is.
    fn home_of(&self, before: Home, stated: Option<Ordinal>) -> Home {
        match (self.segment.map(|segment| segment.memory), before) {
            (_, Home::Host) | (Some(SegmentLocation::Host), _) => Home::Host,
            (Some(SegmentLocation::Device(ordinal)), _) => Home::Device(ordinal),
            (None, Home::Unknown) if self.sees_driver => Home::Host,
            (None | Some(SegmentLocation::SomeDevice), Home::Unknown) => stated.map_or(Home::Unknown, Home::Named),
            (None | Some(SegmentLocation::SomeDevice), before) => before,
        }
    }

    fn grant(&mut self, event: &TensorEvent, kind: PoolKind, block: &PoolBlock) -> Option<TensorBlock> {
        let before = self.pools.get(&block.pool).map_or(Home::Unknown, |pool| pool.home);
        let home = self.home_of(before, block.ordinal);
        self.remember_segment(block);
        if self.pools.len() >= MOST_POOLS && !self.pools.contains_key(&block.pool) {
            return None;
        }
        let is_whole = !self.older.contains(&kind.framework());
        let pool = self.pools.entry(block.pool).or_insert_with(|| MemoryPool::met(kind, is_whole));
        (pool.home, pool.time_ns) = (home, pool.time_ns.max(event.time_ns));
        if home == Home::Host {
            pool.end();
            return None;
        }
        let (block_bytes, gone) = pool.grant(block);
        self.drop_from_sums(home, gone);
        self.divide_for(Some(block.pool), block.address);
        Some(TensorBlock {
            ordinal: home.ordinal()?,
            address: block.address,
            block_bytes,
            requested_bytes: None,
            cached: None,
            tid: event.tid,
            stack: event.stack,
            is_sampled: event.is_sampled,
            time_ns: event.time_ns,
        })
    }

    /// Remembers the memory that contains a block: another pool's block or a driver allocation.
    fn remember_segment(&mut self, block: &PoolBlock) {
        let others = self.pools.iter().filter(|(own, _)| **own != block.pool);
        let outer = others.filter_map(|(_, pool)| pool.block_at(block.address)).min_by_key(|(_, bytes)| *bytes);
        let driver = || self.segment.map(|segment| (segment.address, segment.bytes));
        if let Some((address, bytes)) = outer.or_else(driver) {
            if self.segments.len() >= MOST_SEGMENTS {
                self.segments.clear();
            }
            self.segments.insert(address, bytes);
        }
    }

    fn free(&mut self, event: &TensorEvent, kind: PoolKind, block: &PoolBlock) -> Option<BlockChange> {
        let bytes = if kind == PoolKind::Arena { aligned(block.bytes) } else { block.bytes };
        let pool = self.pools.get_mut(&block.pool).filter(|pool| pool.home != Home::Host)?;
        pool.time_ns = pool.time_ns.max(event.time_ns);
        let held = pool.take_back(&PoolBlock { bytes, ..*block }).filter(|held| !held.is_divided)?;
        Some(BlockChange::Freed { ordinal: pool.home.ordinal()?, address: block.address, block_bytes: held.bytes })
    }

    fn ask(&mut self, event: &TensorEvent, pool: u64, bytes: u64) {
        if self.wanted.len() >= MOST_ASKING {
            self.wanted.clear();
        }
        let (stack, is_drawn) = (event.stack, event.is_sampled);
        self.wanted.insert(event.tid, ArenaRequest { pool, bytes, stack, is_sampled: is_drawn });
    }

    /// Completes the thread's last request to an arena. A request that threw an exception is never
    /// answered.
    fn answer(&mut self, event: &TensorEvent, kind: PoolKind, address: u64) -> Option<BlockChange> {
        let wanted = self.wanted.remove(&event.tid)?;
        let asked = TensorEvent { stack: wanted.stack, is_sampled: wanted.is_sampled, ..event.clone() };
        let bytes = aligned(wanted.bytes);
        if address == 0 || bytes == 0 {
            return None;
        }
        let block = PoolBlock { pool: wanted.pool, address, bytes, counter: None, ordinal: None };
        let granted = self.grant(&asked, kind, &block)?;
        Some(BlockChange::Granted(TensorBlock { requested_bytes: Some(wanted.bytes), ..granted }))
    }

    /// Records that pools of the probed frameworks may have unknown blocks.
    fn doubt_all(&mut self) {
        self.older.extend(&self.watched);
        self.pools.values_mut().for_each(MemoryPool::lose);
    }

    /// Forgets the pools, since changes are not seen from here on.
    fn forget(&mut self) {
        let watched = std::mem::take(&mut self.watched);
        *self = Self { older: watched.clone(), watched, ..Self::default() };
    }

    fn take_segment(&mut self, begin: u64, end: u64) {
        let mut gone = Vec::new();
        for pool in self.pools.values_mut() {
            gone.push((pool.home, pool.drop_missed(begin, end)));
        }
        for (home, blocks) in gone {
            self.drop_from_sums(home, blocks);
        }
        self.segments.retain(|start, _| !(begin..end).contains(start));
    }
}

const fn aligned(bytes: u64) -> u64 {
    bytes.saturating_add(ALIGNMENT_BYTES - 1) / ALIGNMENT_BYTES * ALIGNMENT_BYTES
}

impl TensorLedger {
    /// Returns the pools of RAPIDS and CuPy.
    pub const fn pools(&self) -> &MemoryPools {
        &self.allocators.pools
    }
}

impl FrameworkAllocator for MemoryPools {
    fn watch(&mut self, framework: Framework, from_start: bool) -> bool {
        let is_new = FRAMEWORKS.contains(&framework) && self.watched.insert(framework);
        if is_new && !from_start {
            self.older.insert(framework);
        }
        is_new
    }

    fn note(&mut self, notice: AllocatorNotice) {
        match notice {
            AllocatorNotice::StartMissed => self.doubt_all(),
            AllocatorNotice::DriverKnown(all) => self.sees_driver = all,
            AllocatorNotice::EventsLost => {
                self.wanted.clear();
                self.doubt_all();
            }
            AllocatorNotice::Stopped => self.forget(),
            AllocatorNotice::Resumed => {}
            AllocatorNotice::PeaksBegin(_) => self.pools.values_mut().for_each(MemoryPool::begin_peak),
        }
    }

    fn place(&mut self, event: &TensorEvent, segment_at: &dyn Fn(u64) -> Option<DriverSegment>) {
        if let TensorChange::Pool(change) = &event.what {
            self.segment = change.granted_address().and_then(segment_at);
        }
    }

    fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange> {
        let TensorChange::Pool(PoolChange { kind, turn }) = event.what else { return None };
        match turn {
            PoolTurn::Begins(pool) => self.begin_pool(pool, kind),
            PoolTurn::Ends(pool) => self.end_pool(pool),
            PoolTurn::Granted(block) => return self.grant(event, kind, &block).map(BlockChange::Granted),
            PoolTurn::Freed(block) => return self.free(event, kind, &block),
            PoolTurn::Wanted { pool, bytes } => self.ask(event, pool, bytes),
            PoolTurn::Answered(address) => return self.answer(event, kind, address),
        }
        None
    }

    fn also(&mut self) -> Option<BlockChange> {
        self.also.pop_front()
    }

    /// Drops the blocks in freed memory: a pool frees memory only after all blocks in it.
    fn driver(&mut self, change: DriverChange) {
        match change {
            DriverChange::Freed { address } => {
                if let Some(bytes) = self.segments.get(&address).copied() {
                    self.take_segment(address, address.saturating_add(bytes));
                }
            }
            DriverChange::Unmapped { address, bytes } => self.take_segment(address, address.saturating_add(bytes)),
            DriverChange::Mapped { .. } => {}
        }
    }

    fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        let mut all: BTreeMap<Ordinal, ReportedTotals> = BTreeMap::new();
        for pool in self.pools.values().filter(|pool| pool.out_of_step() == 0) {
            let Some(ordinal) = pool.home.ordinal() else { continue };
            let in_use = pool.bytes_in_use().unwrap_or(pool.known_bytes());
            let size = self.size_bytes(pool).unwrap_or(in_use).max(in_use);
            let sum = all.entry(ordinal).or_default();
            let add = |sum: u64, bytes: u64| sum.saturating_add(bytes.saturating_sub(pool.divided_bytes()));
            sum.allocated_bytes = add(sum.allocated_bytes, in_use);
            sum.reserved_bytes = add(sum.reserved_bytes, size);
            sum.time_ns = sum.time_ns.max(pool.time_ns);
        }
        all
    }

    /// Returns the blocks that no other allocator divides.
    fn blocks_on(&self, ordinal: Ordinal) -> BTreeMap<u64, u64> {
        let here = self.pools.values().filter(|pool| pool.home.ordinal() == Some(ordinal));
        let whole = here.flat_map(|pool| &pool.blocks).filter(|(_, held)| !held.is_divided);
        whole.map(|(address, held)| (*address, held.bytes)).collect()
    }
}
