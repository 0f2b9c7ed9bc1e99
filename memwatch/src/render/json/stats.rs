//! `memwatch stats` in JSON, and the `tensor` field of every process.

use std::collections::BTreeMap;
use std::io;

use memwatch_core::allocators::pytorch::Certainty;
use memwatch_core::snapshot::{AllocatorView, ArenaView, ProcessView, Snapshot, StatisticView, TensorsView};
use memwatch_core::words::{Framework, GpuUuid, Name};
use serde::Serialize;

use super::overhead::{self, OverheadJson, seconds};
use super::{Origin, places, write_report};
use crate::render::wall_clock::WallClock;

/// The longest list of stages, layers or lines in a process's `tensor` field; `memwatch sites`, `stages` and `layers` have all of them.
const PLACES: usize = 10;

/// Writes every number of the caching allocators of each process whose tensors are watched, as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(out: &mut impl io::Write, snapshot: &Snapshot, origin: Origin) -> io::Result<()> {
    let processes = snapshot.processes.iter().filter_map(|process| process_json(process, origin.clock));
    write_report(out, "memwatch.stats/2", StatsReport { processes: processes.collect() }, snapshot, origin)
}

#[derive(Serialize)]
struct StatsReport<'a> {
    processes: Vec<ProcessJson<'a>>,
}

#[derive(Serialize)]
struct ProcessJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    comm: &'a str,
    command: &'a str,
    observed_since: String,
    exact: bool,
    losses: &'a BTreeMap<Name, u64>,
    books_refused: Option<&'a str>,
    overhead: Option<OverheadJson>,
    devices: Vec<DeviceJson<'a>>,
    arenas: Vec<ArenaJson<'a>>,
}

/// An arena of JAX, TensorFlow or ONNX Runtime, with the keys of `device.memory_stats()` where it has them.
#[derive(Serialize)]
pub(crate) struct ArenaJson<'a> {
    framework: Option<Framework>,
    name: Option<&'a str>,
    device: Option<i32>,
    uuid: Option<&'a str>,
    device_by: &'a str,
    num_allocs: Option<u64>,
    bytes_in_use: Option<u64>,
    peak_bytes_in_use: Option<u64>,
    largest_alloc_size: Option<u64>,
    pool_bytes: u64,
    requested_bytes: u64,
    weight_bytes: Option<u64>,
    known_chunk_bytes: u64,
    exact: bool,
    as_read: bool,
    out_of_step: u64,
}

fn arena_json(arena: &ArenaView) -> ArenaJson<'_> {
    ArenaJson {
        framework: arena.framework,
        name: arena.name.as_deref(),
        device: arena.device,
        uuid: arena.uuid.as_ref().map(GpuUuid::as_str),
        device_by: &arena.device_by,
        num_allocs: arena.num_allocs,
        bytes_in_use: arena.bytes_in_use,
        peak_bytes_in_use: arena.peak_bytes_in_use,
        largest_alloc_size: arena.largest_alloc_bytes,
        pool_bytes: arena.pool_bytes,
        requested_bytes: arena.requested_bytes,
        weight_bytes: arena.weight_bytes,
        known_chunk_bytes: arena.known_chunk_bytes,
        exact: arena.exact,
        as_read: arena.as_read,
        out_of_step: arena.out_of_step,
    }
}

/// A device with all its numbers: `statistics` has PyTorch's keys and numbers, `null` where one is not known; `certainty` has the same keys.
#[derive(Serialize)]
struct DeviceJson<'a> {
    #[serde(flatten)]
    sums: GpuJson<'a>,
    readout: Option<String>,
    peaks_since: Option<String>,
    refused_readouts: u64,
    statistics: BTreeMap<&'a str, Option<i64>>,
    certainty: BTreeMap<&'a str, Certainty>,
    reasons: BTreeMap<&'a str, &'a str>,
}

/// What a process's caching allocators have.
#[derive(Serialize)]
pub(crate) struct TensorJson<'a> {
    gpus: Vec<GpuJson<'a>>,
    arenas: Vec<ArenaJson<'a>>,
    windows: Option<WindowsJson>,
    places: Vec<places::DeviceJson<'a>>,
    losses: &'a BTreeMap<Name, u64>,
}

/// The windows in which it is traced; `null` where that is all the time, or never.
#[derive(Serialize)]
struct WindowsJson {
    windows: u64,
    discarded: u64,
    seconds: f64,
}

