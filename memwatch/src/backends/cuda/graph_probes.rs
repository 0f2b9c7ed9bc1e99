//! Probes graph launches in processes with allocations in their graphs only: a graph allocates its
//! memory at its first launch.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use memwatch_common::probes::When;
use memwatch_core::Pipeline;

use super::process_probes::{put_in, take_out};
use crate::backends::ProbesOnDemand;
use crate::backends::library_watch::LibraryWatch;
use crate::sources::kernel::attach::ProcessProbes;
use crate::sources::kernel::load::KernelHalf;

/// Probes of graph launches.
#[derive(Debug, Default)]
pub(super) struct GraphProbes {
    /// Probes by process; empty if they could not be attached, which is not retried.
    watched: BTreeMap<u32, Vec<ProcessProbes>>,
}

impl ProbesOnDemand for GraphProbes {
    /// Probes processes that have a graph with allocations.
    fn update(&mut self, kernel: &mut KernelHalf, libraries: &mut LibraryWatch, pipeline: &Pipeline) {
        let with_memory: BTreeSet<u32> = pipeline.state.with_graph_memory().map(|tgid| tgid.0).collect();
        for (tgid, probes) in self.watched.extract_if(.., |tgid, _| !with_memory.contains(tgid)) {
            take_out(kernel, tgid, probes);
        }
        for tgid in with_memory {
            if !self.watched.contains_key(&tgid)
                && let Some(probes) = put_in(kernel, libraries, tgid, When::GraphMemory)
            {
                self.watched.insert(tgid, probes);
            }
        }
    }

    fn due(&self, _: Instant) -> Option<Instant> {
        None
    }
}
