//! JSON output of forecasts: a part of `memwatch oom`'s report, and a line for each change.

use std::io;

use memwatch_core::features::forecast::view::{
    ForecastChangeView, ForecastsView, GpuForecastView, OutlookView, ProcessForecastView,
};
use memwatch_core::snapshot::Snapshot;
use serde::Serialize;

use crate::commands::leak::json::{LeakFindingData, findings};
use crate::commands::oom::forecast::advice;
use crate::render::json::{ReportOrigin, write_report};

/// Writes a change as one line.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    view: &ForecastChangeView,
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    write_report(out, "memwatch.forecast/3", change(view), snapshot, origin)
}

#[derive(Serialize)]
pub(crate) struct ForecastData<'a> {
    #[serde(flatten)]
    view: &'a ForecastsView,
    gpus: Vec<ForecastGpuData<'a>>,
    processes: Vec<ForecastProcessData<'a>>,
}

#[derive(Serialize)]
pub(crate) struct ForecastChangeData<'a> {
    #[serde(flatten)]
    view: &'a ForecastChangeView,
    level: &'a str,
    gpu: ForecastGpuData<'a>,
    processes: Vec<ForecastProcessData<'a>>,
}

#[derive(Serialize)]
struct ForecastGpuData<'a> {
    #[serde(flatten)]
    view: &'a GpuForecastView,
    #[serde(flatten)]
    outlook: &'a OutlookView,
}

#[derive(Serialize)]
struct ForecastProcessData<'a> {
    #[serde(flatten)]
    view: &'a ProcessForecastView,
    #[serde(flatten)]
    outlook: &'a OutlookView,
    growing: Vec<LeakFindingData<'a>>,
    advice: Vec<String>,
}

pub(crate) fn forecasts(view: &ForecastsView) -> ForecastData<'_> {
    ForecastData { view, gpus: view.gpus.iter().map(gpu).collect(), processes: processes(&view.processes) }
}

pub(crate) fn change(view: &ForecastChangeView) -> ForecastChangeData<'_> {
    let level = &view.gpu.outlook.level;
    ForecastChangeData { view, level, gpu: gpu(&view.gpu), processes: processes(&view.processes) }
}

fn gpu(view: &GpuForecastView) -> ForecastGpuData<'_> {
    ForecastGpuData { view, outlook: &view.outlook }
}

fn processes(views: &[ProcessForecastView]) -> Vec<ForecastProcessData<'_>> {
    views.iter().map(process).collect()
}

fn process(view: &ProcessForecastView) -> ForecastProcessData<'_> {
    ForecastProcessData { view, outlook: &view.outlook, growing: findings(&view.growing), advice: advice(view) }
}
