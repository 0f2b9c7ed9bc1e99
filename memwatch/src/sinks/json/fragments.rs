//! `memwatch fragment` in JSON.

use std::io;

use memwatch_core::snapshot::{FitView, MomentView, SegmentView, ShapeView, Snapshot};
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use super::{Origin, write_report};
use crate::sinks::fragments::{Told, remarks, scattered_part, unused_part};
use crate::sinks::wall_clock::WallClock;

/// Writes the report as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(out: &mut impl io::Write, told: &[Told], snapshot: &Snapshot, origin: Origin) -> io::Result<()> {
    write_report(out, "memwatch.fragment/1", data(told, snapshot, origin.clock), snapshot, origin)
}

/// The same within another report.
pub(super) fn data<'a>(told: &'a [Told], snapshot: &'a Snapshot, clock: &WallClock) -> Listed<'a> {
    Listed { devices: told.iter().map(|one| device(one, snapshot, clock)).collect() }
}

#[derive(Serialize)]
pub(super) struct Listed<'a> {
    devices: Vec<DeviceJson<'a>>,
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
}

#[derive(Serialize)]
struct MomentJson {
    time: String,
    #[serde(flatten)]
    moment: MomentView,
}

fn device<'a>(told: &'a Told, snapshot: &'a Snapshot, clock: &WallClock) -> DeviceJson<'a> {
    let (view, process) = (&told.view, told.process(snapshot));
    let moment = |moment: &MomentView| MomentJson { time: clock.rfc3339(moment.time_ns), moment: *moment };
    let driver_pool = told.driver_pool(snapshot).map(|pool| DriverPoolJson {
        used_bytes: pool.live_bytes,
        backed_bytes: pool.backed_bytes,
        backed_estimated: pool.backed_estimated,
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
        unseen_bytes: told.unseen_bytes(),
        all: pool(&told.all()),
        small: pool(&view.small),
        large: pool(&view.large),
        driver_pool,
        request: view.request,
        worst: view.worst.as_ref().map(moment),
        moments: view.moments.iter().map(moment).collect(),
        segments: &view.segments,
        remarks: remarks(told),
    }
}

fn pool(shape: &ShapeView) -> PoolJson {
    PoolJson { shape: *shape, unused_part: unused_part(shape), scattered_part: scattered_part(shape) }
}
