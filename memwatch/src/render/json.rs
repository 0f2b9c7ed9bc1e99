//! JSON for programs: one envelope per line, whose fields are only ever added to.
//!
//! Unknown is `null`, never 0. Bytes are integers, times are RFC 3339 in UTC.
//!
//! A view stands in it as it is where it has no times. One that has them is of another form here: views keep nanoseconds of the kernel's clock,
//! which the agent's protocol and keyframes carry exactly, and only a reader's clock makes dates and seconds of them.

pub(crate) mod groups;
mod level;
pub(crate) mod overhead;
pub(crate) mod places;
pub(crate) mod stats;

use std::collections::BTreeMap;
use std::io;

use memwatch_common::loss::Loss;
use memwatch_core::input::{Coverage, MigFacts, NvmlState, Sensors};
use memwatch_core::owner::{CgroupMemory, Owner, Promise};
use memwatch_core::snapshot::groups::By;
use memwatch_core::snapshot::{
    ContextLimits, FailureView, GpuView, HiddenView, HostView, ImportView, KindView, ProcessGpuView, ProcessView,
    Snapshot,
};
use memwatch_core::words::{Framework, Name};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use self::groups::GroupsJson;
use self::level::LevelJson;
use self::overhead::OverheadJson;
use self::stats::TensorJson;
use super::wall_clock::WallClock;
use crate::backends::backend;
use crate::printable::write_json;

/// The kinds of device memory that stand in every report, seen or not.
const KINDS: [&str; 5] = ["device", "pool", "physical", "managed", "array"];

/// Which report it is: its name and its major version are the envelope's schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Report {
    /// One report of `memwatch ps`, with sums by owner if they are asked for.
    Ps(Option<By>),
    /// One of the reports that a watch writes per interval.
    Watch,
    /// What `memwatch reset-peaks` leaves.
    ResetPeaks,
    /// The last report of `memwatch run`.
    Run,
}

impl Report {
    const fn schema(self) -> &'static str {
        match self {
            Self::Ps(_) => "memwatch.ps/2",
            Self::Watch => "memwatch.watch/2",
            Self::ResetPeaks => "memwatch.reset-peaks/2",
            Self::Run => "memwatch.run/2",
        }
    }
}

/// Where and in whose time a snapshot was taken.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Origin<'a> {
    /// The machine's name.
    pub(crate) host: &'a str,
    /// Its clock.
    pub(crate) clock: &'a WallClock,
}

/// Writes a report as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(out: &mut impl io::Write, report: Report, snapshot: &Snapshot, origin: Origin) -> io::Result<()> {
    write_report(out, report.schema(), data(report, snapshot, origin.clock), snapshot, origin)
}

pub(crate) fn write_report(
    out: &mut impl io::Write,
    schema: &'static str,
    data: impl Serialize,
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    write_json(out, &envelope(schema, data, snapshot, origin))?;
    out.write_all(b"\n")?;
    out.flush()
}

#[derive(Serialize)]
struct Envelope<'a, D> {
    schema: &'static str,
    version: &'static str,
    host: &'a str,
    time: String,
    attached_time: String,
    from_agent: bool,
    complete: bool,
    losses: Losses<'a>,
    coverage: CoverageJson<'a>,
    data: D,
}

/// Every cause: one that never happened is known to be 0.
struct Losses<'a>(&'a BTreeMap<Name, u64>);

impl Serialize for Losses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for name in Loss::ALL.map(Loss::name) {
            map.serialize_entry(name, &self.0.get(name).copied().unwrap_or(0))?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct CoverageJson<'a> {
    #[serde(flatten)]
    coverage: &'a Coverage,
    nvml: &'static str,
    nvml_reason: Option<&'a str>,
}

#[derive(Serialize)]
pub(crate) struct Data<'a> {
    gpus: Vec<GpuJson<'a>>,
    processes: Vec<ProcessJson<'a>>,
    hidden: Option<&'a HiddenView>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    promised: &'a [Promise],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cgroup_memory: &'a [CgroupMemory],
    #[serde(flatten)]
    groups: Option<GroupsJson<'a>>,
}

#[derive(Serialize)]
struct GpuJson<'a> {
    uuid: &'a str,
    nvml_index: u32,
    name: &'a str,
    pci_bus_id: Option<&'a str>,
    mig: Option<&'a MigFacts>,
    total_bytes: Option<u64>,
    used_bytes: Option<u64>,
    #[serde(rename = "driver_allocated_bytes")]
    live_bytes: u64,
    attributed_bytes: u64,
    unattributed_bytes: Option<i64>,
    context_bytes: Option<u64>,
    unwatched_processes: Option<u64>,
    unwatched_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sensors: Option<Sensors>,
    sampled_time: String,
}

