//! `memwatch sites`, `stages` and `layers` in JSON.

use std::collections::BTreeMap;
use std::io;

use memwatch_core::allocators::names::HeldAs;
use memwatch_core::snapshot::{
    DevicePlacesView, LargeView, LayerView, NativeView, PhaseView, PlaceNameView, PlacesView, ProcessView, RefusalView,
    SiteView, Snapshot, StackView, StageBytesView, StageView, SumView, WhoseView, largest,
};
use memwatch_core::words::Name;
use serde::Serialize;

use super::overhead::{self, OverheadJson, seconds};
use super::{Origin, write_report};
use crate::render::places::Places;
use crate::render::wall_clock::WallClock;

impl Places {
    const fn schema(self) -> &'static str {
        match self {
            Self::Sites => "memwatch.sites/2",
            Self::Stages => "memwatch.stages/2",
            Self::Layers => "memwatch.layers/2",
        }
    }
}

/// Writes one list of each process whose tensors are watched as one line; `top` rows at most, of which the last stands for all others.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    (which, top): (Places, usize),
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    let processes = snapshot.processes.iter().filter_map(|process| process_json(process, (which, top), origin.clock));
    write_report(out, which.schema(), Listed { processes: processes.collect() }, snapshot, origin)
}

#[derive(Serialize)]
struct Listed<'a> {
    processes: Vec<ProcessJson<'a>>,
}

#[derive(Serialize)]
struct ProcessJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    comm: &'a str,
    command: &'a str,
    observed_since: String,
    peaks_since: Option<String>,
    exact: bool,
    losses: &'a BTreeMap<Name, u64>,
    native_stacks: &'a BTreeMap<Name, u64>,
    stacks_left_out: u64,
    steps: Option<u64>,
    optimizers: &'a BTreeMap<String, u64>,
    ambiguous_nodes: u64,
    overhead: Option<OverheadJson>,
    devices: Vec<DeviceJson<'a>>,
    failures: Vec<FailureJson<'a>>,
}

/// What a process holds on a device, and where it comes from.
#[derive(Serialize)]
pub(crate) struct DeviceJson<'a> {
    device: i32,
    uuid: Option<&'a str>,
    allocated_bytes: u64,
    unplaced_bytes: i64,
    #[serde(flatten)]
    total: DeviceSumJson,
    #[serde(flatten)]
    rows: Rows<'a>,
}

/// The lists of one report.
#[derive(Serialize)]
#[serde(untagged)]
enum Rows<'a> {
    Sites { sites: Vec<SiteJson>, large: Vec<LargeJson<'a>>, stacks: Vec<StackJson<'a>> },
    Stages { stages: Vec<StageJson<'a>>, phases: Vec<PhaseJson> },
    Layers { layers: Vec<LayerJson> },
    All { stages: Vec<StageJson<'a>>, layers: Vec<LayerJson>, sites: Vec<SiteJson> },
}

/// Of a device that is what stands in the rows of each list; `allocated_bytes` is what its allocator reports.
#[derive(Serialize)]
struct DeviceSumJson {
    attributed_bytes: u64,
    #[serde(flatten)]
    sum: HistoryJson,
}

#[derive(Serialize)]
struct SumJson {
    allocated_bytes: u64,
    #[serde(flatten)]
    sum: HistoryJson,
}

#[derive(Serialize)]
struct HistoryJson {
    peak_bytes: u64,
    at_peak_bytes: u64,
    total_bytes: u64,
    allocations: u64,
    frees: u64,
    mean_lifetime_seconds: Option<f64>,
    longest_lifetime_seconds: Option<f64>,
    /// Of all its blocks, by windows of tracing or by those of its small blocks that were drawn; `null` where all of it is traced.
    sampled: Option<SampledJson>,
    /// What its live blocks come to, by those of its small ones that were drawn; `null` where each has its line.
    sampled_live: Option<SampledLiveJson>,
}

#[derive(Serialize)]
struct SampledLiveJson {
    allocated_bytes: u64,
    standard_error_bytes: Option<u64>,
}

#[derive(Serialize)]
struct SampledJson {
    total_bytes: u64,
    standard_error_bytes: Option<u64>,
}

#[derive(Serialize)]
struct SiteJson {
    kind: Name,
    file: Option<String>,
    line: Option<u32>,
    function: Option<String>,
    held: Option<HeldAs>,
    #[serde(flatten)]
    sum: SumJson,
}

#[derive(Serialize)]
struct StageJson<'a> {
    stage: &'a str,
    recomputed: bool,
    captured: bool,
    #[serde(flatten)]
    sum: SumJson,
}

