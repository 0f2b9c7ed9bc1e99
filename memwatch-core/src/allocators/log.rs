//! A line whenever the computation goes on to another layer or stage: what a MemTracer writes, without hooks in the program.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::Reported;
use super::names::LayerKey;
use super::threads::{Attribution, Stage};
use crate::words::{Ordinal, Tid};

/// How many lines wait for somebody to take them.
const WAITING: usize = 1 << 16;

/// One line: the totals at the first block of a layer in a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The device.
    pub ordinal: Ordinal,
    /// The thread.
    pub tid: Tid,
    /// How many steps were done.
    pub step: u64,
    /// The module.
    pub layer: LayerKey,
    /// The stage.
    pub stage: Stage,
    /// It is computed again.
    pub recomputed: bool,
    /// What the program has, in bytes.
    pub allocated_bytes: u64,
    /// What the allocator has of the driver, in bytes.
    pub cached_bytes: u64,
    /// The most the program had since the attach.
    pub max_allocated_bytes: u64,
    /// The most the allocator had since the attach.
    pub max_cached_bytes: u64,
}

/// The lines that nobody has taken yet.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Log {
    #[serde(skip)]
    is_wanted: bool,
    highest: BTreeMap<Ordinal, (u64, u64)>,
    #[serde(skip)]
    last: BTreeMap<Ordinal, (LayerKey, Stage, bool)>,
    #[serde(skip)]
    lines: VecDeque<LogLine>,
    #[serde(skip)]
    dropped: u64,
}

impl Log {
    /// Begins or ends to write.
    pub(super) fn want(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
    }

    /// The allocator of a device has these totals now.
    pub(super) fn observe(&mut self, ordinal: Ordinal, now: &Reported) {
        let (allocated, cached) = self.highest.entry(ordinal).or_default();
        *allocated = now.allocated_bytes.max(*allocated);
        *cached = now.reserved_bytes.max(*cached);
    }

    /// A block was granted.
    pub(super) fn grant(&mut self, (ordinal, tid): (Ordinal, Tid), now: &Reported, whose: &Attribution) {
        let here = (whose.layer, whose.stage, whose.recomputed);
        if !self.is_wanted || self.last.insert(ordinal, here) == Some(here) {
            return;
        }
        if self.lines.len() >= WAITING {
            self.lines.pop_front();
            self.dropped += 1;
        }
        let (max_allocated_bytes, max_cached_bytes) = self.highest.get(&ordinal).copied().unwrap_or_default();
        self.lines.push_back(LogLine {
            time_ns: now.time_ns,
            ordinal,
            tid,
            step: whose.step,
            layer: whose.layer,
            stage: whose.stage,
            recomputed: whose.recomputed,
            allocated_bytes: now.allocated_bytes,
            cached_bytes: now.reserved_bytes,
            max_allocated_bytes,
            max_cached_bytes,
        });
    }

    /// The lines since the last time, and how many are missing among them since nobody took them.
    pub(super) fn take(&mut self) -> (Vec<LogLine>, u64) {
        (std::mem::take(&mut self.lines).into(), std::mem::take(&mut self.dropped))
    }
}
