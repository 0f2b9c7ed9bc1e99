//! How many tensor events a process has before any is traced: what a level will cost it is known from that.
//!
//! Its allocators count them themselves. Where that cannot be read, the cheapest probe there is counts them.

use std::num::NonZeroU32;
use std::thread::sleep;
use std::time::{Duration, Instant};

use memwatch_common::tensor::TensorMeaning;
use memwatch_core::allocators::pytorch::{Family, Scope, statistics_of};
use memwatch_core::attribution::price::per_second;
use memwatch_core::input::books::Numbers;
use memwatch_inspect::pytorch::Refusal;

use super::books::{BooksError, BooksReader};
use super::look::FoundLibrary;
use crate::frameworks::probes::{self as tensor_probes, TensorProbes};
use crate::sources::kernel::load::Kernel;

/// How long events are counted.
const COUNTED: Duration = Duration::from_millis(200);
/// Between two tries to meet them at rest.
const BETWEEN_TRIES: Duration = Duration::from_millis(1);

/// A process whose tensor events are counted, and its libraries that wait for the result.
pub(super) struct Counting {
    begun: Instant,
    way: Way,
    pub(super) waiting: Vec<FoundLibrary>,
}

/// How they are counted.
enum Way {
    /// By its allocators.
    Allocators(Box<Counter>),
    /// By a probe.
    Probe(TensorProbes),
}

/// The allocators of a process, which had counted so many events in the beginning.
struct Counter {
    reader: BooksReader,
    before: u64,
}

impl Counter {
    /// Begins; `None` where the process has not loaded them.
    fn begin(tgid: u32) -> Result<Option<Self>, BooksError> {
        let Some(mut reader) = BooksReader::open(tgid)? else { return Ok(None) };
        let before = read(&mut reader)?;
        Ok(Some(Self { reader, before }))
    }

    /// So many have come since. A program may set its totals to 0: what it has counted since then is what is known.
    fn since_begun(&mut self) -> Result<u64, BooksError> {
        let now = read(&mut self.reader)?;
        Ok(now.checked_sub(self.before).unwrap_or(now))
    }
}

fn read(reader: &mut BooksReader) -> Result<u64, BooksError> {
    let numbers = reader.read_numbers()?;
    events(&numbers).ok_or(BooksError::Refused(Refusal::Busy))
}

impl Counting {
    /// Begins with the library that reports tensors; `None` where they cannot be counted.
    pub(super) fn begin(kernel: &mut Kernel, found: &FoundLibrary) -> Option<Self> {
        let way = by_allocators(found.tgid).or_else(|| by_probe(kernel, found))?;
        Some(Self { begun: Instant::now(), way, waiting: Vec::new() })
    }

    /// When it will have been counted for long enough.
    pub(super) fn over(&self) -> Instant {
        self.begun + COUNTED
    }

    /// Takes the probe out, if there is one. Returns the libraries that waited, and how many events there were per second; `None` where the process has
    /// ended.
    pub(super) fn end(self, kernel: &mut Kernel, tgid: u32) -> (Vec<FoundLibrary>, Option<u64>) {
        let elapsed_ns = u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let count = match self.way {
            Way::Allocators(mut counter) => counter.since_begun().ok(),
            Way::Probe(probes) => counted(kernel, tgid, probes),
        };
        (self.waiting, count.map(|count| per_second(count, elapsed_ns)))
    }
}

/// How many blocks these allocators have granted and taken back since the program has set its totals to 0, or from their beginning on.
pub(crate) fn events(numbers: &Numbers) -> Option<u64> {
    let of_device = |words| {
        let blocks = statistics_of(words)?.get(Family::Allocation, Scope::All);
        u64::try_from(blocks.allocated.saturating_add(blocks.freed)).ok()
    };
    let counts = numbers.devices.iter().map(|device| of_device(device.words()?));
    counts.sum()
}

/// How many tensor events each of these processes has per second, as its allocators count them while one waits; `None` for one that has not loaded
/// them.
pub(crate) fn rates(tgids: &[u32]) -> Vec<Result<Option<u64>, BooksError>> {
    let counter = |tgid: &u32| {
        let counter = patiently(|| Counter::begin(*tgid));
        (Instant::now(), counter)
    };
    let begun: Vec<_> = tgids.iter().map(counter).collect();
    sleep(COUNTED);
    let rate = |(begun, counter): (Instant, Result<Option<Counter>, BooksError>)| {
        let Some(mut counter) = counter? else { return Ok(None) };
        let count = patiently(|| counter.since_begun())?;
        Ok(Some(per_second(count, u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX))))
    };
    begun.into_iter().map(rate).collect()
}

/// Reads again while the allocators are met at work.
fn patiently<T>(mut read: impl FnMut() -> Result<T, BooksError>) -> Result<T, BooksError> {
    let until = Instant::now() + COUNTED;
    loop {
        match read() {
            Err(BooksError::Refused(refusal)) if refusal.is_passing() && Instant::now() < until => {
                sleep(BETWEEN_TRIES);
            }
            done => return done,
        }
    }
}

fn by_allocators(tgid: u32) -> Option<Way> {
    let counter = Counter::begin(tgid).ok().flatten()?;
    Some(Way::Allocators(Box::new(counter)))
}

fn by_probe(kernel: &mut Kernel, found: &FoundLibrary) -> Option<Way> {
    let points = found.points.as_ref().ok();
    let reports = points.and_then(|all| all.iter().find(|point| point.row.meaning == TensorMeaning::Reported));
    let (point, tgid) = (reports?, NonZeroU32::new(found.tgid)?);
    let begun = tensor_probes::begin_count(kernel, &found.file.path(), tgid, point);
    let failed = |error: &String| log::warn!("process {tgid}: its tensor events are not counted: {error}");
    begun.inspect_err(failed).ok().map(Way::Probe)
}

fn counted(kernel: &mut Kernel, tgid: u32, probes: TensorProbes) -> Option<u64> {
    let counted = tensor_probes::counted(kernel, tgid);
    if let Err(error) = tensor_probes::detach(kernel, probes) {
        log::warn!("process {tgid} keeps a probe that it does not need: {error}");
    }
    let counted = counted.and_then(|count| tensor_probes::forget_count(kernel, tgid).map(|()| count));
    counted.inspect_err(|error| log::warn!("process {tgid}: {error}")).ok().flatten()
}