#[derive(Serialize)]
struct PhaseJson {
    kind: Name,
    name: Option<String>,
    #[serde(flatten)]
    sum: SumJson,
}

#[derive(Serialize)]
struct LayerJson {
    kind: Name,
    model: Option<String>,
    name: Option<String>,
    class: Option<String>,
    #[serde(flatten)]
    sum: SumJson,
    stages: BTreeMap<Name, StageBytesView>,
    host_duration_seconds: Option<f64>,
    rounding_bytes: Option<u64>,
    total_rounding_bytes: Option<u64>,
    nearby_split_bytes: Option<u64>,
}

#[derive(Serialize)]
struct StackJson<'a> {
    frames: &'a [memwatch_core::snapshot::FrameView],
    truncated: bool,
    native: Option<&'a NativeView>,
    #[serde(flatten)]
    sum: SumJson,
}

#[derive(Serialize)]
struct LargeJson<'a> {
    address: u64,
    bytes: u64,
    granted: String,
    #[serde(flatten)]
    whose: WhoseJson<'a>,
}

#[derive(Serialize)]
struct FailureJson<'a> {
    time: String,
    device: i32,
    requested_bytes: u64,
    #[serde(flatten)]
    whose: WhoseJson<'a>,
}

#[derive(Serialize)]
struct WhoseJson<'a> {
    stage: &'a str,
    stage_by: &'a str,
    step: u64,
    site: &'a PlaceNameView,
    layer: &'a PlaceNameView,
}

fn process_json<'a>(process: &'a ProcessView, asked: (Places, usize), clock: &WallClock) -> Option<ProcessJson<'a>> {
    let tensors = process.tensors.as_ref()?;
    let places = &tensors.places;
    Some(ProcessJson {
        tgid: process.tgid.0,
        comm: &process.comm,
        command: &process.command,
        observed_since: clock.rfc3339(process.observed_since_ns),
        peaks_since: process.peaks_begun_ns.map(|time_ns| clock.rfc3339(time_ns)),
        exact: process.exact,
        losses: &process.losses,
        native_stacks: &tensors.native_stacks,
        stacks_left_out: tensors.stacks_left_out,
        steps: places.steps,
        optimizers: &places.optimizers,
        ambiguous_nodes: places.ambiguous_nodes,
        overhead: process.overhead.as_ref().map(overhead::json),
        devices: places.devices.iter().map(|device| device_json(device, asked, clock)).collect(),
        failures: places.refusals.iter().map(|refusal| failure_json(refusal, clock)).collect(),
    })
}

/// The largest places of each device, so many rows of each kind at most.
pub(crate) fn largest_places(places: &PlacesView, top: usize) -> Vec<DeviceJson<'_>> {
    let of = |device| {
        let rows = Rows::All { stages: stages(device), layers: layers(device, top), sites: sites(device, top) };
        with_rows(device, rows)
    };
    places.devices.iter().map(of).collect()
}

fn stages(device: &DevicePlacesView) -> Vec<StageJson<'_>> {
    device.stages.iter().map(stage_json).collect()
}

fn layers(device: &DevicePlacesView, top: usize) -> Vec<LayerJson> {
    largest(device.layers.clone(), top).into_iter().map(layer_json).collect()
}

fn sites(device: &DevicePlacesView, top: usize) -> Vec<SiteJson> {
    largest(device.sites.clone(), top).into_iter().map(site_json).collect()
}

