//! Names of the tensors in buffers, such as a model's weights and its cache.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decode::{BufferUsage, TensorPlace};

/// Maximum number of named tensors per process. Models have some thousands.
const MOST_TENSORS: usize = 1 << 16;

/// Tensors in one buffer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct BufferTensors {
    /// Names by offset in bytes.
    names: BTreeMap<u64, Box<str>>,
    /// One of the tensors belongs to a KV cache.
    is_cache: bool,
}

/// Tensors in all buffers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct BufferTensorMap {
    /// Tensors by the buffer's context.
    held: BTreeMap<u64, BufferTensors>,
    count: usize,
}

/// A named tensor in a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GgmlTensor<'a> {
    /// Name given by the program.
    pub name: &'a str,
    /// Bytes up to the next tensor or the end of the buffer, including alignment.
    pub bytes: u64,
    /// Usage of the buffer.
    pub usage: BufferUsage,
}

impl BufferTensorMap {
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
        // A corrupt saved state may have another count.
        self.count = self.count.saturating_sub(gone);
    }

    /// Returns the tensors in a buffer of this size and usage.
    pub(super) fn of(&self, context: u64, bytes: u64, usage: BufferUsage) -> impl Iterator<Item = GgmlTensor<'_>> {
        let names = self.held.get(&context).map(|held| &held.names).into_iter().flatten();
        let ends = self.held.get(&context).map(|held| held.names.keys().copied()).into_iter().flatten().skip(1);
        names.zip(ends.chain([bytes])).map(move |((begin, name), end)| GgmlTensor {
            name,
            bytes: end.saturating_sub(*begin),
            usage,
        })
    }
}
