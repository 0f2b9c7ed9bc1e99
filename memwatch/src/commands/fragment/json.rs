//! `memwatch fragment` in JSON.

use std::io;

use memwatch_core::features::fragments::view::{
    DriverFragmentsView, DriverGpuView, FitView, MomentView, PinView, SegmentView, ShapeView,
};
use memwatch_core::ledger::layout::{GRANULE_BYTES, Holes};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use crate::commands::fragment::words::{Found, FragmentReport, granules, remarks, scattered_part, unused_part};
use crate::render::json::{Origin, write_report};
use crate::render::wall_clock::WallClock;

/// Writes the report as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(out: &mut impl io::Write, found: &Found, snapshot: &Snapshot, origin: Origin) -> io::Result<()> {
    write_report(out, "memwatch.fragment/2", data(found, snapshot, origin.clock), snapshot, origin)
}

/// The same within another report.
pub(crate) fn data<'a>(found: &'a Found, snapshot: &'a Snapshot, clock: &WallClock) -> Listed<'a> {
    let driver = |one| driver(one, found.wanted_bytes, clock);
    Listed {
        devices: found.allocators.iter().map(|one| device(one, snapshot, clock)).collect(),
        driver: found.drivers.iter().map(driver).collect(),
        remarks: found.driver_remarks(snapshot),
    }
}

#[derive(Serialize)]
pub(crate) struct Listed<'a> {
    devices: Vec<DeviceJson<'a>>,
    /// What processes have of the driver itself.
    driver: Vec<DriverJson<'a>>,
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct DriverJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    observed_since: String,
    /// When it lay as it is shown; `null` for now.
    at_worst: Option<String>,
    addresses: Holes,
    gpus: Vec<DriverGpuJson<'a>>,
}

#[derive(Serialize)]
struct DriverGpuJson<'a> {
    uuid: Option<&'a str>,
    device: LinearJson,
    physical: PhysicalJson,
    pool: DriverPoolJson,
    wasted_bytes: u64,
    request: Option<RequestJson>,
}

#[derive(Serialize)]
struct LinearJson {
    live_bytes: u64,
    allocations: u64,
    small_bytes: u64,
    small_allocations: u64,
    /// The granules it lies in, by the addresses: an estimate of what the driver has for it.
    backed_bytes: u64,
    granule_bytes: u64,
    unused_bytes: u64,
    estimated: bool,
}

#[derive(Serialize)]
struct PhysicalJson {
    live_bytes: u64,
    /// Neither mapped nor bound.
    idle_bytes: u64,
}

#[derive(Serialize)]
struct RequestJson {
    wanted_bytes: u64,
    driver_bytes: u64,
    driver_free_bytes: Option<u64>,
}

#[derive(Serialize)]
struct DeviceJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    comm: &'a str,
    command: &'a str,
    observed_since: String,
    device: i32,
    uuid: Option<&'a str>,
    /// When it lay as it is shown; `null` for now.
    at_worst: Option<String>,
    traced: bool,
    reported_reserved_bytes: Option<u64>,
    reported_allocated_bytes: Option<u64>,
    unseen_bytes: u64,
    all: PoolJson,
    small: PoolJson,
    large: PoolJson,
    driver_pool: Option<DriverPoolJson>,
    request: Option<FitView>,
    worst: Option<MomentJson>,
    moments: Vec<MomentJson>,
    segments: &'a [SegmentView],
    /// Whose lines' blocks hold free memory between blocks.
    sites: &'a [PinView],
    layers: &'a [PinView],
    remarks: Vec<String>,
}

#[derive(Serialize)]
struct PoolJson {
    #[serde(flatten)]
    shape: ShapeView,
    /// `(reserved - allocated) / reserved`.
    unused_part: f64,
    /// `1 - largest free / free`.
    scattered_part: f64,
}

#[derive(Serialize)]
struct DriverPoolJson {
    used_bytes: u64,
    backed_bytes: Option<u64>,
    backed_estimated: bool,
    unused_bytes: Option<u64>,
}

#[derive(Serialize)]
struct MomentJson {
    time: String,
    reserved_bytes: u64,
    allocated_bytes: u64,
    free_bytes: u64,
    split_bytes: u64,
    largest_free_bytes: u64,
}

