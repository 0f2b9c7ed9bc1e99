//! JSON reports for programs: one envelope per line. Fields are added, but never renamed or
//! removed.
//!
//! Unknown values are `null`, never 0. Bytes are integers, times are RFC 3339 in UTC.
//!
//! A view is serialised as its fields specify ([`form`]). Structs defined here add fields to a view
//! or restructure its parts.

pub(crate) mod form;
pub(crate) mod groups;
pub(crate) mod overhead;
pub(crate) mod places;
pub(crate) mod stats;

use std::collections::BTreeMap;
use std::io;

use memwatch_common::loss::Loss;
use memwatch_core::features::causes::Cause;
use memwatch_core::input::kv_cache::{KvCache, KvCacheDoubt, KvCachePeak, KvCacheReading};
use memwatch_core::input::{NvmlState, ProbeCoverage, Sensors};
use memwatch_core::owner::{CgroupMemory, Owner, Promise};
use memwatch_core::snapshot::groups::OwnerGrouping;
use memwatch_core::snapshot::{
    FailureView, GpuView, HiddenView, KindView, LeftBehindView, ProcessGpuView, ProcessView, Snapshot,
};
use memwatch_core::words::{Name, json};
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use self::form::Formed;
use self::groups::OwnerSums;
use self::overhead::OverheadJson;
use self::stats::TensorJson;
use super::causes::Worded;
use super::wall_clock::WallClock;
use crate::backends::backend;
use crate::printable::write_json;

/// Kinds of device memory that every report contains, even if none was allocated.
const KINDS: [&str; 5] = ["device", "pool", "physical", "managed", "array"];

/// Type of a report. Its name and major version form the schema of the envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JsonReport {
    /// Report of `memwatch ps`, optionally with sums by owner.
    Ps(Option<OwnerGrouping>),
    /// Report that a tracing session writes once per interval.
    Watch,
    /// Report of `memwatch stats --reset-peaks`.
    ResetPeaks,
    /// Final report of `memwatch run`.
    Run,
}

impl JsonReport {
    const fn schema(self) -> &'static str {
        match self {
            Self::Ps(_) => "memwatch.ps/3",
            Self::Watch => "memwatch.watch/3",
            Self::ResetPeaks => "memwatch.reset-peaks/2",
            Self::Run => "memwatch.run/3",
        }
    }
}

/// Host and clock of a snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReportOrigin<'a> {
    /// Host name.
    pub(crate) host: &'a str,
    /// Clock of the host.
    pub(crate) clock: &'a WallClock,
}

/// Writes a report as one line.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write(
    out: &mut impl io::Write,
    report: JsonReport,
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    write_report(out, report.schema(), data(report, snapshot), snapshot, origin)
}

/// Writes the final report of `memwatch run` as one line, with the causes of failures or growth.
///
/// # Errors
/// If writing to `out` fails.
pub(crate) fn write_run(
    out: &mut impl io::Write,
    causes: &[Cause],
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    let causes = causes.iter().map(Worded::of).collect();
    let report = RunData { data: data(JsonReport::Run, snapshot), causes };
    write_report(out, JsonReport::Run.schema(), report, snapshot, origin)
}

pub(crate) fn write_report(
    out: &mut impl io::Write,
    schema: &'static str,
    data: impl Serialize,
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    write_json(out, &Formed::new(&envelope(schema, data, snapshot, origin.host), origin.clock))?;
    out.write_all(b"\n")?;
    out.flush()
}

#[derive(Serialize)]
struct ReportEnvelope<'a, D> {
    schema: &'static str,
    version: &'static str,
    host: &'a str,
    #[serde(serialize_with = "json::date")]
    time_ns: u64,
    #[serde(serialize_with = "json::attached_time")]
    attached_ns: u64,
    from_agent: bool,
    complete: bool,
    losses: ReportLosses<'a>,
    coverage: Covered<'a>,
    data: D,
}

/// Serialises every cause of loss. A cause that did not occur is 0.
struct ReportLosses<'a>(&'a BTreeMap<Name, u64>);

impl Serialize for ReportLosses<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        for name in Loss::ALL.map(Loss::name) {
            map.serialize_entry(name, &self.0.get(name).copied().unwrap_or(0))?;
        }
        map.end()
    }
}

#[derive(Serialize)]
struct Covered<'a> {
    #[serde(flatten)]
    coverage: &'a ProbeCoverage,
    nvml: &'static str,
    nvml_reason: Option<&'a str>,
}

#[derive(Serialize)]
pub(crate) struct PsData<'a> {
    gpus: Vec<GpuJson<'a>>,
    processes: Vec<ProcessJson<'a>>,
    hidden: Option<&'a HiddenView>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    promised: &'a [Promise],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    cgroup_memory: &'a [CgroupMemory],
    #[serde(flatten)]
    groups: Option<OwnerSums<'a>>,
}

#[derive(Serialize)]
struct RunData<'a> {
    #[serde(flatten)]
    data: PsData<'a>,
    causes: Vec<Worded>,
}

