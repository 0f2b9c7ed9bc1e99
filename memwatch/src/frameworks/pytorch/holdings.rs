//! What a PyTorch process holds, by name: its allocators' books, and who keeps the tensors in their blocks. Both are read from its memory alone.

use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use memwatch_core::features::holdings::DeviceTotals;
use memwatch_core::input::books::{Books, MovingBooks, MovingDevice};
use memwatch_core::input::holdings::{HoldingClass, Holdings};
use memwatch_core::words::{Ordinal, Tgid};
use memwatch_inspect::holdings::{Blocks, Options, read_again};
use memwatch_inspect::python::layout::Layout;

use super::books::{BooksError, BooksReader};
use super::remembered_names::RememberedNames;
use crate::sources::address_space::{AddressSpace, Mapping};
use crate::sources::binary::Binary;
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
/// The library with the maps of workspaces, and those maps: variables of functions, in the static table of symbols only. Up to PyTorch 2.6 it is the
/// first; the last is there from 2.9 on.
const WORKSPACES_LIBRARY: &str = "libtorch_cuda.so";
const WORKSPACES: [&str; 3] = [
    "_ZZN2at4cuda12_GLOBAL__N_133cublas_handle_stream_to_workspaceEvE8instance",
    "_ZZN2at4cuda33cublas_handle_stream_to_workspaceEvE8instance",
    "_ZZN2at4cuda35cublaslt_handle_stream_to_workspaceEvE8instance",
];

/// Why there are no names in a program of C++: there is nothing that could have one.
const NO_PYTHON: &str = "the process runs no Python";

/// For how long a whole reading is tried of a process whose allocators are at work; then the blocks that stand still are read.
const PATIENCE: Duration = Duration::from_millis(300);
/// Readings with names of which the best is taken, and readings in all: a program that goes on may hide its objects in one.
const MOST_READINGS: usize = 3;
const MOST_TRIES: usize = 6;
/// A reading is repeated as a whole where more than one byte in so many has no name: what failed was looked for again in it.
const LOST_PART: u64 = 20;
/// Between two tries.
const BETWEEN: Duration = Duration::from_millis(10);

/// How long names are looked for in one process.
pub(crate) const NAMES_TIME: Duration = Duration::from_secs(10);

/// A process of which it can be read what it holds.
#[derive(Debug)]
pub(crate) struct HoldingsReader {
    tgid: u32,
    books: BooksReader,
    space: AddressSpace,
    /// Of its Python, or why there are no names.
    layout: Result<Layout, String>,
    options: Options,
    /// How long names are looked for, of one reading.
    most_time: Duration,
    /// What earlier readings found.
    remembered: RememberedNames,
}

