//! The tensors that lie in buffers, by name: weights of a model, its cache.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decode::{BufferUsage, TensorPlace};

/// Models have some thousands of tensors; what is more than this of a program is not known by name.
const MOST_TENSORS: usize = 1 << 16;

/// What lies in one buffer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Held {
    /// Names by where they begin, in bytes from the buffer's beginning.
    names: BTreeMap<u64, Box<str>>,
    /// One of them is of a cache.
    is_cache: bool,
}

/// What lies in all of them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Tensors {
    /// By the buffer's context.
    held: BTreeMap<u64, Held>,
    count: usize,
}

/// A tensor in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NamedTensor<'a> {
    /// What the program calls it.
    pub name: &'a str,
    /// From its beginning to that of the next one, or to the buffer's end: with what it is aligned by.
    pub bytes: u64,
    /// What its buffer is for.
    pub usage: BufferUsage,
}

impl Tensors {
    pub(super) fn put(&mut self, context: u64, place: TensorPlace) {
        let held = self.held.entry(context).or_default();
        held.is_cache |= place.name.is_of_cache();
        if self.count < MOST_TENSORS || held.names.contains_key(&place.offset_bytes) {
            let before = held.names.insert(place.offset_bytes, place.name.text().into_boxed_str());
            self.count += usize::from(before.is_none());
        }
    }

    pub(super) fn are_of_cache(&self, context: u64) -> bool {
        self.held.get(&context).is_some_and(|held| held.is_cache)
    }

    pub(super) fn drop_of(&mut self, context: u64) {
        let gone = self.held.remove(&context).map_or(0, |held| held.names.len());
        // A state that somebody made up may count otherwise.
        self.count = self.count.saturating_sub(gone);
    }

    /// Those in a buffer of this size and use.
    pub(super) fn of(&self, context: u64, bytes: u64, usage: BufferUsage) -> impl Iterator<Item = NamedTensor<'_>> {
        let names = self.held.get(&context).map(|held| &held.names).into_iter().flatten();
        let ends = self.held.get(&context).map(|held| held.names.keys().copied()).into_iter().flatten().skip(1);
        names.zip(ends.chain([bytes])).map(move |((begin, name), end)| NamedTensor {
            name,
            bytes: end.saturating_sub(*begin),
            usage,
        })
    }
}
