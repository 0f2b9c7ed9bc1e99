//! Builds the views of arenas.

use crate::allocators::bfc::{Arenas, BfcArena, Home};
use crate::snapshot::ArenaView;
use crate::words::{GpuUuid, Ordinal};

/// Returns the arenas of a process that are not in host memory; `uuid` returns the GPU of a device.
pub(super) fn arenas(arenas: &Arenas, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Vec<ArenaView> {
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
