//! `cargo xtask bench overhead`: measures the time of a driver call under tracing.
//!
//! All modes take turns within one run of one workload process, so that a slow phase of the machine
//! affects all alike.

use super::DOCUMENT;
use super::report::{self, Measurement};
use super::watcher::{MODES, Watcher};
use super::workload::BenchWorkload;
use crate::args::TaskArgs;
use crate::binary;
use crate::document;
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::setup;
use crate::setup::Package;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::path::Path;

const ROUNDS: u64 = 7;
/// Pairs per measurement: long enough that the fastest mode takes milliseconds, short enough that
/// the slowest stays near a second.
const PAIRS: u64 = 20_000;
const SHAPES: &[(Prologue, &str)] = &[(Prologue::Cmp, "cmp first"), (Prologue::Push, "push first")];

/// Builds everything, measures, prints the table and writes it into docs/project/overhead.md.
pub(super) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let rounds = args.count("--rounds")?.unwrap_or(ROUNDS);
    let pairs = args.count("--pairs")?.unwrap_or(PAIRS);
    args.finish()?;
    if rounds == 0 || pairs == 0 {
        bail!("--rounds and --pairs are at least 1");
    }
    if !setup::is_root() {
        bail!("uprobes need root: sudo --preserve-env=PATH,HOME cargo xtask bench overhead");
    }
    let memwatch = binary::build(repo, BuildProfile::Release)?;
    setup::packages(&[Package::Bpftrace])?;
    integration::build_simulators(repo)?;
    let mut measurements = Vec::new();
    for (prologue, shape) in SHAPES {
        let driver = integration::simulator(repo, *prologue);
        measurements
            .extend(measure(&memwatch, &driver, shape, rounds, pairs).with_context(|| format!("shape '{shape}'"))?);
    }
    let text = report::text(&measurements, rounds, pairs)?;
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &report::OVERHEAD, &text)
}

/// Measures one shape: `rounds` rounds of every mode in turn.
fn measure(memwatch: &Path, driver: &Path, shape: &'static str, rounds: u64, pairs: u64) -> Result<Vec<Measurement>> {
    let mut workload = BenchWorkload::start(driver)?;
    let mut measurements: Vec<Measurement> = MODES.iter().map(|mode| Measurement::new(shape, *mode)).collect();
    workload.time_calls(pairs)?;
    for round in 1..=rounds {
        for measurement in &mut measurements {
            let watcher = measurement.mode.attach(memwatch, driver, &workload).context(measurement.mode.title())?;
            let warm_up = workload.time_calls(pairs.div_ceil(10))?;
            let timed = workload.time_calls(pairs)?;
            let report = watcher.map(Watcher::detach).transpose().context(measurement.mode.title())?.flatten();
            let per_call_ns = timed.per_call_ns();
            if let Some(report) = report {
                measurement.made_calls += warm_up.calls + timed.calls;
                measurement.recorded_calls += recorded_calls(&report);
            }
            eprintln!("round {round} of {rounds}, {shape}, {}: {per_call_ns:.0} ns per call", measurement.mode.title());
            measurement.per_call_ns.push(per_call_ns);
        }
    }
    Ok(measurements)
}

/// Returns the allocations and frees in a report of `memwatch --json` on one process.
fn recorded_calls(report: &Value) -> u64 {
    let processes = report["data"]["processes"].as_array().into_iter().flatten();
    let gpus = processes.flat_map(|process| process["gpus"].as_array().into_iter().flatten());
    gpus.flat_map(|gpu| [&gpu["allocations"], &gpu["frees"]]).filter_map(Value::as_u64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_calls_are_allocations_and_frees_of_every_gpu() {
        let report = serde_json::json!({"data": {"processes": [
            {"gpus": [{"allocations": 3, "frees": 2}, {"allocations": 1, "frees": 0}]}
        ]}});
        assert_eq!(recorded_calls(&report), 6);
        assert_eq!(recorded_calls(&serde_json::json!({})), 0);
    }
}
