//! Reads the active blocks of allocators while they are running.
//!
//! No two words need to be of the same moment. A block is accepted if it is plausible by itself,
//! and the caller decides by the events of that time which blocks count. Positions are determined
//! by a majority of the words, since some have changed meanwhile.

use memwatch_core::allocators::pytorch::totals;
use memwatch_core::input::allocator_state::{MovingDevice, StateBlock, StateBlockUse};
use memwatch_core::words::Ordinal;

use super::calibration::{BELIEVABLE, BlockLayout, Calibration, ROUNDING};
use super::containers::{HEADER_WORDS, HashTable, tree_at};
use super::devices::{self, STATISTICS_WORD};
use super::reading::{FRONT_WORDS, MOST_ACTIVE_SLOTS};
use crate::memory::{MemoryAccess, at};
use crate::pass::Pass;

/// Words of a block that are searched for its pool.
const POOL_WORDS: std::ops::Range<usize> = 5..16;

/// Returns the blocks in a device's set of active blocks; `None` if the set is not found, or most
/// of its members are not blocks.
pub(super) fn active<M: MemoryAccess>(
    pass: &Pass<'_, M>,
    (ordinal, address, all): (Ordinal, u64, &[u64]),
    known: Option<Calibration>,
) -> Option<MovingDevice> {
    let words = devices::words(pass, address, all)?;
    let (allocated_bytes, reserved_bytes) = totals(words.get(STATISTICS_WORD..)?.first_chunk()?);
    let sets = words.array_windows::<{ HashTable::WORDS }>().skip(FRONT_WORDS);
    let tables = sets.filter_map(|words| HashTable::of(words, MOST_ACTIVE_SLOTS)).filter(|table| table.count > 0);
    let blocks = tables.filter_map(|table| blocks(pass, &table, known)).find(|blocks| !blocks.is_empty())?;
    Some(MovingDevice { ordinal, allocated_bytes, reserved_bytes, blocks })
}

fn blocks<M: MemoryAccess>(
    pass: &Pass<'_, M>,
    table: &HashTable,
    known: Option<Calibration>,
) -> Option<Vec<StateBlock>> {
    let addresses = table.addresses(pass)?;
    let read = |layout: BlockLayout| {
        let blocks = addresses.iter().filter_map(|address| block(pass, *address, &layout));
        let found: Vec<StateBlock> = blocks.collect();
        is_most(found.len(), addresses.len()).then_some(found)
    };
    // The known layout may be of another build.
    known.and_then(|known| read(known.block)).or_else(|| read(layout(pass, &addresses)?))
}

/// Determines the layout by the pool's position in most of the blocks. The other fields are
/// declared around it in a fixed order.
fn layout<M: MemoryAccess>(pass: &Pass<'_, M>, addresses: &[u64]) -> Option<BlockLayout> {
    let rows: Vec<Vec<u64>> =
        addresses.iter().take(256).filter_map(|address| pass.words(at(*address, 0)?, POOL_WORDS.end)).collect();
    let is_pool = |pool: u64| {
        let header = at(pool, 8).filter(|header| header.is_multiple_of(8));
        let words = header.and_then(|header| Some((header, pass.words(header, HEADER_WORDS)?)));
        words.is_some_and(|(header, words)| tree_at(pass, header, &words).is_some())
    };
    let agree = |word: &usize| is_most(rows.iter().filter(|row| is_pool(row[*word])).count(), rows.len());
    let pool = POOL_WORDS.clone().find(agree)?;
    Some(BlockLayout::declared_around(pool))
}

fn block<M: MemoryAccess>(pass: &Pass<'_, M>, address: u64, layout: &BlockLayout) -> Option<StateBlock> {
    let words = pass.words(address, layout.words)?;
    let [is_allocated, is_mapped, ..] = words[layout.flags].to_le_bytes();
    let block = StateBlock {
        address: words[layout.address],
        bytes: words[layout.size],
        requested_bytes: words[layout.requested],
        state: if is_allocated == 1 { StateBlockUse::ActiveAllocated } else { StateBlockUse::ActivePendingFree },
    };
    let is_block = is_allocated <= is_mapped
        && is_mapped <= 1
        && block.address != 0
        && (block.address | block.bytes).is_multiple_of(ROUNDING)
        && (1..BELIEVABLE).contains(&block.bytes)
        && block.requested_bytes <= block.bytes;
    is_block.then_some(block)
}

/// Returns whether `some` is at least nine tenths of `all`.
const fn is_most(some: usize, all: usize) -> bool {
    all > 0 && some * 10 >= all * 9
}
