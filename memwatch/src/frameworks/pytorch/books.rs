//! The books of a process's caching allocators, read from its memory: nothing is stopped, attached or written.

use std::collections::HashMap;
use std::io;
use std::thread::sleep;
use std::time::Duration;

use memwatch_core::input::books::{BookBlock, Books, MovingBooks};
use memwatch_core::words::Tgid;
use memwatch_inspect::pytorch::{ALLOCATOR_SYMBOL, Calibration, Refusal, read, read_moving};

use crate::sources::address_space::AddressSpace;
use crate::sources::binary::{Binary, BinaryError};
use crate::sources::clock::boottime_ns;
use crate::sources::library::is_library;

/// The library that the allocators are in.
const LIBRARY: &str = "libc10_cuda.so";

/// How often blocks are read to see which stand still, and how long after another.
const STANDING_READINGS: usize = 5;
const BETWEEN_STANDING: Duration = Duration::from_millis(20);
/// How often a reading that finds no blocks is repeated, and how long after another.
const MOVING_TRIES: usize = 100;
const BETWEEN_MOVING: Duration = Duration::from_millis(1);

/// Why the books of a process are not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BooksError {
    /// It has gone, or this user may not look at it.
    #[error("its memory cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The file that the allocators are in.
    #[error("{LIBRARY}: {0}")]
    Library(#[from] BinaryError),
    /// It has no symbol that says where they are.
    #[error("{LIBRARY} does not say where its allocator is: PyTorch before 1.12, or another library of this name")]
    NoSymbol,
    /// The books themselves.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

/// A process whose books can be read.
#[derive(Debug)]
pub(crate) struct BooksReader {
    tgid: u32,
    space: AddressSpace,
    symbol: u64,
    calibration: Option<Calibration>,
}

impl BooksReader {
    /// Finds PyTorch's allocators in a process; `None` where it has not loaded them.
    ///
    /// # Errors
    /// The process may not be read, or the library is damaged.
    pub(crate) fn open(tgid: u32) -> Result<Option<Self>, BooksError> {
        let space = AddressSpace::open(tgid).map_err(|error| BooksError::Unreadable(error.kind()))?;
        let of_library = |path: &[u8]| is_library(path.strip_suffix(b" (deleted)").unwrap_or(path), LIBRARY);
        let Some(mapping) = space.mappings().iter().find(|mapping| of_library(&mapping.path)) else { return Ok(None) };
        let binary = Binary::of(&space, mapping, &[ALLOCATOR_SYMBOL])?;
        let symbol = binary.address(ALLOCATOR_SYMBOL).ok_or(BooksError::NoSymbol)?;
        Ok(Some(Self { tgid, space, symbol, calibration: None }))
    }

    /// Reads the blocks that they have while they work: which of them count is for whoever has the events of that time.
    ///
    /// # Errors
    /// The allocators are not understood.
    pub(crate) fn read_moving(&self) -> Result<MovingBooks, BooksError> {
        let began_ns = boottime_ns();
        let devices = read_moving(&self.space, self.symbol, self.calibration)?;
        Ok(MovingBooks { tgid: Tgid(self.tgid), began_ns, time_ns: boottime_ns(), devices })
    }

    /// The blocks that stand still while they work: the ones that several readings have in common.
    ///
    /// # Errors
    /// The allocators are not understood, or no reading found a block.
    pub(crate) fn read_standing(&self) -> Result<MovingBooks, BooksError> {
        let mut standing = self.read_moving_some()?;
        for _ in 1..STANDING_READINGS {
            sleep(BETWEEN_STANDING);
            let next = self.read_moving_some()?;
            for device in &mut standing.devices {
                let again = next.devices.iter().find(|again| again.ordinal == device.ordinal);
                // An allocator that is not found this once says nothing of its blocks.
                let Some(again) = again else { continue };
                let found: HashMap<u64, &BookBlock> = again.blocks.iter().map(|block| (block.address, block)).collect();
                device.blocks.retain(|block| found.get(&block.address) == Some(&block));
                (device.allocated_bytes, device.reserved_bytes) = (again.allocated_bytes, again.reserved_bytes);
            }
            standing.time_ns = next.time_ns;
        }
        Ok(standing)
    }

    /// A reading that has found blocks: one may meet the allocators just when nothing is in its place.
    fn read_moving_some(&self) -> Result<MovingBooks, BooksError> {
        let mut read = self.read_moving();
        for _ in 1..MOVING_TRIES {
            match read {
                Ok(books) if !books.devices.is_empty() => return Ok(books),
                Ok(_) => {}
                Err(BooksError::Refused(refusal)) if refusal.is_passing() => {}
                Err(error) => return Err(error),
            }
            sleep(BETWEEN_MOVING);
            read = self.read_moving();
        }
        read.and_then(|books| if books.devices.is_empty() { Err(Refusal::Busy.into()) } else { Ok(books) })
    }

    /// Reads them once.
    ///
    /// # Errors
    /// The allocators worked meanwhile, or are not understood.
    pub(crate) fn read(&mut self) -> Result<Books, BooksError> {
        let began_ns = boottime_ns();
        let found = read(&self.space, self.symbol, self.calibration)?;
        self.calibration = found.calibration;
        Ok(Books { tgid: Tgid(self.tgid), began_ns, time_ns: boottime_ns(), devices: found.devices })
    }
}
