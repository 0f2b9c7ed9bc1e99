//! The whole pipeline: the state, and the detectors that analyse it.

pub mod detectors;
pub mod excerpt;
mod reports;
mod resumed;
pub mod saved;

use memwatch_common::record::CallRecord;
use serde::{Deserialize, Serialize};

use crate::input::Input;
use crate::pipeline::detectors::Detectors;
use crate::snapshot::Snapshot;
use crate::state::State;

/// State and detectors. Inputs go in, snapshots and reports come out.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Pipeline {
    /// Everything known about processes, devices and workloads.
    pub state: State,
    /// The detectors that are turned on.
    pub detectors: Detectors,
}

impl Pipeline {
    /// Creates an empty pipeline. `keep_ended` keeps ended processes in snapshots, for sessions
    /// with named targets.
    pub fn new(keep_ended: bool) -> Self {
        Self { state: State::new(keep_ended), detectors: Detectors::default() }
    }

    /// Applies one input.
    pub fn step(&mut self, input: Input) {
        self.state.step(input, &mut self.detectors);
    }

    /// Applies these calls with the same result as [`Self::step`] for each, but faster for large
    /// ledgers.
    pub fn step_calls(&mut self, records: &[CallRecord]) {
        self.state.step_calls(records, &mut self.detectors);
    }

    /// Discards all findings and resets peaks of processes. Later reports cover the time from
    /// `time_ns` (`CLOCK_BOOTTIME`, nanoseconds).
    pub fn begin_window(&mut self, time_ns: u64) {
        self.detectors = Detectors::default();
        self.state.begin_window(time_ns);
    }

    /// Passes the present state to detectors that were enabled in the middle of a session.
    pub fn show_present(&mut self) {
        if let Some(profile) = &mut self.detectors.profile {
            profile.begin(&self.state);
        }
    }

    /// Returns the read model as of the last tick.
    pub fn snapshot(&self) -> Snapshot {
        let snapshot = self.state.snapshot();
        match &self.detectors.growth {
            Some(growth) => growth.report(&self.state, snapshot),
            None => snapshot,
        }
    }
}