impl HoldingsReader {
    /// Finds PyTorch and Python in a process, whose names are looked for no longer than `most_time`; `None` where it has not loaded PyTorch's
    /// allocators.
    ///
    /// # Errors
    /// The process may not be read, or its library is damaged.
    pub(crate) fn open(tgid: u32, most_time: Duration) -> Result<Option<Self>, BooksError> {
        let Some(books) = BooksReader::open(tgid)? else { return Ok(None) };
        let space = AddressSpace::open(tgid).map_err(|error| BooksError::Unreadable(error.kind()))?;
        let layout = match python::layout_of(tgid, &space) {
            Ok(Some(layout)) => Ok(layout),
            Ok(None) => Err(NO_PYTHON.to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let options = Options { libraries: libraries(&space), workspaces: workspaces(&space), ..Options::default() };
        Ok(Some(Self { tgid, books, space, layout, options, most_time, remembered: RememberedNames::default() }))
    }

    /// How often where things lie in PyTorch's build had to be looked for, in all readings.
    pub(crate) fn searches(&self) -> u32 {
        self.books.searches()
    }

    /// Where the allocators lay in the last whole reading, by device.
    pub(crate) fn allocators(&self) -> &[u64] {
        self.books.allocators()
    }

    /// Looks again at what the process has mapped, before one more reading of a process that went on.
    ///
    /// # Errors
    /// The process has gone, or may not be read any more.
    pub(crate) fn refresh(&mut self) -> Result<(), BooksError> {
        self.books.refresh()?;
        self.space.refresh().map_err(|error| BooksError::Unreadable(error.kind()))
    }

    /// Reads all as soon as the allocators rest for a moment; where they do not, the blocks that stand still while they work. A program that goes on
    /// changes its objects while they are read: then of some readings the one that finds most.
    ///
    /// # Errors
    /// Their books are not understood, or no block stands still.
    pub(crate) fn read_patiently(&mut self) -> Result<(Holdings, Vec<DeviceTotals>), BooksError> {
        let mut best = self.read_within(PATIENCE)?;
        let runs_python = self.layout.is_ok();
        let has_names = |holdings: &Holdings| !runs_python || holdings.without_names.is_none();
        let mut readings = usize::from(has_names(&best.0));
        for _ in 1..MOST_TRIES {
            if readings >= MOST_READINGS || lacks(&best.0).is_little_of(&best.0) || self.is_unchanged(&best.0) {
                break;
            }
            let next = self.read_within(PATIENCE)?;
            readings += usize::from(has_names(&next.0));
            if lacks(&next.0) < lacks(&best.0) {
                best = next;
            }
        }
        Ok(best)
    }

    /// Whether the process has the same blocks still.
    fn is_unchanged(&mut self, holdings: &Holdings) -> bool {
        let Ok(books) = self.books.read() else { return false };
        let blocks = Blocks::of_books(&books);
        blocks
            .iter()
            .map(|block| (block.address, block.bytes))
            .eq(holdings.rows.iter().map(|row| (row.address, row.block_bytes)))
    }

    /// Reads all once, where the allocators are waited for so long.
    ///
    /// # Errors
    /// As of [`Self::read_patiently`].
    pub(crate) fn read_within(&mut self, patience: Duration) -> Result<(Holdings, Vec<DeviceTotals>), BooksError> {
        let until = Instant::now() + patience;
        loop {
            match self.read() {
                Err(BooksError::Refused(refusal)) if refusal.is_passing() => {
                    if Instant::now() >= until {
                        return self.read_standing();
                    }
                    sleep(BETWEEN);
                }
                read => return read,
            }
        }
    }

    /// Reads all once.
    ///
    /// # Errors
    /// The allocators worked meanwhile, or their books are not understood.
    pub(crate) fn read(&mut self) -> Result<(Holdings, Vec<DeviceTotals>), BooksError> {
        let latest = Latest::of_books(&self.books.read()?);
        Ok(self.named(latest))
    }

    /// Reads the blocks that stand still while the allocators work.
    ///
    /// # Errors
    /// Their books are not understood.
    pub(crate) fn read_standing(&mut self) -> Result<(Holdings, Vec<DeviceTotals>), BooksError> {
        let latest = Latest::of_moving(&self.books.read_standing()?);
        Ok(self.named(latest))
    }

    /// Reads the names of these blocks, and of what blocks there are by then.
    fn named(&mut self, mut latest: Latest) -> (Holdings, Vec<DeviceTotals>) {
        let Self { books, space, layout, options, most_time, .. } = self;
        let layout = layout.as_ref();
        let first = latest.blocks.clone();
        let named = read_again(&space.within(*most_time), layout.ok(), (&first, options), &mut || {
            latest.renew(books);
            Some(latest.blocks.clone())
        });
        let without_names = layout.err().cloned().or(named.without_names);
        let mut holdings =
            Holdings { tgid: Tgid(self.tgid), time_ns: latest.began_ns, without_names, rows: named.rows, ..named };
        if holdings.without_names.as_deref().is_some_and(|why| why != NO_PYTHON) && layout.is_err() {
            for row in holdings.rows.iter_mut().filter(|row| row.class == HoldingClass::NoPythonObject) {
                row.class = HoldingClass::NotRead;
            }
        }
        self.remembered.complete(&mut holdings);
        let totals = latest.totals(&holdings);
        (holdings, totals)
    }
}

/// The blocks of the allocators as they were read last.
struct Latest {
    blocks: Blocks,
    began_ns: u64,
    /// Of whole books.
    totals: Vec<DeviceTotals>,
    /// Of books that moved: what each device had in all, and of the driver.
    moving: Vec<(Ordinal, u64, u64)>,
}

impl Latest {
    fn of_books(books: &Books) -> Self {
        let totals = DeviceTotals::of_books(books);
        Self { blocks: Blocks::of_books(books), began_ns: books.began_ns, totals, moving: Vec::new() }
    }

    fn of_moving(books: &MovingBooks) -> Self {
        let device = |device: &MovingDevice| (device.ordinal, device.allocated_bytes, device.reserved_bytes);
        let moving = books.devices.iter().map(device).collect();
        Self { blocks: Blocks::of_moving(books), began_ns: books.began_ns, totals: Vec::new(), moving }
    }

    /// Reads them once more. Where the allocators work, only the blocks are left that are there still.
    fn renew(&mut self, books: &mut BooksReader) {
        if let Ok(read) = books.read() {
            let now = Self::of_books(&read);
            *self =
                if self.moving.is_empty() { now } else { Self { blocks: self.blocks.standing_in(&now.blocks), ..now } };
        } else if let Ok(read) = books.read_moving()
            && !read.devices.is_empty()
        {
            let now = Self::of_moving(&read);
            *self = Self { blocks: self.blocks.standing_in(&now.blocks), ..now };
        }
    }

    /// What the allocators say of themselves, beside the rows.
    fn totals(self, holdings: &Holdings) -> Vec<DeviceTotals> {
        let rows = |ordinal: Ordinal| {
            let rows = holdings.rows.iter().filter(move |row| row.ordinal == ordinal);
            rows.map(|row| row.block_bytes).fold(0, u64::saturating_add)
        };
        if self.moving.is_empty() {
            let later = |totals: DeviceTotals| {
                let blocks = self.blocks.iter().filter(|block| block.ordinal == totals.ordinal);
                let allocated = blocks.map(|block| block.bytes).fold(0, u64::saturating_add);
                let later_bytes = Some(allocated.saturating_sub(rows(totals.ordinal))).filter(|bytes| *bytes > 0);
                DeviceTotals { later_bytes, ..totals }
            };
            return self.totals.into_iter().map(later).collect();
        }
        let device = |(ordinal, allocated_bytes, reserved_bytes): (Ordinal, u64, u64)| DeviceTotals {
            ordinal,
            reserved_bytes,
            changing_bytes: Some(allocated_bytes.saturating_sub(rows(ordinal))),
            later_bytes: None,
        };
        self.moving.into_iter().map(device).collect()
    }
}

/// What a reading lacks: the less, the better.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Lacks {
    names: bool,
    /// Nothing is known to lead to them.
    lost_bytes: u64,
}

impl Lacks {
    fn is_little_of(&self, holdings: &Holdings) -> bool {
        let all = holdings.rows.iter().map(|row| row.block_bytes).fold(0, u64::saturating_add);
        !self.names && self.lost_bytes <= all / LOST_PART
    }
}

fn lacks(holdings: &Holdings) -> Lacks {
    let lost = holdings.rows.iter().filter(|row| !row.is_found()).map(|row| row.block_bytes);
    Lacks { names: holdings.without_names.is_some(), lost_bytes: lost.fold(0, u64::saturating_add) }
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
