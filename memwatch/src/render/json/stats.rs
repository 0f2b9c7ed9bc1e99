//! The JSON report of `memwatch stats`, and the `tensor` field of every process.

use std::collections::BTreeMap;
use std::io;

use memwatch_core::allocators::pytorch::Certainty;
use memwatch_core::snapshot::{
    AllocatorView, ArenaView, BuffersView, PoolsView, ProcessView, Snapshot, StatisticView, TensorsView, WindowsView,
};
use memwatch_core::words::{Name, Tgid, json};
use serde::Serialize;

use super::overhead::{self, OverheadJson};
use super::{ReportOrigin, places, write_report};

/// Maximum length of the lists of modules and lines in a process's `tensor` field. The complete
/// lists are in `memwatch where`.
const PLACES: usize = 10;

/// Writes all statistics of the caching allocators of each process with traced tensors, as one
/// line.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write(out: &mut impl io::Write, snapshot: &Snapshot, origin: ReportOrigin) -> io::Result<()> {
    let processes = snapshot.processes.iter().filter_map(process).collect();
    write_report(out, "memwatch.stats/3", StatsReport { processes }, snapshot, origin)
}

#[derive(Serialize)]
struct StatsReport<'a> {
    processes: Vec<StatsProcess<'a>>,
}

#[derive(Serialize)]
struct StatsProcess<'a> {
    #[serde(rename = "pid")]
    tgid: Tgid,
    comm: &'a str,
    command: &'a str,
    #[serde(serialize_with = "json::date")]
    observed_since_ns: u64,
    exact: bool,
    losses: &'a BTreeMap<Name, u64>,
    allocator_state_refused: Option<&'a str>,
    overhead: Option<OverheadJson<'a>>,
    devices: Vec<StatsDevice<'a>>,
    arenas: &'a [ArenaView],
    /// Buffers of ggml; `null` if ggml's functions are not probed.
    buffers: Option<&'a BuffersView>,
    /// Pools of RAPIDS and CuPy; `null` if the functions of neither are probed.
    pools: Option<&'a PoolsView>,
}

/// A device with all its statistics. `statistics` has PyTorch's keys and values, `null` for unknown
/// values; `certainty` has the same keys.
#[derive(Serialize)]
struct StatsDevice<'a> {
    #[serde(flatten)]
    sums: AllocatorSums<'a>,
    #[serde(serialize_with = "json::date")]
    readout_ns: Option<u64>,
    #[serde(serialize_with = "json::date")]
    peaks_since_ns: Option<u64>,
    refused_readouts: u64,
    statistics: BTreeMap<&'a str, Option<i64>>,
    certainty: BTreeMap<&'a str, Certainty>,
    reasons: BTreeMap<&'a str, &'a str>,
}

/// Caching allocators of a process.
#[derive(Serialize)]
pub(crate) struct TensorJson<'a> {
    gpus: Vec<AllocatorSums<'a>>,
    arenas: &'a [ArenaView],
    /// Buffers of ggml; `null` if ggml's functions are not probed.
    buffers: Option<&'a BuffersView>,
    /// Pools of RAPIDS and CuPy; `null` if the functions of neither are probed.
    pools: Option<&'a PoolsView>,
    /// Tracing windows; `null` if tracing is continuous or off.
    windows: Option<WindowsView>,
    attribution: Vec<places::AttributedDevice<'a>>,
    losses: &'a BTreeMap<Name, u64>,
}

/// Sums of a caching allocator. Values that require tracing are `null` if only the statistics were
/// read.
#[derive(Serialize)]
struct AllocatorSums<'a> {
    #[serde(flatten)]
    view: &'a AllocatorView,
    active_bytes: Option<i64>,
    requested_bytes: Option<i64>,
    known_block_bytes: Option<u64>,
    peak_allocated_bytes: Option<i64>,
    peak_reserved_bytes: Option<i64>,
    peak_cached_bytes: Option<u64>,
    allocations: Option<i64>,
    frees: Option<i64>,
    cache_hits: Option<u64>,
    cache_misses: Option<u64>,
    retries: Option<i64>,
    ooms: Option<i64>,
}

/// Returns the `tensor` field of a process.
pub(crate) fn tensor(tensors: &TensorsView) -> TensorJson<'_> {
    TensorJson {
        gpus: tensors.allocators.iter().map(sums).collect(),
        arenas: &tensors.arenas,
        buffers: tensors.buffers.as_ref(),
        pools: tensors.pools.as_ref(),
        windows: tensors.windows,
        attribution: places::largest_places(&tensors.attribution, PLACES),
        losses: &tensors.losses,
    }
}

fn process(process: &ProcessView) -> Option<StatsProcess<'_>> {
    let tensors = process.tensors.as_ref()?;
    Some(StatsProcess {
        tgid: process.tgid,
        comm: &process.comm,
        command: &process.command,
        observed_since_ns: process.observed_since_ns,
        exact: tensors.losses.is_empty(),
        losses: &tensors.losses,
        allocator_state_refused: tensors.allocator_state_refused.as_deref(),
        overhead: overhead::of(process),
        devices: tensors.allocators.iter().map(device).collect(),
        arenas: &tensors.arenas,
        buffers: tensors.buffers.as_ref(),
        pools: tensors.pools.as_ref(),
    })
}

fn device(view: &AllocatorView) -> StatsDevice<'_> {
    let all = || view.statistics.iter().map(|(key, view): (&Name, &StatisticView)| (key.as_ref(), view));
    StatsDevice {
        sums: sums(view),
        readout_ns: view.readout_ns,
        peaks_since_ns: view.peaks_begun_ns,
        refused_readouts: view.refused_readouts,
        statistics: all().map(|(key, view)| (key, view.value)).collect(),
        certainty: all().map(|(key, view)| (key, view.certainty)).collect(),
        reasons: all().filter_map(|(key, view)| Some((key, view.reason.as_deref()?))).collect(),
    }
}

fn sums(view: &AllocatorView) -> AllocatorSums<'_> {
    let number = |key| view.statistic(key);
    let followed = |value: u64| (&*view.observed_by != "numbers").then_some(value);
    AllocatorSums {
        view,
        active_bytes: number("active_bytes.all.current"),
        requested_bytes: number("requested_bytes.all.current"),
        known_block_bytes: followed(view.known_block_bytes),
        peak_allocated_bytes: number("allocated_bytes.all.peak"),
        peak_reserved_bytes: number("reserved_bytes.all.peak"),
        peak_cached_bytes: followed(view.peak_cached_bytes),
        allocations: number("allocation.all.allocated"),
        frees: number("allocation.all.freed"),
        cache_hits: followed(view.cache_hits),
        cache_misses: followed(view.cache_misses),
        retries: number("num_alloc_retries"),
        ooms: number("num_ooms"),
    }
}

#[cfg(test)]
mod tests;
