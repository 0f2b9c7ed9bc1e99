//! Reads and validates the segments and blocks of one device.

use std::collections::{BTreeMap, BTreeSet};

use memwatch_core::allocators::pytorch::{AllocatorStatistics, StatFamily, StatScope};
use memwatch_core::input::allocator_state::{DeviceAllocatorState, StateBlock, StateBlockUse, StateSegment};
use memwatch_core::words::Ordinal;

use super::calibration::{BlockLayout, Calibration, CalibrationInput, heap_words};
use super::containers::{HEADER_WORDS, HashTable, tree, tree_at, trees_in};
use super::devices::{self, AllocatorMoment};
use super::refusal::{ReadContradiction, ReadRefusal};
use crate::memory::{MemoryAccess, at};
use crate::pass::Pass;

/// Words before the tables and trees: the mutex, and the statistics of 2.1.
pub(super) const FRONT_WORDS: usize = 77;
/// Words of a private pool that are searched if the C library does not provide its size.
const POOL_WORDS: usize = 64;
/// Maximum size of a private pool in words.
const MOST_POOL_WORDS: usize = 512;
/// Maximum number of slots in the table of private pools, and in the set of active blocks.
const MOST_POOL_SLOTS: u64 = 1 << 12;
pub(super) const MOST_ACTIVE_SLOTS: u64 = 1 << 22;
/// Maximum number of free blocks per device.
const MOST_FREE: u64 = 1 << 22;
/// Maximum number of expandable segments per device. There are two for each stream.
const MOST_LISTED: u64 = 1 << 12;
/// Size in bytes of a set in a pool: the comparator and the tree header.
const SET_BYTES: u64 = 8 * (1 + HEADER_WORDS as u64);
/// Maximum number of sets searched for in a block pool; known versions have one to three.
const MOST_SETS: u64 = 6;
/// Words of an expandable segment that are searched for the beginning of its range.
const EXPANDABLE_WORDS: usize = 16;

/// Knowledge about this build.
pub(super) struct KnownLayout {
    pub(super) layout: Option<Calibration>,
    /// Number of searches for a layout.
    pub(super) searches: u32,
}

/// A block with its links, decoded.
#[derive(Clone, Copy, Debug)]
struct DecodedBlock {
    block: StateBlock,
    stream: u64,
    pool: u64,
    is_mapped: bool,
    previous: u64,
    next: u64,
    expandable: bool,
}

/// Reads the state of a device, `all` being the allocators of all devices; `None` if the process
/// has never used the device.
pub(super) fn device<M: MemoryAccess>(
    pass: &Pass<'_, M>,
    (ordinal, address, all): (Ordinal, u64, &[u64]),
    moment: &AllocatorMoment,
    calibration: &mut KnownLayout,
) -> Result<Option<DeviceAllocatorState>, ReadRefusal> {
    if moment.statistics == AllocatorStatistics::default() {
        return Ok(None);
    }
    let device = DeviceContainers::read(pass, (address, all), &moment.statistics)?;
    let segments = match calibration.layout {
        Some(known) => device.segments(&known.block).or_else(|_stale| device.calibrated(calibration)),
        None => device.calibrated(calibration),
    };
    Ok(Some(DeviceAllocatorState { ordinal, allocator: address, words: moment.words.to_vec(), segments: segments? }))
}

/// Containers of a device's allocator.
struct DeviceContainers<'p, 'm, M> {
    pass: &'p Pass<'m, M>,
    statistics: &'p AllocatorStatistics,
    /// Element counts by header address of all trees, including those of private pools.
    headers: BTreeMap<u64, u64>,
    /// Ids of private pools by address.
    private_pools: BTreeMap<u64, (u64, u64)>,
    /// Ids of private pools that are no longer in use.
    idle_pools: BTreeSet<(u64, u64)>,
    active: BTreeSet<u64>,
    free: BTreeSet<u64>,
    /// Items of the allocator's vectors, one of which lists the expandable segments.
    listed: BTreeSet<u64>,
}

