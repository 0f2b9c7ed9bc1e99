//! Reads the shapes and storages of chosen tensors, without a survey of all others.

use std::collections::HashMap;
use std::ops::Range;

use foldhash::fast::FixedState;

use super::Blocks;
use super::rtti::CppClasses;
use super::tensors::{TensorLayout, TensorPlaces};
use crate::memory::MemoryAccess;

/// Positions of the shape in tensors, found by a sample of tensors with several dimensions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TensorShapes(TensorPlaces);

impl TensorShapes {
    /// Finds the positions; `None` if these are not tensors of a known layout.
    pub(crate) fn find<M: MemoryAccess>(memory: &M, libraries: &[Range<u64>], sample: &[u64]) -> Option<Self> {
        let classes = CppClasses::new(memory, libraries);
        Some(Self(TensorPlaces::find(memory, &classes, sample)?.0))
    }

    /// Returns the length of a Python tensor, its first dimension; `None` for anything else.
    pub(crate) fn length<M: MemoryAccess>(&self, memory: &M, libraries: &[Range<u64>], object: u64) -> Option<u64> {
        let classes = CppClasses::new(memory, libraries);
        self.0.shape(memory, &classes, object)?.first().copied()
    }
}

/// Returns address and bytes of the storages of these Python tensors, each once; `None` if one of
/// them is not in a known block.
pub(crate) fn storages<M: MemoryAccess>(
    memory: &M,
    libraries: &[Range<u64>],
    blocks: &Blocks,
    tensors: &[u64],
) -> Option<Vec<(u64, u64)>> {
    let classes = CppClasses::new(memory, libraries);
    let layout = TensorLayout::find(memory, &classes, (tensors, &[]), blocks)?;
    let mut found = HashMap::<u64, u64, FixedState>::default();
    for tensor in tensors {
        let tensor = layout.read(memory, &classes, memory.u64(layout.object_slot(*tensor))?)?;
        let block = blocks.at(tensor.data)?;
        if tensor.storage_bytes > block.bytes {
            return None;
        }
        found.insert(tensor.data, tensor.storage_bytes);
    }
    let mut found: Vec<_> = found.into_iter().collect();
    found.sort_unstable();
    (!found.is_empty()).then_some(found)
}
