//! Text output of the arenas of JAX, TensorFlow and ONNX Runtime, with the fields and names of
//! `device.memory_stats()`.

use memwatch_core::snapshot::{ArenaView, ProcessView, Snapshot};

use crate::render::format::{UNKNOWN, bytes, count, known, plural};
use crate::render::sentences;
use crate::render::text::grid::{Align, TextGrid};

pub(super) fn heading(snapshot: &Snapshot, process: &ProcessView, arena: &ArenaView) -> String {
    format!(
        "PID {}  {}  GPU {}  {}  in use {}  peak {}",
        process.tgid.0,
        sentences::short_command(process),
        sentences::gpu_number(snapshot, arena.uuid.as_ref()),
        arena.name.as_deref().unwrap_or("arena"),
        known(arena.bytes_in_use, bytes),
        known(arena.peak_bytes_in_use, bytes),
    )
}

/// Returns the numbers of an arena, in readable units and in bytes as in `memory_stats()`.
pub(super) fn numbers(arena: &ArenaView) -> TextGrid {
    let mut grid = TextGrid::new(&[("METRIC", Align::Left), ("VALUE", Align::Right), ("BYTES", Align::Right)]);
    let mut push = |title: &str, value: Option<u64>, is_bytes: bool| {
        let readable = if is_bytes { known(value, bytes) } else { known(value, count) };
        let exact = value.filter(|_| is_bytes).map_or_else(String::new, |value| value.to_string());
        grid.push(vec![title.to_owned(), readable, exact]);
    };
    push("num_allocs", arena.num_allocs, false);
    push("bytes_in_use", arena.bytes_in_use, true);
    push("peak_bytes_in_use", arena.peak_bytes_in_use, true);
    push("largest_alloc_size", arena.largest_alloc_bytes, true);
    push("pool_bytes", Some(arena.pool_bytes).filter(|bytes| *bytes > 0), true);
    if let Some(weights) = arena.weight_bytes {
        push("weights (before the first run)", Some(weights), true);
    }
    push("requested in known chunks", Some(arena.requested_bytes), true);
    grid
}

/// Returns sentences on why the numbers may be inexact.
pub(super) fn doubts(arena: &ArenaView) -> Vec<String> {
    const NAMED: &str = "its GPU is derived from the allocator's name: its memory was allocated before attach";
    const UNKNOWN_PLACE: &str = "its GPU is not known: no driver allocation that was seen holds its memory";
    let mut doubts = Vec::new();
    if arena.bytes_in_use.is_none() {
        doubts.push(format!("{UNKNOWN} the location of the allocator's counters in this build is unknown"));
    }
    if arena.out_of_step > 0 {
        let times = plural(arena.out_of_step, "time", "times");
        doubts.push(format!("out of step with the allocator {times}: in no sum of exact numbers"));
    }
    if arena.as_read {
        doubts.push("read from its memory now and then: its events are not traced".to_owned());
    }
    match &*arena.device_by {
        "name" => doubts.push(NAMED.to_owned()),
        "unknown" => doubts.push(UNKNOWN_PLACE.to_owned()),
        _ => {}
    }
    if let Some(in_use) = arena.bytes_in_use.filter(|in_use| *in_use != arena.known_chunk_bytes) {
        doubts.push(format!("{} of {} are known one by one", bytes(arena.known_chunk_bytes), bytes(in_use)));
    }
    doubts
}
