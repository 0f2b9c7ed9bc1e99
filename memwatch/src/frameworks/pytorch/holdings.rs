//! What a PyTorch process holds, by name: its allocators' books, and who keeps the tensors in their blocks. Both are read from its memory alone.

use std::ops::Range;

use memwatch_core::features::holdings::DeviceTotals;
use memwatch_core::input::books::{BookState, MovingDevice};
use memwatch_core::input::holdings::Holdings;
use memwatch_core::words::Tgid;
use memwatch_inspect::holdings::{Blocks, Options, read};
use memwatch_inspect::python::layout::Layout;

use super::books::{BooksError, BooksReader};
use crate::sources::address_space::{AddressSpace, Mapping};
use crate::sources::binary::Binary;
use crate::sources::clock::boottime_ns;
use crate::sources::library::is_library;
use crate::sources::python;

/// The libraries whose classes PyTorch's objects are of.
const CLASSES: [&str; 7] = [
    "libc10.so",
    "libc10_cuda.so",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_python.so",
    "libtorch_cuda_linalg.so",
];
/// The library with the maps of workspaces, and those maps: variables of functions, in the static table of symbols only. The second is there from
/// PyTorch 2.9 on.
const WORKSPACES_LIBRARY: &str = "libtorch_cuda.so";
const WORKSPACES: [&str; 2] = [
    "_ZZN2at4cuda33cublas_handle_stream_to_workspaceEvE8instance",
    "_ZZN2at4cuda35cublaslt_handle_stream_to_workspaceEvE8instance",
];

/// A process of which it can be read what it holds.
#[derive(Debug)]
pub(crate) struct HoldingsReader {
    tgid: u32,
    books: BooksReader,
    space: AddressSpace,
    /// Of its Python, or why there are no names.
    layout: Result<Layout, String>,
    options: Options,
}

impl HoldingsReader {
    /// Finds PyTorch and Python in a process; `None` where it has not loaded PyTorch's allocators.
    ///
    /// # Errors
    /// The process may not be read, or its library is damaged.
    pub(crate) fn open(tgid: u32) -> Result<Option<Self>, BooksError> {
        let Some(books) = BooksReader::open(tgid)? else { return Ok(None) };
        let space = AddressSpace::open(tgid).map_err(|error| BooksError::Unreadable(error.kind()))?;
        let layout = match python::layout_of(tgid, &space) {
            Ok(Some(layout)) => Ok(layout),
            Ok(None) => Err("the process runs no Python".to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let options = Options { libraries: libraries(&space), workspaces: workspaces(&space), ..Options::default() };
        Ok(Some(Self { tgid, books, space, layout, options }))
    }

    /// Reads all once.
    ///
    /// # Errors
    /// The allocators worked meanwhile, or their books are not understood.
    pub(crate) fn read(&mut self) -> Result<(Holdings, Vec<DeviceTotals>), BooksError> {
        let books = self.books.read()?;
        Ok((self.named(&Blocks::of_books(&books)), DeviceTotals::of_books(&books)))
    }

    /// Reads the blocks that stand still while the allocators work.
    ///
    /// # Errors
    /// Their books are not understood.
    pub(crate) fn read_standing(&self) -> Result<(Holdings, Vec<DeviceTotals>), BooksError> {
        let standing = self.books.read_standing()?;
        let totals = |device: &MovingDevice| {
            let allocated = device.blocks.iter().filter(|block| block.state == BookState::ActiveAllocated);
            let standing_bytes = allocated.map(|block| block.bytes).fold(0, u64::saturating_add);
            DeviceTotals {
                ordinal: device.ordinal,
                reserved_bytes: device.reserved_bytes,
                changing_bytes: Some(device.allocated_bytes.saturating_sub(standing_bytes)),
            }
        };
        Ok((self.named(&Blocks::of_moving(&standing)), standing.devices.iter().map(totals).collect()))
    }

    fn named(&self, blocks: &Blocks) -> Holdings {
        let time_ns = boottime_ns();
        let layout = self.layout.as_ref();
        let named = read(&self.space, layout.ok(), blocks, &self.options);
        let without_names = layout.err().cloned().or(named.without_names);
        Holdings { tgid: Tgid(self.tgid), time_ns, without_names, ..named }
    }
}

fn is_one(mapping: &Mapping, name: &str) -> bool {
    is_library(mapping.path.strip_suffix(b" (deleted)").unwrap_or(&mapping.path), name)
}

fn libraries(space: &AddressSpace) -> Vec<Range<u64>> {
    let of_classes = space.mappings().iter().filter(|mapping| CLASSES.iter().any(|name| is_one(mapping, name)));
    of_classes.map(|mapping| mapping.start..mapping.end).collect()
}

/// Where the maps of workspaces are, as far as the library says so.
fn workspaces(space: &AddressSpace) -> Vec<u64> {
    let mapping = space.mappings().iter().find(|mapping| is_one(mapping, WORKSPACES_LIBRARY));
    let binary = mapping.and_then(|mapping| Binary::of(space, mapping, &WORKSPACES).ok());
    binary.iter().flat_map(|binary| WORKSPACES.iter().filter_map(|name| binary.address(name))).collect()
}
