//! What the loader knows of a framework: the descriptor that each framework's directory exports.

use std::fs::File;

use memwatch_common::tensor::FrameworkLibrary;
use memwatch_core::input::Input;
use memwatch_core::words::{Framework, Tgid};

use super::bfc::layout::ArenaLayout;
use super::points::{TensorPoint, points};
use crate::sources::kernel::load::chain;
use crate::sources::kernel::site::KernelVersion;
use crate::sources::library::is_library;

/// A framework with an allocator on top of the driver's.
pub(crate) struct FrameworkDescriptor {
    /// Identifier of the framework.
    pub(crate) framework: Framework,
    /// Libraries with functions to probe.
    pub(crate) libraries: &'static [LibraryRow],
    /// Files that a process maps only if it uses the framework with CUDA.
    pub(crate) marks: &'static [LibraryName],
    /// Begins to count the blocks of a process by the allocators' own counters; `None` if the
    /// framework has no such counters.
    pub(crate) begin_count: Option<BeginCount>,
    /// Functions that every event of the allocators passes, for probes that add load. Empty if
    /// overhead is not measured that way.
    pub(crate) event_functions: &'static [EventFunction],
}

/// Begins a count in a process; `None` if its allocators are missing or cannot be read.
pub(crate) type BeginCount = fn(tgid: u32) -> Option<Box<dyn BlockCounter>>;

impl FrameworkDescriptor {
    /// Creates a descriptor of a framework without counters that can be read.
    pub(crate) const fn new(
        framework: Framework,
        libraries: &'static [LibraryRow],
        marks: &'static [LibraryName],
    ) -> Self {
        Self { framework, libraries, marks, begin_count: None, event_functions: &[] }
    }
}

/// A running count of the blocks that the allocators of a process grant and take back.
pub(crate) trait BlockCounter: Send {
    /// Returns the number of events since the count began; `None` if the counters cannot be read.
    fn events(&mut self) -> Option<u64>;
}

/// A function that the events of an allocator pass.
pub(crate) struct EventFunction {
    /// Id of the function's entry in `TENSOR_PROBES`.
    pub(crate) row: u16,
    /// Calls per event, in hundredths.
    pub(crate) percent: u64,
}

/// Kind of memory that a library's allocator manages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keeps {
    /// Blocks of an allocator that spans several libraries.
    Blocks(BlockPart),
    /// Arenas that keep their own allocator state.
    Arenas,
    /// Buffers. The allocator keeps no list of them.
    Buffers,
    /// Pools. The allocator keeps no list of them.
    Pools,
}

/// Part of a library in an allocator of [`Keeps::Blocks`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockPart {
    /// Reports each block to a profiler. Its probes count the events of a process if the
    /// allocator's counters cannot be read.
    Reports,
    /// Contains the allocator, which traces its own changes.
    Allocator,
    /// Contains other functions of the framework only.
    Other,
}

impl Keeps {
    /// Whether allocations made before the attach cannot be read because no list of them exists.
    pub(crate) const fn has_no_allocator_state(self) -> bool {
        matches!(self, Self::Buffers | Self::Pools)
    }

    /// Whether the allocator spans several libraries.
    pub(crate) const fn are_blocks(self) -> bool {
        matches!(self, Self::Blocks(_))
    }

    /// Whether events of blocks come from this library.
    pub(crate) const fn sends_blocks(self) -> bool {
        matches!(self, Self::Blocks(BlockPart::Reports | BlockPart::Allocator))
    }
}

/// Probe points and layout found in a library's file.
#[derive(Clone)]
pub(crate) struct Contents {
    /// Probe points of the library's functions, or a message that explains why they are unknown.
    pub(crate) points: Result<Vec<TensorPoint>, String>,
    /// Field offsets of the library's arenas, if it has any.
    pub(crate) arenas: Option<ArenaLayout>,
}

impl Contents {
    /// Returns the contents of a library without arenas.
    pub(crate) const fn of_points(points: Result<Vec<TensorPoint>, String>) -> Self {
        Self { points, arenas: None }
    }
}

/// Name of a library's file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LibraryName {
    /// Stem of the file name.
    pub(crate) stem: &'static str,
    /// Text the path must contain, for file names that other packages use too; empty otherwise.
    folder: &'static str,
}

impl LibraryName {
    /// Names a library by the stem of its file.
    pub(crate) const fn new(stem: &'static str) -> Self {
        Self { stem, folder: "" }
    }

    /// Names a library by the stem of its file and a part of its path.
    pub(crate) const fn below(stem: &'static str, folder: &'static str) -> Self {
        Self { stem, folder }
    }

    /// Whether a path is that of this library.
    pub(crate) fn is_at(&self, path: &[u8]) -> bool {
        let is_there = || memchr::memmem::find(path, self.folder.as_bytes()).is_some();
        is_library(path.strip_suffix(b" (deleted)").unwrap_or(path), self.stem) && is_there()
    }
}

/// Finds probe points and layout in a library's file.
pub(crate) type Inspect = fn(&File, &LibraryRow, KernelVersion) -> Contents;

/// A library that contains a part of a framework's allocator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LibraryRow {
    /// Name of the file.
    pub(crate) name: LibraryName,
    /// The library's identifier.
    pub(crate) id: FrameworkLibrary,
    /// Kind of memory that its allocator manages.
    pub(crate) keeps: Keeps,
    inspect: Inspect,
    /// Input with which the pipeline learns that the library is probed in a process at a time, in
    /// addition to the one about its framework.
    pub(crate) announce: Option<fn(Tgid, u64) -> Input>,
}

impl LibraryRow {
    /// Creates the entry of a library whose functions are found by symbol name.
    pub(crate) const fn new(name: LibraryName, id: FrameworkLibrary, keeps: Keeps) -> Self {
        Self { name, id, keeps, inspect: by_symbols, announce: None }
    }

    /// Sets how the library's file is inspected.
    pub(crate) const fn inspected_by(self, inspect: Inspect) -> Self {
        Self { inspect, ..self }
    }

    /// Sets the input about the library's probes.
    pub(crate) const fn announced_by(self, announce: fn(Tgid, u64) -> Input) -> Self {
        Self { announce: Some(announce), ..self }
    }

    /// Inspects the library's file.
    pub(crate) fn contents(&self, file: &File, kernel: KernelVersion) -> Contents {
        (self.inspect)(file, self, kernel)
    }

    /// Finds the library's functions by symbol name.
    ///
    /// # Errors
    /// A message that explains why the file cannot be read or parsed.
    pub(crate) fn points(&self, file: &File, kernel: KernelVersion) -> Result<Vec<TensorPoint>, String> {
        points(file, self.id, kernel).map_err(|error| chain(&error))
    }
}

fn by_symbols(file: &File, row: &LibraryRow, kernel: KernelVersion) -> Contents {
    Contents::of_points(row.points(file, kernel))
}
