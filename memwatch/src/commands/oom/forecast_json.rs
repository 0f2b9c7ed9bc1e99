//! Forecasts in JSON: a part of `memwatch oom`'s report, and a line for each change.

use std::io;

use memwatch_core::features::forecast::view::{
    EndView, ForecastChangeView, ForecastsView, GpuForecastView, GrowthView, OutlookView, ProcessForecastView,
};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use crate::commands::leak::json::{FindingJson, finding_json};
use crate::commands::oom::forecast::advice;
use crate::render::json::{Origin, write_report};
use crate::render::wall_clock::WallClock;

/// Writes a change as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    change: &ForecastChangeView,
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    write_report(out, "memwatch.forecast/2", change_json(change, origin.clock), snapshot, origin)
}

#[derive(Serialize)]
pub(crate) struct ForecastsJson<'a> {
    time: String,
    gpus: Vec<GpuJson<'a>>,
    processes: Vec<ProcessJson<'a>>,
}

#[derive(Serialize)]
pub(crate) struct ChangeJson<'a> {
    time: String,
    level: &'a str,
    level_before: Option<&'a str>,
    threshold_percent: Option<f64>,
    gpu: GpuJson<'a>,
    processes: Vec<ProcessJson<'a>>,
}

#[derive(Serialize)]
struct GpuJson<'a> {
    uuid: &'a str,
    number: &'a str,
    total_bytes: Option<u64>,
    used_bytes: Option<u64>,
    #[serde(flatten)]
    outlook: OutlookJson<'a>,
}

#[derive(Serialize)]
struct ProcessJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    comm: &'a str,
    command: &'a str,
    uuid: &'a str,
    #[serde(flatten)]
    outlook: OutlookJson<'a>,
    growing: Vec<FindingJson<'a>>,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct OutlookJson<'a> {
    level: &'a str,
    needed_bytes: u64,
    growth: Option<&'a GrowthView>,
    end: Option<&'a EndView>,
}

pub(crate) fn forecasts<'a>(view: &'a ForecastsView, clock: &WallClock) -> ForecastsJson<'a> {
    ForecastsJson {
        time: clock.rfc3339(view.time_ns),
        gpus: view.gpus.iter().map(gpu).collect(),
        processes: view.processes.iter().map(|own| process(own, clock)).collect(),
    }
}

pub(crate) fn change_json<'a>(change: &'a ForecastChangeView, clock: &WallClock) -> ChangeJson<'a> {
    ChangeJson {
        time: clock.rfc3339(change.time_ns),
        level: &change.gpu.outlook.level,
        level_before: change.before.as_deref(),
        threshold_percent: change.threshold_percent,
        gpu: gpu(&change.gpu),
        processes: change.processes.iter().map(|own| process(own, clock)).collect(),
    }
}

fn gpu(gpu: &GpuForecastView) -> GpuJson<'_> {
    GpuJson {
        uuid: GpuUuid::as_str(&gpu.uuid),
        number: &gpu.number,
        total_bytes: gpu.total_bytes,
        used_bytes: gpu.used_bytes,
        outlook: outlook(&gpu.outlook),
    }
}

fn process<'a>(process: &'a ProcessForecastView, clock: &WallClock) -> ProcessJson<'a> {
    ProcessJson {
        tgid: process.tgid.0,
        comm: &process.comm,
        command: &process.command,
        uuid: GpuUuid::as_str(&process.uuid),
        outlook: outlook(&process.outlook),
        growing: process.growing.iter().map(|finding| finding_json(finding, clock)).collect(),
        advice: advice(process),
    }
}

fn outlook(outlook: &OutlookView) -> OutlookJson<'_> {
    OutlookJson {
        level: &outlook.level,
        needed_bytes: outlook.needed_bytes,
        growth: outlook.growth.as_ref(),
        end: outlook.end.as_ref(),
    }
}
