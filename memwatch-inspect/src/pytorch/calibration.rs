//! Determines the layout of `Block` in this build, by invariants among all blocks.

use std::collections::{BTreeMap, BTreeSet};

use memwatch_core::allocators::pytorch::{AllocatorStatistics, StatFamily, StatScope};

use super::refusal::ReadRefusal;
use crate::memory::{MemoryAccess, at, heap_bytes};
use crate::pass::Pass;

/// Multiple of block sizes and addresses: `kMinBlockSize`, in bytes.
pub(super) const ROUNDING: u64 = 512;
/// Upper bound of block sizes in bytes.
pub(super) const BELIEVABLE: u64 = 1 << 46;
/// Maximum number of block accesses in the search for a layout. A real layout takes far fewer.
const MOST_LOOKS: usize = 1 << 27;
/// Bounds of the words in a `Block`, and the number read if the C library does not provide it.
const BLOCK_WORDS: std::ops::RangeInclusive<usize> = 13..=48;
const UNSAID_WORDS: usize = 20;

/// Word indices of the fields in a `Block`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockLayout {
    /// Number of words read.
    pub words: usize,
    /// `size`.
    pub size: usize,
    /// `requested_size`.
    pub requested: usize,
    /// `pool`.
    pub pool: usize,
    /// `ptr`.
    pub address: usize,
    /// Word that begins with `allocated` and `mapped`.
    pub flags: usize,
    /// `prev`.
    pub previous: usize,
    /// `next`.
    pub next: usize,
}

/// Layout proven by a reading, for later readings of the same build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calibration {
    /// Layout of a block.
    pub block: BlockLayout,
}

/// Information about the blocks before their layout is known.
pub(super) struct CalibrationInput<'a> {
    /// Statistics of the allocator.
    pub(super) statistics: &'a AllocatorStatistics,
    /// Addresses of the active blocks.
    pub(super) active: &'a BTreeSet<u64>,
    /// Addresses of all blocks in the trees.
    pub(super) free: &'a BTreeSet<u64>,
    /// Element counts of the trees by header address.
    pub(super) headers: &'a BTreeMap<u64, u64>,
}

type BlockRows = BTreeMap<u64, Vec<u64>>;

impl CalibrationInput<'_> {
    /// Determines the layout; `None` if there is no block to learn it from.
    pub(super) fn calibrate<M: MemoryAccess>(&self, pass: &Pass<'_, M>) -> Result<Option<Calibration>, ReadRefusal> {
        let unreadable = ReadRefusal::NotRecognized("its blocks cannot be read");
        let blocks: BTreeSet<u64> = self.active.union(self.free).copied().collect();
        if blocks.is_empty() {
            return Ok(None);
        }
        let widths = blocks.iter().map(|block| block_words(pass, *block));
        let words = widths.collect::<Option<Vec<_>>>().and_then(|widths| widths.into_iter().min());
        let words = words.unwrap_or(UNSAID_WORDS);
        let rows = blocks.iter().map(|block| Some((*block, pass.words(at(*block, 0)?, words)?)));
        let rows: BlockRows = rows.collect::<Option<_>>().ok_or(unreadable)?;
        let pool =
            self.pool(&rows, words).ok_or(ReadRefusal::NotRecognized("the pool field of a block was not found"))?;
        let layout = linked(&rows, words, pool).or_else(|| declared(&rows, words, pool));
        let mut layout = layout
            .ok_or(ReadRefusal::NotRecognized("the address, size and neighbour fields of a block were not found"))?;
        if let Some(requested) = self.requested(&rows, &layout) {
            layout.requested = requested;
        }
        let flags = (0..words).filter(|word| *word > 1 && !layout.names(*word));
        let flags = flags.into_iter().find(|word| self.is_flags(&rows, &layout, *word));
        layout.flags = flags.ok_or(ReadRefusal::NotRecognized("the flags of a block were not found"))?;
        Ok(Some(Calibration { block: layout }))
    }

    /// Returns the only word that is a pool's address in all blocks. The header of a pool's first
    /// tree is at offset 8 or 16.
    fn pool(&self, rows: &BlockRows, words: usize) -> Option<usize> {
        let is_pool = |pool: u64| [8, 16].iter().any(|front| self.headers.contains_key(&pool.wrapping_add(*front)));
        let mut found = (0..words).filter(|word| rows.values().all(|row| is_pool(row[*word])));
        found.next().filter(|_| found.next().is_none())
    }

    /// Returns the word whose sum over the active blocks equals the allocator's requested bytes.
    fn requested(&self, rows: &BlockRows, layout: &BlockLayout) -> Option<usize> {
        let total = u64::try_from(self.statistics.get(StatFamily::RequestedBytes, StatScope::All).current).ok()?;
        let sum = |word: usize| {
            let active = self.active.iter().map(|block| rows.get(block));
            active.into_iter().try_fold(0u64, |sum, row| {
                let row = row.filter(|row| row[word] <= row[layout.size])?;
                sum.checked_add(row[word])
            })
        };
        let mut words = (0..layout.words).filter(|word| !layout.names(*word));
        words.find(|word| total > 0 && sum(*word) == Some(total))
    }

    /// Returns whether this word begins with two flags, where count and bytes of the blocks with
    /// the first flag equal the allocated ones, and the bytes with the second equal the reserved
    /// ones.
    fn is_flags(&self, rows: &BlockRows, layout: &BlockLayout, word: usize) -> bool {
        let current = |family| u64::try_from(self.statistics.get(family, StatScope::All).current).ok();
        let (mut count, mut allocated, mut mapped) = (0, 0u64, 0u64);
        for row in rows.values() {
            let [is_allocated, is_mapped, ..] = row[word].to_le_bytes();
            if is_allocated > is_mapped || is_mapped > 1 {
                return false;
            }
            count += u64::from(is_allocated);
            allocated = allocated.saturating_add(u64::from(is_allocated) * row[layout.size]);
            mapped = mapped.saturating_add(u64::from(is_mapped) * row[layout.size]);
        }
        Some(count) == current(StatFamily::Allocation)
            && Some(allocated) == current(StatFamily::AllocatedBytes)
            && Some(mapped) == current(StatFamily::ReservedBytes)
    }
}

