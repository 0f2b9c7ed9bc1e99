//! Launches of graphs, probed only in processes whose graphs have allocations in them: a graph takes its memory when it first runs.

use std::collections::{BTreeMap, BTreeSet};

use memwatch_common::probes::When;

use super::library_watch::LibraryWatch;
use super::process_probes::{put_in, take_out};
use crate::sources::kernel::attach::ProcessProbes;
use crate::sources::kernel::load::Kernel;

/// The processes whose launches are watched.
#[derive(Debug, Default)]
pub(crate) struct GraphProbes {
    /// No probes where they could not be attached: that is not tried again.
    watched: BTreeMap<u32, Vec<ProcessProbes>>,
}

impl GraphProbes {
    /// Puts probes into those of these processes that have none, and takes them out of all others.
    pub(crate) fn update(&mut self, kernel: &mut Kernel, libraries: &LibraryWatch, with_memory: &BTreeSet<u32>) {
        for (tgid, probes) in self.watched.extract_if(.., |tgid, _| !with_memory.contains(tgid)) {
            take_out(kernel, tgid, probes);
        }
        for &tgid in with_memory {
            self.watched.entry(tgid).or_insert_with(|| put_in(kernel, libraries, tgid, When::GraphMemory));
        }
    }
}
