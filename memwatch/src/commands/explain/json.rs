//! `memwatch explain` in JSON: one line.

use std::io;

use memwatch_core::kernel_driver::trust::{Reason, Trust};
use memwatch_core::snapshot::{
    ColumnsView, Explained, ExplainedHost, ExplainedUse, GpuView, LeftBehindView, PartView, PieceView, ProcessView,
    RefusedView, Snapshot,
};
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use crate::render::json::{Origin, write_report};
use crate::render::wall_clock::WallClock;

#[derive(Serialize)]
struct Report<'a> {
    gpus: Vec<Gpu<'a>>,
    processes: Vec<Process<'a>>,
}

/// A GPU; `uncharged_bytes` are in use and charged to no process.
#[derive(Serialize)]
struct Gpu<'a> {
    uuid: &'a str,
    used_bytes: Option<u64>,
    uncharged_bytes: Option<i64>,
    has_managed: Option<bool>,
}

#[derive(Serialize)]
struct Process<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    command: &'a str,
    from_start: bool,
    ended: Option<String>,
    kernel_driver: Option<&'a str>,
    gpus: Vec<Use<'a>>,
    host: Option<ExplainedHost>,
    imported: Option<u64>,
    left_behind: Option<&'a LeftBehindView>,
    refused_requests: Option<u64>,
    last_refused: Vec<Refused<'a>>,
}

/// `trust` is `trusted`, `settling`, `unknown` or `refused`, with `reason`; where it is `trusted`, `used_bytes` = parts + `older_bytes` + `unexplained_bytes`
/// - `since_reading_bytes`.
#[derive(Serialize)]
struct Use<'a> {
    uuid: Option<&'a str>,
    trust: &'static str,
    reason: Option<Reason>,
    used_bytes: Option<u64>,
    live_bytes: u64,
    older_bytes: Option<u64>,
    unexplained_bytes: Option<i64>,
    since_reading_bytes: Option<i64>,
    parts: &'a [PartView],
    columns: &'a ColumnsView,
    objects: &'a [PieceView],
}

/// A request that the kernel driver refused.
#[derive(Serialize)]
pub(crate) struct Refused<'a> {
    time: String,
    tid: u32,
    uuid: Option<&'a str>,
    asked_bytes: Option<u64>,
    function: Option<&'a str>,
    owner: Option<&'a str>,
    label: &'static str,
}

/// Writes what each process's used memory is for.
///
/// # Errors
/// What `out` answers.
pub(super) fn write(out: &mut impl io::Write, snapshot: &Snapshot, origin: Origin) -> io::Result<()> {
    let processes = snapshot.processes.iter().map(|process| process_json(process, origin.clock)).collect();
    let report = Report { gpus: snapshot.gpus.iter().map(gpu_json).collect(), processes };
    write_report(out, "memwatch.explain/1", report, snapshot, origin)
}

fn gpu_json(gpu: &GpuView) -> Gpu<'_> {
    Gpu {
        uuid: gpu.uuid.as_str(),
        used_bytes: gpu.used_bytes,
        uncharged_bytes: gpu.remainder.map(|remainder| remainder.bytes),
        has_managed: gpu.remainder.map(|remainder| remainder.has_managed),
    }
}

fn process_json<'a>(process: &'a ProcessView, clock: &WallClock) -> Process<'a> {
    let explained: Option<&Explained> = process.explained.as_deref();
    let refused = explained.iter().flat_map(|explained| &explained.refused);
    Process {
        tgid: process.tgid.0,
        command: &process.command,
        from_start: process.from_start,
        ended: process.ended_ns.map(|ended_ns| clock.rfc3339(ended_ns)),
        kernel_driver: explained.and_then(|explained| explained.version.as_deref()),
        gpus: explained.iter().flat_map(|explained| &explained.gpus).map(use_json).collect(),
        host: explained.map(|explained| explained.host),
        imported: explained.map(|explained| explained.imported),
        left_behind: process.left_behind.as_deref(),
        refused_requests: explained.map(|explained| explained.refused_count),
        last_refused: refused.map(|refused| refused_json(refused, clock)).collect(),
    }
}

fn use_json(own: &ExplainedUse) -> Use<'_> {
    let (trust, reason) = match own.trust {
        Trust::Trusted => ("trusted", None),
        Trust::Settling => ("settling", None),
        Trust::Unknown => ("unknown", None),
        Trust::Refused(reason) => ("refused", Some(reason)),
    };
    Use {
        uuid: own.uuid.as_ref().map(GpuUuid::as_str),
        trust,
        reason,
        used_bytes: own.used_bytes,
        live_bytes: own.live_bytes,
        older_bytes: own.older_bytes,
        unexplained_bytes: own.difference_bytes,
        since_reading_bytes: own.since_reading_bytes(),
        parts: &own.parts,
        columns: &own.columns,
        objects: &own.pieces,
    }
}

/// The same in reports of failures.
pub(crate) fn refused_json<'a>(refused: &'a RefusedView, clock: &WallClock) -> Refused<'a> {
    Refused {
        time: clock.rfc3339(refused.time_ns),
        tid: refused.tid.0,
        uuid: refused.uuid.as_ref().map(GpuUuid::as_str),
        asked_bytes: refused.asked_bytes,
        function: refused.function.as_deref(),
        owner: refused.owner.as_deref(),
        label: refused.label.name(),
    }
}
