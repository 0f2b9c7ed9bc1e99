//! Views of arenas: the numbers of `device.memory_stats()` for each.

use serde::{Deserialize, Serialize};

use super::{Arenas, BfcArena, Home};
use crate::words::{Framework, GpuUuid, Name, Ordinal, json};

/// A `tsl::BFCAllocator`, or a `BFCArena` of ONNX Runtime, in device memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ArenaView {
    /// Framework of the arena; `None` in recordings of versions without support for ONNX Runtime.
    #[serde(default)]
    pub framework: Option<Framework>,
    /// Name in the framework, such as `GPU_0_bfc`; `None` before the arena's memory was read.
    pub name: Option<Name>,
    /// The process's own number of the device; `None` if the arena's memory is unknown.
    pub device: Option<i32>,
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Source of the device: `segment` (a segment contains the addresses), `name` (for memory
    /// allocated before the session) or `unknown`.
    pub device_by: Name,
    /// Total number of allocations in the arena's own count; `None` if this build does not expose
    /// its counters.
    pub num_allocs: Option<u64>,
    /// Bytes in use by the program, as the arena rounds them, in its own count.
    pub bytes_in_use: Option<u64>,
    /// Peak of the bytes in use.
    pub peak_bytes_in_use: Option<u64>,
    /// Size of the largest chunk so far; `None` if an earlier one may have been larger.
    #[serde(serialize_with = "json::largest_alloc_size")]
    pub largest_alloc_bytes: Option<u64>,
    /// Bytes that the arena holds from the driver, as far as its chunks have shown.
    pub pool_bytes: u64,
    /// Bytes of the chunks known individually; all are known if this equals `bytes_in_use`.
    pub known_chunk_bytes: u64,
    /// Bytes that the program requested in these chunks.
    pub requested_bytes: u64,
    /// Bytes still in use that the arena allocated before its first request for a stream: for ONNX
    /// Runtime the weights of models loaded before the first run. `None` if unknown.
    #[serde(default)]
    pub weight_bytes: Option<u64>,
    /// Whether all chunks are known, no event is missing, and no counter contradicted an event.
    pub exact: bool,
    /// Whether no event of the arena is traced, so that its numbers are those of the last readout.
    #[serde(default)]
    pub as_read: bool,
    /// Number of contradictions between counters and events.
    pub out_of_step: u64,
}

/// Returns the arenas of a process that are not in host memory; `uuid` returns the GPU of a device.
pub(crate) fn arenas(arenas: &Arenas, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Vec<ArenaView> {
    let shown = arenas.arenas().values().filter(|arena| arena.home() != Home::Host);
    shown.map(|arena| view(arena, (arenas.segment_bytes(arena), arenas.is_stopped()), &uuid)).collect()
}

fn view(arena: &BfcArena, (pool_bytes, as_read): (u64, bool), uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> ArenaView {
    let counters = arena.counters();
    let ordinal = arena.home().ordinal();
    let device_by = match arena.home() {
        Home::Device(_) => "segment",
        Home::Named(_) => "name",
        Home::Unknown | Home::Host => "unknown",
    };
    ArenaView {
        framework: arena.framework(),
        name: arena.name().cloned(),
        device: ordinal.map(|ordinal| ordinal.0),
        uuid: ordinal.and_then(uuid),
        device_by: device_by.into(),
        num_allocs: counters.map(|now| now.num_allocs),
        bytes_in_use: counters.map(|now| now.bytes_in_use),
        peak_bytes_in_use: counters.map(|now| now.peak_bytes_in_use),
        largest_alloc_bytes: arena.largest_bytes(),
        pool_bytes,
        known_chunk_bytes: arena.known_bytes(),
        requested_bytes: arena.requested_bytes(),
        weight_bytes: arena.early_bytes().filter(|_| !as_read),
        exact: arena.is_exact() && !as_read,
        as_read,
        out_of_step: arena.out_of_step(),
    }
}
