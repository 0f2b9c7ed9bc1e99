//! Recorded history of an allocator, with the content of PyTorch's own memory history.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::memory::AllocatorSegment;
use crate::allocators::threads::Phase;
use crate::decode::{StackRef, TensorEvent};
use crate::words::Tid;

/// Action of a history entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineAction {
    /// A block is allocated.
    Alloc,
    /// The program frees a block.
    FreeRequested,
    /// No stream uses the freed block any longer.
    FreeCompleted,
    /// A segment is allocated.
    SegmentAlloc,
    /// A segment is freed.
    SegmentFree,
    /// Memory is mapped into an expandable segment.
    SegmentMap,
    /// Memory is unmapped from an expandable segment.
    SegmentUnmap,
    /// An allocation fails.
    OutOfMemory,
}

impl LineAction {
    /// Returns whether the action concerns a segment.
    pub const fn is_of_segment(self) -> bool {
        matches!(self, Self::SegmentAlloc | Self::SegmentFree | Self::SegmentMap | Self::SegmentUnmap)
    }

    /// Returns whether the action concerns a block.
    pub const fn is_of_block(self) -> bool {
        matches!(self, Self::Alloc | Self::FreeRequested | Self::FreeCompleted)
    }
}

/// A history entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryEntry {
    /// Action of the entry.
    pub action: LineAction,
    /// Address; for a failed allocation, the free bytes of the device, or 0 if not reported.
    pub address: u64,
    /// Size in bytes; for a block, the requested size if known.
    pub bytes: u64,
    /// Size of a block in bytes, as rounded by the allocator.
    pub block_bytes: u64,
    /// Stream of the segment.
    pub stream: u64,
    /// Private pool of the segment; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Calling thread.
    pub tid: Tid,
    /// Time of the action: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Stack of the call; for a free, the stack of the block's allocation.
    pub stack: StackRef,
    /// Phase in which a block was allocated, if known.
    pub phase: Option<Phase>,
}

/// The most recent history entries of an allocator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AllocatorHistory {
    #[serde(skip)]
    lines: VecDeque<HistoryEntry>,
    #[serde(skip)]
    limit: usize,
    cut: u64,
    now: Option<(u64, Tid)>,
    device_free_bytes: u64,
}

impl AllocatorHistory {
    /// Returns the entries, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &HistoryEntry> {
        self.lines.iter()
    }

    /// Returns the number of entries dropped.
    pub const fn cut(&self) -> u64 {
        self.cut
    }

    /// Sets the maximum number of entries.
    pub(super) fn keep(&mut self, limit: usize) {
        self.limit = limit;
        self.shorten();
    }

    /// Sets the time and thread of the next entries.
    pub(super) const fn begin(&mut self, event: &TensorEvent) {
        self.now = Some((event.time_ns, event.tid));
    }

    /// Sets the free bytes of the device for the next failure.
    pub(super) const fn note_device_free(&mut self, bytes: u64) {
        self.device_free_bytes = bytes;
    }

    /// Adds an entry for a segment.
    pub(super) fn segment(&mut self, action: LineAction, address: u64, segment: &AllocatorSegment) {
        let (bytes, stack) = (segment.bytes, segment.stack);
        if let Some(line) = self.push(action, address, bytes, stack) {
            (line.stream, line.private_pool) = (segment.stream, segment.private_pool);
        }
    }

    /// Adds an entry for a block; `requested_bytes` is `None` if unknown.
    pub(super) fn block(
        &mut self,
        action: LineAction,
        address: u64,
        (block_bytes, requested_bytes): (u64, Option<u64>),
        stack: StackRef,
    ) {
        if let Some(line) = self.push(action, address, requested_bytes.unwrap_or(block_bytes), stack) {
            line.block_bytes = block_bytes;
        }
        if action == LineAction::Alloc {
            self.explain(stack);
        }
    }

    /// Adds an entry for a failed allocation.
    pub(super) fn failure(&mut self, wanted_bytes: u64, stack: StackRef) {
        let free = std::mem::take(&mut self.device_free_bytes);
        self.push(LineAction::OutOfMemory, free, wanted_bytes, stack);
        self.explain(stack);
    }

    /// Sets the phase in which the last block was allocated.
    pub(super) fn report_phase(&mut self, phase: Phase) {
        if let Some(line) = self.lines.back_mut().filter(|line| line.action == LineAction::Alloc) {
            line.phase = Some(phase);
        }
    }

    /// Drops all entries, since further ones do not connect to them.
    pub(super) fn forget(&mut self) {
        self.cut += self.lines.len() as u64;
        self.lines.clear();
    }

    /// Sets the stack of the segments that a grant or a failure made necessary.
    fn explain(&mut self, stack: StackRef) {
        let Some((_, tid)) = self.now else { return };
        for line in self.lines.iter_mut().rev().skip(1) {
            if line.tid != tid || !line.action.is_of_segment() || line.stack != StackRef::NotAsked {
                break;
            }
            line.stack = stack;
        }
    }

    fn push(&mut self, action: LineAction, address: u64, bytes: u64, stack: StackRef) -> Option<&mut HistoryEntry> {
        let (time_ns, tid) = self.now.filter(|_| self.limit > 0)?;
        let (block_bytes, stream, private_pool, phase) = (0, 0, (0, 0), None);
        self.lines.push_back(HistoryEntry {
            action,
            address,
            bytes,
            block_bytes,
            stream,
            private_pool,
            tid,
            time_ns,
            stack,
            phase,
        });
        self.shorten();
        self.lines.back_mut()
    }

    fn shorten(&mut self) {
        let more = self.lines.len().saturating_sub(self.limit);
        self.lines.drain(..more);
        self.cut += more as u64;
    }
}