impl BlockLayout {
    /// Returns the layout as numbers, for storing it: word count, then the field indices in the
    /// order of declaration.
    pub const fn numbers(&self) -> [usize; 8] {
        [self.words, self.size, self.requested, self.pool, self.address, self.flags, self.previous, self.next]
    }

    /// Creates a layout from stored numbers; `None` if they are impossible.
    pub fn of_numbers(numbers: [usize; 8]) -> Option<Self> {
        let [words, size, requested, pool, address, flags, previous, next] = numbers;
        let mut fields: Vec<usize> = numbers[1..].to_vec();
        fields.sort_unstable();
        fields.dedup();
        let is_possible =
            BLOCK_WORDS.contains(&words) && fields.len() == 7 && fields.last().is_some_and(|last| *last < words);
        is_possible.then_some(Self { words, size, requested, pool, address, flags, previous, next })
    }

    /// Returns the layout with the fields in their order of declaration around `pool` (2.1 to
    /// 2.15).
    pub(super) const fn declared_around(pool: usize) -> Self {
        Self {
            words: pool + 5,
            size: pool - 2,
            requested: pool - 1,
            pool,
            address: pool + 1,
            flags: pool + 2,
            previous: pool + 3,
            next: pool + 4,
        }
    }

    /// Returns whether this word is one of the fields other than `requested` and `flags`.
    fn names(&self, word: usize) -> bool {
        [self.size, self.pool, self.address, self.previous, self.next].contains(&word)
    }
}

/// Returns the words of a block by the size of its glibc heap chunk; `None` if that is impossible.
fn block_words<M: MemoryAccess>(pass: &Pass<'_, M>, block: u64) -> Option<usize> {
    heap_words(pass, block).filter(|words| BLOCK_WORDS.contains(words))
}

/// Returns the words of the glibc heap chunk at an address.
pub(super) fn heap_words<M: MemoryAccess>(pass: &Pass<'_, M>, address: u64) -> Option<usize> {
    usize::try_from(heap_bytes(pass, address)? / 8).ok()
}

/// Finds the layout by neighbours: the next block begins where this one ends, and links back.
fn linked(rows: &BlockRows, words: usize, pool: usize) -> Option<BlockLayout> {
    let is_size = |word: usize| {
        rows.values().all(|row| row[word].is_multiple_of(ROUNDING) && (1..BELIEVABLE).contains(&row[word]))
    };
    let is_address = |word: usize| {
        let distinct: BTreeSet<u64> = rows.values().map(|row| row[word]).collect();
        distinct.len() == rows.len() && distinct.iter().all(|value| *value != 0 && value.is_multiple_of(ROUNDING))
    };
    let others = |used: &[usize]| {
        let used = used.to_vec();
        (0..words).filter(move |word| !used.contains(word))
    };
    let sizes: Vec<usize> = others(&[pool]).filter(|word| is_size(*word)).collect();
    let mut looks = 0;
    for address in others(&[pool]).filter(|word| is_address(*word)) {
        for size in sizes.iter().copied().filter(|size| *size != address) {
            looks += words * rows.len();
            if looks > MOST_LOOKS {
                return None;
            }
            let next = others(&[pool, address, size]).find(|next| is_next(rows, address, size, *next));
            let Some(next) = next else { continue };
            let is_previous = |previous: &usize| {
                let knows = |(block, row): (&u64, &Vec<u64>)| {
                    row[next] == 0 || rows.get(&row[next]).is_some_and(|next| next[*previous] == *block)
                };
                rows.iter().all(knows)
            };
            if let Some(previous) = others(&[pool, address, size, next]).find(is_previous) {
                let requested = pool.saturating_sub(1);
                return Some(BlockLayout { words, size, requested, pool, address, flags: 0, previous, next });
            }
        }
    }
    None
}

fn is_next(rows: &BlockRows, address: usize, size: usize, next: usize) -> bool {
    let follows = |row: &Vec<u64>| {
        let end = row[address].checked_add(row[size]);
        row[next] == 0 || rows.get(&row[next]).is_some_and(|next| Some(next[address]) == end)
    };
    rows.values().any(|row| row[next] != 0) && rows.values().all(follows)
}

/// Returns the layout by the order of declaration around `pool` (2.1 to 2.15), if no block has a
/// neighbour to learn it from.
fn declared(rows: &BlockRows, words: usize, pool: usize) -> Option<BlockLayout> {
    let layout = BlockLayout { words, ..BlockLayout::declared_around(pool.max(2)) };
    let is_alone = |row: &Vec<u64>| {
        let [size, address] = [row[layout.size], row[layout.address]];
        row[layout.next] == 0
            && row[layout.previous] == 0
            && size != 0
            && address != 0
            && (size | address) % ROUNDING == 0
    };
    (layout.next < words && rows.values().all(is_alone)).then_some(layout)
}
