//! What a PyTorch process holds, by name: its blocks, the tensors in them, and what leads to those.
//!
//! Nothing of PyTorch is known beforehand but the names of a few classes: `tensors` finds the fields of its objects by what must be true of them.

mod advice;
mod buckets;
mod chains;
mod claims;
mod cpp_sizes;
mod elements;
mod graph;
mod modules;
mod named;
mod pathed;
mod rtti;
mod survey;
mod tensors;
mod workspaces;

use std::ops::Range;

use memwatch_core::input::books::{BookBlock, BookState, Books, MovingBooks};
use memwatch_core::input::holdings::{Cut, Holding, HoldingClass, Holdings};
use memwatch_core::words::Ordinal;

use crate::memory::Memory;
use crate::pass::Pass;
use crate::python::frames::RunningFrames;
use crate::python::heap::Heap;
use crate::python::layout::Layout;

/// A block that the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The device.
    pub ordinal: Ordinal,
    /// Its first address.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// As the program asked for it, in bytes.
    pub requested_bytes: u64,
}

/// The blocks of a process, by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks(Vec<Block>);

impl Blocks {
    /// In any order.
    pub fn new(mut blocks: Vec<Block>) -> Self {
        blocks.sort_unstable_by_key(|block| block.address);
        Self(blocks)
    }

    /// What the books say the program has.
    pub fn of_books(books: &Books) -> Self {
        let blocks = books.devices.iter().flat_map(|device| device.blocks().map(|block| (device.ordinal, block)));
        Self::allocated(blocks)
    }

    /// The same of allocators that worked while they were read.
    pub fn of_moving(books: &MovingBooks) -> Self {
        let blocks = books.devices.iter().flat_map(|device| device.blocks.iter().map(|block| (device.ordinal, block)));
        Self::allocated(blocks)
    }

    fn allocated<'b>(blocks: impl Iterator<Item = (Ordinal, &'b BookBlock)>) -> Self {
        let allocated = blocks.filter(|(_, block)| block.state == BookState::ActiveAllocated);
        let block = |(ordinal, block): (Ordinal, &BookBlock)| Block {
            ordinal,
            address: block.address,
            bytes: block.bytes,
            requested_bytes: block.requested_bytes,
        };
        Self::new(allocated.map(block).collect())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Block> {
        self.0.iter()
    }

    /// The block of a number, in their order.
    fn get(&self, index: usize) -> Option<&Block> {
        self.0.get(index)
    }

    /// The blocks that are in `others`, too.
    #[must_use]
    pub fn standing_in(&self, others: &Self) -> Self {
        let is_there = |block: &&Block| {
            others.at(block.address).is_some_and(|other| {
                (other.ordinal, other.address, other.bytes) == (block.ordinal, block.address, block.bytes)
            })
        };
        Self(self.0.iter().filter(is_there).copied().collect())
    }

    /// The block that an address lies in.
    fn at(&self, address: u64) -> Option<&Block> {
        self.0.get(self.index(address)?)
    }

    fn index(&self, address: u64) -> Option<usize> {
        let index = self.0.partition_point(|block| block.address <= address).checked_sub(1)?;
        let block = self.0.get(index)?;
        (address - block.address < block.bytes).then_some(index)
    }
}

/// What the caller knows of the process, and how much may be read of it.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that are read at most.
    pub most_read_bytes: u64,
    /// Python objects that are looked at.
    pub most_objects: usize,
    /// Where PyTorch's libraries are mapped: no class of C++ is looked for elsewhere. None: anywhere.
    pub libraries: Vec<Range<u64>>,
    /// The addresses of PyTorch's maps of workspaces (`cublas_handle_stream_to_workspace()::instance`, and the same of cuBLASLt), where they are known.
    pub workspaces: Vec<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self { most_read_bytes: 1 << 30, most_objects: 10_000_000, libraries: Vec::new(), workspaces: Vec::new() }
    }
}

/// What the process holds, without its number and the time. `layout` is that of its Python; `None` where it has none.
///
/// It never fails: blocks of which nothing is known are there without a name, and [`Holdings::without_names`] says why. Where the memory's time is over
/// ([`Memory::spent`]) or a limit is met, what was found by then is there, and [`Holdings::cut_by`] says so.
pub fn read<M: Memory>(memory: &M, layout: Option<&Layout>, blocks: &Blocks, options: &Options) -> Holdings {
    read_again(memory, layout, (blocks, options), &mut || None)
}

/// The same of a process that goes on: `again` says which blocks it has by then, and what has a name no more is looked for once more. The rows are of the
/// blocks that were there last.
pub fn read_again<M: Memory>(
    memory: &M,
    layout: Option<&Layout>,
    (blocks, options): (&Blocks, &Options),
    again: &mut dyn FnMut() -> Option<Blocks>,
) -> Holdings {
    let pass = Pass::new(memory, options.most_read_bytes);
    let rows = blocks.iter().map(|block| Holding::unknown(block.ordinal, block.address, block.bytes)).collect();
    let mut holdings = Holdings { rows, ..Holdings::default() };
    let earlier = layout.map(|layout| RunningFrames::read(memory, layout)).unwrap_or_default();
    let heap = layout.ok_or("the process runs no Python that can be read").and_then(|layout| {
        read_heap(&pass, layout, options.most_objects).ok_or("the lists of Python's garbage collector were not found")
    });
    let mut is_cut = false;
    match heap {
        Ok(heap) => {
            holdings.objects = heap.len() as u64;
            holdings.is_partial = heap.is_partial();
            is_cut = match survey::Survey::new((&pass, &heap), blocks, options, &earlier) {
                Ok(survey) => survey.fill(&mut holdings, again),
                Err(why) => {
                    holdings.without_names = Some(why.to_owned());
                    heap.is_cut()
                }
            };
        }
        Err(why) => holdings.without_names = Some(why.to_owned()),
    }
    workspaces::mark(&pass, &options.workspaces, &mut holdings.rows);
    if is_cut || pass.is_exhausted() {
        holdings.cut_by = Some(if pass.is_hurried() { Cut::Time } else { Cut::Size });
    }
    holdings.is_partial |= holdings.cut_by.is_some();
    // What is no tensor is shown only where all objects were read, and are laid out as they should.
    let is_known =
        holdings.cut_by.is_none() && matches!(holdings.without_names.as_deref(), None | Some(survey::NO_TENSOR));
    if layout.is_some() && !is_known {
        for row in holdings.rows.iter_mut().filter(|row| row.class == HoldingClass::NoPythonObject) {
            row.class = HoldingClass::NotRead;
        }
    }
    holdings.read_bytes = pass.read_bytes();
    holdings
}

/// The objects of a Python. Its collector may be at work: then its lists are looked for again.
fn read_heap<'a, M: Memory>(
    pass: &'a Pass<'_, M>,
    layout: &'a Layout,
    most_objects: usize,
) -> Option<Heap<'a, Pass<'a, M>>> {
    const TRIES: usize = 5;
    for _ in 1..TRIES {
        if let Some(heap) = Heap::read(pass, layout, most_objects) {
            return Some(heap);
        }
        pass.forget();
    }
    Heap::read(pass, layout, most_objects)
}
