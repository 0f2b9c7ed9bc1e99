//! Hash map for millions of keys in random order. A lookup touches as few cache lines as possible
//! and can be prefetched.
//!
//! All values are in one list. A new value reuses the most recently vacated slot, which is likely
//! still cached. A hash index maps keys to slots. The index consists of cache lines with eight
//! entries each. Nearly every key is found, or found missing, in the line selected by its hash; if
//! that line is full, the search continues in the next line. An entry holds enough of the hash to
//! be moved without reading its value. The hashbrown crate has no way to prefetch a key's line
//! before the lookup.

use std::fmt;
use std::hash::BuildHasher;
use std::hint::select_unpredictable;
use std::marker::PhantomData;

use foldhash::fast::RandomState;
use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::prefetch::prefetch;

/// Entries in an index line; eight of them fill a 64-byte cache line.
const LANES: usize = 8;

/// Average limit of used entries per line; above it, many lines would be full.
const BUSY_LANES: usize = 5;

/// A map from keys to values.
#[derive(Clone, Debug)]
pub(super) struct SlotTable<V> {
    /// Index; its length is 0 or a power of two.
    lines: Vec<IndexLine>,
    slots: Vec<Slot<V>>,
    /// Most recently vacated slot.
    vacant: Option<u32>,
    len: usize,
    hasher: RandomState,
}

/// Part of a key's hash that the index stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u32);

/// One line of the index: the slots of values with similar hashes.
///
/// If an entry is not in its home line but in a later one, then the home line and all lines between
/// the two are full.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct IndexLine {
    /// Upper half of each hash; 0 if the entry is empty.
    tags: [u32; LANES],
    slots: [u32; LANES],
}

/// Alignment keeps a 32-byte slot within one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Slot<V> {
    /// The key, or, in a vacant slot, the previously vacated slot or `NONE_VACANT`.
    key: u64,
    value: Option<V>,
}

/// Marks the end of the list of vacant slots; no slot has this number.
const NONE_VACANT: u64 = u64::MAX;

impl<V> Default for SlotTable<V> {
    fn default() -> Self {
        Self { lines: Vec::new(), slots: Vec::new(), vacant: None, len: 0, hasher: RandomState::default() }
    }
}

impl<V> SlotTable<V> {
    pub(super) fn get(&self, key: u64) -> Option<&V> {
        let place = self.find(key)?;
        self.slots[self.slot_at(place)].value()
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        let place = self.find(key)?;
        let slot = self.slot_at(place);
        self.slots[slot].value_mut()
    }

    /// Inserts a value and returns the previous value of the key.
    pub(super) fn insert(&mut self, key: u64, value: V) -> Option<V> {
        let tag = self.tag(key);
        if let Some(place) = self.find_tagged(key, tag) {
            let slot = self.slot_at(place);
            return self.slots[slot].value.replace(value);
        }
        if self.len >= self.lines.len() * BUSY_LANES {
            self.grow();
        }
        let slot = self.fill(Slot { key, value: Some(value) });
        self.enter(tag, slot);
        self.len += 1;
        None
    }

    pub(super) fn remove(&mut self, key: u64) -> Option<V> {
        self.remove_if(key, |_| true)
    }

    /// Removes the value if `goes` returns true.
    #[inline]
    pub(super) fn remove_if(&mut self, key: u64, goes: impl FnOnce(&V) -> bool) -> Option<V> {
        let place = self.find(key)?;
        let slot = self.slot_at(place);
        if !self.slots[slot].value().is_some_and(goes) {
            return None;
        }
        self.clear(place);
        self.len -= 1;
        let left = &mut self.slots[slot];
        left.key = self.vacant.map_or(NONE_VACANT, u64::from);
        self.vacant = u32::try_from(slot).ok();
        left.value.take()
    }

    /// Removes all values for which `goes` returns true, and shrinks the table.
    pub(super) fn extract(&mut self, mut goes: impl FnMut(u64, &V) -> bool) -> Vec<(u64, V)> {
        let before = self.slots.len();
        let going = self.slots.extract_if(.., |slot| slot.pair().is_none_or(|(key, value)| goes(key, value)));
        let gone = going.filter_map(Slot::into_pair).collect();
        if self.slots.len() < before {
            self.reindex();
        }
        gone
    }

