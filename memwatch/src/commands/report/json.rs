//! `memwatch report` in JSON: what stood at the end of a recording.

use std::io;
use std::path::Path;

use memwatch_core::features::churn::view::ChurnView;
use memwatch_core::recording::{Ending, Stopped};
use memwatch_core::snapshot::Snapshot;
use serde::Serialize;

use super::churn_json as churn;
use crate::render::json::{Data, Origin, Report, data, write_report};
use crate::watch::recording::Facts;

/// Writes a recording's last snapshot, and what the recording is, as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    (facts, churn): (&Facts<'_>, Option<&ChurnView>),
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    let (ending, stopped, damaged_byte) = match facts.ending {
        None => ("not_read", None, None),
        Some(Ending::Whole(mark)) => ("whole", Some(mark.stopped), None),
        Some(Ending::Cut) => ("cut", None, None),
        Some(Ending::Damaged { byte }) => ("damaged", None, Some(byte)),
    };
    let recording = Recording {
        file: facts.path,
        version: &facts.front.version,
        command: &facts.front.command,
        everybody: facts.front.everybody,
        begin_time: origin.clock.rfc3339(snapshot.attached_ns),
        end_time: origin.clock.rfc3339(snapshot.time_ns),
        events_since: facts.events_since_ns.map(|since_ns| origin.clock.rfc3339(since_ns)),
        since: facts.since_ns.map(|since_ns| origin.clock.rfc3339(since_ns)),
        bytes: facts.bytes,
        inputs: facts.inputs,
        ending,
        stopped,
        damaged_byte,
    };
    let data = Whole { recording, data: data(Report::Run, snapshot, origin.clock), churn: churn.map(churn::data) };
    write_report(out, "memwatch.report/2", data, snapshot, origin)
}

#[derive(Serialize)]
struct Whole<'a> {
    recording: Recording<'a>,
    #[serde(flatten)]
    data: Data<'a>,
    /// How memory came and went; absent where it was recorded and not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    churn: Option<churn::Data<'a>>,
}

#[derive(Serialize)]
struct Recording<'a> {
    file: &'a Path,
    version: &'a str,
    command: &'a [String],
    everybody: bool,
    begin_time: String,
    end_time: String,
    events_since: Option<String>,
    since: Option<String>,
    bytes: u64,
    inputs: u64,
    ending: &'static str,
    stopped: Option<Stopped>,
    damaged_byte: Option<u64>,
}
