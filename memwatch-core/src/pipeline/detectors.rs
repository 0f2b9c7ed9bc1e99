//! The table of detectors. Each runs only if it is turned on.

use serde::{Deserialize, Serialize};

use crate::features::churn::model::Churn;
use crate::features::forecast::ForecastState;
use crate::features::fragments::model::Fragments;
use crate::features::growth::model::MachineGrowth;
use crate::features::leak::model::Leaks;
use crate::features::left_behind::LeftBehindLog;
use crate::features::oom::OomLog;
use crate::features::profile::MemoryProfile;
use crate::features::simulate::model::Simulations;
use crate::state::State;
use crate::state::event::{Detector, Event};

macro_rules! detectors {
    ($($(#[$attribute:meta])* $name:ident: $detector:ty,)*) => {
        /// All detectors; `None` if turned off. A detector that is not part of the saved state
        /// ([`crate::pipeline::saved`]) restarts when that state is loaded.
        #[derive(Clone, Debug, Default, Serialize, Deserialize)]
        pub struct Detectors {
            $($(#[$attribute])* pub $name: Option<Box<$detector>>,)*
        }

        impl Detectors {
            #[inline]
            fn are_off(&self) -> bool {
                $(self.$name.is_none())&&*
            }

            // Kept out of the code that applies a call, which is hot with and without detectors.
            #[inline(never)]
            fn pass_on(&mut self, event: &Event<'_>, state: &State) {
                $(if let Some(detector) = &mut self.$name {
                    detector.on(event, state);
                })*
            }
        }
    };
}

detectors! {
    /// Memory that keeps growing.
    leaks: Leaks,
    /// Forecast of out-of-memory.
    forecast: ForecastState,
    /// Growth rates of GPUs and workloads.
    #[serde(skip)]
    growth: MachineGrowth,
    /// Failed allocations.
    ooms: OomLog,
    /// Memory that stays charged to exited processes.
    #[serde(skip)]
    left_behind: LeftBehindLog,
    /// Simulations of other settings of PyTorch's allocators.
    #[serde(skip)]
    simulations: Simulations,
    /// Live memory over time, and events on it.
    #[serde(skip)]
    profile: MemoryProfile,
    /// Fragmentation of free memory.
    #[serde(skip)]
    fragments: Fragments,
    /// Rates of allocation and free.
    #[serde(skip)]
    churn: Churn,
}

impl Detector for Detectors {
    #[inline]
    fn on(&mut self, event: &Event<'_>, state: &State) {
        if self.are_off() {
            return;
        }
        self.pass_on(event, state);
        if let (Event::Tick, Some(forecast)) = (event, &mut self.forecast) {
            forecast.name_changes(state, self.leaks.as_deref());
        }
    }
}