    /// Iterates over all values mutably, in no particular order.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.slots.iter_mut().filter_map(Slot::value_mut)
    }

    /// Iterates over all keys and values, in no particular order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.slots.iter().filter_map(Slot::pair)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Prefetches the index line in which a lookup of this key starts. Changes nothing.
    #[inline]
    pub(super) fn prefetch(&self, key: u64) -> Tag {
        let tag = self.tag(key);
        prefetch(self.lines.get(self.home(tag)));
        Tag(tag)
    }

    /// Prefetches the value of a key after its index line has arrived.
    #[inline]
    pub(super) fn prefetch_value(&self, Tag(tag): Tag) {
        if let Some(line) = self.lines.get(self.home(tag)) {
            prefetch(self.slots.get(line.likely_slot(tag) as usize));
        }
    }

    /// Returns the position of a key in the index: lane `place % LANES` of line `place / LANES`.
    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        self.find_tagged(key, self.tag(key))
    }

    #[inline]
    fn find_tagged(&self, key: u64, tag: u32) -> Option<usize> {
        let mut line = self.home(tag);
        loop {
            // The index may be empty.
            let present = self.lines.get(line)?;
            let mut alike = present.lanes_of(tag);
            while alike != 0 {
                let first = alike.trailing_zeros() as usize;
                if self.slots[present.slots[first] as usize].key() == Some(key) {
                    return Some(line * LANES + first);
                }
                alike &= alike - 1;
            }
            if !present.is_full() {
                return None;
            }
            line = self.after(line);
        }
    }

    fn slot_at(&self, place: usize) -> usize {
        self.lines[place / LANES].slots[place % LANES] as usize
    }

    fn tag(&self, key: u64) -> u32 {
        let upper = self.hasher.hash_one(key) >> 32;
        u32::try_from(upper).unwrap_or(0) | 1
    }

    /// Returns the home line of a tag.
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.lines.len() as u64) >> 32) as usize
    }

    fn after(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }

    /// Returns the forward distance between two lines.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.lines.len() - 1)
    }

    fn fill(&mut self, live: Slot<V>) -> u32 {
        if let Some(number) = self.vacant {
            let left = std::mem::replace(&mut self.slots[number as usize], live);
            self.vacant = u32::try_from(left.key).ok();
            return number;
        }
        let number = u32::try_from(self.slots.len()).expect("fewer than 2^32 values fit in memory");
        if self.slots.len() == self.slots.capacity() {
            self.slots.reserve_exact((self.slots.len() / 4).max(4));
        }
        self.slots.push(live);
        number
    }

    fn enter(&mut self, tag: u32, slot: u32) {
        let mut line = self.home(tag);
        loop {
            let present = &mut self.lines[line];
            if let Some(lane) = present.empty_lane() {
                present.tags[lane] = tag;
                present.slots[lane] = slot;
                return;
            }
            line = self.after(line);
        }
    }

    /// Removes an entry. If its line was full, an entry of a later line may have to move into the
    /// gap.
    fn clear(&mut self, place: usize) {
        let (mut gap, mut lane) = (place / LANES, place % LANES);
        let mut was_full = self.lines[gap].is_full();
        self.lines[gap].tags[lane] = 0;
        let mut next = gap;
        while was_full {
            next = self.after(next);
            let present = self.lines[next];
            was_full = present.is_full();
            let reach = self.distance(gap, next);
            let is_far = |tag: &u32| *tag != 0 && self.distance(self.home(*tag), next) >= reach;
            if let Some(far) = present.tags.iter().position(is_far) {
                self.lines[gap].tags[lane] = present.tags[far];
                self.lines[gap].slots[lane] = present.slots[far];
                self.lines[next].tags[far] = 0;
                (gap, lane) = (next, far);
            }
        }
    }

    fn grow(&mut self) {
        let twice = (self.lines.len() * 2).max(1);
        let before = std::mem::replace(&mut self.lines, vec![IndexLine::default(); twice]);
        for line in before {
            for (tag, slot) in line.tags.into_iter().zip(line.slots).filter(|(tag, _)| *tag != 0) {
                self.enter(tag, slot);
            }
        }
    }

    fn reindex(&mut self) {
        self.slots.shrink_to_fit();
        self.vacant = None;
        self.len = self.slots.len();
        let lines = if self.len == 0 { 0 } else { self.len.div_ceil(BUSY_LANES).next_power_of_two() };
        self.lines = vec![IndexLine::default(); lines];
        for number in 0..self.slots.len() {
            if let (Some(key), Ok(slot)) = (self.slots[number].key(), u32::try_from(number)) {
                self.enter(self.tag(key), slot);
            }
        }
    }
}

impl IndexLine {
    /// Returns a bit mask of the lanes with this tag.
    fn lanes_of(&self, tag: u32) -> u32 {
        (0..LANES).fold(0, |lanes, lane| lanes | u32::from(self.tags[lane] == tag) << lane)
    }

    fn is_full(&self) -> bool {
        self.lanes_of(0) == 0
    }

    fn empty_lane(&self) -> Option<usize> {
        let empty = self.lanes_of(0);
        (empty != 0).then(|| empty.trailing_zeros() as usize)
    }

    /// Returns the slot of an entry with this tag, which may belong to another key; 0 if there is
    /// none. A new key needs no prefetch, because the slot it will use is cached already.
    fn likely_slot(&self, tag: u32) -> u32 {
        let lanes = self.lanes_of(tag);
        let slot = self.slots[lanes.trailing_zeros() as usize % LANES];
        select_unpredictable(lanes == 0, 0, slot)
    }
}

impl<V> Slot<V> {
    fn pair(&self) -> Option<(u64, &V)> {
        self.value.as_ref().map(|value| (self.key, value))
    }

    fn into_pair(self) -> Option<(u64, V)> {
        self.value.map(|value| (self.key, value))
    }

    fn key(&self) -> Option<u64> {
        self.pair().map(|(key, _)| key)
    }

    fn value(&self) -> Option<&V> {
        self.value.as_ref()
    }

    fn value_mut(&mut self) -> Option<&mut V> {
        self.value.as_mut()
    }
}

/// Size of one slot, bytes.
#[cfg(test)]
pub(super) const fn slot_bytes<V>() -> usize {
    size_of::<Slot<V>>()
}

impl<V: Serialize> Serialize for SlotTable<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pairs = serializer.serialize_seq(Some(self.len))?;
        for pair in self.iter() {
            pairs.serialize_element(&pair)?;
        }
        pairs.end()
    }
}

/// Rebuilds the index, because a corrupt stored index could not be detected.
impl<'de, V: Deserialize<'de>> Deserialize<'de> for SlotTable<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Pairs(PhantomData))
    }
}

/// Inserts pairs into the table as they are read: a list of them would be as large as the table.
struct Pairs<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
    type Value = SlotTable<V>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("keys with their values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<SlotTable<V>, A::Error> {
        let mut table = SlotTable::default();
        while let Some((key, value)) = pairs.next_element()? {
            table.insert(key, value);
        }
        Ok(table)
    }
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
