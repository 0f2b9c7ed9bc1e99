//! Reads the state of PyTorch's CUDA caching allocators from a process's memory.
//!
//! There is no table of offsets. Every position is found by invariants, and a reading is accepted
//! only if the allocators' own totals agree with it. The structures are those of
//! c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.1 to 2.15, built with GCC's libstdc++ for x86-64.

mod calibration;
mod containers;
mod devices;
mod moving;
mod numbers;
mod reading;
mod refusal;
mod standing;
#[cfg(test)]
mod tests;

use memwatch_core::input::allocator_state::{DeviceAllocatorState, DeviceNumbers, MovingDevice};
use memwatch_core::words::Ordinal;

use crate::memory::MemoryAccess;
use crate::pass::Pass;
use crate::rtti;

pub use calibration::{BlockLayout, Calibration};
use devices::AllocatorMoment;
pub use refusal::{ReadContradiction, ReadRefusal};
pub use standing::standing;

/// `c10::cuda::CUDACachingAllocator::allocator`, exported by `libc10_cuda.so`: the address of the
/// process's allocator.
pub const ALLOCATOR_SYMBOL: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";

/// Class of the allocator that is supported.
const NATIVE: &str = "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";

/// Maximum number of bytes per reading. The state of a process with a million blocks takes about
/// 300 MB.
pub const MOST_BYTES: u64 = 1 << 30;

/// Result of a reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AllocatorReading {
    /// State of the devices that the process has used, with the process's device numbers.
    pub devices: Vec<DeviceAllocatorState>,
    /// Layout of this build, proven by this reading; `None` if no allocator had a block to learn it
    /// from.
    pub calibration: Option<Calibration>,
    /// Number of devices for which the layout was searched; 0 if the known layout led to an
    /// accepted reading.
    pub searches: u32,
}

/// Reads the state of all devices. `symbol` is the address of [`ALLOCATOR_SYMBOL`] in the process;
/// `known` is the layout from an earlier reading of the same build.
///
/// # Errors
/// There is no such allocator, the data is contradictory, or the allocator was running:
/// [`ReadRefusal::is_passing`] tells whether to try again.
pub fn read(
    memory: &impl MemoryAccess,
    symbol: u64,
    known: Option<Calibration>,
) -> Result<AllocatorReading, ReadRefusal> {
    let addresses = allocators(memory, symbol)?;
    let moments =
        || addresses.iter().map(|address| AllocatorMoment::read(memory, *address)).collect::<Result<Vec<_>, _>>();
    let before = moments()?;
    // Everything read from here on belongs to that moment, if it is unchanged at the end.
    let pass = Pass::new(memory, MOST_BYTES);
    let mut calibration = reading::KnownLayout { layout: known, searches: 0 };
    let mut devices = Vec::new();
    for ((ordinal, address), moment) in (0..).map(Ordinal).zip(&addresses).zip(&before) {
        let read = reading::device(&pass, (ordinal, *address, &addresses), moment, &mut calibration);
        check(&pass)?;
        devices.extend(read?);
    }
    if moments()? != before {
        return Err(ReadRefusal::Busy);
    }
    Ok(AllocatorReading { devices, calibration: calibration.layout, searches: calibration.searches })
}

/// Returns the addresses of all devices' allocators, by device. They stay valid while the process
/// has them.
///
/// # Errors
/// There is no such allocator, or nothing that could be one.
pub fn device_allocators(memory: &impl MemoryAccess, symbol: u64) -> Result<Vec<u64>, ReadRefusal> {
    // In the middle of an operation, an allocator does not satisfy the invariants.
    let mut found = allocators(memory, symbol);
    for _ in 1..numbers::TRIES {
        if !found.as_ref().is_err_and(ReadRefusal::is_passing) {
            break;
        }
        found = allocators(memory, symbol);
    }
    found
}

/// Reads the statistics of these allocators, each at a moment at which they are consistent. Devices
/// that were never used are left out.
///
/// # Errors
/// An allocator is missing, or its statistics are inconsistent in all attempts.
pub fn read_numbers(memory: &impl MemoryAccess, allocators: &[u64]) -> Result<Vec<DeviceNumbers>, ReadRefusal> {
    let devices = (0..).map(Ordinal).zip(allocators);
    let read = devices.map(|(ordinal, allocator)| numbers::device(memory, ordinal, *allocator));
    let all = read.collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().filter(numbers::is_used).collect())
}

/// Reads the active blocks of all devices while the allocators are running. Each block is as it was
/// at some moment of the reading.
///
/// # Errors
/// There is no such allocator, or nothing that could be one.
pub fn read_moving(
    memory: &impl MemoryAccess,
    symbol: u64,
    known: Option<Calibration>,
) -> Result<Vec<MovingDevice>, ReadRefusal> {
    let addresses = allocators(memory, symbol)?;
    let pass = Pass::new(memory, MOST_BYTES);
    let found: Vec<_> = (0..)
        .map(Ordinal)
        .zip(&addresses)
        .filter_map(|(ordinal, device)| moving::active(&pass, (ordinal, *device, &addresses), known))
        .collect();
    check(&pass).map(|()| found)
}

/// Refuses an incomplete reading, after a limit was reached.
fn check<M: MemoryAccess>(pass: &Pass<'_, M>) -> Result<(), ReadRefusal> {
    if pass.is_late() {
        return Err(ReadRefusal::TooSlow);
    }
    if pass.is_exhausted() { Err(ReadRefusal::TooLarge) } else { Ok(()) }
}

/// Returns the allocators of the process's devices, by device.
fn allocators(memory: &impl MemoryAccess, symbol: u64) -> Result<Vec<u64>, ReadRefusal> {
    let pass = Pass::new(memory, MOST_BYTES);
    let object = pass.u64(symbol).ok_or(ReadRefusal::Unreadable("the allocator's address"))?;
    if object == 0 {
        return Err(ReadRefusal::NotInitialized);
    }
    let class = rtti::class_of(&pass, object).ok_or(ReadRefusal::NotRecognized("the allocator's class"))?;
    if class != NATIVE {
        return Err(ReadRefusal::Other(rtti::readable(&class).into()));
    }
    devices::find(&pass, object)
}
