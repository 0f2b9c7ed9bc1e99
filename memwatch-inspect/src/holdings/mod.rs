//! Identifies the live objects of a PyTorch process: its blocks, the tensors in them, and what
//! retains those.
//!
//! Only the names of a few PyTorch classes are built in. `tensors` finds the fields of their
//! objects by invariants.

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
pub(crate) mod shapes;
mod survey;
mod tensors;
mod workspaces;

use std::ops::Range;

use memwatch_core::input::allocator_state::{AllocatorState, MovingAllocatorState, StateBlock, StateBlockUse};
use memwatch_core::input::holdings::{Cut, Holding, HoldingClass, Holdings};
use memwatch_core::words::Ordinal;

use crate::memory::MemoryAccess;
use crate::pass::Pass;
use crate::python::frames::RunningFrames;
use crate::python::heap::Heap;
use crate::python::layout::CpythonLayout;

/// Maximum number of bytes of the process's memory that are kept while it is read.
const MOST_KEPT_BYTES: usize = 80 << 20;

/// A block allocated by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedBlock {
    /// Device of the block.
    pub ordinal: Ordinal,
    /// Address of the block.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Size in bytes that the program requested.
    pub requested_bytes: u64,
}

/// Blocks of a process, sorted by address.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blocks(Vec<AllocatedBlock>);

impl Blocks {
    /// Sorts blocks given in any order.
    pub fn new(mut blocks: Vec<AllocatedBlock>) -> Self {
        blocks.sort_unstable_by_key(|block| block.address);
        Self(blocks)
    }

    /// Returns the allocated blocks of a reading of the allocator state.
    pub fn of_allocator_state(allocator_state: &AllocatorState) -> Self {
        let blocks =
            allocator_state.devices.iter().flat_map(|device| device.blocks().map(|block| (device.ordinal, block)));
        Self::allocated(blocks)
    }

    /// Returns the allocated blocks of a reading made while the allocators were running.
    pub fn of_moving(allocator_state: &MovingAllocatorState) -> Self {
        let blocks =
            allocator_state.devices.iter().flat_map(|device| device.blocks.iter().map(|block| (device.ordinal, block)));
        Self::allocated(blocks)
    }

    fn allocated<'b>(blocks: impl Iterator<Item = (Ordinal, &'b StateBlock)>) -> Self {
        let allocated = blocks.filter(|(_, block)| block.state == StateBlockUse::ActiveAllocated);
        let block = |(ordinal, block): (Ordinal, &StateBlock)| AllocatedBlock {
            ordinal,
            address: block.address,
            bytes: block.bytes,
            requested_bytes: block.requested_bytes,
        };
        Self::new(allocated.map(block).collect())
    }

    /// Returns all blocks, by address.
    pub fn iter(&self) -> impl Iterator<Item = &AllocatedBlock> {
        self.0.iter()
    }

    /// Returns the block at an index.
    fn get(&self, index: usize) -> Option<&AllocatedBlock> {
        self.0.get(index)
    }

    /// Returns the blocks that `others` also contains.
    #[must_use]
    pub fn standing_in(&self, others: &Self) -> Self {
        let is_there = |block: &&AllocatedBlock| {
            others.at(block.address).is_some_and(|other| {
                (other.ordinal, other.address, other.bytes) == (block.ordinal, block.address, block.bytes)
            })
        };
        Self(self.0.iter().filter(is_there).copied().collect())
    }

    /// Returns the block that contains an address.
    fn at(&self, address: u64) -> Option<&AllocatedBlock> {
        self.0.get(self.index(address)?)
    }

    fn index(&self, address: u64) -> Option<usize> {
        let index = self.0.partition_point(|block| block.address <= address).checked_sub(1)?;
        let block = self.0.get(index)?;
        (address - block.address < block.bytes).then_some(index)
    }
}

/// Known addresses in the process, and limits of the reading.
#[derive(Clone, Debug)]
pub struct InspectOptions {
    /// Maximum number of bytes read.
    pub most_read_bytes: u64,
    /// Maximum number of Python objects read.
    pub most_objects: usize,
    /// Address ranges of PyTorch's libraries. C++ vtables are accepted only in these; anywhere if
    /// empty.
    pub libraries: Vec<Range<u64>>,
    /// Addresses of PyTorch's workspace maps (`cublas_handle_stream_to_workspace()::instance`, and
    /// that of cuBLASLt), if known.
    pub workspaces: Vec<u64>,
}

impl Default for InspectOptions {
    fn default() -> Self {
        Self { most_read_bytes: 1 << 30, most_objects: 10_000_000, libraries: Vec::new(), workspaces: Vec::new() }
    }
}

/// Reads the live objects, without process id and time. `layout` is that of the process's Python;
/// `None` if it has none.
///
/// This never fails. Unidentified blocks are listed without a name, and [`Holdings::without_names`]
/// gives the reason. If the time budget is spent ([`MemoryAccess::spent`]) or a limit is reached, the
/// result holds what was found by then, as [`Holdings::cut_by`] shows.
pub fn read<M: MemoryAccess>(
    memory: &M,
    layout: Option<&CpythonLayout>,
    blocks: &Blocks,
    options: &InspectOptions,
) -> Holdings {
    read_again(memory, layout, (blocks, options), &mut || None)
}

/// Reads the live objects of a running process. `again` returns its current blocks, and objects
/// with names that no longer hold are searched again. The rows are those of the last blocks.
pub fn read_again<M: MemoryAccess>(
    memory: &M,
    layout: Option<&CpythonLayout>,
    (blocks, options): (&Blocks, &InspectOptions),
    again: &mut dyn FnMut() -> Option<Blocks>,
) -> Holdings {
    let pass = Pass::new(memory, options.most_read_bytes).keeping(MOST_KEPT_BYTES);
    let rows = blocks.iter().map(|block| Holding::unknown(block.ordinal, block.address, block.bytes)).collect();
    let mut holdings = Holdings { rows, ..Holdings::default() };
    let earlier = layout.map(|layout| RunningFrames::read(memory, layout)).unwrap_or_default();
    let heap = layout.ok_or("the process has no readable Python").and_then(|layout| {
        read_heap(&pass, layout, options.most_objects)
            .ok_or("the object lists of Python's garbage collector were not found")
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
    // Blocks without a tensor are listed as such only if all objects were read and have the
    // expected layout.
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

/// Reads the objects of a Python. If its collector is running, the lists are searched again.
fn read_heap<'a, M: MemoryAccess>(
    pass: &'a Pass<'_, M>,
    layout: &'a CpythonLayout,
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
