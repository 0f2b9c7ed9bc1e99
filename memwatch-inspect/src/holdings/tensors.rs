//! Tensors of PyTorch: where their fields are is found by what must be true of all of them, in each process and with no table.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Blocks;
use super::rtti::{CppClasses, CppKind};
use crate::memory::Memory;
use crate::python::layout::TYPE;

/// Tensors by which offsets are found.
const MOST_TRIED: usize = 4000;
/// Words of a tensor and of a storage that are looked at.
const TENSOR_WORDS: usize = 28;
const STORAGE_WORDS: usize = 12;
/// Words of a Python tensor in which its C++ object is looked for.
const OBJECT_WORDS: usize = 8;
/// Sizes that stand in the tensor itself (`C10_SIZES_AND_STRIDES_MAX_INLINE_SIZE`), and dimensions that PyTorch allows.
const INLINE_SIZES: u64 = 5;
const MOST_DIMENSIONS: u64 = 64;

/// A tensor.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    /// The C++ object.
    pub(super) address: u64,
    /// Where the storage's bytes begin.
    pub(super) data: u64,
    pub(super) storage_bytes: u64,
    pub(super) shape: Vec<u64>,
    /// The number of the elements' type.
    pub(super) element: u16,
    /// What autograd knows of it, or 0.
    pub(super) meta: u64,
    /// Where the words stand that make it so: storage, data.
    pub(super) slots: [u64; 2],
}

impl Tensor {
    /// How many elements it has.
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |count, size| count.saturating_mul(*size))
    }
}

/// Where the fields are, in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorLayout {
    /// In a Python tensor: its C++ object.
    object: usize,
    storage: usize,
    meta: Option<usize>,
    dimensions: usize,
    /// Behind it stands the elements' type.
    count: usize,
    data: usize,
    bytes: usize,
}

/// The number that most of the counted have.
fn most_frequent(numbers: impl Iterator<Item = usize>) -> Option<usize> {
    let mut counts = HashMap::<_, usize, FixedState>::default();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    // Of equals the first: a copy of a field stands behind it.
    counts.into_iter().max_by_key(|(number, count)| (*count, std::cmp::Reverse(*number))).map(|(number, _)| number)
}

impl TensorLayout {
    /// Finds the fields by these Python tensors; `None` where they are no tensors, or none is in a block.
    pub(super) fn find<M: Memory>(
        memory: &M,
        classes: &CppClasses<'_, M>,
        objects: &[u64],
        blocks: &Blocks,
    ) -> Option<Self> {
        let tried = || objects.iter().take(MOST_TRIED);
        let is = |address: u64, kind: CppKind| classes.kind(address) == Some(kind);
        let heads: Vec<_> = tried().filter_map(|object| memory.words(*object, OBJECT_WORDS)).collect();
        let object = most_frequent(heads.iter().flat_map(|head| {
            let first = usize::try_from(TYPE).expect("a small number") / 8 + 1;
            (first..OBJECT_WORDS).filter(|index| is(head[*index], CppKind::Tensor))
        }))?;
        let tensors = heads.iter().map(|head| head[object]).filter(|address| is(*address, CppKind::Tensor));
        let rows: Vec<_> = tensors.filter_map(|address| memory.words(address, TENSOR_WORDS)).collect();
        let place_of =
            |kind: CppKind| most_frequent(rows.iter().flat_map(|row| (1..12).filter(|index| is(row[*index], kind))));
        let storage = place_of(CppKind::Storage)?;
        let meta = place_of(CppKind::Meta);
        let (dimensions, count) = shape_places(&rows)?;
        let storages: Vec<_> = rows.iter().filter_map(|row| memory.words(row[storage], STORAGE_WORDS)).collect();
        let is_first = |address: u64| blocks.at(address).is_some_and(|block| block.address == address);
        let data = most_frequent(storages.iter().flat_map(|row| (1..8).filter(|index| is_first(row[*index]))))?;
        let bytes = most_frequent(storages.iter().flat_map(|row| {
            let requested = blocks.at(row[data]).map(|block| block.requested_bytes);
            (1..STORAGE_WORDS).filter(move |index| row[*index] != 0 && Some(row[*index]) == requested)
        }))?;
        Some(Self { object, storage, meta, dimensions, count, data, bytes })
    }

    /// Where the address of the C++ object stands in a Python tensor.
    pub(super) fn object_slot(&self, object: u64) -> u64 {
        object.wrapping_add(8 * self.object as u64)
    }

    /// Where a tensor has the address of what autograd knows of it.
    pub(super) fn meta_slot(&self, tensor: u64) -> Option<u64> {
        Some(tensor.wrapping_add(8 * self.meta? as u64))
    }

    /// The tensor at an address; `None` where none is, or one without a storage.
    pub(super) fn read<M: Memory>(&self, memory: &M, classes: &CppClasses<'_, M>, address: u64) -> Option<Tensor> {
        if classes.kind(address)? != CppKind::Tensor {
            return None;
        }
        let row = memory.words(address, TENSOR_WORDS)?;
        let storage = row[self.storage];
        if classes.kind(storage)? != CppKind::Storage {
            return None;
        }
        let fields = memory.words(storage, STORAGE_WORDS)?;
        let dimensions = row[self.dimensions];
        let sizes = usize::try_from(dimensions).ok()?;
        let shape = if dimensions <= INLINE_SIZES {
            row[self.dimensions + 1..][..sizes].to_vec()
        } else if dimensions <= MOST_DIMENSIONS {
            memory.words(row[self.dimensions + 1], sizes)?
        } else {
            return None;
        };
        Some(Tensor {
            address,
            data: fields[self.data],
            storage_bytes: fields[self.bytes],
            shape,
            element: u16::try_from(row[self.count + 1] & 0xffff).ok()?,
            meta: self.meta.map_or(0, |meta| row[meta]),
            slots: [address + 8 * self.storage as u64, storage + 8 * self.data as u64],
        })
    }
}

/// Where the number of dimensions stands, its sizes behind it, and where the number of elements: their product in most tensors, since one may be made or
/// end while it is read.
fn shape_places(rows: &[Vec<u64>]) -> Option<(usize, usize)> {
    let fitting = |dimensions: usize, count: usize| {
        let mut shaped = 0;
        let is_true = |row: &&Vec<u64>| match row[dimensions] {
            number @ 0..=INLINE_SIZES => {
                let sizes = row[dimensions + 1..].iter().take(usize::try_from(number).unwrap_or(0));
                shaped += usize::from(number > 0);
                sizes.fold(1u64, |product, size| product.wrapping_mul(*size)) == row[count]
            }
            number => number <= MOST_DIMENSIONS,
        };
        let fitting = rows.iter().filter(is_true).count();
        if shaped > 0 { fitting } else { 0 }
    };
    // Sizes and strides stand inline between them, and a word behind the number of elements.
    let places = (2..TENSOR_WORDS - 12)
        .flat_map(|dimensions| (dimensions + 8..TENSOR_WORDS - 1).map(move |count| (dimensions, count)));
    let fitting = places.map(|(dimensions, count)| (fitting(dimensions, count), (dimensions, count)));
    // Of equals the first.
    let (most, found) = fitting.rev().max_by_key(|(fitting, _)| *fitting)?;
    (most * 4 >= rows.len() * 3 && most > 0).then_some(found)
}
