//! What the arenas of a process have in their own books: `tsl::BFCAllocator` of JAX and TensorFlow, and ONNX Runtime's `BFCArena`, read from its memory at
//! one moment.

use serde::{Deserialize, Serialize};

use crate::words::{Framework, Name, Tgid};

/// All arenas of a process that could be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaBooks {
    /// The process.
    pub tgid: Tgid,
    /// When the reading began: `CLOCK_BOOTTIME`, nanoseconds.
    pub began_ns: u64,
    /// When it ended, likewise.
    pub time_ns: u64,
    /// By address.
    pub arenas: Vec<ArenaBook>,
}

/// What an arena counts itself: the first words of its `tsl::AllocatorStats`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaCounters {
    /// Allocations in all.
    pub num_allocs: u64,
    /// What the program has, rounded as the arena does, in bytes.
    pub bytes_in_use: u64,
    /// The most of that, in bytes.
    pub peak_bytes_in_use: u64,
}

/// One arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaBook {
    /// Its address: the `this` of its methods.
    pub allocator: u64,
    /// Whose it is; `None` in recordings of before ONNX Runtime's were followed.
    #[serde(default)]
    pub framework: Option<Framework>,
    /// What the framework calls it, such as `GPU_0_bfc`.
    pub name: Name,
    /// The number of its device, where its object has that beside the name; the process's own.
    #[serde(default)]
    pub device: Option<i32>,
    /// What it has counted.
    pub counters: ArenaCounters,
    /// Its largest chunk so far, in bytes.
    pub largest_alloc_bytes: u64,
    /// What it has of the driver: addresses and sizes in bytes.
    pub regions: Vec<(u64, u64)>,
    /// What the program has of it. Empty where only the counters could be read.
    pub chunks: Vec<ArenaChunk>,
}

/// A chunk that the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArenaChunk {
    /// Where it begins.
    pub address: u64,
    /// As the arena rounded it, in bytes.
    pub bytes: u64,
    /// As the program asked for it, in bytes.
    pub requested_bytes: u64,
}

impl ArenaBook {
    /// Whether the chunks are all that the program has, by the arena's own count.
    pub fn is_whole(&self) -> bool {
        let sum = self.chunks.iter().fold(0_u64, |sum, chunk| sum.saturating_add(chunk.bytes));
        sum == self.counters.bytes_in_use
    }
}
