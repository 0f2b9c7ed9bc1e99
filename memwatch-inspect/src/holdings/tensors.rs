//! Reads PyTorch tensors. The positions of their fields are determined in each process by
//! invariants, without a table.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Blocks;
use super::chains::ChainWord;
use super::rtti::{CppClasses, CppKind};
use crate::memory::MemoryAccess;
use crate::python::layout::TYPE;

/// Maximum number of tensors used to find the positions.
const MOST_TRIED: usize = 4000;
/// Words read of a tensor, and of a storage.
const TENSOR_WORDS: usize = 28;
const STORAGE_WORDS: usize = 12;
/// Words of a Python tensor that are searched for its C++ object.
const OBJECT_WORDS: usize = 8;
/// Maximum number of sizes stored inline (`C10_SIZES_AND_STRIDES_MAX_INLINE_SIZE`), and of
/// dimensions that PyTorch allows.
const INLINE_SIZES: u64 = 5;
const MOST_DIMENSIONS: u64 = 64;

/// A tensor.
#[derive(Clone, Debug)]
pub(super) struct CppTensor {
    /// Address of the C++ object.
    pub(super) address: u64,
    /// Address of the storage's data.
    pub(super) data: u64,
    pub(super) storage_bytes: u64,
    pub(super) shape: Vec<u64>,
    /// Number of the element type.
    pub(super) element: u16,
    /// Address of the autograd metadata, or 0.
    pub(super) meta: u64,
    /// Words that refer to the storage and to the data.
    pub(super) words: [ChainWord; 2],
    /// A storage without a tensor: it has no shape and element type of its own.
    pub(super) is_storage: bool,
}

impl CppTensor {
    /// Returns the number of elements.
    pub(super) fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |count, size| count.saturating_mul(*size))
    }
}

/// Positions of the fields, in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorLayout {
    places: TensorPlaces,
    /// Position of the data pointer in a storage.
    data: usize,
    bytes: usize,
}

/// Positions of a tensor's fields, in words.
#[derive(Clone, Copy, Debug)]
pub(super) struct TensorPlaces {
    /// Position in a Python tensor of its C++ object.
    object: usize,
    storage: usize,
    meta: Option<usize>,
    dimensions: usize,
    /// Position of the element count, which precedes the element type.
    count: usize,
}

impl TensorPlaces {
    /// Positions for a process without tensors. Nothing read with them is a tensor.
    const NONE: Self = Self { object: 2, storage: 0, meta: None, dimensions: 0, count: 0 };

    /// Finds the positions from these Python tensors. Also returns the words of their C++ objects.
    pub(super) fn find<M: MemoryAccess>(
        memory: &M,
        classes: &CppClasses<'_, M>,
        objects: &[u64],
    ) -> Option<(Self, Vec<Vec<u64>>)> {
        let is = |address: u64, kind: CppKind| classes.kind(address) == Some(kind);
        let heads: Vec<_> =
            objects.iter().take(MOST_TRIED).filter_map(|object| memory.words(*object, OBJECT_WORDS)).collect();
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
        Some((Self { object, storage, meta, dimensions, count }, rows))
    }

    /// Returns the shape of a Python tensor; `None` for anything else, or if its number of elements
    /// is not the product of its sizes.
    pub(super) fn shape<M: MemoryAccess>(
        &self,
        memory: &M,
        classes: &CppClasses<'_, M>,
        object: u64,
    ) -> Option<Vec<u64>> {
        let address = memory.u64(object.checked_add(8 * self.object as u64)?)?;
        if classes.kind(address)? != CppKind::Tensor {
            return None;
        }
        let row = memory.words(address, TENSOR_WORDS)?;
        let shape = self.sizes(memory, &row)?;
        let elements = shape.iter().try_fold(1u64, |product, size| product.checked_mul(*size))?;
        (elements == row[self.count]).then_some(shape)
    }

    /// Returns the sizes from the words of a tensor.
    fn sizes(&self, memory: &impl MemoryAccess, row: &[u64]) -> Option<Vec<u64>> {
        let dimensions = row[self.dimensions];
        let count = usize::try_from(dimensions).ok()?;
        if dimensions <= INLINE_SIZES {
            Some(row[self.dimensions + 1..][..count].to_vec())
        } else if dimensions <= MOST_DIMENSIONS {
            memory.words(row[self.dimensions + 1], count)
        } else {
            None
        }
    }
}

/// Returns the slot of the C++ object in a Python storage, and the object's address.
fn storage_slot<M: MemoryAccess>(memory: &M, classes: &CppClasses<'_, M>, object: u64) -> Option<(u64, u64)> {
    let head = memory.words(object, OBJECT_WORDS)?;
    let first = usize::try_from(TYPE).expect("a small number") / 8 + 1;
    let index = (first..OBJECT_WORDS).find(|index| classes.kind(head[*index]) == Some(CppKind::Storage))?;
    Some((object + 8 * index as u64, head[index]))
}

