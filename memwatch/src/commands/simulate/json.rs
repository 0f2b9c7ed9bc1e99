//! `memwatch simulate` in JSON: what each setting would have taken, beside what was measured.

use std::io;

use memwatch_core::features::simulate::view::{MeasuredView, PolicyView, SimulationView};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::GpuUuid;
use serde::Serialize;

use crate::commands::simulate::words::{advice, setting};
use crate::render::json::{Origin, write_report};
use crate::render::wall_clock::WallClock;

/// Writes the report as one line.
///
/// # Errors
/// What `out` answers.
pub(crate) fn write(
    out: &mut impl io::Write,
    (simulations, capacity_bytes): (&[SimulationView], Option<u64>),
    snapshot: &Snapshot,
    origin: Origin,
) -> io::Result<()> {
    let devices = simulations.iter().map(|one| device(one, snapshot, origin.clock)).collect();
    write_report(out, "memwatch.simulate/2", Listed { capacity_bytes, devices }, snapshot, origin)
}

#[derive(Serialize)]
struct Listed<'a> {
    capacity_bytes: Option<u64>,
    devices: Vec<DeviceJson<'a>>,
}

#[derive(Serialize)]
struct DeviceJson<'a> {
    #[serde(rename = "pid")]
    tgid: u32,
    comm: &'a str,
    command: &'a str,
    observed_since: String,
    device: i32,
    uuid: Option<&'a str>,
    traced: bool,
    lost: u64,
    operations: u64,
    older_allocated_bytes: Option<u64>,
    older_reserved_bytes: Option<u64>,
    begun_with_bytes: Option<u64>,
    available_bytes: Option<u64>,
    context_bytes: Option<u64>,
    measured: &'a MeasuredView,
    policies: Vec<PolicyJson<'a>>,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct PolicyJson<'a> {
    /// As the user would set it.
    environment: Option<String>,
    failure_time: Option<String>,
    #[serde(flatten)]
    policy: &'a PolicyView,
}

fn device<'a>(view: &'a SimulationView, snapshot: &'a Snapshot, clock: &WallClock) -> DeviceJson<'a> {
    let process = snapshot.process(view.tgid, view.observed_since_ns);
    let policy = |policy: &'a PolicyView| PolicyJson {
        environment: setting(policy),
        failure_time: policy.failure.map(|failure| clock.rfc3339(failure.time_ns)),
        policy,
    };
    DeviceJson {
        tgid: view.tgid.0,
        comm: process.map_or("", |process| &process.comm),
        command: process.map_or("", |process| &process.command),
        observed_since: clock.rfc3339(view.observed_since_ns),
        device: view.device,
        uuid: view.uuid.as_ref().map(GpuUuid::as_str),
        traced: view.traced,
        lost: view.lost,
        operations: view.operations,
        older_allocated_bytes: view.older_allocated_bytes,
        older_reserved_bytes: view.older_reserved_bytes,
        begun_with_bytes: view.begun_with_bytes,
        available_bytes: view.available_bytes,
        context_bytes: view.context_bytes,
        measured: &view.measured,
        policies: view.policies.iter().map(policy).collect(),
        advice: advice(view),
    }
}