#[derive(Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a field of the JSON contract with a meaning of its own")]
struct ProcessJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    start_time: Option<String>,
    comm: &'a str,
    command: &'a str,
    user: Option<&'a str>,
    uid: Option<u32>,
    inner_pid: Option<u32>,
    #[serde(flatten)]
    owner: &'a Owner,
    frameworks: &'a [Framework],
    target: bool,
    mps_client: bool,
    observed_since: String,
    from_start: bool,
    exact: bool,
    losses: &'a BTreeMap<Name, u64>,
    anchored: Option<String>,
    peaks_since: Option<String>,
    ended: Option<String>,
    gpus: Vec<ProcessGpuJson<'a>>,
    host: &'a HostView,
    checkpointed: bool,
    imports: &'a [ImportView],
    aliases: u64,
    reservation_bytes: u64,
    modules: u64,
    context_limits: &'a ContextLimits,
    allocations_per_second: Option<f64>,
    frees_per_second: Option<f64>,
    unknown_frees: u64,
    implicit_frees: u64,
    failures: Vec<FailureJson<'a>>,
    overhead: Option<OverheadJson>,
    tensor_level: Option<LevelJson>,
    tensor: Option<TensorJson<'a>>,
}

#[derive(Serialize)]
struct ProcessGpuJson<'a> {
    uuid: Option<&'a str>,
    used_bytes: Option<u64>,
    #[serde(rename = "driver_allocated_bytes")]
    live_bytes: u64,
    checkpointed_bytes: Option<u64>,
    peak_bytes: u64,
    preexisting_bytes: Option<u64>,
    preexisting_includes_context: bool,
    attributed_bytes: u64,
    unattributed_bytes: Option<i64>,
    allocations: u64,
    frees: u64,
    failed_allocations: u64,
    kinds: Kinds<'a>,
}

/// Every kind of [`KINDS`], `{}` where it was never seen.
struct Kinds<'a>(&'a BTreeMap<Name, KindView>);

impl Serialize for Kinds<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let others = self.0.keys().map(AsRef::as_ref).filter(|name| !KINDS.contains(name));
        let mut map = serializer.serialize_map(None)?;
        for name in KINDS.into_iter().chain(others) {
            map.serialize_entry(name, &KindJson { view: self.0.get(name), is_pool: name == "pool" })?;
        }
        map.end()
    }
}

struct KindJson<'a> {
    view: Option<&'a KindView>,
    is_pool: bool,
}

impl Serialize for KindJson<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(view) = self.view {
            map.serialize_entry("driver_allocated_bytes", &view.live_bytes)?;
            map.serialize_entry("peak_bytes", &view.peak_bytes)?;
            map.serialize_entry("total_bytes", &view.total_bytes)?;
            map.serialize_entry("allocations", &view.allocations)?;
            map.serialize_entry("frees", &view.frees)?;
            if self.is_pool {
                map.serialize_entry("backed_bytes", &view.backed_bytes)?;
                map.serialize_entry("backed_estimated", &view.backed_estimated)?;
            }
            if view.estimated {
                map.serialize_entry("estimated", &true)?;
            }
        }
        map.end()
    }
}

#[derive(Serialize)]
struct FailureJson<'a> {
    time: String,
    symbol: &'a str,
    requested_bytes: u64,
    status: i32,
    error: Option<&'static str>,
    uuid: Option<&'a str>,
}

fn envelope<'a, D>(schema: &'static str, data: D, snapshot: &'a Snapshot, origin: Origin<'a>) -> Envelope<'a, D> {
    let clock = origin.clock;
    let (nvml, nvml_reason) = match &snapshot.nvml {
        NvmlState::Ok => ("ok", None),
        NvmlState::Starting => ("starting", None),
        NvmlState::Unavailable(reason) => ("unavailable", Some(reason.as_str())),
    };
    Envelope {
        schema,
        version: env!("CARGO_PKG_VERSION"),
        host: origin.host,
        time: clock.rfc3339(snapshot.time_ns),
        attached_time: clock.rfc3339(snapshot.attached_ns),
        from_agent: snapshot.from_agent,
        complete: snapshot.complete,
        losses: Losses(&snapshot.losses),
        coverage: CoverageJson { coverage: &snapshot.coverage, nvml, nvml_reason },
        data,
    }
}

