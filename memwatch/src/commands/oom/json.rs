//! `memwatch oom` in JSON.

use std::io;

use memwatch_core::features::oom::view::{CacheView, OomView, SurvivedView};
use memwatch_core::snapshot::{Snapshot, WhoseView};
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use super::forecast_json as forecast;
use super::forecast_json::{ChangeJson, ForecastsJson};
use crate::commands::explain::json::{Refused, refused_json};
use crate::commands::oom::words::{Failed, Holder, OomReport, advice, gpu, holders, unwatched_bytes};
use crate::render::json::{Origin, write_report};
use crate::render::wall_clock::WallClock;

/// Writes the report as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    report: &OomReport<'_>,
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    let OomReport { failed, forecasts, changes } = *report;
    let data = Report {
        forecast: forecast::forecasts(forecasts, origin.clock),
        changes: changes.iter().map(|change| forecast::change_json(change, origin.clock)).collect(),
        failures: data(failed, origin.clock),
    };
    write_report(out, "memwatch.oom/2", data, snapshot, origin)
}

/// The same within another report.
pub(crate) fn data<'a>(failed: &'a Failed, clock: &WallClock) -> Listed<'a> {
    Listed {
        failures: failed.ooms.iter().map(|oom| failure(oom, clock)).collect(),
        forgotten: failed.forgotten,
        survived: failed.survived.iter().map(|one| survived(one, clock)).collect(),
        survived_forgotten: failed.survived_forgotten,
    }
}

#[derive(Serialize)]
struct Report<'a> {
    forecast: ForecastsJson<'a>,
    changes: Vec<ChangeJson<'a>>,
    #[serde(flatten)]
    failures: Listed<'a>,
}

#[derive(Serialize)]
pub(crate) struct Listed<'a> {
    failures: Vec<FailureJson<'a>>,
    forgotten: u64,
    survived: Vec<SurvivedJson<'a>>,
    survived_forgotten: u64,
}

/// What the kernel driver refused without a failure; `status` is what the call returned, `null` where that was not seen.
#[derive(Serialize)]
struct SurvivedJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    status: Option<i32>,
    #[serde(flatten)]
    refused: Refused<'a>,
}

#[derive(Serialize)]
struct FailureJson<'a> {
    time: String,
    #[serde(rename = "pid")]
    tgid: u32,
    level: &'a str,
    device: Option<i32>,
    uuid: Option<&'a str>,
    symbol: Option<&'a str>,
    wanted_bytes: u64,
    more: u64,
    refused: Vec<Refused<'a>>,
    whose: Option<&'a WhoseView>,
    cache: Option<&'a CacheView>,
    gpu: Option<GpuJson>,
    holders: Vec<HolderJson<'a>>,
    unwatched_bytes: Option<u64>,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct GpuJson {
    total_bytes: Option<u64>,
    used_bytes: Option<u64>,
    sampled_time: String,
}

#[derive(Serialize)]
struct HolderJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    comm: &'a str,
    command: &'a str,
    held_bytes: u64,
}

fn survived<'a>(one: &'a SurvivedView, clock: &WallClock) -> SurvivedJson<'a> {
    SurvivedJson { tgid: one.tgid.0, status: one.status, refused: refused_json(&one.refused, clock) }
}

fn failure<'a>(oom: &'a OomView, clock: &WallClock) -> FailureJson<'a> {
    let on = gpu(oom);
    let holder = |holder: Holder<'a>| HolderJson {
        tgid: holder.process.tgid.0,
        comm: &holder.process.comm,
        command: &holder.process.command,
        held_bytes: holder.held_bytes,
    };
    FailureJson {
        time: clock.rfc3339(oom.time_ns),
        tgid: oom.tgid.0,
        level: &oom.level,
        device: oom.device,
        uuid: on.map(|gpu| GpuUuid::as_str(&gpu.uuid)),
        symbol: oom.symbol.as_deref(),
        wanted_bytes: oom.wanted_bytes,
        more: oom.more,
        refused: oom.refused.iter().map(|refused| refused_json(refused, clock)).collect(),
        whose: oom.whose.as_ref(),
        cache: oom.cache.as_ref(),
        gpu: on.map(|gpu| GpuJson {
            total_bytes: gpu.total_bytes,
            used_bytes: gpu.used_bytes,
            sampled_time: clock.rfc3339(gpu.sampled_ns),
        }),
        holders: holders(oom).into_iter().map(holder).collect(),
        unwatched_bytes: unwatched_bytes(oom),
        advice: advice(oom),
    }
}
