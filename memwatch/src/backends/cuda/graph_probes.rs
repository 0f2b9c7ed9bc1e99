//! Launches of graphs, probed only in processes whose graphs have allocations in them: a graph takes its memory when it first runs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use memwatch_common::probes::When;
use memwatch_core::Pipeline;

use super::process_probes::{put_in, take_out};
use crate::backends::ProbesOnDemand;
use crate::backends::library_watch::LibraryWatch;
use crate::sources::kernel::attach::ProcessProbes;
use crate::sources::kernel::load::Kernel;

/// The processes whose launches are watched.
#[derive(Debug, Default)]
pub(super) struct GraphProbes {
    /// No probes where they could not be attached: that is not tried again.
    watched: BTreeMap<u32, Vec<ProcessProbes>>,
}

impl ProbesOnDemand for GraphProbes {
    /// The reason is a graph with allocations in it.
    fn update(&mut self, kernel: &mut Kernel, libraries: &mut LibraryWatch, pipeline: &Pipeline) {
        let with_memory: BTreeSet<u32> = pipeline.with_graph_memory().map(|tgid| tgid.0).collect();
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
