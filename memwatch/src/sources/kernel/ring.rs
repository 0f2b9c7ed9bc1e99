//! The records, in the order the kernel half made them.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

use aya::Ebpf;
use aya::maps::{MapData, MapError, RingBuf};
use memwatch_common::record::{Item, RecordError};
use tokio::io::unix::AsyncFd;

use super::load::LoadError;

/// What the kernel puts before each record (`BPF_RINGBUF_HDR_SZ`), and what it rounds the record up to.
const HEADER_BYTES: usize = 8;
const ALIGNMENT_BYTES: usize = 8;

/// The reading end of the ring buffer.
pub(crate) struct Ring {
    records: AsyncFd<Records>,
    size_bytes: usize,
}

struct Records(RingBuf<MapData>);

impl AsRawFd for Records {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Records {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Ring {
    /// Takes the ring of the loaded kernel half, which has this size. Must be called inside a tokio runtime.
    pub(crate) fn open(ebpf: &mut Ebpf, size_bytes: u32) -> anyhow::Result<Self> {
        let map = ebpf.take_map("RECORDS").ok_or(LoadError::Missing("RECORDS"))?;
        let records = RingBuf::try_from(map).map_err(|cause: MapError| anyhow::Error::new(cause))?;
        // SAFETY: the descriptor is the map's own; it stays open and the same for as long as the map lives inside `Records`.
        let records = unsafe { AsyncFd::register(Records(records)) }?;
        Ok(Self { records, size_bytes: usize::try_from(size_bytes)? })
    }

    /// Waits until the kernel half asks for attention. It does so for the first record of a process and for a filling ring; other
    /// records are fetched by the caller's own rhythm.
    pub(crate) async fn wake(&self) -> std::io::Result<()> {
        let mut guard = self.records.readable().await?;
        guard.clear_ready();
        Ok(())
    }

    /// Hands over every record that is in the ring now, and at most a ringful: calls that come faster than they are taken in must
    /// not keep reports and signals waiting.
    pub(crate) fn drain(&mut self, mut take: impl FnMut(Result<Item<'_>, RecordError>)) {
        let Records(ring) = self.records.get_mut();
        let mut left_bytes = self.size_bytes;
        while left_bytes > 0
            && let Some(bytes) = ring.next()
        {
            left_bytes = left_bytes.saturating_sub(HEADER_BYTES + bytes.len().next_multiple_of(ALIGNMENT_BYTES));
            take(Item::from_bytes(&bytes));
        }
    }
}
