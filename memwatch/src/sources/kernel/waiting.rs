//! Requests to the kernel driver whose records did not fit in the ring. They wait in the kernel
//! half, and are merged with the other records by time. A free that is processed after a newer
//! object with the same handle was created would free the wrong object.

use std::collections::VecDeque;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use aya::maps::{Map, MapData, Queue};
use aya::{Ebpf, Pod};
use memwatch_common::record::{Item, RecordError, RingRecord};
use memwatch_common::rm::RmRecord;
use memwatch_common::shares::SharedTable;

use super::load::LoadError;
use super::shares::GiveBack;

const MAP: &str = "RM_WAITING";

/// `BPF_MAP_LOOKUP_ELEM` of the system call. For a queue it returns the first entry without
/// removing it (Linux 4.20).
const MAP_LOOKUP_ELEM: libc::c_int = 1;

/// `union bpf_attr` for this command.
#[repr(C)]
struct Lookup {
    map_fd: u32,
    padding: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Clone, Copy)]
#[repr(transparent)]
struct WaitingRecord(RmRecord);

// SAFETY: integers without padding (memwatch-common asserts the size); every bit pattern is valid.
unsafe impl Pod for WaitingRecord {}

/// The kernel half's queue, and the records fetched from it.
pub(super) struct Waiting {
    /// Descriptor of the queue's map.
    map: OwnedFd,
    queue: Queue<MapData, WaitingRecord>,
    fetched: Fetched,
    give_back: GiveBack,
    /// Whether the journal says that records were fetched and not passed on yet.
    is_noted: bool,
}

impl Waiting {
    /// Opens the queue of the loaded kernel half.
    pub(super) fn open(ebpf: &mut Ebpf) -> anyhow::Result<Self> {
        let give_back = GiveBack::open(ebpf)?;
        let Some(Map::Queue(queue)) = ebpf.take_map(MAP) else {
            return Err(LoadError::Missing(MAP).into());
        };
        let map = queue.fd().as_fd().try_clone_to_owned()?;
        let queue = Queue::try_from(Map::Queue(queue))?;
        Ok(Self { map, queue, fetched: Fetched::default(), give_back, is_noted: false })
    }

    /// Fetches the waiting records. Fetching removes them from the queue, so `note` is called
    /// before, once.
    pub(super) fn fetch(&mut self, note: impl FnOnce()) {
        let Self { map, queue, fetched, give_back, is_noted } = self;
        if !*is_noted {
            if is_empty(map.as_fd()) {
                return;
            }
            *is_noted = true;
            note();
        }
        let popped: Vec<RmRecord> =
            std::iter::from_fn(|| queue.pop(0).ok().map(|WaitingRecord(record)| record)).collect();
        give_back.give_all(SharedTable::Waiting, popped.iter().map(|record| record.owner));
        // Records from the ring have no owner.
        fetched.add(popped.into_iter().map(|record| RmRecord { owner: 0, ..record }));
    }

    /// Whether records were fetched since all had been passed on.
    pub(super) const fn is_noted(&self) -> bool {
        self.is_noted
    }

    /// Called when the records passed on so far are in the journal. Returns whether other fetched
    /// records have not been passed on yet.
    pub(super) fn settle(&mut self) -> bool {
        self.is_noted = !self.fetched.0.is_empty();
        self.is_noted
    }

    /// Takes the next record from before this time.
    pub(super) fn before(&mut self, time_ns: u64) -> Option<RmRecord> {
        self.fetched.before(time_ns)
    }
}

/// Whether this queue is empty. False if that cannot be determined.
fn is_empty(queue: BorrowedFd<'_>) -> bool {
    let mut first = MaybeUninit::<WaitingRecord>::uninit();
    let map_fd = u32::try_from(queue.as_raw_fd()).unwrap_or(u32::MAX);
    let value = first.as_mut_ptr().expose_provenance() as u64;
    let mut lookup = Lookup { map_fd, padding: 0, key: 0, value, flags: 0 };
    // SAFETY: the attributes point to space for one entry of the map's type; a queue has no keys.
    let answer = unsafe { libc::syscall(libc::SYS_bpf, MAP_LOOKUP_ELEM, &raw mut lookup, size_of::<Lookup>()) };
    answer < 0 && std::io::Error::last_os_error().raw_os_error() == Some(libc::ENOENT)
}

/// Records in time order.
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

/// Returns the time of an item before which all requests must be passed on; `None` for items that
/// do not depend on requests.
pub(super) fn time_of(item: &Result<Item<'_>, RecordError>) -> Option<u64> {
    match item {
        Ok(Item::Rm(record)) => Some(record.returned_ns),
        Ok(Item::Record(RingRecord::Process(record))) => Some(record.time_ns),
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
    fn fetched_records_are_ordered_by_time_across_batches() {
        let mut fetched = Fetched::default();
        fetched.add([at(30), at(10)].into_iter());
        fetched.add([at(20)].into_iter());
        let mut before = |time_ns| fetched.before(time_ns).map(|record| record.returned_ns);
        assert_eq!([before(10), before(25), before(25), before(25)], [None, Some(10), Some(20), None]);
        assert_eq!([before(u64::MAX), before(u64::MAX)], [Some(30), None]);
    }
}
