//! Predicted overhead of tracing PyTorch in the given processes, per tracing level, without tracing
//! them.

use std::num::NonZeroU64;

use memwatch_core::attribution::price::{Budget, ProbeCost, TracingRequest};
use memwatch_core::input::TensorLevel;
use memwatch_core::words::{Tgid, json};
use serde::Serialize;

use super::permission::ways;
use super::privilege::{Privilege, SYS_PTRACE};
use crate::frameworks::probes::measure_trap;
use crate::frameworks::pytorch::{StateReadError, rates};
use crate::sources::kernel::load::KernelHalf;
use crate::watch::evidence::agent::comm;

/// Levels that a budget selects from, the cheapest first, with what each adds to the previous one.
const LEVELS: [(TensorLevel, &str); 4] = [
    (TensorLevel::Read, "totals, peaks and counts, read from its memory"),
    (TensorLevel::Blocks, "every tensor allocation and free"),
    (TensorLevel::Lines, "the lines of Python; blocks below 1 MiB are sampled"),
    (TensorLevel::Modules, "phases and modules"),
];

/// Predictions for all given processes.
#[derive(Debug)]
pub(crate) struct PredictedOverheadReport {
    /// Budget per process.
    pub(crate) budget: Budget,
    /// Cost of a probe.
    pub(crate) prices: ProbeCost,
    /// Why the probe was not measured here; its cost is then that of the slowest measured machine.
    pub(crate) not_measured: Option<String>,
    /// The processes, in the order of the command line.
    pub(crate) processes: Vec<ProcessOverheads>,
}

/// Prediction for a process.
#[derive(Debug)]
pub(crate) struct ProcessOverheads {
    /// Process id.
    pub(crate) tgid: Tgid,
    /// Process name.
    pub(crate) name: String,
    /// The prediction, or a sentence why there is none.
    pub(crate) prediction: Result<Prediction, String>,
}

/// Predicted overhead of each level.
#[derive(Debug)]
pub(crate) struct Prediction {
    /// Tensor allocations and frees per second.
    pub(crate) events_per_second: u64,
    /// Level at which the process would be traced by default.
    pub(crate) chosen: TensorLevel,
    /// Levels, the cheapest first.
    pub(crate) levels: Vec<LevelOverhead>,
}

/// Predicted overhead of a level.
#[derive(Debug, Serialize)]
pub(crate) struct LevelOverhead {
    /// The level.
    pub(crate) level: TensorLevel,
    /// What the level adds to the previous one.
    pub(crate) shows: &'static str,
    /// Cost per event, in nanoseconds.
    #[serde(rename = "ns_per_event")]
    pub(crate) event_ns: u64,
    /// Overhead, in nanoseconds of CPU time per second.
    #[serde(serialize_with = "json::predicted_seconds_per_second")]
    pub(crate) ns_per_second: u64,
    /// Whether the overhead is within the budget.
    #[serde(rename = "fits_budget")]
    pub(crate) fits: bool,
}

/// Measures a probe if the kernel half is loaded, and counts the tensor events of these processes.
pub(super) fn predict(
    (tgids, budget): (&[Tgid], Budget),
    kernel: Option<&mut KernelHalf>,
    privilege: &Privilege,
) -> PredictedOverheadReport {
    let measured = kernel.map_or_else(|| Err("the trial run did not work".to_owned()), measure_trap);
    let numbers: Vec<u32> = tgids.iter().map(|tgid| tgid.0).collect();
    let found = tgids.iter().copied().zip(rates(&numbers));
    report(budget, measured, found.map(|(tgid, rate)| (tgid, comm(tgid.0), counted(rate, privilege))))
}

/// Builds the report from the measured cost and the counted events.
pub(super) fn report(
    budget: Budget,
    measured: Result<NonZeroU64, String>,
    counted: impl Iterator<Item = (Tgid, String, Result<u64, String>)>,
) -> PredictedOverheadReport {
    let prices = measured.as_ref().map_or_else(|_| ProbeCost::default(), |trap_ns| ProbeCost { trap_ns: *trap_ns });
    // Windows do not affect which level is chosen.
    let asked =
        TracingRequest { level: TensorLevel::Modules, by_default: true, budget, prices, ..TracingRequest::default() };
    let of_process = |(tgid, name, rate): (Tgid, String, Result<u64, String>)| {
        let prediction = rate.map(|rate| predicted(asked, tgid, rate));
        ProcessOverheads { tgid, name, prediction }
    };
    PredictedOverheadReport {
        budget,
        prices,
        not_measured: measured.err(),
        processes: counted.map(of_process).collect(),
    }
}

fn predicted(asked: TracingRequest, tgid: Tgid, events_per_second: u64) -> Prediction {
    let levels = LEVELS.map(|(level, shows)| LevelOverhead {
        level,
        shows,
        event_ns: asked.event_ns(level),
        ns_per_second: asked.price_ns(level, events_per_second),
        fits: asked.fits(level, events_per_second),
    });
    let chosen = asked.choose((tgid, 0), events_per_second).chosen;
    Prediction { events_per_second, chosen, levels: levels.into() }
}

fn counted(rate: Result<Option<u64>, StateReadError>, privilege: &Privilege) -> Result<u64, String> {
    match rate {
        Ok(Some(rate)) => Ok(rate),
        Ok(None) => Err("PyTorch with CUDA is not loaded: there are no tensors to trace".to_owned()),
        Err(error) => Err(match ways(privilege).first() {
            Some(way) if !privilege.has(SYS_PTRACE) => {
                format!("its tensors cannot be counted: {error}. That needs {}: {way}", SYS_PTRACE.name)
            }
            _ => format!("its tensors cannot be counted: {error}"),
        }),
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;
    use crate::commands::doctor::privilege::tests::{root, user};

    #[test]
    fn doctor_chosen_level_is_the_highest_that_fits_the_budget() {
        for (events_per_second, chosen, fitting) in [(1_000, TensorLevel::Modules, 4), (120_000, TensorLevel::Read, 1)]
        {
            let counted = [(Tgid(7), "python3".to_owned(), Ok(events_per_second))];
            let report = report(Budget::default(), Ok(NonZeroU64::new(1_000).expect("a price")), counted.into_iter());
            let prediction = report.processes[0].prediction.as_ref().expect("it is predicted");
            assert_eq!(prediction.chosen, chosen);
            assert_eq!(prediction.levels.iter().filter(|level| level.fits).count(), fitting);
            assert!(prediction.levels.is_sorted_by_key(|level| (level.event_ns, level.ns_per_second)));
        }
    }

    #[test]
    fn a_process_that_is_not_counted_has_a_reason_and_a_way_out() {
        let unreadable = || Err(StateReadError::Unreadable(ErrorKind::PermissionDenied));
        let refused = counted(unreadable(), &user()).expect_err("it is not read");
        assert!(refused.contains("That needs cap_sys_ptrace: sudo /usr/bin/memwatch doctor"), "{refused}");
        let refused = counted(unreadable(), &root()).expect_err("it is not read");
        assert_eq!(refused, "its tensors cannot be counted: its memory cannot be read: permission denied");
        assert!(counted(Ok(None), &root()).is_err_and(|why| why.contains("PyTorch with CUDA is not loaded")));
        assert_eq!(counted(Ok(Some(0)), &root()), Ok(0));
    }
}
