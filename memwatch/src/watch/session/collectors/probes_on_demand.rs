//! Driver functions that are probed in single processes, while some fact about these is unknown.

use std::time::Instant;

use super::Collector;
use crate::backends::{self, ProbesOnDemand};
use crate::watch::session::parts::SessionParts;

/// The driver's probes on demand.
pub(super) struct OnDemandProbes(Vec<Box<dyn ProbesOnDemand>>);

impl OnDemandProbes {
    /// Creates the state without any such probe attached.
    pub(super) fn new() -> Self {
        Self(backends::backend().probes_on_demand())
    }
}

impl Collector for OnDemandProbes {
    fn due(&self, _parts: &SessionParts, now: Instant) -> Option<Instant> {
        self.0.iter().filter_map(|probes| probes.due(now)).min()
    }

    fn collect(&mut self, parts: &mut SessionParts) {
        for probes in &mut self.0 {
            probes.update(&mut parts.kernel, &mut parts.libraries, parts.sink.pipeline());
        }
    }
}
