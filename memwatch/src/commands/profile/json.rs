//! `memwatch profile` in JSON: each number over time, with where it is exact and where it was looked at.

use std::io;

use memwatch_core::features::profile::view::{
    CourseView, DeviceProfileView, GpuProfileView, ProcessProfileView, ProfileView, RatioView,
};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use crate::render::format::ratio;
use crate::render::json::{Origin, write_report};
use crate::render::wall_clock::WallClock;

/// Writes the report as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    profile: &ProfileView,
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    write_report(out, "memwatch.profile/2", data(profile, snapshot, origin.clock), snapshot, origin)
}

/// The same within another report.
pub(crate) fn data<'a>(profile: &'a ProfileView, snapshot: &'a Snapshot, clock: &WallClock) -> Data<'a> {
    Data {
        interval_seconds: seconds(profile.interval_ns),
        asked_interval_seconds: seconds(profile.asked_interval_ns),
        begin_time: clock.rfc3339(profile.begun_ns),
        end_time: clock.rfc3339(profile.last_ns),
        summary: summary(profile),
        gpus: profile.gpus.iter().map(|gpu| gpu_json(gpu, snapshot, clock)).collect(),
        processes: profile.processes.iter().map(|process| process_json(process, clock)).collect(),
    }
}

#[derive(Serialize)]
pub(crate) struct Data<'a> {
    interval_seconds: f64,
    asked_interval_seconds: f64,
    begin_time: String,
    end_time: String,
    summary: Summary<'a>,
    gpus: Vec<GpuJson<'a>>,
    processes: Vec<ProcessJson<'a>>,
}

#[derive(Serialize)]
struct Summary<'a> {
    seconds: f64,
    gpus: usize,
    processes: usize,
    /// Every record of every process arrived.
    exact: bool,
    /// The GPU of which most was used, by NVML, for its size.
    fullest: Option<Fullest<'a>>,
}

#[derive(Serialize)]
struct Fullest<'a> {
    uuid: &'a str,
    maximum_utilization: f64,
    maximum_bytes: u64,
}

#[derive(Serialize)]
struct GpuJson<'a> {
    uuid: &'a str,
    nvml_index: Option<u32>,
    name: Option<&'a str>,
    total_bytes: Option<u64>,
    used: Option<CourseJson>,
    live: Option<CourseJson>,
    utilization: Option<RatioView>,
}

#[derive(Serialize)]
struct ProcessJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    comm: &'a str,
    command: &'a str,
    observed_since: String,
    ended: Option<String>,
    exact: bool,
    gpus: Vec<DeviceJson<'a>>,
    pinned: Option<CourseJson>,
}

#[derive(Serialize)]
struct DeviceJson<'a> {
    uuid: Option<&'a str>,
    total_bytes: Option<u64>,
    live: Option<CourseJson>,
    used: Option<CourseJson>,
    allocated: Option<CourseJson>,
    reserved: Option<CourseJson>,
    utilization: Option<RatioView>,
    fragmentation: Option<RatioView>,
}

#[derive(Serialize)]
struct CourseJson {
    current_bytes: u64,
    average_bytes: Option<u64>,
    minimum_bytes: u64,
    maximum_bytes: u64,
    peak_bytes: Option<u64>,
    peak_time: Option<String>,
    p50_bytes: u64,
    p90_bytes: u64,
    p95_bytes: u64,
    p99_bytes: u64,
    samples: u64,
    since: String,
    until: String,
}

fn summary(profile: &ProfileView) -> Summary<'_> {
    let used = |gpu: &GpuProfileView| Some((gpu.used?.maximum_bytes, gpu.total_bytes?));
    let part = |gpu: &&GpuProfileView| used(gpu).map_or(-1.0, |(maximum, total)| ratio(maximum, total));
    let fullest = profile.gpus.iter().max_by(|one, other| part(one).total_cmp(&part(other)));
    let reported = |gpu: &'_ GpuProfileView| used(gpu).map(|(maximum, total)| (ratio(maximum, total), maximum));
    Summary {
        seconds: seconds(profile.last_ns.saturating_sub(profile.begun_ns)),
        gpus: profile.gpus.len(),
        processes: profile.processes.len(),
        exact: profile.processes.iter().all(|process| process.exact),
        fullest: fullest.and_then(|gpu| {
            let (maximum_utilization, maximum_bytes) = reported(gpu)?;
            Some(Fullest { uuid: gpu.uuid.as_str(), maximum_utilization, maximum_bytes })
        }),
    }
}

