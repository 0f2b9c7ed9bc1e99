//! The records, in the order the kernel half made them.

mod memory;

use std::os::fd::{AsFd as _, AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};

use anyhow::Context as _;
use aya::Ebpf;
use aya::maps::{Array, Map, MapData, MapError};
use memwatch_common::record::{Item, RecordError};
use tokio::io::unix::AsyncFd;

use self::memory::RingMemory;
use super::load::LoadError;
use super::waiting::{Waiting, time_of};

/// The reading end of the ring buffer.
pub(crate) struct Ring {
    records: AsyncFd<Records>,
    /// What the kernel half looks at to know whether the reader sleeps.
    sleeps: Array<MapData, u64>,
    waiting: Waiting,
    size_bytes: usize,
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
        Ok(Self { records, sleeps: Array::try_from(sleeps)?, waiting: Waiting::open(ebpf)?, size_bytes: size })
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

    /// Hands over every record that is in the ring now, and at most a ringful: calls that come faster than they are taken in must
    /// not keep reports and signals waiting.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(Result<Item<'_>, RecordError>)) {
        let Self { records, waiting, size_bytes, .. } = self;
        let memory = &mut records.get_mut().memory;
        let mut left_bytes = *size_bytes;
        waiting.fetch();
        while left_bytes > 0 {
            // Where the ring was full when this began, what found no room since came before all that found some.
            let was_full = left_bytes < *size_bytes / 2;
            let taken = memory.take(|record| {
                let item = Item::from_bytes(record);
                if let Some(time_ns) = time_of(&item) {
                    if was_full {
                        waiting.fetch();
                    }
                    while let Some(record) = waiting.before(time_ns) {
                        take(Ok(Item::Rm(record)));
                    }
                }
                take(item);
            });
            let Some(bytes) = taken else {
                while let Some(record) = waiting.before(u64::MAX) {
                    take(Ok(Item::Rm(record)));
                }
                return;
            };
            left_bytes = left_bytes.saturating_sub(bytes);
        }
    }
}
