//! History of a process's caching allocators, for tools that replay it: the current segments and
//! blocks, and the lines that led to them.

use std::sync::Arc;

use crate::allocators::pytorch::LineAction;
use crate::words::Name;

/// Allocator history of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryHistory {
    /// Histories by device of the process.
    pub devices: Vec<DeviceHistory>,
    /// Stacks; lines, blocks and segments refer to them by index.
    pub stacks: Vec<Vec<HistoryFrame>>,
    /// Starts and ends of ranges that the program opened, oldest first.
    pub marks: Vec<HistoryMark>,
}

/// Allocator history of one device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceHistory {
    /// The process's own number of the device.
    pub device: i32,
    /// Current segments by address; pre-existing memory as far as activity in it was observed.
    pub segments: Vec<HistorySegment>,
    /// Lines, oldest first: each line is consistent with later lines and with the segments.
    pub lines: Vec<HistoryLine>,
    /// Number of earlier lines that were dropped or are inconsistent.
    pub cut: u64,
    /// Minimum size of blocks that are not split, in bytes; -1 if all blocks are split; `None` if
    /// it is unknown.
    pub max_split_size: Option<i64>,
}

/// A segment of the history.
#[derive(Clone, Debug, PartialEq)]
pub struct HistorySegment {
    /// Start address.
    pub address: u64,
    /// Stream.
    pub stream: u64,
    /// Whether the segment belongs to the pool for requests of up to 1 MiB.
    pub is_small: bool,
    /// Private pool; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Whether the segment can grow and shrink.
    pub is_expandable: bool,
    /// Index of the stack that caused the allocation of the segment.
    pub stack: usize,
    /// Blocks, which tile the segment.
    pub blocks: Vec<HistoryBlock>,
}

/// A block of the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryBlock {
    /// Start address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Requested bytes; equal to [`HistoryBlock::bytes`] if they are unknown.
    pub requested_bytes: u64,
    /// `active_allocated`, `active_pending_free` or `inactive`, as PyTorch names them.
    pub state: &'static str,
    /// Index of the stack that allocated the block.
    pub stack: usize,
}

/// An action of the allocator.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryLine {
    /// Kind of action.
    pub action: LineAction,
    /// Address; for a failure the free bytes of the device, 0 if they were not reported.
    pub address: u64,
    /// Size in bytes; for a block the requested size.
    pub bytes: u64,
    /// Stream.
    pub stream: u64,
    /// Private pool; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    pub time_ns: u64,
    /// Index of the stack.
    pub stack: usize,
    /// Phase of the training in which a block was allocated; `None` if it is unknown.
    pub phase: Option<Name>,
}

/// A frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryFrame {
    /// Function.
    pub name: Arc<str>,
    /// Source file.
    pub file: Arc<str>,
    /// Line in the file; 0 if there is none.
    pub line: u32,
}

/// Start or end of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryMark {
    /// Name of the range.
    pub name: Arc<str>,
    /// Whether this is the start.
    pub begins: bool,
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    pub time_ns: u64,
}
