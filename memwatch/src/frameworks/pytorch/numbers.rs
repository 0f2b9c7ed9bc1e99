//! Reads a caching allocator's own statistics from the memory of an idle program.
//!
//! The kernel half reads the statistics under the allocator's lock, but only at an event. Without
//! events they do not change and need no lock: a reading counts if it equals the previous one and
//! no record of the process came in between.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use memwatch_common::tensor::{STATISTICS_OFFSET_BYTES, STATISTICS_WORDS};

/// Minimum interval between two readings.
const BETWEEN: Duration = Duration::from_millis(50);

/// Statistics words of one allocator.
pub(crate) type AllocatorWords = Box<[u64; STATISTICS_WORDS]>;

/// Position in the stream of records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RecordPosition {
    /// Number of records of the process so far.
    pub(crate) records: u64,
    /// Number of times the ring buffers were drained completely.
    pub(crate) fetches: u64,
}

/// Statistics reader of one process.
#[derive(Debug)]
pub(crate) struct RestingNumbers {
    /// `/proc/PID/mem`, tied to the process image at opening.
    memory: File,
    /// Position in the stream of records at the last reading.
    moment: RecordPosition,
    looked: Option<Instant>,
    read: BTreeMap<u64, AllocatorWords>,
}

impl RestingNumbers {
    /// Opens the memory of a process.
    ///
    /// # Errors
    /// The process has exited, or its memory is not readable.
    pub(crate) fn open(tgid: u32) -> io::Result<Self> {
        let memory = File::open(format!("/proc/{tgid}/mem"))?;
        Ok(Self { memory, moment: RecordPosition::default(), looked: None, read: BTreeMap::new() })
    }

    /// Returns when the next reading is due.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        self.looked.map_or(now, |looked| looked + BETWEEN)
    }

    /// Reads the allocators at these addresses and returns the statistics of those at rest:
    /// unchanged since the last reading, with no record of the process since, and with all records
    /// of that time fetched.
    pub(crate) fn look(&mut self, now: RecordPosition, allocators: &[u64]) -> Vec<(u64, AllocatorWords)> {
        self.looked = Some(Instant::now());
        let rests = self.moment.records == now.records && self.moment.fetches < now.fetches;
        self.moment = now;
        let before = std::mem::take(&mut self.read);
        let mut found = Vec::new();
        for allocator in allocators {
            let Some(words) = self.words(*allocator) else { continue };
            if rests && before.get(allocator) == Some(&words) {
                found.push((*allocator, words));
            } else {
                self.read.insert(*allocator, words);
            }
        }
        found
    }

    fn words(&self, allocator: u64) -> Option<AllocatorWords> {
        let mut bytes = [0; 8 * STATISTICS_WORDS];
        self.memory.read_exact_at(&mut bytes, allocator.checked_add(STATISTICS_OFFSET_BYTES)?).ok()?;
        let mut words = Box::new([0; STATISTICS_WORDS]);
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Some(words)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Test allocator in this process; the statistics follow a header.
    struct Allocator {
        words: Vec<AtomicU64>,
    }

    impl Allocator {
        fn new() -> Self {
            let front = usize::try_from(STATISTICS_OFFSET_BYTES / 8).expect("a small number");
            Self { words: (0..(front + STATISTICS_WORDS) as u64).map(AtomicU64::new).collect() }
        }

        fn address(&self) -> u64 {
            self.words.as_ptr().addr() as u64
        }
    }

    fn look_again(numbers: &mut RestingNumbers, records: u64, allocators: &[u64]) -> Vec<(u64, AllocatorWords)> {
        let fetches = numbers.moment.fetches + 1;
        numbers.look(RecordPosition { records, fetches }, allocators)
    }

    #[test]
    fn numbers_are_taken_when_they_and_the_records_have_stood_still() {
        let allocator = Allocator::new();
        let mut numbers = RestingNumbers::open(std::process::id()).expect("one's own memory");
        let at = [allocator.address()];
        assert_eq!(look_again(&mut numbers, 7, &at), [], "nothing to compare with");
        assert_eq!(look_again(&mut numbers, 8, &at), [], "a record came");
        allocator.words[20].store(1, Ordering::SeqCst);
        assert_eq!(look_again(&mut numbers, 8, &at), [], "a number is another");
        let unfetched = RecordPosition { records: 8, fetches: numbers.moment.fetches };
        assert_eq!(numbers.look(unfetched, &at), [], "a record may have come");
        let before = Instant::now();
        let found = look_again(&mut numbers, 8, &at);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].0, found[0].1[0], found[0].1[15]), (at[0], STATISTICS_OFFSET_BYTES / 8, 1));
        assert!(numbers.due(before) >= before + BETWEEN, "not so soon again");
    }

    #[test]
    fn an_allocator_that_is_not_there_is_left_out() {
        let mut numbers = RestingNumbers::open(std::process::id()).expect("one's own memory");
        for _ in 0..2 {
            assert_eq!(look_again(&mut numbers, 0, &[8, u64::MAX]), []);
        }
    }
}
