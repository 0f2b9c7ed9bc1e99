//! JSON output of `memwatch report`: the state at the end of a recording.

use std::io;
use std::path::Path;

use memwatch_core::features::churn::view::ChurnView;
use memwatch_core::recording::{Ending, Stopped};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::json;
use serde::Serialize;

use super::churn_json as churn;
use crate::render::json::{JsonReport, PsData, ReportOrigin, data, write_report};
use crate::watch::recording::RecordingFacts;

/// Writes a recording's last snapshot, and facts about the recording, as one line.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (facts, churn): (&RecordingFacts<'_>, Option<&ChurnView>),
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    let (ending, stopped, damaged_byte) = match facts.ending {
        None => ("not_read", None, None),
        Some(Ending::Whole(mark)) => ("whole", Some(mark.stopped), None),
        Some(Ending::Cut) => ("cut", None, None),
        Some(Ending::Damaged { byte }) => ("damaged", None, Some(byte)),
    };
    let recording = RecordingData {
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
    };
    let data = Whole { recording, data: data(JsonReport::Run, snapshot), churn: churn.map(churn::data) };
    write_report(out, "memwatch.report/3", data, snapshot, origin)
}

#[derive(Serialize)]
struct Whole<'a> {
    recording: RecordingData<'a>,
    #[serde(flatten)]
    data: PsData<'a>,
    /// Allocation churn; absent in the report of `memwatch record`.
    #[serde(skip_serializing_if = "Option::is_none")]
    churn: Option<churn::ChurnData<'a>>,
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
