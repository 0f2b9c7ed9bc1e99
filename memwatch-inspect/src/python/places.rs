//! Sets of object addresses, and the numbers of their members.
//!
//! Objects are many and close together, so each possible address has a bit. This takes a fraction
//! of the memory of a hash table by address, and one access to memory tells that there is no object.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

/// Alignment of CPython's objects in bytes. Any other address is kept apart.
const ALIGNMENT: u64 = 16;
/// Size in bytes of a region of memory, and its number of words with bits.
const REGION_BYTES: u64 = 1 << 20;
const WORDS: usize = 1024;

/// Bits of a region's addresses.
type RegionBits = [u64; WORDS];

/// Region, word and bit of an aligned address.
fn position(address: u64) -> Option<(u64, usize, u32)> {
    let number = address % REGION_BYTES / ALIGNMENT;
    let (word, bit) = (number / u64::from(u64::BITS), number % u64::from(u64::BITS));
    let is_aligned = address.is_multiple_of(ALIGNMENT);
    is_aligned.then_some((address / REGION_BYTES, usize::try_from(word).ok()?, u32::try_from(bit).ok()?))
}

/// A set of addresses.
#[derive(Debug, Default)]
pub(super) struct AddressSet {
    regions: HashMap<u64, Box<RegionBits>, FixedState>,
    unaligned: HashSet<u64, FixedState>,
}

impl AddressSet {
    /// Adds an address. Returns whether it is new.
    pub(super) fn insert(&mut self, address: u64) -> bool {
        let Some((region, word, bit)) = position(address) else { return self.unaligned.insert(address) };
        let word = &mut self.regions.entry(region).or_insert_with(|| Box::new([0; WORDS]))[word];
        let is_new = *word >> bit & 1 == 0;
        *word |= 1 << bit;
        is_new
    }

    /// Returns whether an address is in the set.
    pub(super) fn contains(&self, address: u64) -> bool {
        let Some((region, word, bit)) = position(address) else { return self.unaligned.contains(&address) };
        self.regions.get(&region).is_some_and(|words| words[word] >> bit & 1 == 1)
    }

    /// Removes all addresses.
    pub(super) fn clear(&mut self) {
        self.regions.clear();
        self.unaligned.clear();
    }
}

/// Indices of addresses in a list.
#[derive(Debug, Default)]
pub(super) struct Places {
    regions: HashMap<u64, Region, FixedState>,
    /// Indices in the order of addresses, except for those of unaligned ones.
    places: Vec<u32>,
    unaligned: HashMap<u64, u32, FixedState>,
}

/// A region's addresses.
#[derive(Debug)]
struct Region {
    words: Box<RegionBits>,
    /// Number of lower addresses, by word.
    before: Box<[u32; WORDS]>,
}

impl Places {
    /// Creates the index of a list, and of a set with the same addresses.
    pub(super) fn new(set: AddressSet, list: &[u64]) -> Self {
        let mut sorted: Vec<_> = set.regions.into_iter().collect();
        sorted.sort_unstable_by_key(|(region, _)| *region);
        let mut count = 0;
        let mut all = Self::default();
        for (region, words) in sorted {
            let mut before = Box::new([0; WORDS]);
            for (before, word) in before.iter_mut().zip(words.iter()) {
                *before = count;
                count += word.count_ones();
            }
            all.regions.insert(region, Region { words, before });
        }
        all.places = vec![0; count as usize];
        for (place, address) in (0..).zip(list) {
            match all.rank(*address) {
                Some(rank) => all.places[rank] = place,
                None => {
                    all.unaligned.insert(*address, place);
                }
            }
        }
        all
    }

    /// Returns the index of an address.
    pub(super) fn get(&self, address: u64) -> Option<u32> {
        match self.rank(address) {
            Some(rank) => self.places.get(rank).copied(),
            None if self.unaligned.is_empty() => None,
            None => self.unaligned.get(&address).copied(),
        }
    }

    /// Returns all indices, in the order of addresses. Those of unaligned ones come last.
    pub(super) fn by_address(&self) -> impl Iterator<Item = u32> {
        self.places.iter().chain(self.unaligned.values()).copied()
    }

    /// Returns how many lower addresses there are; `None` if the address is not in the list.
    fn rank(&self, address: u64) -> Option<usize> {
        let (region, word, bit) = position(address)?;
        let region = self.regions.get(&region)?;
        let bits = region.words[word];
        let is_there = bits >> bit & 1 == 1;
        is_there.then(|| (region.before[word] + (bits & ((1 << bit) - 1)).count_ones()) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_has_its_own_place_and_no_other_has_one() {
        let list: Vec<u64> = (0..5000).map(|number| 0x7f00_0000_0000 + (number * 7919 % 5000) * 48).collect();
        let list = [&list[..], &[0x1008, 0x2004]].concat();
        let mut set = AddressSet::default();
        assert!(list.iter().all(|address| set.insert(*address)), "all are new");
        assert!(list.iter().all(|address| !set.insert(*address) && set.contains(*address)));
        assert!(!set.contains(list[0] + 16) && !set.contains(0x1000) && !set.contains(list[0] + 8));
        let places = Places::new(set, &list);
        for (place, address) in (0..).zip(&list) {
            assert_eq!(places.get(*address), Some(place));
            for other in [address + 16, address + 4, address ^ 1 << 40] {
                assert_eq!(places.get(other), None, "{other:#x}");
            }
        }
        let sorted: Vec<_> = places.by_address().map(|place| list[place as usize]).collect();
        assert!(sorted.len() == list.len() && sorted[..5000].is_sorted(), "unaligned addresses are at the end");
    }

    #[test]
    fn a_cleared_set_is_empty() {
        let mut set = AddressSet::default();
        assert!(set.insert(64) && set.insert(3));
        set.clear();
        assert!(!set.contains(64) && !set.contains(3) && set.insert(64));
        assert_eq!(Places::default().get(64), None);
    }
}