#[derive(Serialize)]
struct GpuJson<'a> {
    #[serde(flatten)]
    view: &'a GpuView,
    #[serde(skip_serializing_if = "Option::is_none")]
    sensors: Option<Sensors>,
}

#[derive(Serialize)]
struct ProcessJson<'a> {
    #[serde(flatten)]
    view: &'a ProcessView,
    #[serde(flatten)]
    owner: &'a Owner,
    gpus: Vec<ProcessGpu<'a>>,
    failures: Vec<FailureJson<'a>>,
    overhead: Option<OverheadJson<'a>>,
    tensor: Option<TensorJson<'a>>,
    left_behind: Option<&'a LeftBehindView>,
    kv_cache: Option<KvCacheJson<'a>>,
}

/// The KV cache of an inference server, at its last reading.
#[derive(Serialize)]
struct KvCacheJson<'a> {
    #[serde(serialize_with = "json::date")]
    time_ns: u64,
    pool: Option<&'a KvCache>,
    unknown: Option<&'a KvCacheDoubt>,
    peak: Option<KvCachePeakJson>,
}

/// Maxima of a KV cache in all readings since one time.
#[derive(Serialize)]
struct KvCachePeakJson {
    #[serde(serialize_with = "json::date")]
    since_ns: u64,
    used_blocks: u64,
    running_requests: u64,
}

#[derive(Serialize)]
struct ProcessGpu<'a> {
    #[serde(flatten)]
    view: &'a ProcessGpuView,
    kinds: Kinds<'a>,
}

#[derive(Serialize)]
struct FailureJson<'a> {
    #[serde(flatten)]
    view: &'a FailureView,
    error: Option<&'static str>,
}

/// Serialises every kind of [`KINDS`], as `{}` if it never occurred.
struct Kinds<'a>(&'a BTreeMap<Name, KindView>);

impl Serialize for Kinds<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let others = self.0.keys().map(AsRef::as_ref).filter(|name| !KINDS.contains(name));
        let mut map = serializer.serialize_map(None)?;
        for name in KINDS.into_iter().chain(others) {
            map.serialize_entry(name, &OfKind { view: self.0.get(name), is_pool: name == "pool" })?;
        }
        map.end()
    }
}

struct OfKind<'a> {
    view: Option<&'a KindView>,
    is_pool: bool,
}

impl Serialize for OfKind<'_> {
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

fn envelope<'a, D>(schema: &'static str, data: D, snapshot: &'a Snapshot, host: &'a str) -> ReportEnvelope<'a, D> {
    let (nvml, nvml_reason) = match &snapshot.nvml {
        NvmlState::Ok => ("ok", None),
        NvmlState::Starting => ("starting", None),
        NvmlState::Unavailable(reason) => ("unavailable", Some(reason.as_str())),
    };
    ReportEnvelope {
        schema,
        version: env!("CARGO_PKG_VERSION"),
        host,
        time_ns: snapshot.time_ns,
        attached_ns: snapshot.attached_ns,
        from_agent: snapshot.from_agent,
        complete: snapshot.complete,
        losses: ReportLosses(&snapshot.losses),
        coverage: Covered { coverage: &snapshot.coverage, nvml, nvml_reason },
        data,
    }
}

pub(crate) fn data(report: JsonReport, snapshot: &Snapshot) -> PsData<'_> {
    let by = if let JsonReport::Ps(by) = report { by } else { None };
    // Reports that can be made from a recording leave out sensors, which recordings do not contain.
    let is_of_now = matches!(report, JsonReport::Ps(_) | JsonReport::Watch);
    let gpu = |view| GpuJson { view, sensors: is_of_now.then_some(view.sensors) };
    PsData {
        gpus: snapshot.gpus.iter().map(gpu).collect(),
        processes: snapshot.processes.iter().map(process).collect(),
        hidden: snapshot.hidden.as_ref(),
        promised: &snapshot.promised,
        cgroup_memory: &snapshot.cgroup_memory,
        groups: by.map(|by| groups::of(snapshot, by)),
    }
}

fn process(view: &ProcessView) -> ProcessJson<'_> {
    ProcessJson {
        view,
        owner: &view.owner,
        gpus: view.gpus.iter().map(|view| ProcessGpu { view, kinds: Kinds(&view.kinds) }).collect(),
        failures: view.failures.iter().map(failure).collect(),
        overhead: overhead::of(view),
        tensor: view.tensors.as_deref().map(stats::tensor),
        left_behind: view.left_behind.as_deref(),
        kv_cache: view.kv_cache.as_deref().map(kv_cache),
    }
}

fn kv_cache(read: &KvCacheReading) -> KvCacheJson<'_> {
    let peak = |peak: KvCachePeak| KvCachePeakJson {
        since_ns: peak.since_ns,
        used_blocks: peak.used_blocks,
        running_requests: peak.running,
    };
    KvCacheJson {
        time_ns: read.time_ns,
        pool: read.pool.as_ref().ok(),
        unknown: read.pool.as_ref().err(),
        peak: read.peak.map(peak),
    }
}

fn failure(view: &FailureView) -> FailureJson<'_> {
    FailureJson { view, error: backend().error_name(view.status) }
}

#[cfg(test)]
mod tests;