impl<'p, 'm, M: MemoryAccess> DeviceContainers<'p, 'm, M> {
    fn read(
        pass: &'p Pass<'m, M>,
        (address, all): (u64, &[u64]),
        statistics: &'p AllocatorStatistics,
    ) -> Result<Self, ReadRefusal> {
        let words = devices::words(pass, address, all).ok_or(ReadRefusal::Unreadable("an allocator"))?;
        let mut headers = trees_in(pass, address, &words);
        let pools = private_pools(pass, &words);
        let private_pools: BTreeMap<_, _> = pools.iter().copied().collect();
        let idle_pools = idle_pools(&pools);
        for pool in private_pools.keys() {
            headers.extend(trees_of_pool(pass, *pool));
        }
        let active = active_blocks(pass, &words, statistics)?;
        if headers.values().fold(0, |sum: u64, count| sum.saturating_add(*count)) > MOST_FREE {
            return Err(ReadRefusal::TooLarge);
        }
        let mut free = BTreeSet::new();
        for header in headers.keys() {
            free.extend(tree(pass, *header).map_err(ReadRefusal::Contradiction)?);
        }
        let listed = vectors(pass, &words);
        Ok(Self { pass, statistics, headers, private_pools, idle_pools, active, free, listed })
    }

    /// Returns the segments by a newly determined layout, and stores it if the result is valid.
    fn calibrated(&self, calibration: &mut KnownLayout) -> Result<Vec<StateSegment>, ReadRefusal> {
        calibration.searches += 1;
        let Self { statistics, active, free, headers, .. } = self;
        let found = CalibrationInput { statistics, active, free, headers }.calibrate(self.pass)?;
        let Some(found) = found else { return self.check(&[], &[]).map(|()| Vec::new()) };
        let segments = self.segments(&found.block)?;
        calibration.layout = Some(found);
        Ok(segments)
    }

    fn segments(&self, layout: &BlockLayout) -> Result<Vec<StateSegment>, ReadRefusal> {
        let chains = chains(&self.rows(layout)?).map_err(ReadRefusal::Contradiction)?;
        let mut pools = BTreeMap::new();
        let mut segments = Vec::new();
        for chain in &chains {
            for part in chain.chunk_by(|before, after| before.is_mapped == after.is_mapped) {
                let Some(first) = part.first().filter(|first| first.is_mapped) else { continue };
                let pool = match pools.get(&first.pool) {
                    Some(pool) => *pool,
                    None => self.pool(first.pool).ok_or(ReadRefusal::Contradiction(ReadContradiction::Pool))?,
                };
                pools.insert(first.pool, pool);
                segments.push(StateSegment {
                    address: first.block.address,
                    bytes: part.iter().map(|row| row.block.bytes).fold(0, u64::saturating_add),
                    stream: first.stream,
                    is_small: pool.0,
                    is_expandable: chain.iter().any(|row| row.expandable),
                    private_pool: pool.1,
                    is_pool_idle: self.idle_pools.contains(&pool.1),
                    blocks: part.iter().map(|row| row.block).collect(),
                });
            }
        }
        let rows: Vec<DecodedBlock> = chains.into_iter().flatten().collect();
        segments.sort_by_key(|segment| segment.address);
        self.check(&rows, &segments)?;
        Ok(segments)
    }

    /// Reads all blocks: the known ones and their neighbours.
    fn rows(&self, layout: &BlockLayout) -> Result<BTreeMap<u64, DecodedBlock>, ReadRefusal> {
        let mut rows = BTreeMap::new();
        let mut left: Vec<u64> = self.active.union(&self.free).copied().collect();
        while let Some(block) = left.pop() {
            if rows.contains_key(&block) {
                continue;
            }
            let words = at(block, 0).and_then(|block| self.pass.words(block, layout.words));
            let words = words.ok_or(ReadRefusal::Contradiction(ReadContradiction::Links))?;
            let row = self.row(layout, block, &words).ok_or(ReadRefusal::Contradiction(ReadContradiction::Flags))?;
            left.extend([row.previous, row.next].into_iter().filter(|neighbour| *neighbour != 0));
            rows.insert(block, row);
        }
        Ok(rows)
    }

    fn row(&self, layout: &BlockLayout, block: u64, words: &[u64]) -> Option<DecodedBlock> {
        let word = |index: usize| words.get(index).copied();
        let [is_allocated, is_mapped, ..] = word(layout.flags)?.to_le_bytes();
        if is_allocated > is_mapped || is_mapped > 1 {
            return None;
        }
        let state = match (is_allocated == 1, self.active.contains(&block)) {
            (true, _) => StateBlockUse::ActiveAllocated,
            (false, true) => StateBlockUse::ActivePendingFree,
            (false, false) => StateBlockUse::Inactive,
        };
        let address = word(layout.address)?;
        let previous = word(layout.previous)?;
        let begins_range = |pointer: &u64| {
            if !self.listed.contains(pointer) {
                return false;
            }
            let words = at(*pointer, 0).and_then(|pointer| self.pass.words(pointer, EXPANDABLE_WORDS));
            words.is_some_and(|words| words.contains(&address))
        };
        let behind = words.get(layout.next + 1..).unwrap_or_default();
        let mut pointers = behind.iter().filter(|pointer| pointer.is_multiple_of(8));
        Some(DecodedBlock {
            block: StateBlock { address, bytes: word(layout.size)?, requested_bytes: word(layout.requested)?, state },
            stream: word(1)?,
            pool: word(layout.pool)?,
            is_mapped: is_mapped == 1,
            previous,
            next: word(layout.next)?,
            expandable: previous == 0 && pointers.any(begins_range),
        })
    }

