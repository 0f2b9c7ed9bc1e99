//! Containers of the allocator: libstdc++'s red-black trees, and flat hash tables.

use std::collections::BTreeMap;

use super::refusal::ReadContradiction;
use crate::memory::{MemoryAccess, at};
use crate::pass::Pass;

/// Words of a tree header: {colour, root, first, last, count} (`std::_Rb_tree_header`,
/// bits/stl_tree.h).
pub(super) const HEADER_WORDS: usize = 5;
/// Maximum number of blocks in a tree or set.
const MOST_ELEMENTS: u64 = 1 << 24;
/// Maximum depth of a tree: twice the logarithm of that number, with a margin.
const GREATEST_DEPTH: usize = 64;
/// Position of the value in a tree node: {colour, parent, left, right, value}.
const NODE_VALUE: usize = 4;

/// Returns the element count if these words, read at an address, are a tree header.
pub(super) fn tree_at<M: MemoryAccess>(pass: &Pass<'_, M>, address: u64, words: &[u64]) -> Option<u64> {
    let [colour, root, first, last, count] = *words.first_chunk::<HEADER_WORDS>()?;
    if colour & 0xffff_ffff != 0 {
        return None;
    }
    if root == 0 {
        return (first == address && last == address && count == 0).then_some(0);
    }
    let is_tree = (1..MOST_ELEMENTS).contains(&count)
        && [root, first, last].iter().all(|node| node.is_multiple_of(8))
        && pass.u64(at(root, 8)?)? == address;
    is_tree.then_some(count)
}

/// Returns the values of the tree with this header, in order.
pub(super) fn tree<M: MemoryAccess>(pass: &Pass<'_, M>, header: u64) -> Result<Vec<u64>, ReadContradiction> {
    let words = pass.words(header, HEADER_WORDS).ok_or(ReadContradiction::Tree)?;
    let (mut node, count) = (words[1], words[4]);
    let (mut values, mut above) = (Vec::new(), Vec::new());
    while node != 0 || !above.is_empty() {
        while node != 0 {
            let words = at(node, 0).and_then(|node| pass.words(node, NODE_VALUE + 1)).ok_or(ReadContradiction::Tree)?;
            node = words[2];
            above.push(words);
            if above.len() > GREATEST_DEPTH {
                return Err(ReadContradiction::Tree);
            }
        }
        if let Some(words) = above.pop() {
            values.push(words[NODE_VALUE]);
            node = words[3];
        }
        if values.len() as u64 > count {
            return Err(ReadContradiction::Tree);
        }
    }
    if values.len() as u64 == count { Ok(values) } else { Err(ReadContradiction::Tree) }
}

/// Header of a flat hash table: {entries, slots - 1, {shift, most lookups, load factor}, count}
/// (c10/util/flat_hash_map.h).
#[derive(Clone, Copy, Debug)]
pub(super) struct HashTable {
    entries: u64,
    slots: u64,
    most_lookups: u64,
    /// Load factor, as the bits of a `float`.
    load_factor: u64,
    pub(super) count: u64,
}

/// Load factor of all such tables: 0.5.
const LOAD_FACTOR: u64 = 0x3f00_0000;

impl HashTable {
    pub(super) const WORDS: usize = 4;

    /// Decodes a table header; `None` if it is implausible or has more than this many slots.
    pub(super) fn of(words: &[u64], most_slots: u64) -> Option<Self> {
        let [entries, last_slot, policy, count] = *words.first_chunk::<{ Self::WORDS }>()?;
        let slots = last_slot.checked_add(1)?;
        let table = Self { entries, slots, most_lookups: policy >> 8 & 0xff, load_factor: policy >> 32, count };
        let is_table = table.load_factor == LOAD_FACTOR
            && slots.is_power_of_two()
            && slots <= most_slots
            && count <= slots
            && entries.is_multiple_of(8)
            && (count == 0 || slots > 1);
        is_table.then_some(table)
    }

    /// Returns the addresses in the current entries, sorted.
    pub(super) fn addresses<M: MemoryAccess>(&self, pass: &Pass<'_, M>) -> Option<Vec<u64>> {
        let mut found: Vec<u64> =
            self.entries(pass, 2)?.into_iter().filter_map(|value| value.first().copied()).collect();
        found.sort_unstable();
        found.dedup();
        Some(found)
    }

    /// Returns the values of the entries, without the first word, which has the distance from the
    /// entry's slot. `entry_words` is the size of an entry.
    pub(super) fn values<M: MemoryAccess>(&self, pass: &Pass<'_, M>, entry_words: usize) -> Option<Vec<Vec<u64>>> {
        if self.count == 0 {
            return Some(Vec::new());
        }
        self.entries(pass, entry_words).filter(|values| values.len() as u64 == self.count)
    }

    fn entries<M: MemoryAccess>(&self, pass: &Pass<'_, M>, entry_words: usize) -> Option<Vec<Vec<u64>>> {
        // The last entry is only an end marker.
        let entries = usize::try_from(self.slots + self.most_lookups - 1).ok()?;
        let words = pass.words(at(self.entries, 0)?, entries.checked_mul(entry_words)?)?;
        let is_full = |entry: &&[u64]| entry[0].to_le_bytes()[0].cast_signed() >= 0;
        Some(words.chunks_exact(entry_words).filter(is_full).map(|entry| entry[1..].to_vec()).collect())
    }
}

/// Returns the tree headers among these words, which begin at `address`: element counts by header
/// address.
pub(super) fn trees_in<M: MemoryAccess>(pass: &Pass<'_, M>, address: u64, words: &[u64]) -> BTreeMap<u64, u64> {
    let place = |(index, words): (usize, &[u64])| {
        let header = address.wrapping_add(8 * index as u64);
        Some((header, tree_at(pass, header, words)?))
    };
    words.windows(HEADER_WORDS).enumerate().filter_map(place).collect()
}
