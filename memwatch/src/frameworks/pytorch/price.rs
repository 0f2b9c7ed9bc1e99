//! Counts a process's tensor events before any is traced, to predict the overhead of a trace level.
//!
//! The allocators' own counters are read. If they are not readable, the cheapest possible probe
//! counts the events.

use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::{Duration, Instant};

use memwatch_common::tensor::TensorMeaning;
use memwatch_core::allocators::pytorch::{StatFamily, StatScope, statistics_of};
use memwatch_core::attribution::price::per_second;
use memwatch_core::input::allocator_state::AllocatorNumbers;
use memwatch_inspect::pytorch::ReadRefusal;

use super::allocator_state::{StateReadError, StateReader};
use super::look::FoundLibrary;
use crate::frameworks::probes::{self as tensor_probes, TensorProbes};
use crate::sources::kernel::load::KernelHalf;

/// Duration of a count.
const COUNTED: Duration = Duration::from_millis(200);
/// Pause between two attempts to read idle allocators.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// A running count of a process's tensor events, and the libraries that wait for the result.
pub(super) struct EventCount {
    begun: Instant,
    way: Way,
    pub(super) waiting: Vec<FoundLibrary>,
}

/// Source of the count.
enum Way {
    /// The allocators' own counters.
    Allocators(Box<AllocatorCounter>),
    /// A counting probe.
    Probe(TensorProbes),
}

/// Reader of a process's allocators, with their event count at the beginning.
struct AllocatorCounter {
    reader: StateReader,
    before: u64,
}

impl AllocatorCounter {
    /// Reads the first count; `None` if the process has not loaded the allocators.
    fn begin(tgid: u32) -> Result<Option<Self>, StateReadError> {
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

fn read(reader: &mut StateReader) -> Result<u64, StateReadError> {
    let numbers = reader.read_numbers()?;
    events(&numbers).ok_or(StateReadError::Refused(ReadRefusal::Busy))
}

impl EventCount {
    /// Begins a count with the library that reports tensors; `None` if they cannot be counted.
    pub(super) fn begin(kernel: &mut KernelHalf, found: &FoundLibrary) -> Option<Self> {
        let way = by_allocators(found.tgid).or_else(|| by_probe(kernel, found))?;
        Some(Self { begun: Instant::now(), way, waiting: Vec::new() })
    }

    /// Returns when the count has run long enough.
    pub(super) fn over(&self) -> Instant {
        self.begun + COUNTED
    }

    /// Ends the count and detaches the probe, if any. Returns the waiting libraries and the events
    /// per second; `None` if the process has exited.
    pub(super) fn end(self, kernel: &mut KernelHalf, tgid: u32) -> (Vec<FoundLibrary>, Option<u64>) {
        let elapsed_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let count = match self.way {
            Way::Allocators(mut counter) => counter.since_begun().ok(),
            Way::Probe(probes) => counted(kernel, tgid, probes),
        };
        (self.waiting, count.map(|count| per_second(count, elapsed_ns)))
    }
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

fn by_allocators(tgid: u32) -> Option<Way> {
    let counter = AllocatorCounter::begin(tgid).ok().flatten()?;
    Some(Way::Allocators(Box::new(counter)))
}

fn by_probe(kernel: &mut KernelHalf, found: &FoundLibrary) -> Option<Way> {
    let points = found.points.as_ref().ok();
    let reports = points.and_then(|all| all.iter().find(|point| point.row.meaning == TensorMeaning::Reported));
    let (point, tgid) = (reports?, NonZeroU32::new(found.tgid)?);
    let begun = tensor_probes::begin_count(kernel, &found.file.path(), tgid, point);
    let failed = |error: &String| log::warn!("process {tgid}: its tensor events are not counted: {error}");
    begun.inspect_err(failed).ok().map(Way::Probe)
}

fn counted(kernel: &mut KernelHalf, tgid: u32, probes: TensorProbes) -> Option<u64> {
    let counted = tensor_probes::counted(kernel, tgid);
    if let Err(error) = tensor_probes::detach(kernel, probes) {
        log::warn!("process {tgid}: cannot detach the counting probe: {error}");
    }
    let counted = counted.and_then(|count| tensor_probes::forget_count(kernel, tgid).map(|()| count));
    counted.inspect_err(|error| log::warn!("process {tgid}: {error}")).ok().flatten()
}
