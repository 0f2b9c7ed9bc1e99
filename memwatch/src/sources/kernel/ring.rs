//! Reads the kernel half's records from the ring buffer, in the order of their events.

mod memory;

use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{Array, Map, MapData, MapError};
use memwatch_common::record::{CommonFields, Item, RecordError};
use tokio::io::unix::AsyncFd;

use self::memory::RingMemory;
use super::load::LoadError;
use super::waiting::{Waiting, time_of};
use crate::sources::clock;

/// In keep mode the ring is released in steps of this fraction of its size.
const RELEASES: usize = 16;
/// If more than this fraction of the ring is full again after a drain, the caller should drain
/// again at once.
const MANY: usize = 64;

/// Reader of the ring buffer.
pub(crate) struct RecordRing {
    records: AsyncFd<Records>,
    /// Map that shows the kernel half whether the reader sleeps.
    sleeps: Array<MapData, u64>,
    waiting: Waiting,
    size_bytes: usize,
    keeps: bool,
}

/// An item passed to the consumer of [`RecordRing::drain`].
#[expect(clippy::large_enum_variant, reason = "nobody keeps it")]
pub(crate) enum Drained<'a> {
    /// A record.
    Item(Result<Item<'a>, RecordError>),
    /// All records up to this position have been passed. They stay in the ring until the consumer
    /// returns. Sent in keep mode only.
    UpTo(Reached),
}

/// Position up to which a ring was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    pub(crate) position: u64,
    /// Set while records that did not fit into the ring have been removed from their overflow
    /// queue, but not all of them have been passed on.
    pub(crate) takes_waiting: bool,
}

struct Records {
    map: MapData,
    memory: RingMemory,
}

impl AsRawFd for Records {
    fn as_raw_fd(&self) -> RawFd {
        self.map.fd().as_fd().as_raw_fd()
    }
}

impl RecordRing {
    /// Opens the ring of the loaded kernel half. Must be called inside a tokio runtime.
    pub(crate) fn open(ebpf: &mut Ebpf, size_bytes: u32) -> anyhow::Result<Self> {
        let Some(Map::RingBuf(map)) = ebpf.take_map("RECORDS") else {
            return Err(LoadError::Missing("RECORDS").into());
        };
        let size = usize::try_from(size_bytes)?;
        let memory = RingMemory::map(map.fd().as_fd(), size).context("cannot map the kernel half's ring buffer")?;
        // SAFETY: the descriptor belongs to the map, and stays open and unchanged while the map
        // lives inside `Records`.
        let records = unsafe { AsyncFd::register(Records { map, memory }) }?;
        let sleeps = ebpf.take_map("READER_SLEEPS").ok_or(LoadError::Missing("READER_SLEEPS"))?;
        Ok(Self {
            records,
            sleeps: Array::try_from(sleeps)?,
            waiting: Waiting::open(ebpf)?,
            size_bytes: size,
            keeps: false,
        })
    }

    /// Enables keep mode: records stay in the ring until [`Drained::UpTo`] has been handled, so
    /// that the next process to read the ring gets all others.
    pub(crate) fn keep_until_taken(&mut self) {
        self.keeps = true;
        self.records.get_mut().memory.keep();
    }

    /// Returns the read position, which only grows.
    pub(crate) fn position(&self) -> u64 {
        self.records.get_ref().memory.position() as u64
    }

    /// Resumes at the position of an earlier reader. Returns false if the position is not in the
    /// ring, so that what was read since is unknown.
    pub(crate) fn go_on_from(&mut self, position: u64) -> bool {
        usize::try_from(position).is_ok_and(|position| self.records.get_mut().memory.go_on_from(position))
    }

