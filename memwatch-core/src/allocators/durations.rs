//! How long a program's threads were at work for each layer, by the host's clock: what its GPU does meanwhile is not known.
//!
//! A layer has the time from each of its allocations to the next moment that shows what the same thread does: its next allocation, or the beginning
//! of another backward node. Only where both are of one stage of one step, and no backward pass of another thread came between.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use serde::{Deserialize, Serialize};

use super::Block;
use super::names::LayerKey;
use super::threads::{Attribution, Stage};
use crate::words::{Ordinal, Tid};

/// So many threads are known at once.
const THREADS: usize = 4096;

/// What a layer has had of a thread's time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Spent {
    /// The device that it allocated on.
    pub ordinal: Ordinal,
    /// The layer.
    pub layer: LayerKey,
    /// Nanoseconds.
    pub time_ns: u64,
}

/// The threads' last allocations.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Durations {
    last: HashMap<Tid, Last, RandomState>,
    /// When any thread began a backward node last.
    node_ns: u64,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Last {
    ordinal: Ordinal,
    layer: LayerKey,
    stage: Stage,
    step: u64,
    time_ns: u64,
}

impl Last {
    fn spent(&self, until_ns: u64) -> Option<Spent> {
        let time_ns = until_ns.checked_sub(self.time_ns)?;
        Some(Spent { ordinal: self.ordinal, layer: self.layer, time_ns })
    }
}

impl Durations {
    /// The thread's last allocation was for this layer.
    pub(super) fn rename(&mut self, tid: Tid, layer: LayerKey) {
        if let Some(last) = self.last.get_mut(&tid) {
            last.layer = layer;
        }
    }

    /// A block was granted to a thread: what the layer before has had of its time.
    pub(super) fn grant(&mut self, block: &Block, whose: &Attribution) -> Option<Spent> {
        if self.last.len() >= THREADS && !self.last.contains_key(&block.tid) {
            self.last.clear();
        }
        let Attribution { layer, stage, step, .. } = *whose;
        let (ordinal, time_ns) = (block.ordinal, block.time_ns);
        let last = self.last.insert(block.tid, Last { ordinal, layer, stage, step, time_ns })?;
        // A thread that waits for a backward pass is not at work for what it allocated before.
        let has_waited = last.stage != Stage::Backward && self.node_ns > last.time_ns;
        let is_one = (last.stage, last.step) == (stage, step) && !has_waited;
        last.spent(time_ns).filter(|_| is_one)
    }

    /// A thread begins a node of the backward graph: what the layer of the node before has had.
    pub(super) fn begin_node(&mut self, tid: Tid, time_ns: u64) -> Option<Spent> {
        self.node_ns = self.node_ns.max(time_ns);
        let last = self.last.remove(&tid)?;
        last.spent(time_ns).filter(|_| last.stage == Stage::Backward)
    }

    /// A thread is no more.
    pub(super) fn end(&mut self, tid: Tid) {
        self.last.remove(&tid);
    }

    /// Events did not arrive: nobody knows what came between.
    pub(super) fn lose(&mut self) {
        self.last.clear();
    }
}
