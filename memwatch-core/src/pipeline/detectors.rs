//! What is looked for beyond the numbers: each detector where somebody asks for it, and nothing else.
//!
//! Each is shown what happens (`observe`) and asked what it has found; the time is an input. What is not in a state ([`crate::pipeline::state`]) begins
//! again where that is read.

use serde::{Deserialize, Serialize};

use crate::Pipeline;
use crate::features::churn::model::Churn;
use crate::features::forecast::ForecastState;
use crate::features::fragments::model::Fragments;
use crate::features::growth::model::MachineGrowth;
use crate::features::leak::model::Leaks;
use crate::features::oom::OomLog;
use crate::features::profile::Followed;
use crate::features::simulate::model::Simulations;
use crate::words::Tgid;

/// All detectors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Detectors {
    /// What keeps growing, if that is asked for.
    pub(crate) leaks: Option<Leaks>,
    /// Whether memory runs out, if that is asked for.
    pub(crate) forecast_state: Option<ForecastState>,
    /// How fast GPUs fill and workloads grow, if that is asked for.
    #[serde(skip)]
    pub(crate) growth: Option<Box<MachineGrowth>>,
    /// Allocations that failed, if that is asked for.
    pub(crate) ooms: Option<OomLog>,
    /// What other settings of PyTorch's allocators would have taken, if that is asked for.
    #[serde(skip)]
    pub(crate) simulations: Option<Box<Simulations>>,
    /// What is held over time, if that is asked for.
    #[serde(skip)]
    pub(crate) followed: Option<Box<Followed>>,
    /// How free memory lies, if that is asked for.
    #[serde(skip)]
    pub(crate) fragments: Option<Fragments>,
    /// How memory comes and goes, if that is asked for.
    #[serde(skip)]
    pub(crate) churn: Option<Box<Churn>>,
}

impl Pipeline {
    /// What was found by now is forgotten, and peaks of processes begin again: what is asked for after this is about what comes from this time on
    /// (`CLOCK_BOOTTIME`, nanoseconds).
    pub fn begin_window(&mut self, time_ns: u64) {
        self.now_ns = self.now_ns.max(time_ns);
        self.detectors = Detectors::default();
        self.reset_peaks(None, time_ns);
    }

    /// When time was reported last: `CLOCK_BOOTTIME`, nanoseconds.
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Shows what there is already to what was asked for in the middle of a watch.
    pub fn show_present(&mut self) {
        let Self { detectors, processes, reading, now_ns, .. } = self;
        if let Some(followed) = &mut detectors.followed {
            followed.samples.begin(reading, &processes.values(), *now_ns);
        }
    }

    /// A reading of all devices was taken in.
    pub(crate) fn show_reading(&mut self) {
        self.update_rooms();
        self.observe_reading();
        self.observe_growth_reading();
        self.follow_reading();
    }

    /// A process is about to be no more, or to have another image.
    pub(crate) fn show_end(&mut self, tgid: Tgid, time_ns: u64) {
        self.settle_statistics(tgid, time_ns, true);
        self.note_end_of_oom(tgid, time_ns);
        self.follow_end(tgid, time_ns);
        self.observe_last_fragments(tgid, time_ns);
        self.forget_needs(tgid);
    }

    /// Time has passed, and workloads know what is live.
    pub(crate) fn show_tick(&mut self) {
        self.observe_leaks();
        self.observe_needs();
        self.observe_fragments();
        self.observe_growth();
        self.settle_refused();
    }
}
