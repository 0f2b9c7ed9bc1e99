//! Reads the state of a process's caching allocators from its memory. Nothing is stopped, attached
//! or written.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use memwatch_core::input::allocator_state::{AllocatorNumbers, AllocatorState, MovingAllocatorState};
use memwatch_core::words::Tgid;
use memwatch_inspect::pytorch::{
    ALLOCATOR_SYMBOL, Calibration, ReadRefusal, device_allocators, read, read_moving, read_numbers, standing,
};

use super::known_builds;
use crate::sources::address_space::AddressSpace;
use crate::sources::binary::{Binary, BinaryError};
use crate::sources::clock::boottime_ns;
use crate::sources::library::is_library;

/// The library that contains the allocators.
const LIBRARY: &str = "libc10_cuda.so";

/// Maximum time of one reading. A million blocks take a second.
const MOST_TIME: Duration = Duration::from_secs(5);
/// Number of readings that find the unchanged blocks, and the pause between two.
const STANDING_READINGS: usize = 5;
const BETWEEN_STANDING: Duration = Duration::from_millis(20);
/// Number of attempts for a reading that finds no blocks, and the pause between two.
const MOVING_TRIES: usize = 100;
const BETWEEN_MOVING: Duration = Duration::from_millis(1);

/// Why the allocator state of a process cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StateReadError {
    /// The process has exited, or this user may not read its memory.
    #[error("its memory cannot be read: {0}")]
    Unreadable(io::ErrorKind),
    /// The allocators' library cannot be parsed.
    #[error("{LIBRARY}: {0}")]
    Library(#[from] BinaryError),
    /// The library lacks the symbol of the allocators.
    #[error("{LIBRARY} lacks the allocator's symbol: PyTorch before 1.12, or another library of this name")]
    NoSymbol,
    /// The allocators' state was refused.
    #[error(transparent)]
    Refused(#[from] ReadRefusal),
}

/// Reader of one process's allocator state.
#[derive(Debug)]
pub(crate) struct StateReader {
    tgid: u32,
    space: AddressSpace,
    symbol: u64,
    /// Build id of the library, which identifies equal builds.
    build_id: Option<String>,
    calibration: Option<Calibration>,
    /// Number of searches for this build's layout.
    searches: u32,
    /// Addresses of the devices' allocators in the last complete reading.
    allocators: Vec<u64>,
    /// Addresses of all devices' allocators, for their statistics. They never move.
    counters: Vec<u64>,
}

impl StateReader {
    /// Finds PyTorch's allocators in a process; `None` if the process has not loaded them.
    ///
    /// # Errors
    /// The process is not readable, or the library is damaged.
    pub(crate) fn open(tgid: u32) -> Result<Option<Self>, StateReadError> {
        let space = AddressSpace::open(tgid).map_err(|error| StateReadError::Unreadable(error.kind()))?;
        let of_library = |path: &[u8]| is_library(path.strip_suffix(b" (deleted)").unwrap_or(path), LIBRARY);
        let Some(mapping) = space.mappings().iter().find(|mapping| of_library(&mapping.path)) else { return Ok(None) };
        let binary = Binary::of(&space, mapping, &[ALLOCATOR_SYMBOL])?;
        let symbol = binary.address(ALLOCATOR_SYMBOL).ok_or(StateReadError::NoSymbol)?;
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

    /// Returns the number of searches for this build's layout in all readings: 0 if an earlier
    /// process of the same build was read.
    pub(crate) fn searches(&self) -> u32 {
        self.searches
    }

    /// Returns the allocators' addresses in the last complete reading, by device. A forked child
    /// has copies of its parent's at the same addresses.
    pub(crate) fn allocators(&self) -> &[u64] {
        &self.allocators
    }

    /// Reloads the process's mappings.
    ///
    /// # Errors
    /// The process has exited or is no longer readable.
    pub(super) fn refresh(&mut self) -> Result<(), StateReadError> {
        self.space.refresh().map_err(|error| StateReadError::Unreadable(error.kind()))
    }

    /// Reads the blocks while the allocators may be active. The caller decides which of them count,
    /// from the events of that time.
    ///
    /// # Errors
    /// The allocators' state cannot be parsed.
    pub(crate) fn read_moving(&self) -> Result<MovingAllocatorState, StateReadError> {
        let began_ns = boottime_ns();
        let devices = read_moving(&self.space.within(MOST_TIME), self.symbol, self.calibration)?;
        Ok(MovingAllocatorState { tgid: Tgid(self.tgid), began_ns, time_ns: boottime_ns(), devices })
    }

    /// Reads the blocks that stay unchanged while the allocators are active: those common to
    /// several readings.
    ///
    /// # Errors
    /// The allocators' state cannot be parsed, or no reading found a block.
    pub(crate) fn read_standing(&self) -> Result<MovingAllocatorState, StateReadError> {
        let mut readings = vec![self.read_moving_some()?];
        while readings.len() < STANDING_READINGS {
            sleep(BETWEEN_STANDING);
            readings.push(self.read_moving_some()?);
        }
        // The last reading is confirmed at once.
        readings.push(self.read_moving_some()?);
        standing(&readings).ok_or_else(|| ReadRefusal::Busy.into())
    }

    /// Repeats a reading until it finds blocks. A single one may catch the allocators in the middle
    /// of a change.
    fn read_moving_some(&self) -> Result<MovingAllocatorState, StateReadError> {
        let mut read = self.read_moving();
        for _ in 1..MOVING_TRIES {
            match read {
                Ok(allocator_state) if !allocator_state.devices.is_empty() => return Ok(allocator_state),
                Ok(_) => {}
                Err(StateReadError::Refused(refusal)) if refusal.is_passing() => {}
                Err(error) => return Err(error),
            }
            sleep(BETWEEN_MOVING);
            read = self.read_moving();
        }
        read.and_then(|allocator_state| {
            if allocator_state.devices.is_empty() { Err(ReadRefusal::Busy.into()) } else { Ok(allocator_state) }
        })
    }

    /// Reads the allocators' statistics, also while they are active.
    ///
    /// # Errors
    /// There are no allocators, or their state cannot be parsed. The error is passing if they were
    /// in the middle of a change.
    pub(crate) fn read_numbers(&mut self) -> Result<AllocatorNumbers, StateReadError> {
        let space = self.space.within(MOST_TIME);
        if self.counters.is_empty() {
            self.counters = device_allocators(&space, self.symbol)?;
        }
        let devices = read_numbers(&space, &self.counters)?;
        Ok(AllocatorNumbers { tgid: Tgid(self.tgid), time_ns: boottime_ns(), devices })
    }

    /// Reads the allocators once.
    ///
    /// # Errors
    /// The allocators were active, or their state cannot be parsed.
    pub(crate) fn read(&mut self) -> Result<AllocatorState, StateReadError> {
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
        Ok(AllocatorState { tgid: Tgid(self.tgid), began_ns, time_ns: boottime_ns(), devices: found.devices })
    }
}

#[cfg(test)]
mod cost;
