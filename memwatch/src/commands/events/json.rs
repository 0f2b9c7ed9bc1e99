//! JSON output of events: one object per line, whichever command or agent writes it.

use memwatch_core::features::forecast::view::ForecastChangeView;
use memwatch_core::features::left_behind::view::LeftBehindChangeView;
use memwatch_core::features::oom::view::OomView;
use memwatch_core::snapshot::ProcessView;
use memwatch_core::words::{GpuUuid, Tgid, json};
use serde::Serialize;

use super::words::what;
use crate::commands::oom::forecast_json::{ForecastChangeData, change};
use crate::commands::oom::json::{OomFailure, failure};
use crate::printable::write_json;
use crate::render::json::form::Formed;
use crate::render::sentences::gpu_number;
use crate::watch::events::{MachineEvent, SUBJECTS};
use crate::watch::taken_at::TakenAt;

/// Name and version of the form of a line.
const SCHEMA: &str = "memwatch.event/1";

/// Returns an event as a line that ends with a newline.
pub(crate) fn line(event: &MachineEvent, taken_at: &TakenAt) -> Vec<u8> {
    let origin = taken_at.origin();
    let subjects = event.subjects();
    let subject: Option<&ProcessView> = subjects.first().copied();
    let (gpu, uuid) = place(event);
    let written = EventLine {
        schema: SCHEMA,
        version: env!("CARGO_PKG_VERSION"),
        host: origin.host,
        kind: event.kind(),
        time_ns: event.time_ns(),
        tgid: tgid(event, subject),
        user: subject.and_then(|process| process.user.as_deref()),
        gpu,
        uuid,
        what: what(event, origin.clock),
        details: details(event),
    };
    let mut line = Vec::new();
    // A vector takes everything.
    let _ = write_json(&mut line, &Formed::new(&written, origin.clock));
    line.push(b'\n');
    line
}

#[derive(Serialize)]
struct EventLine<'a> {
    schema: &'static str,
    version: &'static str,
    host: &'a str,
    kind: &'static str,
    #[serde(serialize_with = "json::date")]
    time_ns: u64,
    #[serde(rename = "pid")]
    tgid: Option<Tgid>,
    user: Option<&'a str>,
    gpu: Option<String>,
    uuid: Option<&'a GpuUuid>,
    what: String,
    details: EventDetails<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum EventDetails<'a> {
    OutOfMemory(Box<FailureDetails<'a>>),
    Forecast(Box<ForecastChangeData<'a>>),
    LeftBehind(&'a LeftBehindChangeView),
}

#[derive(Serialize)]
struct FailureDetails<'a> {
    outcome: &'static str,
    #[serde(flatten)]
    failure: OomFailure<'a>,
    /// Number of processes with memory on the GPU that `holders` does not list.
    holders_left_out: usize,
}

fn details(event: &MachineEvent) -> EventDetails<'_> {
    match event {
        MachineEvent::OutOfMemory(oom) => {
            let mut failure = failure(oom, false);
            let holders_left_out = failure.holders.len().saturating_sub(SUBJECTS);
            failure.holders.truncate(SUBJECTS);
            EventDetails::OutOfMemory(Box::new(FailureDetails { outcome: outcome(oom), failure, holders_left_out }))
        }
        MachineEvent::Forecast(event) => EventDetails::Forecast(Box::new(change(&event.change))),
        MachineEvent::LeftBehind(change) => EventDetails::LeftBehind(change),
    }
}

/// Returns what the failure did to the process, as far as it is known.
const fn outcome(oom: &OomView) -> &'static str {
    match (oom.ended_ns, oom.exited_ns, oom.is_survived) {
        (Some(_), _, _) => "ended",
        (None, Some(_), _) | (None, None, true) => "survived",
        (None, None, false) => "open",
    }
}

/// Returns the process that the event is about; of a forecast the one that grows and is nearest to
/// its end, if any.
fn tgid(event: &MachineEvent, subject: Option<&ProcessView>) -> Option<Tgid> {
    match event {
        MachineEvent::OutOfMemory(oom) => Some(oom.tgid),
        MachineEvent::Forecast(_) | MachineEvent::LeftBehind(_) => subject.map(|process| process.tgid),
    }
}

/// Returns number and UUID of the GPU; of several the first. Both are `None` for host memory, and if
/// the GPU is not known.
fn place(event: &MachineEvent) -> (Option<String>, Option<&GpuUuid>) {
    match event {
        MachineEvent::OutOfMemory(oom) => {
            let uuid = oom.gpu().map(|gpu| &gpu.uuid);
            (uuid.map(|uuid| gpu_number(&oom.snapshot, Some(uuid))), uuid)
        }
        MachineEvent::Forecast(event) => {
            let ForecastChangeView { gpu, .. } = &event.change;
            (Some(gpu.number.clone()), Some(&gpu.uuid))
        }
        MachineEvent::LeftBehind(change) => {
            let first = change.gpus.first();
            (first.map(|own| own.number.clone()), first.map(|own| &own.uuid))
        }
    }
}