#[derive(Serialize)]
struct GpuJson<'a> {
    device: i32,
    uuid: Option<&'a str>,
    allocated_bytes: Option<u64>,
    reserved_bytes: Option<u64>,
    cached_bytes: Option<u64>,
    active_bytes: Option<i64>,
    inactive_split_bytes: Option<u64>,
    requested_bytes: Option<i64>,
    rounding_bytes: Option<u64>,
    waste_bytes: Option<u64>,
    preexisting_bytes: Option<u64>,
    known_block_bytes: Option<u64>,
    peak_allocated_bytes: Option<i64>,
    peak_reserved_bytes: Option<i64>,
    peak_cached_bytes: Option<u64>,
    allocations: Option<i64>,
    frees: Option<i64>,
    cache_hits: Option<u64>,
    cache_misses: Option<u64>,
    hit_rate: Option<f64>,
    retries: Option<i64>,
    ooms: Option<i64>,
    observed_by: &'a str,
    counted_from: &'a str,
    out_of_step: u64,
}

/// The `tensor` field of a process.
pub(crate) fn tensor(tensors: &TensorsView) -> TensorJson<'_> {
    TensorJson {
        gpus: tensors.allocators.iter().map(gpu_json).collect(),
        arenas: tensors.arenas.iter().map(arena_json).collect(),
        windows: tensors.windows.map(|windows| WindowsJson {
            windows: windows.windows,
            discarded: windows.discarded,
            seconds: seconds(windows.open_ns),
        }),
        places: places::largest_places(&tensors.places, PLACES),
        losses: &tensors.losses,
    }
}

fn process_json<'a>(process: &'a ProcessView, clock: &WallClock) -> Option<ProcessJson<'a>> {
    let tensors = process.tensors.as_ref()?;
    Some(ProcessJson {
        tgid: process.tgid.0,
        comm: &process.comm,
        command: &process.command,
        observed_since: clock.rfc3339(process.observed_since_ns),
        exact: tensors.losses.is_empty(),
        losses: &tensors.losses,
        books_refused: tensors.books_refused.as_deref(),
        overhead: process.overhead.as_ref().map(overhead::json),
        devices: tensors.allocators.iter().map(|allocator| device_json(allocator, clock)).collect(),
        arenas: tensors.arenas.iter().map(arena_json).collect(),
    })
}

fn device_json<'a>(allocator: &'a AllocatorView, clock: &WallClock) -> DeviceJson<'a> {
    let all = || allocator.statistics.iter().map(|(key, view): (&Name, &StatisticView)| (key.as_ref(), view));
    DeviceJson {
        sums: gpu_json(allocator),
        readout: allocator.readout_ns.map(|time_ns| clock.rfc3339(time_ns)),
        peaks_since: allocator.peaks_begun_ns.map(|time_ns| clock.rfc3339(time_ns)),
        refused_readouts: allocator.refused_readouts,
        statistics: all().map(|(key, view)| (key, view.value)).collect(),
        certainty: all().map(|(key, view)| (key, view.certainty)).collect(),
        reasons: all().filter_map(|(key, view)| Some((key, view.reason.as_deref()?))).collect(),
    }
}

fn gpu_json(allocator: &AllocatorView) -> GpuJson<'_> {
    let number = |key| allocator.statistic(key);
    // What only events show, where there are any.
    let followed = |value: u64| (&*allocator.observed_by != "numbers").then_some(value);
    GpuJson {
        device: allocator.device,
        uuid: allocator.uuid.as_ref().map(GpuUuid::as_str),
        allocated_bytes: allocator.allocated_bytes,
        reserved_bytes: allocator.reserved_bytes,
        cached_bytes: allocator.cached_bytes,
        active_bytes: number("active_bytes.all.current"),
        inactive_split_bytes: allocator.inactive_split_bytes,
        requested_bytes: number("requested_bytes.all.current"),
        rounding_bytes: allocator.rounding_bytes,
        waste_bytes: allocator.waste_bytes,
        preexisting_bytes: allocator.preexisting_bytes,
        known_block_bytes: followed(allocator.known_block_bytes),
        peak_allocated_bytes: number("allocated_bytes.all.peak"),
        peak_reserved_bytes: number("reserved_bytes.all.peak"),
        peak_cached_bytes: followed(allocator.peak_cached_bytes),
        allocations: number("allocation.all.allocated"),
        frees: number("allocation.all.freed"),
        cache_hits: followed(allocator.cache_hits),
        cache_misses: followed(allocator.cache_misses),
        hit_rate: allocator.hit_rate,
        retries: number("num_alloc_retries"),
        ooms: number("num_ooms"),
        observed_by: &allocator.observed_by,
        counted_from: &allocator.counted_from,
        out_of_step: allocator.out_of_step,
    }
}

#[cfg(test)]
mod tests;
