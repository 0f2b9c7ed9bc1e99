//! What a process's caching allocators did, for tools that replay it: segments and blocks now, and the lines that led there.

use std::sync::Arc;

use crate::allocators::pytorch::LineAction;
use crate::words::Name;

/// The history of one process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryHistory {
    /// By device of the process.
    pub devices: Vec<DeviceHistory>,
    /// The stacks that lines, blocks and segments name by their place here.
    pub stacks: Vec<Vec<HistoryFrame>>,
    /// Beginnings and ends of ranges that the program opened, oldest first.
    pub marks: Vec<HistoryMark>,
}

/// One device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceHistory {
    /// The process's own number of it.
    pub device: i32,
    /// What the allocator has of it now, by address; memory from before the watch as far as something in it was seen.
    pub segments: Vec<HistorySegment>,
    /// What it did, oldest first: every line fits to those after it and to the segments.
    pub lines: Vec<HistoryLine>,
    /// How many lines before these are not there any more, or fit to nothing.
    pub cut: u64,
    /// From this size on, blocks are not split, in bytes; -1 where all are; `None` where that is not known.
    pub max_split_size: Option<i64>,
}

/// A segment.
#[derive(Clone, Debug, PartialEq)]
pub struct HistorySegment {
    /// Where it begins.
    pub address: u64,
    /// Its stream.
    pub stream: u64,
    /// It is of the pool for requests of up to 1 MiB.
    pub is_small: bool,
    /// Its private pool; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// It grows and shrinks.
    pub is_expandable: bool,
    /// Where it became necessary.
    pub stack: usize,
    /// They tile it.
    pub blocks: Vec<HistoryBlock>,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryBlock {
    /// Where it begins.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// What was asked for, in bytes; as [`HistoryBlock::bytes`] where that is not known.
    pub requested_bytes: u64,
    /// `active_allocated`, `active_pending_free` or `inactive`: PyTorch's words.
    pub state: &'static str,
    /// Where it was granted.
    pub stack: usize,
}

/// Something that the allocator did.
#[derive(Clone, Debug, PartialEq)]
pub struct HistoryLine {
    /// What.
    pub action: LineAction,
    /// Where; of a failure the free bytes of the device, 0 where they were not reported.
    pub address: u64,
    /// How much, in bytes: of a block what was asked for.
    pub bytes: u64,
    /// On which stream.
    pub stream: u64,
    /// For which private pool; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Where in the program.
    pub stack: usize,
    /// In which stage of the training a block was granted; `None` where that is not known.
    pub stage: Option<Name>,
}

/// A place in the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HistoryFrame {
    /// The function.
    pub name: Arc<str>,
    /// Its file.
    pub file: Arc<str>,
    /// The line; 0 where there is none.
    pub line: u32,
}

/// The beginning or the end of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HistoryMark {
    /// Its name.
    pub name: Arc<str>,
    /// It begins.
    pub begins: bool,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}