    /// Makes the kernel half wake the reader once, at the next record of any kind. Drain the ring
    /// after this call: an earlier record may be in it without a wake-up.
    ///
    /// # Errors
    /// The map cannot be written: the kernel half keeps waking the reader for few records only.
    pub(crate) fn want_next(&mut self) -> Result<(), MapError> {
        self.sleeps.set(0, &1, 0)?;
        // Orders the following drain after the write: the kernel half checks the map after it has
        // submitted a record.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Waits until the kernel half wakes the reader: at the first record of a process, when the
    /// ring fills up, and at any record after [`Self::want_next`]. Other records are fetched when
    /// the caller polls.
    pub(crate) async fn wake(&self) -> std::io::Result<()> {
        let mut guard = self.records.readable().await?;
        guard.clear_ready();
        Ok(())
    }

    /// Passes on every record that was in the ring when the call began, merged in time order with
    /// the records from the overflow queues. Later records are left, so that a constant stream does
    /// not delay reports and signals. Returns whether many more have arrived since.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(Drained<'_>)) -> bool {
        let Self { records, waiting, size_bytes, keeps, .. } = self;
        let (memory, keeps) = (&mut records.get_mut().memory, *keeps);
        let note = |position: usize, takes_waiting, take: &mut dyn FnMut(Drained<'_>)| {
            if keeps {
                take(Drained::UpTo(Reached { position: position as u64, takes_waiting }));
            }
        };
        let begin_ns = clock::boottime_ns();
        waiting.fetch(|| note(memory.position(), true, &mut take));
        let (begin, present_bytes) = (memory.position(), memory.waiting_bytes());
        let mut released = begin;
        let mut is_held = false;
        while !is_held && memory.position().wrapping_sub(begin) < present_bytes {
            let position = memory.position();
            // If the ring was full at the beginning, records that have overflowed since precede all
            // that have found space since.
            let was_full = position.wrapping_sub(begin) > *size_bytes / 2;
            let taken = memory.take(|record| {
                let item = Item::from_bytes(record);
                if let Some(time_ns) = time_of(&item) {
                    if was_full {
                        waiting.fetch(|| note(position, true, &mut take));
                    }
                    while let Some(record) = waiting.before(time_ns) {
                        take(Drained::Item(Ok(Item::Rm(record))));
                    }
                }
                take(Drained::Item(item));
            });
            is_held = !taken;
            // Release read records before they fill the ring.
            if keeps && memory.position().wrapping_sub(released) >= *size_bytes / RELEASES {
                note(memory.position(), waiting.is_noted(), &mut take);
                memory.release();
                released = memory.position();
            }
        }
        // If more records have arrived, overflowed records may belong after those.
        let until_ns = if is_held || memory.waiting_bytes() == 0 { u64::MAX } else { begin_ns };
        while let Some(record) = waiting.before(until_ns) {
            take(Drained::Item(Ok(Item::Rm(record))));
        }
        let was_noted = waiting.is_noted();
        let is_noted = waiting.settle();
        if memory.position() != released || was_noted {
            note(memory.position(), is_noted, &mut take);
            memory.release();
        }
        // A record that its thread has not finished yet does not become available by another drain.
        !is_held && memory.waiting_bytes() > *size_bytes / MANY
    }
}

/// Passes on the records that an earlier kernel half wrote after its reader ended: `None` for an
/// unreadable record. Returns whether no record was lost.
///
/// # Errors
/// The ring cannot be mapped.
pub(crate) fn read_left(
    ring: &MapData,
    position: u64,
    mut take: impl FnMut(Option<CommonFields>),
) -> anyhow::Result<bool> {
    let size = usize::try_from(ring.info()?.max_entries()).unwrap_or(0);
    let mut memory =
        RingMemory::map(ring.fd().as_fd(), size).context("cannot map the ring buffer of the previous kernel half")?;
    memory.keep();
    let is_there = usize::try_from(position).is_ok_and(|position| memory.go_on_from(position));
    // If the ring may have been full, records may have been lost.
    let is_whole = is_there && memory.waiting_bytes() < size / 2;
    while memory.take(|record| take(CommonFields::from_bytes(record))) {}
    // Remaining bytes mean that a thread was killed while it wrote a record.
    Ok(is_whole && memory.waiting_bytes() == 0)
}
