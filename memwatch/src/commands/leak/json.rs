//! `memwatch leak` in JSON: each place that was seen for long enough, with the numbers behind its verdict.

use std::io;

use memwatch_core::allocators::names::HeldAs;
use memwatch_core::features::leak::model::Verdict;
use memwatch_core::features::leak::view::{AgeView, BlocksView, KeeperView, LeakView, LeaksView, ReadingsView};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use crate::commands::leak::words::reason;
use crate::render::json::overhead::seconds;
use crate::render::json::{Origin, write_report};
use crate::render::wall_clock::WallClock;

/// Writes the report as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    leaks: &[LeaksView],
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    write_report(out, "memwatch.leak/2", data(leaks, origin.clock), snapshot, origin)
}

/// The same within another report.
pub(crate) fn data<'a>(leaks: &'a [LeaksView], clock: &WallClock) -> Listed<'a> {
    Listed { processes: leaks.iter().map(|leaks| process(leaks, clock)).collect() }
}

#[derive(Serialize)]
pub(crate) struct Listed<'a> {
    processes: Vec<ProcessJson<'a>>,
}

#[derive(Serialize)]
struct ProcessJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    comm: &'a str,
    command: &'a str,
    observed_since: String,
    windows: Option<u64>,
    readings: Option<ReadingsJson<'a>>,
    too_short: u64,
    findings: Vec<FindingJson<'a>>,
}

/// What was read where nothing was traced.
#[derive(Serialize)]
struct ReadingsJson<'a> {
    count: u64,
    without_names: u64,
    why_without_names: Option<&'a str>,
    standing: u64,
    partial: u64,
    read_bytes: u64,
    processor_seconds: f64,
    first_bytes: Option<u64>,
    last_bytes: Option<u64>,
    ended: Option<&'a str>,
}

/// A place, and how it grows.
#[derive(Serialize)]
pub(crate) struct FindingJson<'a> {
    verdict: Verdict,
    level: &'a str,
    device: Option<i32>,
    uuid: Option<&'a str>,
    kind: Option<&'a str>,
    file: Option<&'a str>,
    line: Option<u32>,
    function: Option<&'a str>,
    held: Option<&'a HeldAs>,
    bytes_per_minute: f64,
    late_bytes_per_minute: f64,
    p: f64,
    late_p: f64,
    points: usize,
    steps: Option<usize>,
    since: String,
    until: String,
    first_bytes: u64,
    last_bytes: u64,
    replaced_seconds: Option<f64>,
    ages: Option<Vec<AgeJson>>,
    keepers: &'a [KeeperView],
    blocks: Option<BlocksView>,
    reason: String,
}

/// Live memory of some age: younger than this, and not as young as the one before.
#[derive(Serialize)]
struct AgeJson {
    below_seconds: Option<f64>,
    bytes: u64,
}

fn process<'a>(leaks: &'a LeaksView, clock: &WallClock) -> ProcessJson<'a> {
    ProcessJson {
        tgid: leaks.tgid.0,
        comm: &leaks.comm,
        command: &leaks.command,
        observed_since: clock.rfc3339(leaks.observed_since_ns),
        windows: leaks.windows,
        readings: leaks.readings.as_ref().map(readings),
        too_short: leaks.too_short,
        findings: leaks.findings.iter().map(|finding| finding_json(finding, clock)).collect(),
    }
}

fn readings(view: &ReadingsView) -> ReadingsJson<'_> {
    ReadingsJson {
        count: view.count,
        without_names: view.without_names,
        why_without_names: view.why_without_names.as_deref(),
        standing: view.standing,
        partial: view.partial,
        read_bytes: view.read_bytes,
        processor_seconds: seconds(view.processor_ns),
        first_bytes: view.first_bytes,
        last_bytes: view.last_bytes,
        ended: view.ended.as_deref(),
    }
}

pub(crate) fn finding_json<'a>(finding: &'a LeakView, clock: &WallClock) -> FindingJson<'a> {
    FindingJson {
        verdict: finding.verdict,
        level: &finding.level,
        device: finding.device,
        uuid: finding.uuid.as_ref().map(GpuUuid::as_str),
        kind: finding.kind.as_deref(),
        file: finding.file.as_deref(),
        line: finding.line,
        function: finding.function.as_deref(),
        held: finding.held.as_ref(),
        bytes_per_minute: finding.bytes_per_minute,
        late_bytes_per_minute: finding.late_bytes_per_minute,
        p: finding.p,
        late_p: finding.late_p,
        points: finding.points,
        steps: finding.steps,
        since: clock.rfc3339(finding.first_ns),
        until: clock.rfc3339(finding.last_ns),
        first_bytes: finding.first_bytes,
        last_bytes: finding.last_bytes,
        replaced_seconds: finding.turnover_ns.map(seconds),
        ages: finding.ages.as_ref().map(|ages| {
            let age = |age: &AgeView| AgeJson { below_seconds: age.below_ns.map(seconds), bytes: age.bytes };
            ages.iter().map(age).collect()
        }),
        keepers: &finding.keepers,
        blocks: finding.blocks,
        reason: reason(finding),
    }
}