pub(crate) fn data<'a>(report: Report, snapshot: &'a Snapshot, clock: &WallClock) -> Data<'a> {
    let by = if let Report::Ps(by) = report { by } else { None };
    Data {
        gpus: snapshot.gpus.iter().map(|gpu| gpu_json(report, gpu, clock)).collect(),
        processes: snapshot.processes.iter().map(|process| process_json(process, clock)).collect(),
        hidden: snapshot.hidden.as_ref(),
        promised: &snapshot.promised,
        cgroup_memory: &snapshot.cgroup_memory,
        groups: by.map(|by| groups::of(snapshot, by)),
    }
}

fn gpu_json<'a>(report: Report, gpu: &'a GpuView, clock: &WallClock) -> GpuJson<'a> {
    // What a recording has not stands in no report that is also made of one.
    let is_of_now = matches!(report, Report::Ps(_) | Report::Watch);
    GpuJson {
        uuid: gpu.uuid.as_str(),
        nvml_index: gpu.nvml_index,
        name: &gpu.name,
        pci_bus_id: gpu.pci_bus_id.as_deref(),
        mig: gpu.mig.as_ref(),
        total_bytes: gpu.total_bytes,
        used_bytes: gpu.used_bytes,
        live_bytes: gpu.live_bytes,
        attributed_bytes: gpu.attributed_bytes,
        unattributed_bytes: gpu.unattributed_bytes,
        context_bytes: gpu.context_bytes,
        unwatched_processes: gpu.unwatched_processes,
        unwatched_bytes: gpu.unwatched_bytes,
        sensors: is_of_now.then_some(gpu.sensors),
        sampled_time: clock.rfc3339(gpu.sampled_ns),
    }
}

fn process_json<'a>(process: &'a ProcessView, clock: &WallClock) -> ProcessJson<'a> {
    let time = |time_ns| clock.rfc3339(time_ns);
    ProcessJson {
        tgid: process.tgid.0,
        start_time: process.start_ns.map(time),
        comm: &process.comm,
        command: &process.command,
        user: process.user.as_deref(),
        uid: process.uid,
        inner_pid: process.inner_tgid,
        owner: &process.owner,
        frameworks: &process.frameworks,
        target: process.target,
        mps_client: process.mps_client,
        observed_since: time(process.observed_since_ns),
        from_start: process.from_start,
        exact: process.exact,
        losses: &process.losses,
        anchored: process.anchored_ns.map(time),
        peaks_since: process.peaks_begun_ns.map(time),
        ended: process.ended_ns.map(time),
        gpus: process.gpus.iter().map(process_gpu_json).collect(),
        host: &process.host,
        checkpointed: process.checkpointed,
        imports: &process.imports,
        aliases: process.aliases,
        reservation_bytes: process.reservation_bytes,
        modules: process.modules,
        context_limits: &process.context_limits,
        allocations_per_second: process.allocations_per_second,
        frees_per_second: process.frees_per_second,
        unknown_frees: process.unknown_frees,
        implicit_frees: process.implicit_frees,
        failures: process.failures.iter().map(|failure| failure_json(failure, clock)).collect(),
        overhead: process.overhead.as_ref().map(overhead::json),
        tensor_level: process.level.as_ref().map(|choice| level::json(choice, clock.rfc3339(choice.time_ns))),
        tensor: process.tensors.as_deref().map(stats::tensor),
    }
}

fn process_gpu_json(gpu: &ProcessGpuView) -> ProcessGpuJson<'_> {
    ProcessGpuJson {
        uuid: gpu.uuid.as_ref().map(memwatch_core::words::GpuUuid::as_str),
        used_bytes: gpu.used_bytes,
        live_bytes: gpu.live_bytes,
        checkpointed_bytes: gpu.checkpointed_bytes,
        peak_bytes: gpu.peak_bytes,
        preexisting_bytes: gpu.preexisting_bytes,
        preexisting_includes_context: gpu.preexisting_includes_context,
        attributed_bytes: gpu.attributed_bytes,
        unattributed_bytes: gpu.unattributed_bytes,
        allocations: gpu.allocations,
        frees: gpu.frees,
        failed_allocations: gpu.failed_allocations,
        kinds: Kinds(&gpu.kinds),
    }
}

fn failure_json<'a>(failure: &'a FailureView, clock: &WallClock) -> FailureJson<'a> {
    FailureJson {
        time: clock.rfc3339(failure.time_ns),
        symbol: &failure.symbol,
        requested_bytes: failure.requested_bytes,
        status: failure.status,
        error: backend().error_name(failure.status),
        uuid: failure.uuid.as_ref().map(memwatch_core::words::GpuUuid::as_str),
    }
}

#[cfg(test)]
mod tests;
