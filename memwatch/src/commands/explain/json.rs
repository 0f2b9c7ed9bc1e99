//! JSON output of `memwatch explain`: one line.

use std::io;

use memwatch_core::features::balance::BalanceView;
use memwatch_core::input::kv_cache::{KvCache, KvCacheDoubt};
use memwatch_core::kernel_driver::trust::{LedgerTrust, Reason};
use memwatch_core::snapshot::{
    Explained, ExplainedHost, ExplainedUse, GpuView, LeftBehindView, ProcessView, RefusedView,
};
use memwatch_core::words::{GpuUuid, Tgid, json};
use serde::Serialize;

use super::ExplainShown;
use crate::render::causes::Worded;
use crate::render::json::{ReportOrigin, write_report};

#[derive(Serialize)]
struct ExplainReport<'a> {
    gpus: Vec<ExplainGpu<'a>>,
    processes: Vec<ExplainProcess<'a>>,
    causes: Vec<Worded>,
}

/// A GPU. `uncharged_bytes` are in use and charged to no process.
#[derive(Serialize)]
struct ExplainGpu<'a> {
    uuid: &'a GpuUuid,
    used_bytes: Option<u64>,
    uncharged_bytes: Option<i64>,
    has_managed: Option<bool>,
}

#[derive(Serialize)]
struct ExplainProcess<'a> {
    #[serde(rename = "pid")]
    tgid: Tgid,
    command: &'a str,
    from_start: bool,
    #[serde(serialize_with = "json::date")]
    ended_ns: Option<u64>,
    kernel_driver: Option<&'a str>,
    gpus: Vec<ExplainUse<'a>>,
    /// With `--by role`: a sheet for each GPU, whose rows add up to its `used_bytes`.
    balance: Option<&'a [BalanceView]>,
    without_names: Option<&'a str>,
    /// Time of the names, if they were read before this report.
    #[serde(serialize_with = "json::date")]
    names_read_ns: Option<u64>,
    host: Option<ExplainedHost>,
    imported: Option<u64>,
    left_behind: Option<&'a LeftBehindView>,
    refused_requests: Option<u64>,
    last_refused: &'a [RefusedView],
    /// `null` if the process serves no requests, or if the pool is not known.
    kv_cache: Option<&'a KvCache>,
    kv_cache_unknown: Option<&'a KvCacheDoubt>,
}

/// `trust` is `trusted`, `settling`, `unknown` or `refused`, with `reason`. If `trusted`,
/// `used_bytes` = parts + `older_bytes` + `unexplained_bytes` - `since_reading_bytes`.
#[derive(Serialize)]
struct ExplainUse<'a> {
    #[serde(flatten)]
    view: &'a ExplainedUse,
    trust: &'static str,
    reason: Option<Reason>,
    since_reading_bytes: Option<i64>,
}

/// Writes the purposes of each process's used memory.
///
/// # Errors
/// The error of `out`.
pub(super) fn write(out: &mut impl io::Write, shown: ExplainShown<'_>, origin: ReportOrigin) -> io::Result<()> {
    let ExplainShown { snapshot, kv_caches, .. } = shown;
    let processes = snapshot.processes.iter().map(|view| process(view, shown)).collect();
    let causes = kv_caches.causes().iter().map(Worded::of).collect();
    let report = ExplainReport { gpus: snapshot.gpus.iter().map(gpu).collect(), processes, causes };
    write_report(out, "memwatch.explain/1", report, snapshot, origin)
}

fn gpu(gpu: &GpuView) -> ExplainGpu<'_> {
    ExplainGpu {
        uuid: &gpu.uuid,
        used_bytes: gpu.used_bytes,
        uncharged_bytes: gpu.remainder.map(|remainder| remainder.bytes),
        has_managed: gpu.remainder.map(|remainder| remainder.has_managed),
    }
}

fn process<'a>(process: &'a ProcessView, shown: ExplainShown<'a>) -> ExplainProcess<'a> {
    let (balance, kv_cache) = (shown.balance_of(process), shown.kv_caches.get(process.tgid));
    let explained: Option<&Explained> = process.explained.as_deref();
    ExplainProcess {
        tgid: process.tgid,
        command: &process.command,
        from_start: process.from_start,
        ended_ns: process.ended_ns,
        kernel_driver: explained.and_then(|explained| explained.version.as_deref()),
        gpus: explained.iter().flat_map(|explained| &explained.gpus).map(used).collect(),
        balance: balance.map(|own| &own.sheets[..]),
        without_names: balance.and_then(|own| own.without_names.as_deref()),
        names_read_ns: balance.and_then(|own| own.read_ns),
        host: explained.map(|explained| explained.host),
        imported: explained.map(|explained| explained.imported),
        left_behind: process.left_behind.as_deref(),
        refused_requests: explained.map(|explained| explained.refused_count),
        last_refused: explained.map_or(&[], |explained| &explained.refused),
        kv_cache: kv_cache.and_then(|read| read.as_ref().ok()),
        kv_cache_unknown: kv_cache.and_then(|read| read.as_ref().err()),
    }
}

fn used(view: &ExplainedUse) -> ExplainUse<'_> {
    let (trust, reason) = match view.trust {
        LedgerTrust::Trusted => ("trusted", None),
        LedgerTrust::Settling => ("settling", None),
        LedgerTrust::Unknown => ("unknown", None),
        LedgerTrust::Refused(reason) => ("refused", Some(reason)),
    };
    ExplainUse { view, trust, reason, since_reading_bytes: view.since_reading_bytes() }
}
