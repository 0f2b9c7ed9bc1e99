//! JSON output of `memwatch leak`: each call site that was seen for long enough, with the numbers
//! behind its verdict.

use std::io;

use memwatch_core::features::leak::view::{LeakView, LeaksView};
use memwatch_core::snapshot::Snapshot;
use serde::Serialize;

use crate::commands::leak::words::{causes_of, reason};
use crate::render::causes::Worded;
use crate::render::json::{ReportOrigin, write_report};

/// Writes the report as one line.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    leaks: &[LeaksView],
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    write_report(out, "memwatch.leak/3", data(leaks), snapshot, origin)
}

/// Returns the report as a part of another report.
pub(crate) fn data(leaks: &[LeaksView]) -> LeakData<'_> {
    LeakData { processes: leaks.iter().map(process).collect() }
}

fn process(leaks: &LeaksView) -> LeakProcess<'_> {
    LeakProcess {
        leaks,
        findings: findings(&leaks.findings),
        causes: causes_of(leaks).iter().map(Worded::of).collect(),
    }
}

#[derive(Serialize)]
pub(crate) struct LeakData<'a> {
    processes: Vec<LeakProcess<'a>>,
}

#[derive(Serialize)]
struct LeakProcess<'a> {
    #[serde(flatten)]
    leaks: &'a LeaksView,
    findings: Vec<LeakFindingData<'a>>,
    causes: Vec<Worded>,
}

/// A finding with its reason.
#[derive(Serialize)]
pub(crate) struct LeakFindingData<'a> {
    #[serde(flatten)]
    leak: &'a LeakView,
    reason: String,
}

/// Adds the reason of its verdict to each finding.
pub(crate) fn findings(leaks: &[LeakView]) -> Vec<LeakFindingData<'_>> {
    leaks.iter().map(|leak| LeakFindingData { leak, reason: reason(leak) }).collect()
}
