//! Ended processes, and how long they are kept: while clients may query them, and while NVML
//! charges them.

use std::collections::{BTreeMap, BTreeSet};

use crate::attribution::process::{Ended, Process};
use crate::input::ProcessFacts;
use crate::kernel_driver::process_ledger::DriverLedger;
use crate::snapshot::build::explained;
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::state::room::answers;
use crate::words::Tgid;

/// Limit of ended processes in snapshots: a target may start any number of children.
const ENDED_KEPT: usize = 4096;

/// Number of additional ended processes after which the per-user shares are enforced.
const ENDED_TOGETHER: usize = 256;

/// Time that an ended process stays in snapshots, nanoseconds.
const ENDED_KEPT_NS: u64 = 10_000_000_000;

impl State {
    /// Keeps a process that has ended.
    pub(crate) fn remember(&mut self, process: Process) {
        self.ended.push(process);
        // When only a few processes are traced, all belong to one user.
        if !self.keep_ended && self.ended.len().is_multiple_of(ENDED_TOGETHER) {
            self.share_ended();
        }
    }

    /// Enforces a share per user. When all processes are traced, they come and go as fast as users
    /// can start them, so each user gets half of the capacity that the others leave.
    fn share_ended(&mut self) {
        let mut surplus: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for process in self.ended.iter() {
            *surplus.entry(answers(process)).or_default() += 1;
        }
        let all = self.ended.len();
        for own in surplus.values_mut() {
            *own = own.saturating_sub(ENDED_KEPT.saturating_sub(all - *own) / 2);
        }
        // Removes the oldest.
        self.ended.retain(|process| {
            let Some(left) = surplus.get_mut(&answers(process)).filter(|left| **left > 0) else { return true };
            *left -= 1;
            false
        });
    }

    /// Sets whether processes with memory stay in snapshots after their end.
    pub fn keep_ended(&mut self, keeps: bool) {
        self.keep_ended = keeps;
    }

    /// Returns whether this process is among the kept ended processes.
    pub fn has_ended(&self, facts: &ProcessFacts) -> bool {
        let has_facts = |process: &&Process| process.tgid == Tgid(facts.tgid) && process.facts.is_some();
        self.ended.iter().filter(has_facts).any(|process| process.is_of(facts))
    }

    /// Drops ended processes that are no longer needed.
    pub(super) fn forget_ended(&mut self, detector: &mut impl Detector) {
        let now_ns = self.now_ns;
        let fresh = |ended: Ended| now_ns.saturating_sub(ended.time_ns) < ENDED_KEPT_NS;
        let kept = |process: &Process| self.keep_ended && process.is_memorable();
        let remembered = self.ended.len();
        let surroundings = self.surroundings();
        let is_charged = |process: &Process| explained::left_behind(&surroundings, process).is_some();
        let charged: BTreeSet<Tgid> =
            self.ended.iter().filter(|process| is_charged(process)).map(|process| process.tgid).collect();
        let stays = |process: &Process| process.ended.is_some_and(fresh) || charged.contains(&process.tgid);
        self.ended.retain(|process| kept(process) || stays(process));
        self.ended.keep_last(ENDED_KEPT);
        if self.ended.len() < remembered {
            detector.on(&Event::Forgotten, self);
        }
    }

    /// Returns whether an ended process with this pid is still in snapshots.
    pub fn remembers(&self, tgid: Tgid) -> bool {
        self.ended.contains(tgid)
    }

    /// Records a fork. Until the child execs, it shares the open files of its parent, including
    /// those of the kernel driver.
    pub(crate) fn note_fork(&mut self, parent: Tgid, child: Tgid) {
        // An earlier process with this pid has exited.
        self.forget_fork(child);
        let has_memory = self.kernel_driver.ledger_of(parent).is_some_and(DriverLedger::has_video_memory);
        let listed = self.reading.devices.iter().any(|device| device.lists(parent));
        if let Some(process) = self.processes.get_mut(&parent).filter(|_| has_memory || listed) {
            process.forks(child);
            self.forks.insert(child, parent);
        }
    }

    pub(crate) fn forget_fork(&mut self, child: Tgid) {
        let Some(parent) = self.forks.remove(&child) else { return };
        let ended = self.ended.iter_mut().filter(|process| process.tgid == parent);
        for process in self.processes.get_mut(&parent).into_iter().chain(ended) {
            process.forked.retain(|forked| *forked != child);
        }
    }
}
