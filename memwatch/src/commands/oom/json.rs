//! JSON output of `memwatch oom`.

use std::io;

use memwatch_core::features::oom::view::{OomView, SurvivedView};
use memwatch_core::snapshot::{RefusedView, Snapshot};
use memwatch_core::words::{GpuUuid, Tgid, json};
use serde::Serialize;

use super::forecast_json::{ForecastChangeData, ForecastData, change, forecasts};
use super::names::{self, OomGrown, OomNames};
use crate::commands::oom::words::{self, Failed, OomReport, Unseen, advice, holders, unwatched_bytes};
use crate::render::causes::Worded;
use crate::render::json::{ReportOrigin, write_report};

/// Writes the report as one line.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    report: &OomReport<'_>,
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    let data = OomReportData {
        forecast: forecasts(report.forecasts),
        changes: report.changes.iter().map(change).collect(),
        failures: data(report.failed),
    };
    write_report(out, "memwatch.oom/3", data, snapshot, origin)
}

/// Writes one failure as one line, as soon as it happens.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write_failure(
    out: &mut impl io::Write,
    view: &OomView,
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    write_report(out, "memwatch.oom_failure/1", failure(view, false), snapshot, origin)
}

/// Returns the failures as a part of another report.
pub(crate) fn data(failed: &Failed) -> OomData<'_> {
    OomData {
        causes: failed.causes.iter().map(Worded::of).collect(),
        failures: failed.ooms.iter().map(|oom| failure(oom, failed.has_cause(oom.tgid))).collect(),
        forgotten: failed.forgotten,
        survived: failed.survived.iter().map(|view| Survived { view, refused: &view.refused }).collect(),
        survived_forgotten: failed.survived_forgotten,
        unseen: &failed.unseen,
    }
}

#[derive(Serialize)]
struct OomReportData<'a> {
    forecast: ForecastData<'a>,
    changes: Vec<ForecastChangeData<'a>>,
    #[serde(flatten)]
    failures: OomData<'a>,
}

#[derive(Serialize)]
pub(crate) struct OomData<'a> {
    causes: Vec<Worded>,
    failures: Vec<OomFailure<'a>>,
    forgotten: u64,
    survived: Vec<Survived<'a>>,
    survived_forgotten: u64,
    unseen: &'a [Unseen],
}

/// Requests that the kernel driver refused without a failure; `status` is the return value of the
/// call, `null` if it was not seen.
#[derive(Serialize)]
struct Survived<'a> {
    #[serde(flatten)]
    view: &'a SurvivedView,
    #[serde(flatten)]
    refused: &'a RefusedView,
}

#[derive(Serialize)]
pub(crate) struct OomFailure<'a> {
    #[serde(flatten)]
    view: &'a OomView,
    uuid: Option<&'a GpuUuid>,
    gpu: Option<OomGpu>,
    pub(crate) holders: Vec<OomHolderData<'a>>,
    unwatched_bytes: Option<u64>,
    /// Upper bound of the largest request that would have been granted instead; `null` if unknown.
    largest_fitting_bytes: Option<u64>,
    /// Readings of its live objects by name, oldest first; empty if the agent made none.
    names: Vec<OomNames<'a>>,
    grown: Vec<OomGrown>,
    advice: Vec<String>,
}

/// Memory use of the GPU.
#[derive(Serialize)]
struct OomGpu {
    total_bytes: Option<u64>,
    used_bytes: Option<u64>,
    #[serde(serialize_with = "json::sampled_time")]
    sampled_ns: u64,
}

#[derive(Serialize)]
pub(crate) struct OomHolderData<'a> {
    #[serde(rename = "pid")]
    tgid: Tgid,
    comm: &'a str,
    command: &'a str,
    held_bytes: u64,
}

/// Returns a failure as a part of a report.
pub(crate) fn failure(view: &OomView, has_cause: bool) -> OomFailure<'_> {
    let on = view.gpu();
    OomFailure {
        view,
        uuid: on.map(|gpu| &gpu.uuid),
        gpu: on.map(|gpu| OomGpu {
            total_bytes: gpu.total_bytes,
            used_bytes: gpu.used_bytes,
            sampled_ns: gpu.sampled_ns,
        }),
        holders: holders(view).into_iter().map(holder).collect(),
        unwatched_bytes: unwatched_bytes(view),
        largest_fitting_bytes: view.largest_fitting_bytes(),
        names: names::data(view),
        grown: names::grown_data(view),
        advice: advice(view, has_cause),
    }
}

fn holder(holder: words::OomHolder<'_>) -> OomHolderData<'_> {
    let words::OomHolder { process, held_bytes } = holder;
    OomHolderData { tgid: process.tgid, comm: &process.comm, command: &process.command, held_bytes }
}
