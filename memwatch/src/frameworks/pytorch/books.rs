//! The books of a process's caching allocators, read from its memory: nothing is stopped, attached or written.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use memwatch_core::input::books::{Books, MovingBooks, Numbers};
use memwatch_core::words::Tgid;
use memwatch_inspect::pytorch::{
    ALLOCATOR_SYMBOL, Calibration, Refusal, device_allocators, read, read_moving, read_numbers, standing,
};

use super::known_builds;
use crate::sources::address_space::AddressSpace;
use crate::sources::binary::{Binary, BinaryError};
use crate::sources::clock::boottime_ns;
use crate::sources::library::is_library;

/// The library that the allocators are in.
const LIBRARY: &str = "libc10_cuda.so";

/// One reading takes no longer: a million blocks take a second.
const MOST_TIME: Duration = Duration::from_secs(5);
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
    /// Of the library, by which equal builds are known.
    build_id: Option<String>,
    calibration: Option<Calibration>,
    /// How often where things lie in this build had to be looked for.
    searches: u32,
    /// Where the allocators of the devices were in the last whole reading.
    allocators: Vec<u64>,
    /// The allocators of all devices: they stay where they are.
    counters: Vec<u64>,
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
        let calibration = binary.build_id.as_deref().and_then(known_builds::known);
        Ok(Some(Self {
            tgid,
            space,
            symbol,
            build_id: binary.build_id,
            calibration,
            searches: 0,
            allocators: Vec::new(),
            counters: Vec::new(),
        }))
    }

    /// How often where things lie in this build had to be looked for, in all readings: never, where an earlier process of the same build was read.
    pub(crate) fn searches(&self) -> u32 {
        self.searches
    }

    /// Where the allocators lay in the last whole reading, by device: a child that was forked has a copy of its parent's at the same place.
    pub(crate) fn allocators(&self) -> &[u64] {
        &self.allocators
    }

    /// Looks again at what the process has mapped.
    ///
    /// # Errors
    /// The process has gone, or may not be read any more.
    pub(super) fn refresh(&mut self) -> Result<(), BooksError> {
        self.space.refresh().map_err(|error| BooksError::Unreadable(error.kind()))
    }

    /// Reads the blocks that they have while they work: which of them count is for whoever has the events of that time.
    ///
    /// # Errors
    /// The allocators are not understood.
    pub(crate) fn read_moving(&self) -> Result<MovingBooks, BooksError> {
        let began_ns = boottime_ns();
        let devices = read_moving(&self.space.within(MOST_TIME), self.symbol, self.calibration)?;
        Ok(MovingBooks { tgid: Tgid(self.tgid), began_ns, time_ns: boottime_ns(), devices })
    }

    /// The blocks that stand still while they work: the ones that several readings have in common.
    ///
    /// # Errors
    /// The allocators are not understood, or no reading found a block.
    pub(crate) fn read_standing(&self) -> Result<MovingBooks, BooksError> {
        let mut readings = vec![self.read_moving_some()?];
        while readings.len() < STANDING_READINGS {
            sleep(BETWEEN_STANDING);
            readings.push(self.read_moving_some()?);
        }
        // The last one is confirmed at once.
        readings.push(self.read_moving_some()?);
        standing(&readings).ok_or_else(|| Refusal::Busy.into())
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

    /// Reads what the allocators have counted, also while they work.
    ///
    /// # Errors
    /// There are none, or they are not understood; where it is passing, they were in the midst of something.
    pub(crate) fn read_numbers(&mut self) -> Result<Numbers, BooksError> {
        let space = self.space.within(MOST_TIME);
        if self.counters.is_empty() {
            self.counters = device_allocators(&space, self.symbol)?;
        }
        let devices = read_numbers(&space, &self.counters)?;
        Ok(Numbers { tgid: Tgid(self.tgid), time_ns: boottime_ns(), devices })
    }

    /// Reads them once.
    ///
    /// # Errors
    /// The allocators worked meanwhile, or are not understood.
    pub(crate) fn read(&mut self) -> Result<Books, BooksError> {
        let began_ns = boottime_ns();
        let found = read(&self.space.within(MOST_TIME), self.symbol, self.calibration)?;
        self.searches += found.searches;
        if let Some((build_id, proven)) = self.build_id.as_deref().zip(found.calibration)
            && self.calibration != found.calibration
        {
            known_builds::remember(build_id, proven);
        }
        self.calibration = found.calibration;
        self.allocators = found.devices.iter().map(|device| device.allocator).collect();
        Ok(Books { tgid: Tgid(self.tgid), began_ns, time_ns: boottime_ns(), devices: found.devices })
    }
}

#[cfg(test)]
mod cost;
