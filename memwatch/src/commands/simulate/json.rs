//! JSON output of `memwatch simulate`: the predicted memory of each setting, next to the measured
//! memory.

use std::io;

use memwatch_core::features::simulate::view::{PolicyView, SimulationView};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::json;
use serde::Serialize;

use crate::commands::simulate::words::{advice, setting};
use crate::render::json::{ReportOrigin, write_report};

/// Writes the report as one line.
///
/// # Errors
/// The error of `out`.
pub(crate) fn write(
    out: &mut impl io::Write,
    (simulations, capacity_bytes): (&[SimulationView], Option<u64>),
    snapshot: &Snapshot,
    origin: ReportOrigin,
) -> io::Result<()> {
    let devices = simulations.iter().map(|one| device(one, snapshot)).collect();
    write_report(out, "memwatch.simulate/3", SimulateData { capacity_bytes, devices }, snapshot, origin)
}

#[derive(Serialize)]
struct SimulateData<'a> {
    capacity_bytes: Option<u64>,
    devices: Vec<SimulateDevice<'a>>,
}

#[derive(Serialize)]
struct SimulateDevice<'a> {
    comm: &'a str,
    command: &'a str,
    #[serde(flatten)]
    view: &'a SimulationView,
    policies: Vec<SimulatePolicy<'a>>,
    advice: Vec<String>,
}

#[derive(Serialize)]
struct SimulatePolicy<'a> {
    /// Environment variable with the setting.
    environment: Option<String>,
    #[serde(serialize_with = "json::date")]
    failure_time: Option<u64>,
    #[serde(flatten)]
    policy: &'a PolicyView,
}

fn device<'a>(view: &'a SimulationView, snapshot: &'a Snapshot) -> SimulateDevice<'a> {
    let process = snapshot.process(view.tgid, view.observed_since_ns);
    let policy = |policy: &'a PolicyView| SimulatePolicy {
        environment: setting(policy),
        failure_time: policy.failure.map(|failure| failure.time_ns),
        policy,
    };
    SimulateDevice {
        comm: process.map_or("", |process| &process.comm),
        command: process.map_or("", |process| &process.command),
        view,
        policies: view.policies.iter().map(policy).collect(),
        advice: advice(view),
    }
}
