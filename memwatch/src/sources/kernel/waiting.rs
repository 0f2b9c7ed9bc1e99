//! Requests to the kernel driver for whose records the ring had no room: they wait in the kernel half, and take their place among the others by their
//! times. A free that came behind what was made under the same name since would free the wrong thing.

use std::collections::VecDeque;

use aya::maps::{MapData, Queue};
use aya::{Ebpf, Pod};
use memwatch_common::record::{Item, Record, RecordError};
use memwatch_common::rm::RmRecord;

use super::load::LoadError;

const MAP: &str = "RM_WAITING";

#[derive(Clone, Copy)]
#[repr(transparent)]
struct Entry(RmRecord);

// SAFETY: integers without padding (memwatch-common asserts the size); every bit pattern is valid.
unsafe impl Pod for Entry {}

/// The kernel half's queue, and what was fetched of it.
pub(super) struct Waiting {
    queue: Queue<MapData, Entry>,
    fetched: Fetched,
}

impl Waiting {
    /// Takes the queue of the loaded kernel half.
    pub(super) fn open(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        let queue = Queue::try_from(ebpf.take_map(MAP).ok_or(LoadError::Missing(MAP))?)?;
        Ok(Self { queue, fetched: Fetched::default() })
    }

    /// Fetches what waits.
    pub(super) fn fetch(&mut self) {
        let Self { queue, fetched } = self;
        fetched.add(std::iter::from_fn(|| queue.pop(0).ok().map(|Entry(record)| record)));
    }

    /// The next one that came before this time.
    pub(super) fn before(&mut self, time_ns: u64) -> Option<RmRecord> {
        self.fetched.before(time_ns)
    }
}

/// Records in the order of their times.
#[derive(Default)]
struct Fetched(VecDeque<RmRecord>);

impl Fetched {
    fn add(&mut self, records: impl Iterator<Item = RmRecord>) {
        let before = self.0.len();
        self.0.extend(records);
        if self.0.len() > before {
            self.0.make_contiguous().sort_by_key(|record| record.returned_ns);
        }
    }

    fn before(&mut self, time_ns: u64) -> Option<RmRecord> {
        self.0.pop_front_if(|record| record.returned_ns < time_ns)
    }
}

/// When something happened before which a request must not be left out; `None` of what has nothing to do with requests.
pub(super) fn time_of(item: &Result<Item<'_>, RecordError>) -> Option<u64> {
    match item {
        Ok(Item::Rm(record)) => Some(record.returned_ns),
        Ok(Item::Record(Record::Process(record))) => Some(record.time_ns),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use memwatch_common::rm::capture::NO_IOCTL;

    fn at(returned_ns: u64) -> RmRecord {
        RmRecord { returned_ns, ..NO_IOCTL.record }
    }

    #[test]
    fn what_waited_takes_its_place_by_time_however_it_was_fetched() {
        let mut fetched = Fetched::default();
        fetched.add([at(30), at(10)].into_iter());
        fetched.add([at(20)].into_iter());
        let mut before = |time_ns| fetched.before(time_ns).map(|record| record.returned_ns);
        assert_eq!([before(10), before(25), before(25), before(25)], [None, Some(10), Some(20), None]);
        assert_eq!([before(u64::MAX), before(u64::MAX)], [Some(30), None]);
    }
}
