//! Reads the live objects of a PyTorch process: its allocators' blocks, and the Python objects that
//! retain the tensors in them. Reads only the process's memory.

use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use memwatch_core::features::holdings::AllocatorTotals;
use memwatch_core::input::allocator_state::{AllocatorState, MovingAllocatorState, MovingDevice};
use memwatch_core::input::holdings::{HoldingClass, Holdings};
use memwatch_core::words::{Ordinal, Tgid};
use memwatch_inspect::holdings::{Blocks, InspectOptions, read_again};
use memwatch_inspect::python::layout::CpythonLayout;

use super::allocator_state::{StateReadError, StateReader};
use super::remembered_names::RememberedNames;
use crate::sources::address_space::{AddressSpace, MemoryMapping};
use crate::sources::binary::Binary;
use crate::sources::library::is_library;
use crate::sources::python;

/// Libraries that define the classes of PyTorch's objects.
const CLASSES: [&str; 7] = [
    "libc10.so",
    "libc10_cuda.so",
    "libtorch.so",
    "libtorch_cpu.so",
    "libtorch_cuda.so",
    "libtorch_python.so",
    "libtorch_cuda_linalg.so",
];
/// The library with the cuBLAS workspace maps, and the symbols of these maps: static variables of
/// functions, listed in the static symbol table only. The first is used up to PyTorch 2.6; the last
/// exists from 2.9 on.
const WORKSPACES_LIBRARY: &str = "libtorch_cuda.so";
const WORKSPACES: [&str; 3] = [
    "_ZZN2at4cuda12_GLOBAL__N_133cublas_handle_stream_to_workspaceEvE8instance",
    "_ZZN2at4cuda33cublas_handle_stream_to_workspaceEvE8instance",
    "_ZZN2at4cuda35cublaslt_handle_stream_to_workspaceEvE8instance",
];

/// Reason for missing names in a C++ program, which has no Python objects.
const NO_PYTHON: &str = "the process runs no Python";

/// How long a consistent reading is attempted while the allocators are active. After that only the
/// blocks that stay unchanged are read.
const PATIENCE: Duration = Duration::from_millis(300);
/// Number of readings with names, of which the best is used, and maximum number of readings. A
/// running program may hide its objects in one of them.
const MOST_READINGS: usize = 3;
const MOST_TRIES: usize = 6;
/// Inverse of the share of bytes without a name above which a reading is repeated. The reader has
/// retried failed parts itself by then.
const LOST_PART: u64 = 20;
/// Pause between two attempts.
const BETWEEN: Duration = Duration::from_millis(10);

/// Maximum time for resolving names in one process.
pub(crate) const NAMES_TIME: Duration = Duration::from_secs(10);

/// Reader of one process's live objects.
#[derive(Debug)]
pub(crate) struct HoldingsReader {
    tgid: u32,
    allocator_state: StateReader,
    space: AddressSpace,
    /// Layout of the process's Python, or the reason for missing names.
    layout: Result<CpythonLayout, String>,
    options: InspectOptions,
    /// Maximum time for resolving names in one reading.
    most_time: Duration,
    /// Names found by earlier readings.
    remembered: RememberedNames,
}

impl HoldingsReader {
    /// Finds PyTorch and Python in a process. Resolving names takes at most `most_time` per
    /// reading. Returns `None` if the process has not loaded PyTorch's allocators.
    ///
    /// # Errors
    /// The process is not readable, or its library is damaged.
    pub(crate) fn open(tgid: u32, most_time: Duration) -> Result<Option<Self>, StateReadError> {
        let Some(allocator_state) = StateReader::open(tgid)? else { return Ok(None) };
        let space = AddressSpace::open(tgid).map_err(|error| StateReadError::Unreadable(error.kind()))?;
        let layout = match python::layout_of(tgid, &space) {
            Ok(Some(layout)) => Ok(layout),
            Ok(None) => Err(NO_PYTHON.to_owned()),
            Err(error) => Err(error.to_string()),
        };
        let options = InspectOptions {
            libraries: class_libraries(&space),
            workspaces: workspaces(&space),
            ..InspectOptions::default()
        };
        Ok(Some(Self {
            tgid,
            allocator_state,
            space,
            layout,
            options,
            most_time,
            remembered: RememberedNames::default(),
        }))
    }

