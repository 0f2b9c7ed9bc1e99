//! The arenas of a program with JAX, TensorFlow or ONNX Runtime: what each has, as `device.memory_stats()` answers it.

use serde::{Deserialize, Serialize};

use crate::words::{Framework, GpuUuid, Name, json};

/// A `tsl::BFCAllocator`, or `BFCArena` of ONNX Runtime, in a device's memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArenaView {
    /// Whose it is; `None` in recordings of before ONNX Runtime's were followed.
    #[serde(default)]
    pub framework: Option<Framework>,
    /// What the framework calls it, such as `GPU_0_bfc`; `None` before its memory was read.
    pub name: Option<Name>,
    /// The process's own number of the device; `None` where it is not known in which memory it is.
    pub device: Option<i32>,
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// How the device is known: `segment` (it holds the addresses), `name` (the driver granted the memory before the watch) or `unknown`.
    pub device_by: Name,
    /// Allocations in all, by its own count; `None` where this build does not show its counters.
    pub num_allocs: Option<u64>,
    /// What the program has, rounded as the arena does, by its own count.
    pub bytes_in_use: Option<u64>,
    /// The most of that.
    pub peak_bytes_in_use: Option<u64>,
    /// Its largest chunk so far; `None` where an earlier one may have been larger.
    #[serde(serialize_with = "json::largest_alloc_size")]
    pub largest_alloc_bytes: Option<u64>,
    /// What it has of the driver, as far as its chunks have shown.
    pub pool_bytes: u64,
    /// The sum of the chunks that are known one by one: all, where this equals `bytes_in_use`.
    pub known_chunk_bytes: u64,
    /// What the program asked for in those.
    pub requested_bytes: u64,
    /// Bytes that it has granted before its first request for a stream and that the program still has: of ONNX Runtime the weights of models that were loaded
    /// before the first run. `None` where that is not known.
    #[serde(default)]
    pub weight_bytes: Option<u64>,
    /// Its counters contradicted no event, none is missing, and all its chunks are known.
    pub exact: bool,
    /// No event of it is traced: its numbers are as they were read last.
    #[serde(default)]
    pub as_read: bool,
    /// How often its counters contradicted an event.
    pub out_of_step: u64,
}
