//! Counts losses of all processes, and keeps losses whose process is unknown or not known yet.

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;
use serde::{Deserialize, Serialize};

use super::process::Process;
use crate::words::{Tgid, by_name};

/// Maximum number of unknown processes with separate losses. Beyond it, the oldest losses count for
/// all processes.
const EARLY: usize = 4096;
/// Marks losses counted since the last tick. Their exact time is unknown, but it precedes the next
/// tick.
const SINCE_TICK: u64 = u64::MAX;

/// Numbers of lost records of the whole machine.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct LossLedger {
    #[serde(with = "by_name::losses")]
    all: BTreeMap<Loss, u64>,
    /// Losses without a known process. `ownerless_ns` is the time until which they were counted.
    #[serde(with = "by_name::losses")]
    ownerless: BTreeMap<Loss, u64>,
    ownerless_ns: u64,
    /// Losses of processes not known yet.
    #[serde(with = "by_name::losses_by_process")]
    early: BTreeMap<Tgid, BTreeMap<Loss, u64>>,
    /// Time until which the losses in `early` were counted: `CLOCK_BOOTTIME`, nanoseconds, or
    /// [`SINCE_TICK`].
    early_ns: BTreeMap<Tgid, u64>,
}

impl LossLedger {
    /// Returns the losses of the machine, and those of these processes.
    #[must_use]
    pub(crate) fn of(&self, is_one: impl Fn(Tgid) -> bool) -> Self {
        let mut own = self.clone();
        own.early.retain(|tgid, _| is_one(*tgid));
        own.early_ns.retain(|tgid, _| is_one(*tgid));
        own
    }

    /// Counts losses of any process.
    pub fn count(&mut self, loss: Loss, count: u64) {
        *self.all.entry(loss).or_insert(0) += count;
    }

    /// Keeps losses of a process until it is known.
    pub fn keep_for(&mut self, tgid: Tgid, loss: Loss, count: u64) {
        let is_new = !self.early.contains_key(&tgid);
        *self.early.entry(tgid).or_default().entry(loss).or_insert(0) += count;
        self.early_ns.insert(tgid, SINCE_TICK);
        if is_new && self.early.len() > EARLY {
            self.spread_oldest();
        }
    }

    /// Keeps losses that may concern any process running until the next tick.
    pub fn keep_for_everybody(&mut self, loss: Loss, count: u64) {
        *self.ownerless.entry(loss).or_insert(0) += count;
        self.ownerless_ns = SINCE_TICK;
    }

    /// Advances to `now_ns`. All losses counted so far happened before this time.
    pub fn tick(&mut self, now_ns: u64) {
        let counted = self.early_ns.values_mut().chain([&mut self.ownerless_ns]);
        counted.filter(|counted_ns| **counted_ns == SINCE_TICK).for_each(|counted_ns| *counted_ns = now_ns);
    }

    /// Drops losses of an exited process, so that they do not count for a later one with its number.
    pub fn forget(&mut self, tgid: Tgid) {
        self.early.remove(&tgid);
        self.early_ns.remove(&tgid);
    }

    /// Charges a new process with earlier losses of its number, unless it started after them.
    pub fn settle(&mut self, process: &mut Process) {
        let start_ns = process.facts.as_ref().map_or(0, |facts| facts.start_ns);
        let early_ns = self.early_ns.get(&process.tgid).copied().unwrap_or(0);
        if start_ns <= early_ns {
            let early = self.early.get(&process.tgid).into_iter().flatten();
            early.for_each(|(loss, count)| process.lose(*loss, *count));
        }
        self.forget(process.tgid);
        if start_ns <= self.ownerless_ns {
            self.ownerless.iter().for_each(|(loss, count)| process.lose(*loss, *count));
        }
    }

    /// Returns all losses by cause.
    pub fn all(&self) -> &BTreeMap<Loss, u64> {
        &self.all
    }

    /// Counts the oldest losses of an unknown process for all processes.
    fn spread_oldest(&mut self) {
        let Some((tgid, counted_ns)) = self.early_ns.iter().map(|(tgid, ns)| (*tgid, *ns)).min_by_key(|(_, ns)| *ns)
        else {
            return;
        };
        for (loss, count) in self.early.remove(&tgid).into_iter().flatten() {
            *self.ownerless.entry(loss).or_insert(0) += count;
        }
        self.early_ns.remove(&tgid);
        self.ownerless_ns = self.ownerless_ns.max(counted_ns);
    }
}