    /// Returns how often the layout of PyTorch's build had to be searched, in all readings.
    pub(crate) fn searches(&self) -> u32 {
        self.allocator_state.searches()
    }

    /// Returns the allocators' addresses in the last complete reading, by device.
    pub(crate) fn allocators(&self) -> &[u64] {
        self.allocator_state.allocators()
    }

    /// Reloads the process's mappings before another reading of a running process.
    ///
    /// # Errors
    /// The process has exited or is no longer readable.
    pub(crate) fn refresh(&mut self) -> Result<(), StateReadError> {
        self.allocator_state.refresh()?;
        self.space.refresh().map_err(|error| StateReadError::Unreadable(error.kind()))
    }

    /// Reads everything once the allocators are idle for a moment; if they are not, reads the
    /// blocks that stay unchanged. A running program changes its objects during a reading, so the
    /// best of several readings is returned.
    ///
    /// # Errors
    /// The allocators' state cannot be parsed, or no block stays unchanged.
    pub(crate) fn read_patiently(&mut self) -> Result<(Holdings, Vec<AllocatorTotals>), StateReadError> {
        let mut best = self.read_within(PATIENCE)?;
        let runs_python = self.layout.is_ok();
        let has_names = |holdings: &Holdings| !runs_python || holdings.without_names.is_none();
        let mut readings = usize::from(has_names(&best.0));
        for _ in 1..MOST_TRIES {
            if readings >= MOST_READINGS || lacks(&best.0).is_little_of(&best.0) || self.is_unchanged(&best.0) {
                break;
            }
            // The process may be ending.
            let Ok(next) = self.read_within(PATIENCE) else { break };
            readings += usize::from(has_names(&next.0));
            if lacks(&next.0) < lacks(&best.0) {
                best = next;
            }
        }
        Ok(best)
    }

    /// Whether the process still has the same blocks.
    fn is_unchanged(&mut self, holdings: &Holdings) -> bool {
        let Ok(allocator_state) = self.allocator_state.read() else { return false };
        let blocks = Blocks::of_allocator_state(&allocator_state);
        blocks
            .iter()
            .map(|block| (block.address, block.bytes))
            .eq(holdings.rows.iter().map(|row| (row.address, row.block_bytes)))
    }

    /// Reads everything once, and waits up to `patience` for the allocators to be idle.
    ///
    /// # Errors
    /// Fails as [`Self::read_patiently`] does.
    pub(crate) fn read_within(
        &mut self,
        patience: Duration,
    ) -> Result<(Holdings, Vec<AllocatorTotals>), StateReadError> {
        let until = Instant::now() + patience;
        loop {
            match self.read() {
                Err(StateReadError::Refused(refusal)) if refusal.is_passing() => {
                    if Instant::now() >= until {
                        return self.read_standing();
                    }
                    sleep(BETWEEN);
                }
                read => return read,
            }
        }
    }

    /// Reads everything once.
    ///
    /// # Errors
    /// The allocators were active, or their state cannot be parsed.
    pub(crate) fn read(&mut self) -> Result<(Holdings, Vec<AllocatorTotals>), StateReadError> {
        let latest = Latest::of_allocator_state(&self.allocator_state.read()?);
        Ok(self.named(latest))
    }

    /// Reads the blocks that stay unchanged while the allocators are active.
    ///
    /// # Errors
    /// The allocators' state cannot be parsed.
    pub(crate) fn read_standing(&mut self) -> Result<(Holdings, Vec<AllocatorTotals>), StateReadError> {
        let latest = Latest::of_moving(&self.allocator_state.read_standing()?);
        Ok(self.named(latest))
    }