    /// Returns whether a pool is the small one, and the id of its private pool.
    fn pool(&self, pool: u64) -> Option<(bool, (u64, u64))> {
        let (is_small, owner) = small_and_owner(self.pass, pool)?;
        let id = if owner == 0 { (0, 0) } else { *self.private_pools.get(&owner)? };
        Some((is_small, id))
    }

    /// Checks the segments and blocks against the allocator's totals.
    fn check(&self, rows: &[DecodedBlock], segments: &[StateSegment]) -> Result<(), ReadRefusal> {
        let overlaps =
            |[before, after]: &[StateSegment; 2]| before.address.saturating_add(before.bytes) > after.address;
        if segments.array_windows::<2>().any(overlaps) {
            return Err(ReadRefusal::Contradiction(ReadContradiction::Overlap));
        }
        let sum = |of: &dyn Fn(&DecodedBlock) -> u64| rows.iter().map(of).fold(0, u64::saturating_add);
        let is_allocated = |row: &DecodedBlock| u64::from(row.block.state == StateBlockUse::ActiveAllocated);
        let is_active = |row: &DecodedBlock| u64::from(row.block.state != StateBlockUse::Inactive);
        let sums = [
            ("allocated blocks", StatFamily::Allocation, sum(&is_allocated)),
            ("active blocks", StatFamily::Active, sum(&is_active)),
            ("allocated bytes", StatFamily::AllocatedBytes, sum(&|row| is_allocated(row) * row.block.bytes)),
            ("active bytes", StatFamily::ActiveBytes, sum(&|row| is_active(row) * row.block.bytes)),
            ("requested bytes", StatFamily::RequestedBytes, sum(&|row| is_active(row) * row.block.requested_bytes)),
            ("reserved bytes", StatFamily::ReservedBytes, sum(&|row| u64::from(row.is_mapped) * row.block.bytes)),
        ];
        for (what, family, read) in sums {
            let counted = self.statistics.get(family, StatScope::All).current;
            let counted = u64::try_from(counted).map_err(|_negative| ReadRefusal::Busy)?;
            if read != counted {
                return Err(ReadRefusal::Contradiction(ReadContradiction::Sum { what, read, counted }));
            }
        }
        Ok(())
    }
}

/// Links the blocks of each piece of driver memory in order.
fn chains(rows: &BTreeMap<u64, DecodedBlock>) -> Result<Vec<Vec<DecodedBlock>>, ReadContradiction> {
    let mut chains = Vec::new();
    let mut count = 0;
    for (first, row) in rows.iter().filter(|(_, row)| row.previous == 0) {
        let mut chain = vec![*row];
        let (mut block, mut row) = (*first, row);
        while row.next != 0 {
            let next = rows.get(&row.next).filter(|next| next.previous == block).ok_or(ReadContradiction::Links)?;
            if row.block.address.checked_add(row.block.bytes) != Some(next.block.address) {
                return Err(ReadContradiction::Gaps);
            }
            // Guards against cycles: no block is in two chains.
            if chain.len() > rows.len() {
                return Err(ReadContradiction::Links);
            }
            (block, row) = (row.next, next);
            chain.push(*row);
        }
        count += chain.len();
        chains.push(chain);
    }
    if count == rows.len() { Ok(chains) } else { Err(ReadContradiction::Links) }
}