fn gpu_json<'a>(gpu: &'a GpuProfileView, snapshot: &'a Snapshot, clock: &WallClock) -> GpuJson<'a> {
    let facts = snapshot.gpus.iter().find(|view| view.uuid == gpu.uuid);
    GpuJson {
        uuid: gpu.uuid.as_str(),
        nvml_index: facts.map(|facts| facts.nvml_index),
        name: facts.map(|facts| facts.name.as_str()),
        total_bytes: gpu.total_bytes,
        used: gpu.used.map(|course| course_json(&course, clock)),
        live: gpu.live.map(|course| course_json(&course, clock)),
        utilization: utilization(gpu.used.as_ref(), gpu.total_bytes),
    }
}

fn process_json<'a>(process: &'a ProcessProfileView, clock: &WallClock) -> ProcessJson<'a> {
    ProcessJson {
        tgid: process.tgid.0,
        comm: &process.comm,
        command: &process.command,
        observed_since: clock.rfc3339(process.observed_since_ns),
        ended: process.ended_ns.map(|ended_ns| clock.rfc3339(ended_ns)),
        exact: process.exact,
        gpus: process.gpus.iter().map(|gpu| device_json(gpu, clock)).collect(),
        pinned: process.pinned.map(|course| course_json(&course, clock)),
    }
}

fn device_json<'a>(device: &'a DeviceProfileView, clock: &WallClock) -> DeviceJson<'a> {
    let course = |course: Option<CourseView>| course.map(|course| course_json(&course, clock));
    DeviceJson {
        uuid: device.uuid.as_ref().map(GpuUuid::as_str),
        total_bytes: device.total_bytes,
        live: course(device.live),
        used: course(device.used),
        allocated: course(device.allocated),
        reserved: course(device.reserved),
        utilization: utilization(device.used.as_ref().or(device.live.as_ref()), device.total_bytes),
        fragmentation: device.fragmentation,
    }
}

fn course_json(course: &CourseView, clock: &WallClock) -> CourseJson {
    CourseJson {
        current_bytes: course.current_bytes,
        average_bytes: course.average_bytes,
        minimum_bytes: course.minimum_bytes,
        maximum_bytes: course.maximum_bytes,
        peak_bytes: course.peak_bytes,
        peak_time: course.peak_ns.map(|time_ns| clock.rfc3339(time_ns)),
        p50_bytes: course.p50_bytes,
        p90_bytes: course.p90_bytes,
        p95_bytes: course.p95_bytes,
        p99_bytes: course.p99_bytes,
        samples: course.samples,
        since: clock.rfc3339(course.begun_ns),
        until: clock.rfc3339(course.last_ns),
    }
}

/// What part of a GPU's memory a number was; `None` where the GPU's size is not known.
pub(crate) fn utilization(course: Option<&CourseView>, total_bytes: Option<u64>) -> Option<RatioView> {
    let (course, total_bytes) = (course?, total_bytes.filter(|total| *total > 0)?);
    let of = |bytes| ratio(bytes, total_bytes);
    Some(RatioView {
        current: Some(of(course.current_bytes)),
        average: of(course.average_bytes.unwrap_or(course.current_bytes)),
        maximum: of(course.peak_bytes.unwrap_or(course.maximum_bytes)),
        p50: of(course.p50_bytes),
        p90: of(course.p90_bytes),
        p95: of(course.p95_bytes),
        p99: of(course.p99_bytes),
        samples: course.samples,
    })
}

#[expect(clippy::cast_precision_loss, reason = "a time needs no sixteen digits")]
fn seconds(time_ns: u64) -> f64 {
    time_ns as f64 / 1e9
}
