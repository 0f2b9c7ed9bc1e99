//! JSON output of `memwatch monitor`: the data of each detector's report, under its name.

use std::io;

use memwatch_core::snapshot::Snapshot;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::commands::fragment::json as fragments;
use crate::commands::leak::json as leaks;
use crate::commands::monitor::DetectorFinding;
use crate::commands::oom::{forecast_json as forecast, json as oom};
use crate::commands::profile::json as profile;
use crate::commands::report::churn_json as churn;
use crate::render::json::{ReportOrigin, write_report};

/// Writes the report as one line.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    findings: &[(&'static str, DetectorFinding)],
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    write_report(out, "memwatch.monitor/3", MonitorData { findings, snapshot }, snapshot, origin)
}

struct MonitorData<'a> {
    findings: &'a [(&'static str, DetectorFinding)],
    snapshot: &'a Snapshot,
}

impl Serialize for MonitorData<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { findings, snapshot } = self;
        let mut map = serializer.serialize_map(Some(findings.len()))?;
        for (name, finding) in *findings {
            match finding {
                DetectorFinding::Leaks(found) => map.serialize_entry(name, &leaks::data(found))?,
                DetectorFinding::Ooms(found) => map.serialize_entry(name, &oom::data(found))?,
                DetectorFinding::Profile(found) => map.serialize_entry(name, &profile::data(found, snapshot))?,
                DetectorFinding::Forecasts(found) => map.serialize_entry(name, &forecast::forecasts(found))?,
                DetectorFinding::Fragments(found) => map.serialize_entry(name, &fragments::data(found, snapshot))?,
                DetectorFinding::Churn(found) => map.serialize_entry(name, &churn::data(found))?,
            }
        }
        map.end()
    }
}