/// Returns the active blocks: the first hash set with as many elements as the allocator counts.
fn active_blocks<M: MemoryAccess>(
    pass: &Pass<'_, M>,
    words: &[u64],
    statistics: &AllocatorStatistics,
) -> Result<BTreeSet<u64>, ReadRefusal> {
    let count = u64::try_from(statistics.get(StatFamily::Active, StatScope::All).current);
    let count = count.map_err(|_negative| ReadRefusal::Busy)?;
    if count == 0 {
        return Ok(BTreeSet::new());
    }
    let found = words.array_windows::<{ HashTable::WORDS }>().skip(FRONT_WORDS).find_map(|words| {
        let table = HashTable::of(words, MOST_ACTIVE_SLOTS).filter(|table| table.count == count)?;
        let blocks: BTreeSet<u64> = table.values(pass, 2)?.iter().filter_map(|value| value.first().copied()).collect();
        let are_blocks = blocks.iter().all(|block| block.is_multiple_of(8) && at(*block, 0).is_some());
        (are_blocks && blocks.len() as u64 == count).then_some(blocks)
    });
    found.ok_or(ReadRefusal::Contradiction(ReadContradiction::ActiveSet))
}

/// Returns whether a pool is the small one, and the address of its private pool, 0 for none. Both
/// follow the pool's sets, of which there are one to three depending on the version.
fn small_and_owner<M: MemoryAccess>(pass: &Pass<'_, M>, pool: u64) -> Option<(bool, u64)> {
    let set = |index: u64| at(pool, 8).map(|first| first + SET_BYTES * index);
    let sets = (0..MOST_SETS).take_while(|index| {
        let words = set(*index).and_then(|set| Some((set, pass.words(set, HEADER_WORDS)?)));
        words.is_some_and(|(set, words)| tree_at(pass, set, &words).is_some())
    });
    let behind = pool + SET_BYTES * sets.count() as u64;
    let [is_small] = pass.array::<1>(behind)?;
    let owner = pass.u64(behind + 8)?;
    (is_small <= 1).then_some((is_small == 1, owner))
}

/// Returns the ids of private pools that are in two tables: in that of all pools, and in that of
/// pools without users (`graph_pools_freeable`).
fn idle_pools(pools: &[(u64, (u64, u64))]) -> BTreeSet<(u64, u64)> {
    let mut seen = BTreeSet::new();
    pools.iter().filter(|(pool, _)| !seen.insert(*pool)).map(|(_, id)| *id).collect()
}

/// Returns the private pools with their ids, from the tables of pools by id. A pool begins with its
/// id. Before 2.7 it does not, and is recognised by the owner of its trees.
fn private_pools<M: MemoryAccess>(pass: &Pass<'_, M>, words: &[u64]) -> Vec<(u64, (u64, u64))> {
    let is_owner = |pool: u64| {
        let first = trees_of_pool(pass, pool).into_keys().next();
        let owner = first.and_then(|header| small_and_owner(pass, header.checked_sub(8)?));
        owner.is_some_and(|(_, owner)| owner == pool)
    };
    let pools = |words: &[u64; HashTable::WORDS]| {
        let table = HashTable::of(words, MOST_POOL_SLOTS).filter(|table| table.count > 0)?;
        let pool = |value: Vec<u64>| {
            let [first, second, pool] = *value.first_chunk::<3>()?;
            let begins_with_id = pass.words(at(pool, 0)?, 2)? == [first, second];
            (begins_with_id || is_owner(pool)).then_some((pool, (first, second)))
        };
        table.values(pass, 4)?.into_iter().map(pool).collect::<Option<Vec<_>>>()
    };
    words.array_windows::<{ HashTable::WORDS }>().skip(FRONT_WORDS).filter_map(pools).flatten().collect()
}

/// Returns the words in all vectors of pointers among an allocator's words: {begin, end, end of
/// capacity}.
fn vectors<M: MemoryAccess>(pass: &Pass<'_, M>, words: &[u64]) -> BTreeSet<u64> {
    let items = |[begin, end, room]: &[u64; 3]| {
        let is_vector = [begin, end, room].iter().all(|word| word.is_multiple_of(8))
            && begin < end
            && end <= room
            && room - begin <= 8 * MOST_LISTED;
        let count = usize::try_from(end.wrapping_sub(*begin) / 8).ok()?;
        if is_vector { pass.words(at(*begin, 0)?, count) } else { None }
    };
    words.array_windows::<3>().filter_map(items).flatten().collect()
}

fn trees_of_pool<M: MemoryAccess>(pass: &Pass<'_, M>, pool: u64) -> BTreeMap<u64, u64> {
    let words = heap_words(pass, pool).filter(|words| *words <= MOST_POOL_WORDS).unwrap_or(POOL_WORDS);
    let words = pass.words(pool, words).unwrap_or_default();
    trees_in(pass, pool, &words)
}
