//! What a process's caching allocators have in their own books: all segments and blocks, read from its memory at one moment.

use memwatch_common::tensor::STATISTICS_WORDS;
use serde::{Deserialize, Serialize};

use crate::words::{Ordinal, Tgid};

/// All devices of a process.
///
/// Nothing happened in the allocators from the beginning of the reading to its end: what it says is true of that whole time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Books {
    /// The process.
    pub tgid: Tgid,
    /// When the reading began: `CLOCK_BOOTTIME`, nanoseconds.
    pub began_ns: u64,
    /// When it ended, likewise.
    pub time_ns: u64,
    /// The ones that the process has used.
    pub devices: Vec<DeviceBooks>,
}

/// One device's allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceBooks {
    /// The device.
    pub ordinal: Ordinal,
    /// The allocator's address: the `this` of its methods.
    pub allocator: u64,
    /// The words from the beginning of its `DeviceStats` on: [`STATISTICS_WORDS`] of them.
    pub words: Vec<u64>,
    /// By address.
    pub segments: Vec<BookSegment>,
}

impl DeviceBooks {
    /// The words as an array; `None` where they are not so many.
    pub fn words(&self) -> Option<&[u64; STATISTICS_WORDS]> {
        self.words.as_slice().try_into().ok()
    }

    /// All blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &BookBlock> {
        self.segments.iter().flat_map(|segment| &segment.blocks)
    }
}

/// The blocks that a process had while its allocators worked: each was read as it was at some moment between the two.
///
/// What happened to their addresses in that time is in the records that come after this, or came before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovingBooks {
    /// The process.
    pub tgid: Tgid,
    /// When the reading began: `CLOCK_BOOTTIME`, nanoseconds.
    pub began_ns: u64,
    /// When it ended, likewise.
    pub time_ns: u64,
    /// The devices that have any.
    pub devices: Vec<MovingDevice>,
}

/// One device's allocator while it works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovingDevice {
    /// The device.
    pub ordinal: Ordinal,
    /// What the program has by the allocator's own count, as it was when the reading began, in bytes.
    pub allocated_bytes: u64,
    /// What the allocator has of the driver, likewise.
    pub reserved_bytes: u64,
    /// Its active blocks.
    pub blocks: Vec<BookBlock>,
}

/// What a process's caching allocators have counted, read at a moment at which their numbers agreed with each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Numbers {
    /// The process.
    pub tgid: Tgid,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The devices that the process has used.
    pub devices: Vec<DeviceNumbers>,
}

/// What one device's allocator has counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNumbers {
    /// The device.
    pub ordinal: Ordinal,
    /// The allocator's address: the `this` of its methods.
    pub allocator: u64,
    /// The words from the beginning of its `DeviceStats` on: [`STATISTICS_WORDS`] of them.
    pub words: Vec<u64>,
}

impl DeviceNumbers {
    /// The words as an array; `None` where they are not so many.
    pub fn words(&self) -> Option<&[u64; STATISTICS_WORDS]> {
        self.words.as_slice().try_into().ok()
    }
}

/// A piece of the driver's memory: of one `cudaMalloc`, or what is mapped without a gap in an expandable segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookSegment {
    /// Its first address.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// The stream it is for.
    pub stream: u64,
    /// It serves requests of up to 1 MiB (`BlockPool::is_small`).
    pub is_small: bool,
    /// It grows and shrinks.
    pub is_expandable: bool,
    /// The private pool it is for; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Nothing uses that private pool any more: its graph or `MemPool` is gone, and `empty_cache` releases what is free of it.
    #[serde(default)]
    pub is_pool_idle: bool,
    /// What tiles it, by address.
    pub blocks: Vec<BookBlock>,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BookBlock {
    /// Its first address.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// As the program asked for it, in bytes; of a free block what was asked for last.
    pub requested_bytes: u64,
    /// What it is used for.
    pub state: BookState,
}

/// What a block is used for, by the names of `torch.cuda.memory._snapshot()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BookState {
    /// The program has it.
    ActiveAllocated,
    /// The program has given it back, and a stream uses it still.
    ActivePendingFree,
    /// Nothing.
    Inactive,
}
