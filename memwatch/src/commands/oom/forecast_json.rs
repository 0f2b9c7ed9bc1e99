//! JSON output of forecasts: a part of `memwatch oom`'s report, and a line for each change.

use std::io;

use memwatch_core::features::forecast::view::{
    ForecastChangeView, ForecastsView, GpuForecastView, OutlookView, ProcessForecastView,
};
use memwatch_core::snapshot::Snapshot;
use serde::Serialize;

use crate::commands::leak::json::{Finding, findings};
use crate::commands::oom::forecast::advice;
use crate::render::json::{Origin, write_report};

/// Writes a change as one line.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    view: &ForecastChangeView,
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    write_report(out, "memwatch.forecast/2", change(view), snapshot, origin)
}

#[derive(Serialize)]
pub(crate) struct Forecasts<'a> {
    #[serde(flatten)]
    view: &'a ForecastsView,
    gpus: Vec<Gpu<'a>>,
    processes: Vec<Process<'a>>,
}

#[derive(Serialize)]
pub(crate) struct Change<'a> {
    #[serde(flatten)]
    view: &'a ForecastChangeView,
    level: &'a str,
    gpu: Gpu<'a>,
    processes: Vec<Process<'a>>,
}

#[derive(Serialize)]
struct Gpu<'a> {
    #[serde(flatten)]
    view: &'a GpuForecastView,
    #[serde(flatten)]
    outlook: &'a OutlookView,
}

#[derive(Serialize)]
struct Process<'a> {
    #[serde(flatten)]
    view: &'a ProcessForecastView,
    #[serde(flatten)]
    outlook: &'a OutlookView,
    growing: Vec<Finding<'a>>,
    advice: Vec<String>,
}

pub(crate) fn forecasts(view: &ForecastsView) -> Forecasts<'_> {
    Forecasts { view, gpus: view.gpus.iter().map(gpu).collect(), processes: processes(&view.processes) }
}

pub(crate) fn change(view: &ForecastChangeView) -> Change<'_> {
    let level = &view.gpu.outlook.level;
    Change { view, level, gpu: gpu(&view.gpu), processes: processes(&view.processes) }
}

fn gpu(view: &GpuForecastView) -> Gpu<'_> {
    Gpu { view, outlook: &view.outlook }
}

fn processes(views: &[ProcessForecastView]) -> Vec<Process<'_>> {
    views.iter().map(process).collect()
}

fn process(view: &ProcessForecastView) -> Process<'_> {
    Process { view, outlook: &view.outlook, growing: findings(&view.growing), advice: advice(view) }
}