    /// Resolves the names of these blocks, and of the blocks that exist by then.
    fn named(&mut self, mut latest: Latest) -> (Holdings, Vec<AllocatorTotals>) {
        let Self { allocator_state, space, layout, options, most_time, .. } = self;
        let layout = layout.as_ref();
        let first = latest.blocks.clone();
        let named = read_again(&space.within(*most_time), layout.ok(), (&first, options), &mut || {
            latest.renew(allocator_state);
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

/// The allocators' blocks at the last reading.
struct Latest {
    blocks: Blocks,
    began_ns: u64,
    /// Totals by device if the allocators were idle during the reading.
    totals: Vec<AllocatorTotals>,
    /// Device, allocated bytes and reserved bytes if the allocators were active.
    moving: Vec<(Ordinal, u64, u64)>,
}

impl Latest {
    fn of_allocator_state(allocator_state: &AllocatorState) -> Self {
        let totals = AllocatorTotals::of_allocator_state(allocator_state);
        Self {
            blocks: Blocks::of_allocator_state(allocator_state),
            began_ns: allocator_state.began_ns,
            totals,
            moving: Vec::new(),
        }
    }

    fn of_moving(allocator_state: &MovingAllocatorState) -> Self {
        let device = |device: &MovingDevice| (device.ordinal, device.allocated_bytes, device.reserved_bytes);
        let moving = allocator_state.devices.iter().map(device).collect();
        Self {
            blocks: Blocks::of_moving(allocator_state),
            began_ns: allocator_state.began_ns,
            totals: Vec::new(),
            moving,
        }
    }

    /// Reads the blocks again. If the allocators are active, keeps only the blocks that still
    /// exist.
    fn renew(&mut self, allocator_state: &mut StateReader) {
        if let Ok(read) = allocator_state.read() {
            let now = Self::of_allocator_state(&read);
            *self =
                if self.moving.is_empty() { now } else { Self { blocks: self.blocks.standing_in(&now.blocks), ..now } };
        } else if let Ok(read) = allocator_state.read_moving()
            && !read.devices.is_empty()
        {
            let now = Self::of_moving(&read);
            *self = Self { blocks: self.blocks.standing_in(&now.blocks), ..now };
        }
    }

    /// Returns the allocators' own totals, compared with the rows.
    fn totals(self, holdings: &Holdings) -> Vec<AllocatorTotals> {
        let rows = |ordinal: Ordinal| {
            let rows = holdings.rows.iter().filter(move |row| row.ordinal == ordinal);
            rows.map(|row| row.block_bytes).fold(0, u64::saturating_add)
        };
        if self.moving.is_empty() {
            let later = |totals: AllocatorTotals| {
                let blocks = self.blocks.iter().filter(|block| block.ordinal == totals.ordinal);
                let allocated = blocks.map(|block| block.bytes).fold(0, u64::saturating_add);
                let later_bytes = Some(allocated.saturating_sub(rows(totals.ordinal))).filter(|bytes| *bytes > 0);
                AllocatorTotals { later_bytes, ..totals }
            };
            return self.totals.into_iter().map(later).collect();
        }
        let device = |(ordinal, allocated_bytes, reserved_bytes): (Ordinal, u64, u64)| AllocatorTotals {
            ordinal,
            reserved_bytes,
            changing_bytes: Some(allocated_bytes.saturating_sub(rows(ordinal))),
            later_bytes: None,
            pieces: None,
        };
        self.moving.into_iter().map(device).collect()
    }
}

/// What is missing from a reading; less is better.
#[derive(Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Lacks {
    names: bool,
    /// Bytes of blocks without a known retainer.
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

fn is_one(mapping: &MemoryMapping, name: &str) -> bool {
    is_library(mapping.path.strip_suffix(b" (deleted)").unwrap_or(&mapping.path), name)
}

/// Returns the address ranges of the libraries that define the classes of PyTorch's objects.
pub(crate) fn class_libraries(space: &AddressSpace) -> Vec<Range<u64>> {
    let of_classes = space.mappings().iter().filter(|mapping| CLASSES.iter().any(|name| is_one(mapping, name)));
    of_classes.map(|mapping| mapping.start..mapping.end).collect()
}

/// Returns the addresses of the workspace maps that the library's symbols show.
fn workspaces(space: &AddressSpace) -> Vec<u64> {
    let mapping = space.mappings().iter().find(|mapping| is_one(mapping, WORKSPACES_LIBRARY));
    let binary = mapping.and_then(|mapping| Binary::of(space, mapping, &WORKSPACES).ok());
    binary.iter().flat_map(|binary| WORKSPACES.iter().filter_map(|name| binary.address(name))).collect()
}
