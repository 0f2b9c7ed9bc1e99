//! State of a process's caching allocators, read from its memory: all segments and blocks at one
//! moment.

use memwatch_common::tensor::STATISTICS_WORDS;
use serde::{Deserialize, Serialize};

use crate::words::{Ordinal, Tgid};

/// State of the allocators of all devices of a process.
///
/// The allocators were idle from the start to the end of the reading, so the state holds for that
/// whole time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorState {
    /// Process of the allocators.
    pub tgid: Tgid,
    /// Start of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub began_ns: u64,
    /// End of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Devices that the process has used.
    pub devices: Vec<DeviceAllocatorState>,
}

/// State of one device's allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceAllocatorState {
    /// Device of the allocator.
    pub ordinal: Ordinal,
    /// Address of the allocator: the `this` of its methods.
    pub allocator: u64,
    /// Words from the start of its `DeviceStats`, [`STATISTICS_WORDS`] of them.
    pub words: Vec<u64>,
    /// Segments in address order.
    pub segments: Vec<StateSegment>,
}

impl DeviceAllocatorState {
    /// Returns the words as an array; `None` if the count differs.
    pub fn words(&self) -> Option<&[u64; STATISTICS_WORDS]> {
        self.words.as_slice().try_into().ok()
    }

    /// Iterates over all blocks.
    pub fn blocks(&self) -> impl Iterator<Item = &StateBlock> {
        self.segments.iter().flat_map(|segment| &segment.blocks)
    }
}

/// Blocks of a process read while its allocators were working. Each block was read at some moment
/// between start and end of the reading.
///
/// Changes at the blocks' addresses during that time are in earlier or later records.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovingAllocatorState {
    /// Process of the allocators.
    pub tgid: Tgid,
    /// Start of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub began_ns: u64,
    /// End of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Devices with blocks.
    pub devices: Vec<MovingDevice>,
}

/// State of one device's allocator while it works.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MovingDevice {
    /// Device of the allocator.
    pub ordinal: Ordinal,
    /// Bytes in use by the program at the start of the reading, by the allocator's own count.
    pub allocated_bytes: u64,
    /// Bytes reserved from the driver at the start of the reading, by the allocator's own count.
    pub reserved_bytes: u64,
    /// Active blocks.
    pub blocks: Vec<StateBlock>,
}

/// Counters of a process's caching allocators, read at a moment at which they were consistent with
/// each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorNumbers {
    /// Process of the allocators.
    pub tgid: Tgid,
    /// Time of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Devices that the process has used.
    pub devices: Vec<DeviceNumbers>,
}

/// Counters of one device's allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNumbers {
    /// Device of the allocator.
    pub ordinal: Ordinal,
    /// Address of the allocator: the `this` of its methods.
    pub allocator: u64,
    /// Words from the start of its `DeviceStats`, [`STATISTICS_WORDS`] of them.
    pub words: Vec<u64>,
}

impl DeviceNumbers {
    /// Returns the words as an array; `None` if the count differs.
    pub fn words(&self) -> Option<&[u64; STATISTICS_WORDS]> {
        self.words.as_slice().try_into().ok()
    }
}

/// A range of driver memory: one `cudaMalloc`, or a contiguously mapped part of an expandable
/// segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateSegment {
    /// First address.
    pub address: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Stream of the segment.
    pub stream: u64,
    /// Whether it serves requests of up to 1 MiB (`BlockPool::is_small`).
    pub is_small: bool,
    /// Whether the segment is expandable.
    pub is_expandable: bool,
    /// Private pool of the segment; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Whether the private pool is unused: its graph or `MemPool` is gone, and `empty_cache`
    /// releases its free memory.
    #[serde(default)]
    pub is_pool_idle: bool,
    /// Blocks of the segment without gaps, in address order.
    pub blocks: Vec<StateBlock>,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateBlock {
    /// First address.
    pub address: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Size requested by the program, bytes; for a free block, the size of the last request.
    pub requested_bytes: u64,
    /// Use of the block.
    pub state: StateBlockUse,
}

/// Use of a block, with the names of `torch.cuda.memory._snapshot()`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateBlockUse {
    /// In use by the program.
    ActiveAllocated,
    /// Freed by the program, but still in use by a stream.
    ActivePendingFree,
    /// Free.
    Inactive,
}
