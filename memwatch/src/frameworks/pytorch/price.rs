//! Counts a process's tensor events by its allocators' own counters, to predict the overhead of a
//! trace level.

use std::thread::sleep;
use std::time::{Duration, Instant};

use memwatch_core::allocators::pytorch::{StatFamily, StatScope, statistics_of};
use memwatch_core::attribution::price::per_second;
use memwatch_core::input::allocator_state::AllocatorNumbers;
use memwatch_inspect::pytorch::ReadRefusal;

use super::allocator_state::{StateReadError, StateReader};
use crate::frameworks::descriptor::BlockCounter;

/// Duration of a count.
const COUNTED: Duration = Duration::from_millis(200);
/// Pause between two attempts to read idle allocators.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// Reader of a process's allocators, with their event count at the beginning.
pub(super) struct AllocatorCounter {
    reader: StateReader,
    before: u64,
}

impl AllocatorCounter {
    /// Reads the first count; `None` if the process has not loaded the allocators.
    pub(super) fn begin(tgid: u32) -> Result<Option<Self>, StateReadError> {
        let Some(mut reader) = StateReader::open(tgid)? else { return Ok(None) };
        let before = read(&mut reader)?;
        Ok(Some(Self { reader, before }))
    }

    /// Returns the events since the beginning. A program may reset its totals; the count since the
    /// reset is returned then.
    fn since_begun(&mut self) -> Result<u64, StateReadError> {
        let now = read(&mut self.reader)?;
        Ok(now.checked_sub(self.before).unwrap_or(now))
    }
}

impl BlockCounter for AllocatorCounter {
    fn events(&mut self) -> Option<u64> {
        self.since_begun().ok()
    }
}

fn read(reader: &mut StateReader) -> Result<u64, StateReadError> {
    let numbers = reader.read_numbers()?;
    events(&numbers).ok_or(StateReadError::Refused(ReadRefusal::Busy))
}

/// Returns how many blocks these allocators have allocated and freed since they were created or the
/// program reset its totals.
pub(crate) fn events(numbers: &AllocatorNumbers) -> Option<u64> {
    let of_device = |words| {
        let blocks = statistics_of(words)?.get(StatFamily::Allocation, StatScope::All);
        u64::try_from(blocks.allocated.saturating_add(blocks.freed)).ok()
    };
    let counts = numbers.devices.iter().map(|device| of_device(device.words()?));
    counts.sum()
}

/// Measures the tensor events per second of each process by its allocators' counters, which takes
/// [`COUNTED`]; `None` for a process that has not loaded the allocators.
pub(crate) fn rates(tgids: &[u32]) -> Vec<Result<Option<u64>, StateReadError>> {
    let counter = |tgid: &u32| {
        let counter = patiently(|| AllocatorCounter::begin(*tgid));
        (Instant::now(), counter)
    };
    let begun: Vec<_> = tgids.iter().map(counter).collect();
    sleep(COUNTED);
    let rate = |(begun, counter): (Instant, Result<Option<AllocatorCounter>, StateReadError>)| {
        let Some(mut counter) = counter? else { return Ok(None) };
        let count = patiently(|| counter.since_begun())?;
        Ok(Some(per_second(count, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX))))
    };
    begun.into_iter().map(rate).collect()
}

/// Retries a reading while the allocators are active, for [`COUNTED`] at most.
fn patiently<T>(mut read: impl FnMut() -> Result<T, StateReadError>) -> Result<T, StateReadError> {
    let until = Instant::now() + COUNTED;
    loop {
        match read() {
            Err(StateReadError::Refused(refusal)) if refusal.is_passing() && Instant::now() < until => {
                sleep(BETWEEN_TRIES);
            }
            done => return done,
        }
    }
}