/// Returns the most frequent number.
fn most_frequent(numbers: impl Iterator<Item = usize>) -> Option<usize> {
    let mut counts = HashMap::<_, usize, FixedState>::default();
    numbers.for_each(|number| *counts.entry(number).or_default() += 1);
    // Of equally frequent ones, the first: a copy of a field comes later.
    counts.into_iter().max_by_key(|(number, count)| (*count, std::cmp::Reverse(*number))).map(|(number, _)| number)
}

impl TensorLayout {
    /// Finds the positions from these Python tensors and storages; `None` if they are neither, or
    /// none is in a block.
    pub(super) fn find<M: MemoryAccess>(
        memory: &M,
        classes: &CppClasses<'_, M>,
        (tensors, storages): (&[u64], &[u64]),
        blocks: &Blocks,
    ) -> Option<Self> {
        let of_tensors = TensorPlaces::find(memory, classes, tensors);
        let places = of_tensors.as_ref().map_or(TensorPlaces::NONE, |(places, _)| *places);
        let rows = of_tensors.map(|(_, rows)| rows).unwrap_or_default();
        let of_objects =
            storages.iter().take(MOST_TRIED).filter_map(|object| storage_slot(memory, classes, *object)?.1.into());
        let of_tensors = rows.iter().map(|row| row[places.storage]);
        let fields: Vec<_> =
            of_tensors.chain(of_objects).filter_map(|storage| memory.words(storage, STORAGE_WORDS)).collect();
        let is_first = |address: u64| blocks.at(address).is_some_and(|block| block.address == address);
        let data = most_frequent(fields.iter().flat_map(|row| (1..8).filter(|index| is_first(row[*index]))))?;
        let bytes = most_frequent(fields.iter().flat_map(|row| {
            let requested = blocks.at(row[data]).map(|block| block.requested_bytes);
            (1..STORAGE_WORDS).filter(move |index| row[*index] != 0 && Some(row[*index]) == requested)
        }))?;
        Some(Self { places, data, bytes })
    }

    /// Returns the slot of the C++ object in a Python tensor.
    pub(super) fn object_slot(&self, object: u64) -> u64 {
        object.wrapping_add(8 * self.places.object as u64)
    }

    /// Returns the slot of the autograd metadata in a tensor.
    pub(super) fn meta_slot(&self, tensor: u64) -> Option<u64> {
        Some(tensor.wrapping_add(8 * self.places.meta? as u64))
    }

    /// Returns the offset of the autograd metadata in a tensor, in bytes.
    pub(super) fn meta_offset(&self) -> Option<u64> {
        Some(8 * self.places.meta? as u64)
    }

    /// Reads the tensor at an address; `None` if there is none, or it has no storage.
    pub(super) fn read<M: MemoryAccess>(
        &self,
        memory: &M,
        classes: &CppClasses<'_, M>,
        address: u64,
    ) -> Option<CppTensor> {
        if classes.kind(address)? != CppKind::Tensor {
            return None;
        }
        let places = &self.places;
        let row = memory.words(address, TENSOR_WORDS)?;
        let storage = row[places.storage];
        if classes.kind(storage)? != CppKind::Storage {
            return None;
        }
        let fields = memory.words(storage, STORAGE_WORDS)?;
        let shape = places.sizes(memory, &row)?;
        Some(CppTensor {
            address,
            data: fields[self.data],
            storage_bytes: fields[self.bytes],
            shape,
            element: u16::try_from(row[places.count + 1] & 0xffff).ok()?,
            meta: places.meta.map_or(0, |meta| row[meta]),
            words: [
                ChainWord { slot: address + 8 * places.storage as u64, target: storage },
                ChainWord { slot: storage + 8 * self.data as u64, target: fields[self.data] },
            ],
            is_storage: false,
        })
    }

    /// Reads the C++ storage behind a Python storage. Also returns the slot of its address.
    pub(super) fn read_storage<M: MemoryAccess>(
        &self,
        memory: &M,
        classes: &CppClasses<'_, M>,
        object: u64,
    ) -> Option<(u64, CppTensor)> {
        let (slot, address) = storage_slot(memory, classes, object)?;
        let fields = memory.words(address, STORAGE_WORDS)?;
        let data = ChainWord { slot: address + 8 * self.data as u64, target: fields[self.data] };
        let storage = CppTensor {
            address,
            data: fields[self.data],
            storage_bytes: fields[self.bytes],
            shape: vec![fields[self.bytes]],
            element: 0,
            meta: 0,
            words: [data; 2],
            is_storage: true,
        };
        Some((slot, storage))
    }
}

/// Finds the positions of the dimension count, which the sizes follow, and of the element count.
/// The latter must be the product of the sizes in most tensors, since some may be created or
/// destroyed during the reading.
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
    // Sizes and strides are stored inline in between, and the element count is followed by another
    // word.
    let places = (2..TENSOR_WORDS - 12)
        .flat_map(|dimensions| (dimensions + 8..TENSOR_WORDS - 1).map(move |count| (dimensions, count)));
    let fitting = places.map(|(dimensions, count)| (fitting(dimensions, count), (dimensions, count)));
    // Of equally good ones, the first.
    let (most, found) = fitting.rev().max_by_key(|(fitting, _)| *fitting)?;
    (most * 4 >= rows.len() * 3 && most > 0).then_some(found)
}
