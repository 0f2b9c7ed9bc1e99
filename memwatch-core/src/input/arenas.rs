//! State of a process's arenas, read from its memory at one moment: `tsl::BFCAllocator` of JAX and
//! TensorFlow, and `BFCArena` of ONNX Runtime.

use serde::{Deserialize, Serialize};

use crate::words::{Framework, Name, Tgid};

/// All arenas of a process that could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaReadings {
    /// Process of the arenas.
    pub tgid: Tgid,
    /// Start of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub began_ns: u64,
    /// End of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Arenas in address order.
    pub arenas: Vec<ArenaReading>,
}

/// Counters of an arena: the first words of its `tsl::AllocatorStats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaCounters {
    /// Number of allocations so far.
    pub num_allocs: u64,
    /// Bytes in use by the program, rounded by the arena.
    pub bytes_in_use: u64,
    /// Largest `bytes_in_use` so far, bytes.
    pub peak_bytes_in_use: u64,
}

/// State of one arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaReading {
    /// Address of the arena: the `this` of its methods.
    pub allocator: u64,
    /// Framework of the arena; `None` in recordings made before ONNX Runtime was supported.
    #[serde(default)]
    pub framework: Option<Framework>,
    /// Name given by the framework, such as `GPU_0_bfc`.
    pub name: Name,
    /// Device number in the numbering of the process, if the arena's object stores it next to the
    /// name.
    #[serde(default)]
    pub device: Option<i32>,
    /// Counters of the arena.
    pub counters: ArenaCounters,
    /// Size of the largest chunk so far, bytes.
    pub largest_alloc_bytes: u64,
    /// Regions allocated from the driver: address and size in bytes.
    pub regions: Vec<(u64, u64)>,
    /// Chunks in use by the program; empty if only the counters could be read.
    pub chunks: Vec<ArenaChunk>,
}

/// A chunk in use by the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaChunk {
    /// First address.
    pub address: u64,
    /// Size as rounded by the arena, bytes.
    pub bytes: u64,
    /// Size requested by the program, bytes.
    pub requested_bytes: u64,
}

impl ArenaReading {
    /// Returns whether the chunks add up to the arena's own count of bytes in use.
    pub fn is_whole(&self) -> bool {
        let sum = self.chunks.iter().fold(0_u64, |sum, chunk| sum.saturating_add(chunk.bytes));
        sum == self.counters.bytes_in_use
    }
}
