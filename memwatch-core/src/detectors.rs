//! What is looked for beyond the numbers: each detector where somebody asks for it, and nothing else.
//!
//! Each is shown what happens (`observe`) and asked what it has found; the time is an input. What is not in a state ([`crate::state`]) begins
//! anew where that is read.

use serde::{Deserialize, Serialize};

use crate::Pipeline;
use crate::analysis::churn::Churn;
use crate::analysis::fragments::Fragments;
use crate::analysis::growth::MachineGrowth;
use crate::analysis::leak::Leaks;
use crate::analysis::simulation::Simulations;
use crate::forecasts::Foreseen;
use crate::oom::OomLog;
use crate::profile::Followed;

/// All detectors.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Detectors {
    /// What keeps growing, if that is asked for.
    pub(crate) leaks: Option<Leaks>,
    /// Whether memory runs out, if that is asked for.
    pub(crate) foreseen: Option<Foreseen>,
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
    /// A reading of all devices was taken in.
    pub(crate) fn show_reading(&mut self) {
        self.update_rooms();
        self.observe_reading();
        self.observe_growth_reading();
        self.follow_reading();
    }

    /// Time has passed, and workloads know what is live.
    pub(crate) fn show_tick(&mut self) {
        self.observe_leaks();
        self.observe_needs();
        self.observe_fragments();
        self.observe_growth();
    }
}
