//! PyTorch's CUDA caching allocators, by the books that they keep in their process's memory.
//!
//! No table of offsets: every place is found by what must hold there, and a reading is believed only where the allocators' own totals agree with it.
//! The structures are those of c10/cuda/CUDACachingAllocator.cpp, PyTorch 2.1 to 2.15, built with GCC's libstdc++ for x86-64.

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

use memwatch_core::input::books::{DeviceBooks, DeviceNumbers, MovingDevice};
use memwatch_core::words::Ordinal;

use crate::memory::Memory;
use crate::pass::Pass;
use crate::rtti;

pub use calibration::{BlockLayout, Calibration};
use devices::Moment;
pub use refusal::{Contradiction, Refusal};
pub use standing::standing;

/// `c10::cuda::CUDACachingAllocator::allocator`, which `libc10_cuda.so` exports: the address of the process's allocator.
pub const ALLOCATOR_SYMBOL: &str = "_ZN3c104cuda20CUDACachingAllocator9allocatorE";

/// The class whose books these are.
const NATIVE: &str = "N3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocatorE";

/// Bytes that one reading reads at most: a process with a million blocks has some 300 MB of them.
pub const MOST_BYTES: u64 = 1 << 30;

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The devices that the process has used, by their numbers there.
    pub devices: Vec<DeviceBooks>,
    /// Where things lie in this build; proven by this reading. `None` where no allocator had a block to learn it from.
    pub calibration: Option<Calibration>,
    /// For how many devices it had to be looked for: none, where what was known has led to a reading that holds.
    pub searches: u32,
}

/// Reads the books of all devices. `symbol` is where [`ALLOCATOR_SYMBOL`] lies in the process; `known` is what an earlier reading of the same build
/// found.
///
/// # Errors
/// There is no such allocator, what is read contradicts itself, or the allocator worked meanwhile: [`Refusal::is_passing`] says whether to try again.
pub fn read(memory: &impl Memory, symbol: u64, known: Option<Calibration>) -> Result<Found, Refusal> {
    let addresses = allocators(memory, symbol)?;
    let moments = || addresses.iter().map(|address| Moment::read(memory, *address)).collect::<Result<Vec<_>, _>>();
    let before = moments()?;
    // What is read from here on is of that moment, if that is still so at the end.
    let pass = Pass::new(memory, MOST_BYTES);
    let mut calibration = reading::Known { layout: known, searches: 0 };
    let mut devices = Vec::new();
    for ((ordinal, address), moment) in (0..).map(Ordinal).zip(&addresses).zip(&before) {
        let read = reading::device(&pass, (ordinal, *address, &addresses), moment, &mut calibration);
        check(&pass)?;
        devices.extend(read?);
    }
    if moments()? != before {
        return Err(Refusal::Busy);
    }
    Ok(Found { devices, calibration: calibration.layout, searches: calibration.searches })
}

/// Where the allocators of all devices are, in the order of these: they stay there for as long as the process has them.
///
/// # Errors
/// There is no such allocator, or nothing that could be one.
pub fn device_allocators(memory: &impl Memory, symbol: u64) -> Result<Vec<u64>, Refusal> {
    // One that is in the midst of something is not what it has to be.
    let mut found = allocators(memory, symbol);
    for _ in 1..numbers::TRIES {
        if !found.as_ref().is_err_and(Refusal::is_passing) {
            break;
        }
        found = allocators(memory, symbol);
    }
    found
}

/// Reads what each of these allocators has counted, at moments at which its numbers agree with each other; of all that were ever used.
///
/// # Errors
/// One of them is not there, or its numbers do not agree just now.
pub fn read_numbers(memory: &impl Memory, allocators: &[u64]) -> Result<Vec<DeviceNumbers>, Refusal> {
    let devices = (0..).map(Ordinal).zip(allocators);
    let read = devices.map(|(ordinal, allocator)| numbers::device(memory, ordinal, *allocator));
    let all = read.collect::<Result<Vec<_>, _>>()?;
    Ok(all.into_iter().filter(numbers::is_used).collect())
}

/// Reads the active blocks of all devices while the allocators work: each block by itself, as it was at some moment of the reading.
///
/// # Errors
/// There is no such allocator, or nothing that could be one.
pub fn read_moving(
    memory: &impl Memory,
    symbol: u64,
    known: Option<Calibration>,
) -> Result<Vec<MovingDevice>, Refusal> {
    let addresses = allocators(memory, symbol)?;
    let pass = Pass::new(memory, MOST_BYTES);
    let found: Vec<_> = (0..)
        .map(Ordinal)
        .zip(&addresses)
        .filter_map(|(ordinal, device)| moving::active(&pass, (ordinal, *device, &addresses), known))
        .collect();
    check(&pass).map(|()| found)
}

/// What was read is not all where a limit was met.
fn check<M: Memory>(pass: &Pass<'_, M>) -> Result<(), Refusal> {
    if pass.is_late() {
        return Err(Refusal::TooSlow);
    }
    if pass.is_exhausted() { Err(Refusal::TooLarge) } else { Ok(()) }
}

/// The allocators of the process's devices, in the order of these.
fn allocators(memory: &impl Memory, symbol: u64) -> Result<Vec<u64>, Refusal> {
    let pass = Pass::new(memory, MOST_BYTES);
    let object = pass.u64(symbol).ok_or(Refusal::Unreadable("the allocator's address"))?;
    if object == 0 {
        return Err(Refusal::NotInitialized);
    }
    let class = rtti::class_of(&pass, object).ok_or(Refusal::NotRecognized("the allocator's class"))?;
    if class != NATIVE {
        return Err(Refusal::Other(rtti::readable(&class).into()));
    }
    devices::find(&pass, object)
}