fn device_json<'a>(device: &'a DevicePlacesView, (which, top): (Places, usize), clock: &WallClock) -> DeviceJson<'a> {
    let rows = match which {
        Places::Sites => Rows::Sites {
            sites: sites(device, top),
            large: device.large.iter().map(|block| large_json(block, clock)).collect(),
            stacks: device.stacks.iter().map(stack_json).collect(),
        },
        Places::Stages => Rows::Stages {
            stages: stages(device),
            phases: largest(device.phases.clone(), top).into_iter().map(phase_json).collect(),
        },
        Places::Layers => Rows::Layers { layers: layers(device, top) },
    };
    with_rows(device, rows)
}

fn with_rows<'a>(device: &'a DevicePlacesView, rows: Rows<'a>) -> DeviceJson<'a> {
    DeviceJson {
        device: device.device,
        uuid: device.uuid.as_ref().map(memwatch_core::words::GpuUuid::as_str),
        allocated_bytes: device.allocated_bytes,
        unplaced_bytes: device.unplaced_bytes,
        total: DeviceSumJson { attributed_bytes: device.total.live_bytes, sum: history_json(&device.total) },
        rows,
    }
}

fn sum_json(sum: &SumView) -> SumJson {
    SumJson { allocated_bytes: sum.live_bytes, sum: history_json(sum) }
}

fn history_json(sum: &SumView) -> HistoryJson {
    HistoryJson {
        peak_bytes: sum.peak_bytes,
        at_peak_bytes: sum.at_peak_bytes,
        total_bytes: sum.total_bytes,
        allocations: sum.allocations,
        frees: sum.frees,
        mean_lifetime_seconds: sum.mean_lifetime_ns.map(seconds),
        longest_lifetime_seconds: sum.longest_lifetime_ns.map(seconds),
        sampled: sum.sampled.map(|sampled| SampledJson {
            total_bytes: sampled.bytes,
            standard_error_bytes: sampled.standard_error_bytes,
        }),
        sampled_live: sum.sampled_live.map(|sampled| SampledLiveJson {
            allocated_bytes: sampled.bytes,
            standard_error_bytes: sampled.standard_error_bytes,
        }),
    }
}

fn site_json(site: SiteView) -> SiteJson {
    let SiteView { kind, file, line, function, held, sum } = site;
    SiteJson { kind, file, line, function, held, sum: sum_json(&sum) }
}

fn stage_json(stage: &StageView) -> StageJson<'_> {
    let StageView { stage, recomputed, captured, sum } = stage;
    StageJson { stage, recomputed: *recomputed, captured: *captured, sum: sum_json(sum) }
}

fn phase_json(phase: PhaseView) -> PhaseJson {
    let PhaseView { kind, name, sum } = phase;
    PhaseJson { kind, name, sum: sum_json(&sum) }
}

fn layer_json(layer: LayerView) -> LayerJson {
    LayerJson {
        kind: layer.kind,
        model: layer.model,
        name: layer.name,
        class: layer.class,
        sum: sum_json(&layer.sum),
        stages: layer.stages,
        host_duration_seconds: layer.host_duration_ns.map(seconds),
        rounding_bytes: layer.rounding_bytes,
        total_rounding_bytes: layer.total_rounding_bytes,
        nearby_split_bytes: layer.nearby_split_bytes,
    }
}

fn stack_json(stack: &StackView) -> StackJson<'_> {
    StackJson {
        frames: &stack.frames,
        truncated: stack.truncated,
        native: stack.native.as_ref(),
        sum: sum_json(&stack.sum),
    }
}

fn large_json<'a>(block: &'a LargeView, clock: &WallClock) -> LargeJson<'a> {
    let LargeView { address, bytes, granted_ns, whose } = block;
    LargeJson { address: *address, bytes: *bytes, granted: clock.rfc3339(*granted_ns), whose: whose_json(whose) }
}

fn failure_json<'a>(refusal: &'a RefusalView, clock: &WallClock) -> FailureJson<'a> {
    let RefusalView { device, wanted_bytes, time_ns, whose } = refusal;
    let time = clock.rfc3339(*time_ns);
    FailureJson { time, device: *device, requested_bytes: *wanted_bytes, whose: whose_json(whose) }
}

fn whose_json(whose: &WhoseView) -> WhoseJson<'_> {
    let WhoseView { stage, by, step, site, layer } = whose;
    WhoseJson { stage, stage_by: by, step: *step, site, layer }
}

#[cfg(test)]
mod tests;
