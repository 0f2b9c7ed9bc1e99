//! Logs a line whenever allocations move to another module or phase, as a MemTracer does, but
//! without hooks in the program.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::ReportedTotals;
use super::names::ModuleKey;
use super::threads::{Attribution, Phase};
use crate::words::{Ordinal, Tid};

/// Maximum number of lines buffered.
const WAITING: usize = 1 << 16;

/// A log line: the totals at the first block of a module in a phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogLine {
    /// Time of the block: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Device of the block.
    pub ordinal: Ordinal,
    /// Allocating thread.
    pub tid: Tid,
    /// Training steps done.
    pub step: u64,
    /// Module that allocated.
    pub module: ModuleKey,
    /// Phase of the training step.
    pub phase: Phase,
    /// The block holds recomputed values.
    pub recomputed: bool,
    /// Bytes allocated by the program.
    pub allocated_bytes: u64,
    /// Bytes that the allocator reserved from the driver.
    pub cached_bytes: u64,
    /// Peak of the allocated bytes since the attach.
    pub max_allocated_bytes: u64,
    /// Peak of the reserved bytes since the attach.
    pub max_cached_bytes: u64,
}

/// Buffered log lines.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Log {
    #[serde(skip)]
    is_wanted: bool,
    highest: BTreeMap<Ordinal, (u64, u64)>,
    #[serde(skip)]
    last: BTreeMap<Ordinal, (ModuleKey, Phase, bool)>,
    #[serde(skip)]
    lines: VecDeque<LogLine>,
    #[serde(skip)]
    dropped: u64,
}

impl Log {
    /// Enables or disables the log.
    pub(super) fn want(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
    }

    /// Updates the peaks of a device.
    pub(super) fn observe(&mut self, ordinal: Ordinal, now: &ReportedTotals) {
        let (allocated, cached) = self.highest.entry(ordinal).or_default();
        *allocated = now.allocated_bytes.max(*allocated);
        *cached = now.reserved_bytes.max(*cached);
    }

    /// Logs a line if the module or phase differs from that of the device's last block.
    pub(super) fn grant(&mut self, (ordinal, tid): (Ordinal, Tid), now: &ReportedTotals, whose: &Attribution) {
        let here = (whose.module, whose.phase, whose.recomputed);
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
            module: whose.module,
            phase: whose.phase,
            recomputed: whose.recomputed,
            allocated_bytes: now.allocated_bytes,
            cached_bytes: now.reserved_bytes,
            max_allocated_bytes,
            max_cached_bytes,
        });
    }

    /// Takes the buffered lines, and the number of lines dropped since the last call.
    pub(super) fn take(&mut self) -> (Vec<LogLine>, u64) {
        (std::mem::take(&mut self.lines).into(), std::mem::take(&mut self.dropped))
    }
}
