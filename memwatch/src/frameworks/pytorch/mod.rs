//! PyTorch in a process: its libraries, their probed functions, and readers of its allocators'
//! state.

mod allocator_state;
mod calls;
mod holdings;
mod known_builds;
mod numbers;
mod price;
mod remembered_names;

use std::fs::File;

use memwatch_common::tensor::FrameworkLibrary;
use memwatch_core::words::Framework;

use self::price::AllocatorCounter;
use super::descriptor::{
    BlockCounter, BlockPart, Contents, EventFunction, FrameworkDescriptor, Keeps, LibraryName, LibraryRow,
};
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;

pub(crate) use allocator_state::{StateReadError, StateReader};
#[cfg(test)]
pub(crate) use calls::allocator_points;
pub(crate) use holdings::{HoldingsReader, NAMES_TIME, class_libraries};
pub(crate) use numbers::{RecordPosition, RestingNumbers};
pub(crate) use price::{events, rates};

const ALLOCATOR: LibraryName = LibraryName::new("libc10_cuda.so");

/// PyTorch.
pub(crate) const DESCRIPTOR: FrameworkDescriptor = FrameworkDescriptor {
    begin_count: Some(begin_count),
    event_functions: &EVENT_FUNCTIONS,
    ..FrameworkDescriptor::new(
        Framework::PyTorch,
        &[
            library("libc10.so", FrameworkLibrary::C10, BlockPart::Reports),
            LibraryRow::new(ALLOCATOR, FrameworkLibrary::C10Cuda, Keeps::Blocks(BlockPart::Allocator))
                .inspected_by(inspect_allocator),
            library("libtorch_python.so", FrameworkLibrary::TorchPython, BlockPart::Other),
            library("libtorch_cuda.so", FrameworkLibrary::TorchCuda, BlockPart::Other),
            library("libtorch_cpu.so", FrameworkLibrary::TorchCpu, BlockPart::Other),
        ],
        &[ALLOCATOR],
    )
};

/// Functions that every event passes and that are not probed if calls are:
/// `reportMemoryUsageToProfiler`, called once per event; `record_trace`, once per allocation and
/// twice per free; `malloc`, once per allocation.
const EVENT_FUNCTIONS: [EventFunction; 3] = [
    EventFunction { row: 1, percent: 100 },
    EventFunction { row: 3, percent: 150 },
    EventFunction { row: 4, percent: 50 },
];

const fn library(stem: &'static str, library: FrameworkLibrary, part: BlockPart) -> LibraryRow {
    LibraryRow::new(LibraryName::new(stem), library, Keeps::Blocks(part))
}

/// Finds functions by symbol name and the calls that show everything about a block.
fn inspect_allocator(file: &File, row: &LibraryRow, kernel: KernelVersion) -> Contents {
    Contents::of_points(calls::allocator_points(file, row.id, kernel).map_err(|error| chain(&error)))
}

fn begin_count(tgid: u32) -> Option<Box<dyn BlockCounter>> {
    let counter = AllocatorCounter::begin(tgid).ok().flatten()?;
    Some(Box::new(counter))
}