fn moment_json(moment: MomentView, clock: &WallClock) -> MomentJson {
    let MomentView { time_ns, reserved_bytes, allocated_bytes, free_bytes, split_bytes, largest_free_bytes } = moment;
    MomentJson {
        time: clock.rfc3339(time_ns),
        reserved_bytes,
        allocated_bytes,
        free_bytes,
        split_bytes,
        largest_free_bytes,
    }
}

fn device<'a>(reported: &'a FragmentReport, snapshot: &'a Snapshot, clock: &WallClock) -> DeviceJson<'a> {
    let (view, process) = (&reported.view, reported.process(snapshot));
    let moment = |moment: &MomentView| moment_json(*moment, clock);
    let driver_pool = reported.driver_pool(snapshot).map(|pool| DriverPoolJson {
        used_bytes: pool.live_bytes,
        backed_bytes: pool.backed_bytes,
        backed_estimated: pool.backed_estimated,
        unused_bytes: pool.backed_bytes.map(|backed| backed.saturating_sub(pool.live_bytes)),
    });
    DeviceJson {
        tgid: view.tgid.0,
        comm: process.map_or("", |process| &process.comm),
        command: process.map_or("", |process| &process.command),
        observed_since: clock.rfc3339(view.observed_since_ns),
        device: view.device,
        uuid: view.uuid.as_ref().map(GpuUuid::as_str),
        at_worst: view.at_worst_ns.map(|time_ns| clock.rfc3339(time_ns)),
        traced: view.traced,
        reported_reserved_bytes: view.reported_reserved_bytes,
        reported_allocated_bytes: view.reported_allocated_bytes,
        unseen_bytes: reported.unseen_bytes(),
        all: pool(&reported.all()),
        small: pool(&view.small),
        large: pool(&view.large),
        driver_pool,
        request: view.request,
        worst: view.worst.as_ref().map(moment),
        moments: view.moments.iter().map(moment).collect(),
        segments: &view.segments,
        sites: &view.sites,
        layers: &view.layers,
        remarks: remarks(reported),
    }
}

fn driver<'a>(view: &'a DriverFragmentsView, wanted_bytes: Option<u64>, clock: &WallClock) -> DriverJson<'a> {
    DriverJson {
        tgid: view.tgid.0,
        observed_since: clock.rfc3339(view.observed_since_ns),
        at_worst: view.at_worst_ns.map(|time_ns| clock.rfc3339(time_ns)),
        addresses: view.addresses,
        gpus: view.gpus.iter().map(|gpu| driver_gpu(gpu, wanted_bytes)).collect(),
    }
}

fn driver_gpu(gpu: &DriverGpuView, wanted_bytes: Option<u64>) -> DriverGpuJson<'_> {
    let linear = &gpu.linear;
    DriverGpuJson {
        uuid: gpu.uuid.as_ref().map(GpuUuid::as_str),
        device: LinearJson {
            live_bytes: linear.bytes,
            allocations: linear.allocations,
            small_bytes: linear.small_bytes,
            small_allocations: linear.small_allocations,
            backed_bytes: linear.granule_bytes,
            granule_bytes: GRANULE_BYTES,
            unused_bytes: linear.wasted_bytes(),
            estimated: true,
        },
        physical: PhysicalJson { live_bytes: gpu.physical_bytes, idle_bytes: gpu.idle_physical_bytes },
        pool: DriverPoolJson {
            used_bytes: gpu.pool_bytes,
            backed_bytes: gpu.pool_backed_bytes,
            backed_estimated: gpu.pool_backed_estimated,
            unused_bytes: gpu.pool_backed_bytes.map(|backed| backed.saturating_sub(gpu.pool_bytes)),
        },
        wasted_bytes: gpu.wasted_bytes,
        request: wanted_bytes.map(|wanted_bytes| RequestJson {
            wanted_bytes,
            driver_bytes: granules(wanted_bytes),
            driver_free_bytes: gpu.driver_free_bytes,
        }),
    }
}

fn pool(shape: &ShapeView) -> PoolJson {
    PoolJson { shape: *shape, unused_part: unused_part(shape), scattered_part: scattered_part(shape) }
}
