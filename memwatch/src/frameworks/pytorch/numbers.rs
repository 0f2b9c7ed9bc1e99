//! A caching allocator's own numbers, read from the memory of a program that rests.
//!
//! The kernel half reads them under the allocator's lock, but only when something happens. While nothing does, they stand still, and nobody's lock
//! is needed: they are taken where two readings some time apart are the same and no record of the process came between.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::time::{Duration, Instant};

use memwatch_common::tensor::{STATISTICS_OFFSET_BYTES, STATISTICS_WORDS};

/// How often it is looked, at most.
const BETWEEN: Duration = Duration::from_millis(50);

/// The words of one allocator.
pub(crate) type Words = Box<[u64; STATISTICS_WORDS]>;

/// A moment between two records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moment {
    /// How many records of the process have come so far.
    pub(crate) records: u64,
    /// How often all records that there were have been fetched.
    pub(crate) fetches: u64,
}

/// What is read of one process.
#[derive(Debug)]
pub(crate) struct RestingNumbers {
    /// `/proc/PID/mem` of the image that the process had when it was opened.
    memory: File,
    /// When it was last looked.
    moment: Moment,
    looked: Option<Instant>,
    read: BTreeMap<u64, Words>,
}

impl RestingNumbers {
    /// Of this process.
    ///
    /// # Errors
    /// It is gone, or its memory may not be read.
    pub(crate) fn open(tgid: u32) -> io::Result<Self> {
        let memory = File::open(format!("/proc/{tgid}/mem"))?;
        Ok(Self { memory, moment: Moment::default(), looked: None, read: BTreeMap::new() })
    }

    /// When it is time to look.
    pub(crate) fn due(&self, now: Instant) -> Instant {
        self.looked.map_or(now, |looked| looked + BETWEEN)
    }

    /// What the allocators at these addresses have, where the process rests: no record of it came since the last look, and what had come by then was
    /// fetched since.
    pub(crate) fn look(&mut self, now: Moment, allocators: &[u64]) -> Vec<(u64, Words)> {
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

    fn words(&self, allocator: u64) -> Option<Words> {
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

    /// Stands for an allocator of this process, whose numbers lie behind its front.
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

    fn look_again(numbers: &mut RestingNumbers, records: u64, allocators: &[u64]) -> Vec<(u64, Words)> {
        let fetches = numbers.moment.fetches + 1;
        numbers.look(Moment { records, fetches }, allocators)
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
        let unfetched = Moment { records: 8, fetches: numbers.moment.fetches };
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
