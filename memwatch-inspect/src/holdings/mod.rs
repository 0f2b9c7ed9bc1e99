//! What a PyTorch process holds, by name: its blocks, the tensors in them, and what leads to those.
//!
//! Nothing of PyTorch is known beforehand but the names of a few classes: `tensors` finds the fields of its objects by what must be true of them.

mod advice;
mod chains;
mod claims;
mod elements;
mod graph;
mod modules;
mod rtti;
mod survey;
mod tensors;
mod workspaces;

use std::ops::Range;

use memwatch_core::input::books::{BookBlock, BookState, Books, MovingBooks};
use memwatch_core::input::holdings::{Cut, Holding, Holdings};
use memwatch_core::words::Ordinal;

use crate::memory::Memory;
use crate::pass::Pass;
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
    let pass = Pass::new(memory, options.most_read_bytes);
    let rows = blocks.iter().map(|block| Holding::unknown(block.ordinal, block.address, block.bytes)).collect();
    let mut holdings = Holdings { rows, ..Holdings::default() };
    let heap = layout.ok_or("the process runs no Python that can be read").and_then(|layout| {
        Heap::read(&pass, layout, options.most_objects).ok_or("the lists of Python's garbage collector were not found")
    });
    let mut is_cut = false;
    match heap {
        Ok(heap) => {
            holdings.objects = heap.len() as u64;
            holdings.is_partial = heap.is_partial();
            is_cut = match survey::Survey::new(&pass, &heap, blocks, options) {
                Ok(survey) => survey.fill(&mut holdings),
                Err(why) => {
                    holdings.without_names = Some(why.to_owned());
                    heap.is_cut()
                }
            };
        }
        Err(why) => holdings.without_names = Some(why.to_owned()),
    }
    workspaces::mark(&pass, &options.workspaces, blocks, &mut holdings.rows);
    if is_cut || pass.is_exhausted() {
        holdings.cut_by = Some(if pass.is_hurried() { Cut::Time } else { Cut::Size });
    }
    holdings.is_partial |= holdings.cut_by.is_some();
    holdings.read_bytes = pass.read_bytes();
    holdings
}
