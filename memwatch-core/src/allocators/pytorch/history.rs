//! What an allocator did, line by line, as far back as is kept: what PyTorch's own memory history has.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::memory::Segment;
use crate::allocators::threads::Stage;
use crate::decode::{StackRef, TensorEvent};
use crate::words::Tid;

/// What a line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineAction {
    /// A block is granted.
    Alloc,
    /// A free was asked for.
    FreeRequested,
    /// No stream uses the block any more.
    FreeCompleted,
    /// A segment is had.
    SegmentAlloc,
    /// It is given back.
    SegmentFree,
    /// Memory is mapped into an expandable segment.
    SegmentMap,
    /// And unmapped.
    SegmentUnmap,
    /// An allocation fails.
    OutOfMemory,
}

impl LineAction {
    /// Whether it is about a segment.
    pub const fn is_of_segment(self) -> bool {
        matches!(self, Self::SegmentAlloc | Self::SegmentFree | Self::SegmentMap | Self::SegmentUnmap)
    }

    /// Whether it is about a block.
    pub const fn is_of_block(self) -> bool {
        matches!(self, Self::Alloc | Self::FreeRequested | Self::FreeCompleted)
    }
}

/// One line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// What happened.
    pub action: LineAction,
    /// Where; of a failure the free bytes of the device, 0 where they were not reported.
    pub address: u64,
    /// How much, in bytes: of a block what was asked for, where that is known.
    pub bytes: u64,
    /// Of a block its size as the allocator rounded it, in bytes.
    pub block_bytes: u64,
    /// On which stream.
    pub stream: u64,
    /// For which private pool; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// By which thread.
    pub tid: Tid,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Where in the program; of a free where its block was granted.
    pub stack: StackRef,
    /// In which stage a block was granted, where that is known.
    pub stage: Option<Stage>,
}

/// The last lines of an allocator.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct History {
    #[serde(skip)]
    lines: VecDeque<Line>,
    #[serde(skip)]
    limit: usize,
    cut: u64,
    now: Option<(u64, Tid)>,
    device_free_bytes: u64,
}

impl History {
    /// The lines, oldest first.
    pub fn lines(&self) -> impl Iterator<Item = &Line> {
        self.lines.iter()
    }

    /// How many lines are not there any more.
    pub const fn cut(&self) -> u64 {
        self.cut
    }

    /// So many lines are kept from now on.
    pub(super) fn keep(&mut self, limit: usize) {
        self.limit = limit;
        self.shorten();
    }

    /// What comes is of this event.
    pub(super) const fn begin(&mut self, event: &TensorEvent) {
        self.now = Some((event.time_ns, event.tid));
    }

    /// The next failure is reported with so many free bytes of the device.
    pub(super) const fn note_device_free(&mut self, bytes: u64) {
        self.device_free_bytes = bytes;
    }

    /// A segment more or less.
    pub(super) fn segment(&mut self, action: LineAction, address: u64, segment: &Segment) {
        let (bytes, stack) = (segment.bytes, segment.stack);
        if let Some(line) = self.push(action, address, bytes, stack) {
            (line.stream, line.private_pool) = (segment.stream, segment.private_pool);
        }
    }

    /// A block is granted or freed; `requested_bytes` where that is known.
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

    /// An allocation fails.
    pub(super) fn failure(&mut self, wanted_bytes: u64, stack: StackRef) {
        let free = std::mem::take(&mut self.device_free_bytes);
        self.push(LineAction::OutOfMemory, free, wanted_bytes, stack);
        self.explain(stack);
    }

    /// In which stage the last block was granted.
    pub(super) fn report_stage(&mut self, stage: Stage) {
        if let Some(line) = self.lines.back_mut().filter(|line| line.action == LineAction::Alloc) {
            line.stage = Some(stage);
        }
    }

    /// What was kept cannot be followed by what comes.
    pub(super) fn forget(&mut self) {
        self.cut += self.lines.len() as u64;
        self.lines.clear();
    }

    /// The segments that a grant or a failure made necessary have its stack.
    fn explain(&mut self, stack: StackRef) {
        let Some((_, tid)) = self.now else { return };
        for line in self.lines.iter_mut().rev().skip(1) {
            if line.tid != tid || !line.action.is_of_segment() || line.stack != StackRef::NotAsked {
                break;
            }
            line.stack = stack;
        }
    }

    fn push(&mut self, action: LineAction, address: u64, bytes: u64, stack: StackRef) -> Option<&mut Line> {
        let (time_ns, tid) = self.now.filter(|_| self.limit > 0)?;
        let (block_bytes, stream, private_pool, stage) = (0, 0, (0, 0), None);
        self.lines.push_back(Line {
            action,
            address,
            bytes,
            block_bytes,
            stream,
            private_pool,
            tid,
            time_ns,
            stack,
            stage,
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
