//! Values by key, for millions of keys in no order: each lookup waits for as little memory as can be, and can be prefetched.
//!
//! The values stand in one list, in which a new one takes the place that was left last: it is in the caches still. An index by hash says
//! where they are. It is made of lines of memory of eight entries, and nearly every key is found in, or missed in, the line that its hash
//! names; a key that finds it full goes to the next one. An entry holds enough of the hash to be moved without a look at its value. The crate hashbrown
//! has no way to have a key's line fetched before it is looked up.

use std::fmt;
use std::hash::BuildHasher;
use std::hint::select_unpredictable;
use std::marker::PhantomData;

use foldhash::fast::RandomState;
use serde::de::{SeqAccess, Visitor};
use serde::ser::SerializeSeq as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::prefetch::prefetch;

/// Entries in a line: with them, it is one of the 64 bytes in which processors fetch memory.
const LANES: usize = 8;

/// How many entries of a line are in use at most, on average: with more, many lines would be full.
const BUSY_LANES: usize = 5;

/// A map from keys to values.
#[derive(Clone, Debug)]
pub(super) struct Table<V> {
    /// A power of two of them, or none.
    lines: Vec<Line>,
    slots: Vec<Slot<V>>,
    /// The vacant slot that was left last.
    vacant: Option<u32>,
    len: usize,
    hasher: RandomState,
}

/// What is kept of the hash of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(u32);

/// Where values are that have hashes alike.
///
/// If an entry is not in the line that its tag names, but in one after it, then that line and all between them are full.
#[derive(Clone, Copy, Debug, Default)]
#[repr(align(64))]
struct Line {
    /// The upper half of a hash; 0 where there is no entry.
    tags: [u32; LANES],
    slots: [u32; LANES],
}

/// Aligned, so that none of 32 bytes lies in two lines of memory.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct Slot<V> {
    /// Where there is no value: the slot that was left before this one, or `NONE_VACANT`.
    key: u64,
    value: Option<V>,
}

/// No slot has this number.
const NONE_VACANT: u64 = u64::MAX;

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { lines: Vec::new(), slots: Vec::new(), vacant: None, len: 0, hasher: RandomState::default() }
    }
}

impl<V> Table<V> {
    pub(super) fn get(&self, key: u64) -> Option<&V> {
        let place = self.find(key)?;
        self.slots[self.slot_at(place)].value()
    }

    pub(super) fn get_mut(&mut self, key: u64) -> Option<&mut V> {
        let place = self.find(key)?;
        let slot = self.slot_at(place);
        self.slots[slot].value_mut()
    }

    /// Returns what was there before.
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

    /// Takes a value out if `goes` says so of it.
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

    /// Takes out all that `goes` names, and gives back room that is not needed any more.
    pub(super) fn extract(&mut self, mut goes: impl FnMut(u64, &V) -> bool) -> Vec<(u64, V)> {
        let before = self.slots.len();
        let going = self.slots.extract_if(.., |slot| slot.pair().is_none_or(|(key, value)| goes(key, value)));
        let gone = going.filter_map(Slot::into_pair).collect();
        if self.slots.len() < before {
            self.reindex();
        }
        gone
    }

    /// All values, to be changed, in no order.
    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.slots.iter_mut().filter_map(Slot::value_mut)
    }

    /// All of them, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &V)> {
        self.slots.iter().filter_map(Slot::pair)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Asks for the line of the index in which the other functions will look for this key. Changes nothing.
    #[inline]
    pub(super) fn prefetch(&self, key: u64) -> Tag {
        let tag = self.tag(key);
        prefetch(self.lines.get(self.home(tag)));
        Tag(tag)
    }

    /// Asks for the value of a prefetched key, where the line of its tag says.
    #[inline]
    pub(super) fn prefetch_value(&self, Tag(tag): Tag) {
        if let Some(line) = self.lines.get(self.home(tag)) {
            prefetch(self.slots.get(line.likely_slot(tag) as usize));
        }
    }

    /// In which place of the index a key is: in lane `place % LANES` of line `place / LANES`.
    #[inline]
    fn find(&self, key: u64) -> Option<usize> {
        self.find_tagged(key, self.tag(key))
    }

    #[inline]
    fn find_tagged(&self, key: u64, tag: u32) -> Option<usize> {
        let mut line = self.home(tag);
        loop {
            // There may be no lines at all.
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

    /// The line that a tag names.
    fn home(&self, tag: u32) -> usize {
        ((u64::from(tag) * self.lines.len() as u64) >> 32) as usize
    }

    fn after(&self, line: usize) -> usize {
        (line + 1) & (self.lines.len() - 1)
    }

    /// How far it is from one line to another, forwards.
    fn distance(&self, from: usize, to: usize) -> usize {
        to.wrapping_sub(from) & (self.lines.len() - 1)
    }

    fn fill(&mut self, live: Slot<V>) -> u32 {
        if let Some(number) = self.vacant {
            let left = std::mem::replace(&mut self.slots[number as usize], live);
            self.vacant = u32::try_from(left.key).ok();
            return number;
        }
        let number = u32::try_from(self.slots.len()).expect("so many values do not fit a machine's memory");
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

    /// Removes an entry; where its line was full, one from a line after it may have to take its place.
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
        let before = std::mem::replace(&mut self.lines, vec![Line::default(); twice]);
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
        self.lines = vec![Line::default(); lines];
        for number in 0..self.slots.len() {
            if let (Some(key), Ok(slot)) = (self.slots[number].key(), u32::try_from(number)) {
                self.enter(self.tag(key), slot);
            }
        }
    }
}

impl Line {
    /// A bit per lane.
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

    /// The slot of a value of this tag, which may be that of another key; the first slot of all where there is none. What a key that is new
    /// will need lies near already.
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

/// What a value takes in the list.
#[cfg(test)]
pub(super) const fn slot_bytes<V>() -> usize {
    size_of::<Slot<V>>()
}

impl<V: Serialize> Serialize for Table<V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut pairs = serializer.serialize_seq(Some(self.len))?;
        for pair in self.iter() {
            pairs.serialize_element(&pair)?;
        }
        pairs.end()
    }
}

/// The index is made again: one that is wrong cannot be distinguished from one that is right.
impl<'de, V: Deserialize<'de>> Deserialize<'de> for Table<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Pairs(PhantomData))
    }
}

/// Puts pairs into a table as they come: a list of them would be as large as the table.
struct Pairs<V>(PhantomData<V>);

impl<'de, V: Deserialize<'de>> Visitor<'de> for Pairs<V> {
    type Value = Table<V>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("keys with their values")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut pairs: A) -> Result<Table<V>, A::Error> {
        let mut table = Table::default();
        while let Some((key, value)) = pairs.next_element()? {
            table.insert(key, value);
        }
        Ok(table)
    }
}

#[cfg(test)]
#[path = "tests/table.rs"]
mod tests;
