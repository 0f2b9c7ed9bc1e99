//! JSON output of `memwatch report`: the state at the end, and the data of each section under its
//! name.

use std::io;
use std::path::Path;

use memwatch_core::recording::{Ending, Stopped};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::json;
use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use crate::commands::fragment::json as fragments;
use crate::commands::leak::json as leaks;
use crate::commands::oom::{forecast_json as forecast, json as oom};
use crate::commands::report::sections::Finding;
use crate::commands::report::{churn_json as churn, profile_json as profile};
use crate::render::json::{JsonReport, PsData, ReportOrigin, data, write_report};
use crate::watch::recording::RecordingFacts;

/// Writes the last snapshot, facts about the recording if it is one, and each section as one line.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (facts, sections): (Option<&RecordingFacts<'_>>, &[(&'static str, Finding)]),
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    let recording = facts.map(|facts| recording_data(facts, snapshot));
    let data = data(JsonReport::Run, snapshot);
    let data = ReportData { recording, data, sections: SectionsData { sections, snapshot } };
    write_report(out, "memwatch.report/3", data, snapshot, origin)
}

fn recording_data<'a>(facts: &'a RecordingFacts<'_>, snapshot: &Snapshot) -> RecordingData<'a> {
    let (ending, stopped, damaged_byte) = match facts.ending {
        None => ("not_read", None, None),
        Some(Ending::Whole(mark)) => ("whole", Some(mark.stopped), None),
        Some(Ending::Cut) => ("cut", None, None),
        Some(Ending::Damaged { byte }) => ("damaged", None, Some(byte)),
    };
    RecordingData {
        file: facts.path,
        version: &facts.front.version,
        command: &facts.front.command,
        everybody: facts.front.everybody,
        attached_ns: snapshot.attached_ns,
        last_ns: snapshot.time_ns,
        events_since_ns: facts.events_since_ns,
        since_ns: facts.since_ns,
        bytes: facts.bytes,
        inputs: facts.inputs,
        ending,
        stopped,
        damaged_byte,
    }
}

#[derive(Serialize)]
struct ReportData<'a> {
    /// The recording; null for a session.
    recording: Option<RecordingData<'a>>,
    #[serde(flatten)]
    data: PsData<'a>,
    #[serde(flatten)]
    sections: SectionsData<'a>,
}

/// The data of each section, under its name.
struct SectionsData<'a> {
    sections: &'a [(&'static str, Finding)],
    snapshot: &'a Snapshot,
}

impl Serialize for SectionsData<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self { sections, snapshot } = self;
        let mut map = serializer.serialize_map(None)?;
        for (name, finding) in *sections {
            match finding {
                // Lines, modules and phases are below each process.
                Finding::Where => {}
                Finding::Ooms(found) => map.serialize_entry(name, &oom::data(found))?,
                Finding::Leaks(found) => map.serialize_entry(name, &leaks::data(found))?,
                Finding::Forecasts(found) => map.serialize_entry(name, &forecast::forecasts(found))?,
                Finding::Fragments(found) => map.serialize_entry(name, &fragments::data(found, snapshot))?,
                Finding::Profile(found) => map.serialize_entry(name, &profile::data(found, snapshot))?,
                Finding::Churn(found) => map.serialize_entry(name, &churn::data(found))?,
            }
        }
        map.end()
    }
}

#[derive(Serialize)]
struct RecordingData<'a> {
    file: &'a Path,
    version: &'a str,
    command: &'a [String],
    everybody: bool,
    #[serde(serialize_with = "json::begin_time")]
    attached_ns: u64,
    #[serde(serialize_with = "json::end_time")]
    last_ns: u64,
    #[serde(serialize_with = "json::date")]
    events_since_ns: Option<u64>,
    #[serde(serialize_with = "json::date")]
    since_ns: Option<u64>,
    bytes: u64,
    inputs: u64,
    ending: &'static str,
    stopped: Option<Stopped>,
    damaged_byte: Option<u64>,
}
