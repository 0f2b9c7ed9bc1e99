//! Optional detectors. Each runs only if requested.
//!
//! Events are passed to each detector (`observe`), results are queried; time is an input. A
//! detector that is not part of the saved state ([`crate::pipeline::state`]) restarts when that
//! state is loaded.

use serde::{Deserialize, Serialize};

use crate::Pipeline;
use crate::features::churn::model::Churn;
use crate::features::forecast::ForecastState;
use crate::features::fragments::model::Fragments;
use crate::features::growth::model::MachineGrowth;
use crate::features::leak::model::Leaks;
use crate::features::oom::OomLog;
use crate::features::profile::MemoryProfile;
use crate::features::simulate::model::Simulations;
use crate::words::Tgid;

/// All detectors; `None` if not requested.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Detectors {
    /// Leak detector.
    pub(crate) leaks: Option<Leaks>,
    /// Forecast of out-of-memory.
    pub(crate) forecast_state: Option<ForecastState>,
    /// Growth rates of GPUs and workloads.
    #[serde(skip)]
    pub(crate) growth: Option<Box<MachineGrowth>>,
    /// Log of failed allocations.
    pub(crate) ooms: Option<OomLog>,
    /// Simulations of other settings of PyTorch's allocators.
    #[serde(skip)]
    pub(crate) simulations: Option<Box<Simulations>>,
    /// Profile of live memory over time.
    #[serde(skip)]
    pub(crate) followed: Option<Box<MemoryProfile>>,
    /// Fragmentation of free memory.
    #[serde(skip)]
    pub(crate) fragments: Option<Fragments>,
    /// Churn: rates of allocation and free.
    #[serde(skip)]
    pub(crate) churn: Option<Box<Churn>>,
}

impl Pipeline {
    /// Discards all findings and resets peaks of processes. Later reports cover the time from
    /// `time_ns` (`CLOCK_BOOTTIME`, nanoseconds).
    pub fn begin_window(&mut self, time_ns: u64) {
        self.now_ns = self.now_ns.max(time_ns);
        self.detectors = Detectors::default();
        self.reset_peaks(None, time_ns);
    }

    /// Latest time passed in: `CLOCK_BOOTTIME`, nanoseconds.
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Passes the present state to detectors that were enabled in the middle of a session.
    pub fn show_present(&mut self) {
        let Self { detectors, processes, reading, now_ns, .. } = self;
        if let Some(followed) = &mut detectors.followed {
            followed.samples.begin(reading, &processes.values(), *now_ns);
        }
    }

    /// Passes a new reading of all devices to the detectors.
    pub(crate) fn show_reading(&mut self) {
        self.update_rooms();
        self.observe_reading();
        self.observe_growth_reading();
        self.follow_reading();
    }

    /// Passes the imminent end or exec of a process to the detectors.
    pub(crate) fn show_end(&mut self, tgid: Tgid, time_ns: u64) {
        self.settle_statistics(tgid, time_ns, true);
        self.note_end_of_oom(tgid, time_ns);
        self.follow_end(tgid, time_ns);
        self.observe_last_fragments(tgid, time_ns);
        self.forget_needs(tgid);
    }

    /// Runs the detectors' periodic work, after the live bytes of workloads have been updated.
    pub(crate) fn show_tick(&mut self) {
        self.observe_leaks();
        self.observe_needs();
        self.observe_fragments();
        self.observe_growth();
        self.settle_refused();
    }
}
