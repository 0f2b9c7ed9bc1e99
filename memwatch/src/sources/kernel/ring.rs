//! The records, in the order the kernel half made them.

mod memory;

use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{Array, Map, MapData, MapError};
use memwatch_common::record::{Common, Item, RecordError};
use tokio::io::unix::AsyncFd;

use self::memory::RingMemory;
use super::load::LoadError;
use super::waiting::{Waiting, time_of};
use crate::sources::clock;

/// What is kept until it is taken is released in so many parts of the ring.
const RELEASES: usize = 16;
/// Where this part of the ring is full again, it is to be read again at once.
const MANY: usize = 64;

/// The reading end of the ring buffer.
pub(crate) struct Ring {
    records: AsyncFd<Records>,
    /// What the kernel half looks at to know whether the reader sleeps.
    sleeps: Array<MapData, u64>,
    waiting: Waiting,
    size_bytes: usize,
    keeps: bool,
}

/// What is handed over.
#[expect(clippy::large_enum_variant, reason = "nobody keeps it")]
pub(crate) enum Drained<'a> {
    /// A record.
    Item(Result<Item<'a>, RecordError>),
    /// All records up to this position have been; they are in the ring until this returns. Only where that is wanted.
    UpTo(Reached),
}

/// How far a ring was read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reached {
    pub(crate) position: u64,
    /// Records for which there was no room were taken out of their queue, which has them no more, and not all of them have been handed over.
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

impl Ring {
    /// Takes the ring of the loaded kernel half, which has this size. Must be called inside a tokio runtime.
    pub(crate) fn open(ebpf: &mut Ebpf, size_bytes: u32) -> anyhow::Result<Self> {
        let Some(Map::RingBuf(map)) = ebpf.take_map("RECORDS") else {
            return Err(LoadError::Missing("RECORDS").into());
        };
        let size = usize::try_from(size_bytes)?;
        let memory = RingMemory::map(map.fd().as_fd(), size).context("the kernel half's ring cannot be mapped")?;
        // SAFETY: the descriptor is the map's own; it stays open and the same for as long as the map lives inside `Records`.
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

    /// Records stay in the ring until [`Drained::UpTo`] has been taken: whoever reads the ring after this process gets all others.
    pub(crate) fn keep_until_taken(&mut self) {
        self.keeps = true;
        self.records.get_mut().memory.keep();
    }

    /// How far it was read: it counts on and on.
    pub(crate) fn position(&self) -> u64 {
        self.records.get_ref().memory.position() as u64
    }

    /// Goes on where a reader before this one was. False where that is not in the ring: what was read since is not known.
    pub(crate) fn go_on_from(&mut self, position: u64) -> bool {
        usize::try_from(position).is_ok_and(|position| self.records.get_mut().memory.go_on_from(position))
    }

    /// Has the kernel half ask for attention with the next record, whatever it is, once. A record that came before may be in the ring and have woken
    /// nobody: it is to be fetched after this.
    ///
    /// # Errors
    /// The kernel half cannot be informed: it goes on to wake for few records.
    pub(crate) fn want_next(&mut self) -> Result<(), MapError> {
        self.sleeps.set(0, &1, 0)?;
        // The look that follows is not made before: the kernel half looks at this after it has handed over a record.
        fence(Ordering::SeqCst);
        Ok(())
    }

    /// Waits until the kernel half asks for attention. It does so for the first record of a process, for a filling ring, and where that is wanted for
    /// any; other records are fetched by the caller's own rhythm.
    pub(crate) async fn wake(&self) -> std::io::Result<()> {
        let mut guard = self.records.readable().await?;
        guard.clear_ready();
        Ok(())
    }

    /// Hands over every record that was in the ring when this began, and all that wait for their place before them: calls that come faster than they are
    /// taken in must not keep reports and signals waiting. Whether many more have come since.
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
            // Where the ring was full when this began, what found no room since came before all that found some.
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
            // Before the ring is full of what was read.
            if keeps && memory.position().wrapping_sub(released) >= *size_bytes / RELEASES {
                note(memory.position(), waiting.is_noted(), &mut take);
                memory.release();
                released = memory.position();
            }
        }
        // Where more has come since, what waits may have its place behind that.
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
        // What a thread holds back that has not finished its record is not there any sooner for being looked at.
        !is_held && memory.waiting_bytes() > *size_bytes / MANY
    }
}

/// Hands over what another kernel half, which has gone, has recorded since its reader was here: `None` of a record of which nothing can be read.
/// Returns whether that is all there was.
///
/// # Errors
/// The ring cannot be mapped.
pub(crate) fn read_left(ring: &MapData, position: u64, mut take: impl FnMut(Option<Common>)) -> anyhow::Result<bool> {
    let size = usize::try_from(ring.info()?.max_entries()).unwrap_or(0);
    let mut memory =
        RingMemory::map(ring.fd().as_fd(), size).context("the ring of the kernel half before cannot be mapped")?;
    memory.keep();
    let is_there = usize::try_from(position).is_ok_and(|position| memory.go_on_from(position));
    // Where it may have been full, records found no room.
    let is_whole = is_there && memory.waiting_bytes() < size / 2;
    while memory.take(|record| take(Common::from_bytes(record))) {}
    // A thread that was killed inside of one.
    Ok(is_whole && memory.waiting_bytes() == 0)
}
