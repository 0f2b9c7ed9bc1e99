//! The containers that the allocator keeps its blocks in: libstdc++'s red-black trees, and flat hash tables.

use std::collections::BTreeMap;

use super::refusal::Contradiction;
use crate::memory::{Memory, at};
use crate::pass::Pass;

/// A tree's header: {colour, root, first, last, count} (`std::_Rb_tree_header`, bits/stl_tree.h).
pub(super) const HEADER_WORDS: usize = 5;
/// No tree and no set has more blocks than this.
const MOST_ELEMENTS: u64 = 1 << 24;
/// Twice the logarithm of that many nodes is the greatest depth of such a tree.
const GREATEST_DEPTH: usize = 64;
/// Where the value stands in a node: {colour, parent, left, right, value}.
const NODE_VALUE: usize = 4;

/// Whether these words at an address are the header of a tree, and if so with how many elements.
pub(super) fn tree_at<M: Memory>(pass: &Pass<'_, M>, address: u64, words: &[u64]) -> Option<u64> {
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

/// The values of the tree with this header, in order.
pub(super) fn tree<M: Memory>(pass: &Pass<'_, M>, header: u64) -> Result<Vec<u64>, Contradiction> {
    let words = pass.words(header, HEADER_WORDS).ok_or(Contradiction::Tree)?;
    let (mut node, count) = (words[1], words[4]);
    let (mut values, mut above) = (Vec::new(), Vec::new());
    while node != 0 || !above.is_empty() {
        while node != 0 {
            let words = at(node, 0).and_then(|node| pass.words(node, NODE_VALUE + 1)).ok_or(Contradiction::Tree)?;
            node = words[2];
            above.push(words);
            if above.len() > GREATEST_DEPTH {
                return Err(Contradiction::Tree);
            }
        }
        if let Some(words) = above.pop() {
            values.push(words[NODE_VALUE]);
            node = words[3];
        }
        if values.len() as u64 > count {
            return Err(Contradiction::Tree);
        }
    }
    if values.len() as u64 == count { Ok(values) } else { Err(Contradiction::Tree) }
}

/// The front of a flat hash table: {entries, slots - 1, {shift, most lookups, load factor}, count} (c10/util/flat_hash_map.h).
#[derive(Clone, Copy, Debug)]
pub(super) struct HashTable {
    entries: u64,
    slots: u64,
    most_lookups: u64,
    /// Bits of the `float`.
    load_factor: u64,
    pub(super) count: u64,
}

/// The load factor that every such table here has: 0.5.
const LOAD_FACTOR: u64 = 0x3f00_0000;

impl HashTable {
    pub(super) const WORDS: usize = 4;

    /// What these words would be, of a table with so many slots at most.
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

    /// The addresses in its entries, as many as there are now, in the order of addresses.
    pub(super) fn addresses<M: Memory>(&self, pass: &Pass<'_, M>) -> Option<Vec<u64>> {
        let mut found: Vec<u64> =
            self.entries(pass, 2)?.into_iter().filter_map(|value| value.first().copied()).collect();
        found.sort_unstable();
        found.dedup();
        Some(found)
    }

    /// What its entries hold behind the byte that says how far they are from their slot; each has so many words with it.
    pub(super) fn values<M: Memory>(&self, pass: &Pass<'_, M>, entry_words: usize) -> Option<Vec<Vec<u64>>> {
        if self.count == 0 {
            return Some(Vec::new());
        }
        self.entries(pass, entry_words).filter(|values| values.len() as u64 == self.count)
    }

    fn entries<M: Memory>(&self, pass: &Pass<'_, M>, entry_words: usize) -> Option<Vec<Vec<u64>>> {
        // One entry at the end only marks it.
        let entries = usize::try_from(self.slots + self.most_lookups - 1).ok()?;
        let words = pass.words(at(self.entries, 0)?, entries.checked_mul(entry_words)?)?;
        let is_full = |entry: &&[u64]| entry[0].to_le_bytes()[0].cast_signed() >= 0;
        Some(words.chunks_exact(entry_words).filter(is_full).map(|entry| entry[1..].to_vec()).collect())
    }
}

/// All headers of trees in these words, which begin at an address: by their address, with their counts.
pub(super) fn trees_in<M: Memory>(pass: &Pass<'_, M>, address: u64, words: &[u64]) -> BTreeMap<u64, u64> {
    let place = |(index, words): (usize, &[u64])| {
        let header = address.wrapping_add(8 * index as u64);
        Some((header, tree_at(pass, header, words)?))
    };
    words.windows(HEADER_WORDS).enumerate().filter_map(place).collect()
}
