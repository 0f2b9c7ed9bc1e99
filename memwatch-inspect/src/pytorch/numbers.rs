//! Reads an allocator's statistics while it may be running.
//!
//! No lock is taken. The words are accepted if all invariants hold among them that hold after every
//! operation of the allocator.

use memwatch_common::tensor::{STATISTICS_OFFSET_BYTES, STATISTICS_WORDS};
use memwatch_core::allocators::pytorch::statistics_of;
use memwatch_core::input::allocator_state::DeviceNumbers;
use memwatch_core::words::Ordinal;

use super::refusal::ReadRefusal;
use crate::memory::{MemoryAccess, words_of};

/// Maximum number of attempts. An operation of the allocator takes about a microsecond, during
/// which a reading is inconsistent.
pub(super) const TRIES: usize = 64;

/// Reads the statistics of one device.
pub(super) fn device(
    memory: &impl MemoryAccess,
    ordinal: Ordinal,
    allocator: u64,
) -> Result<DeviceNumbers, ReadRefusal> {
    let gone = || ReadRefusal::Unreadable("an allocator");
    let address = allocator.checked_add(STATISTICS_OFFSET_BYTES).ok_or_else(gone)?;
    for _ in 0..TRIES {
        let bytes = memory.array::<{ 8 * STATISTICS_WORDS }>(address).ok_or_else(gone)?;
        let words = words_of(&bytes);
        let array = words.first_chunk::<STATISTICS_WORDS>().ok_or_else(gone)?;
        if statistics_of(array).is_some() {
            return Ok(DeviceNumbers { ordinal, allocator, words });
        }
    }
    Err(ReadRefusal::Busy)
}

/// Returns whether the device was ever used.
pub(super) fn is_used(device: &DeviceNumbers) -> bool {
    device.words.iter().take(8).any(|word| *word != 0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// An allocator that is inconsistent for a given number of readings.
    #[derive(Debug)]
    struct Busy {
        words: Vec<u64>,
        readings: Cell<usize>,
    }

    impl Busy {
        fn new(readings: usize) -> Self {
            let text = include_str!("../../../memwatch-core/src/allocators/pytorch/tests/words-2.15.0.txt");
            let words = text.lines().next().expect("a line").split(' ');
            Self { words: words.map(|word| word.parse().expect("a word")).collect(), readings: Cell::new(readings) }
        }
    }

    impl MemoryAccess for Busy {
        fn fill(&self, address: u64, into: &mut [u8]) -> bool {
            let mut words = self.words.clone();
            if self.readings.get() > 0 {
                self.readings.set(self.readings.get() - 1);
                // It has counted a block in one pool, but not yet in the total.
                words[4] += 1;
            }
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let fits = address == 0x1000 + STATISTICS_OFFSET_BYTES && into.len() <= bytes.len();
            if fits {
                into.copy_from_slice(&bytes[..into.len()]);
            }
            fits
        }
    }

    #[test]
    fn device_numbers_are_taken_only_if_two_readings_agree() {
        let read = |readings| device(&Busy::new(readings), Ordinal(1), 0x1000);
        let whole = DeviceNumbers { ordinal: Ordinal(1), allocator: 0x1000, words: Busy::new(0).words };
        assert_eq!((read(0), read(5)), (Ok(whole.clone()), Ok(whole)));
        assert_eq!(read(TRIES), Err(ReadRefusal::Busy));
        assert_eq!(device(&Busy::new(0), Ordinal(0), u64::MAX), Err(ReadRefusal::Unreadable("an allocator")));
    }

    #[test]
    fn a_device_that_was_never_used_is_none() {
        let words = vec![0; STATISTICS_WORDS];
        assert!(!is_used(&DeviceNumbers { ordinal: Ordinal(0), allocator: 0x1000, words }));
        assert!(is_used(&device(&Busy::new(0), Ordinal(0), 0x1000).expect("it is read")));
    }
}
