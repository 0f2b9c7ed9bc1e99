//! Measures how long the program's threads work for each module, by the host's clock. GPU time is
//! not visible.
//!
//! A module is charged the time from each of its allocations to the next event that shows what the
//! thread does: its next allocation, or the beginning of another backward node. Two allocations count
//! only in the same phase and step, with no backward pass of another thread in between; an interval
//! that ends at a backward node counts only if it began in the backward phase.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::TensorBlock;
use super::names::ModuleKey;
use super::threads::{Attribution, Phase};
use crate::words::{Ordinal, Tid};

/// Maximum number of threads tracked.
const THREADS: usize = 4096;

/// Thread time charged to a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spent {
    /// Device of the allocation.
    pub ordinal: Ordinal,
    /// Module that allocated.
    pub module: ModuleKey,
    /// Time in nanoseconds.
    pub time_ns: u64,
}

/// Last allocation of each thread.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Durations {
    last: HashMap<Tid, Last, RandomState>,
    /// When a thread last began a backward node.
    node_ns: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Last {
    ordinal: Ordinal,
    module: ModuleKey,
    phase: Phase,
    step: u64,
    time_ns: u64,
}

impl Last {
    fn spent(&self, until_ns: u64) -> Option<Spent> {
        let time_ns = until_ns.checked_sub(self.time_ns)?;
        Some(Spent { ordinal: self.ordinal, module: self.module, time_ns })
    }
}

impl Durations {
    /// Changes the module of the thread's last allocation.
    pub(super) fn rename(&mut self, tid: Tid, module: ModuleKey) {
        if let Some(last) = self.last.get_mut(&tid) {
            last.module = module;
        }
    }

    /// Records an allocation and returns the time charged to the thread's previous module.
    pub(super) fn grant(&mut self, block: &TensorBlock, whose: &Attribution) -> Option<Spent> {
        if self.last.len() >= THREADS && !self.last.contains_key(&block.tid) {
            self.last.clear();
        }
        let Attribution { module, phase, step, .. } = *whose;
        let (ordinal, time_ns) = (block.ordinal, block.time_ns);
        let last = self.last.insert(block.tid, Last { ordinal, module, phase, step, time_ns })?;
        // A thread that waits for a backward pass is not working for its last module.
        let has_waited = last.phase != Phase::Backward && self.node_ns > last.time_ns;
        let is_one = (last.phase, last.step) == (phase, step) && !has_waited;
        last.spent(time_ns).filter(|_| is_one)
    }

    /// Records that a thread begins a backward node, and returns the time charged to the previous
    /// one's module.
    pub(super) fn begin_node(&mut self, tid: Tid, time_ns: u64) -> Option<Spent> {
        self.node_ns = self.node_ns.max(time_ns);
        let last = self.last.remove(&tid)?;
        last.spent(time_ns).filter(|_| last.phase == Phase::Backward)
    }

    /// Removes a thread that exited.
    pub(super) fn end(&mut self, tid: Tid) {
        self.last.remove(&tid);
    }

    /// Drops all open intervals after lost events, since anything may have happened in between.
    pub(super) fn lose(&mut self) {
        self.last.clear();
    }
}
