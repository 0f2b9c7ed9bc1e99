//! Processes that have ended, and how long they are remembered: as long as somebody may ask, and while NVML charges them.

use std::collections::{BTreeMap, BTreeSet};

use crate::Pipeline;
use crate::attribution::process::{Ended, Process};
use crate::attribution::room::answers;
use crate::input::ProcessFacts;
use crate::kernel_driver::books::Books;
use crate::snapshot::build::explained;
use crate::words::Tgid;

/// How many ended processes stay in the snapshots at most: a target may start children without end.
const ENDED_KEPT: usize = 4096;

/// After so many more it is looked whether one user's take the others' places.
const ENDED_TOGETHER: usize = 256;

/// How long an ended process stays in the snapshots, nanoseconds.
const ENDED_KEPT_NS: u64 = 10_000_000_000;

impl Pipeline {
    /// A process has ended, and is remembered.
    pub(crate) fn remember(&mut self, process: Process) {
        self.ended.push(process);
        // In a watch of a few processes all are its user's.
        if !self.keep_ended && self.ended.len().is_multiple_of(ENDED_TOGETHER) {
            self.share_ended();
        }
    }

    /// Where everybody is watched, processes come and go as fast as a user can start them: a user has half of the places that others leave.
    fn share_ended(&mut self) {
        let mut surplus: BTreeMap<Option<u32>, usize> = BTreeMap::new();
        for process in self.ended.iter() {
            *surplus.entry(answers(process)).or_default() += 1;
        }
        let all = self.ended.len();
        for own in surplus.values_mut() {
            *own = own.saturating_sub(ENDED_KEPT.saturating_sub(all - *own) / 2);
        }
        // The oldest go.
        self.ended.retain(|process| {
            let Some(left) = surplus.get_mut(&answers(process)).filter(|left| **left > 0) else { return true };
            *left -= 1;
            false
        });
    }

    /// Whether processes stay in the snapshots after their end, as far as they had memory.
    pub fn keep_ended(&mut self, keeps: bool) {
        self.keep_ended = keeps;
    }

    /// Whether this process has ended, as far as that is remembered.
    pub fn has_ended(&self, facts: &ProcessFacts) -> bool {
        let has_facts = |process: &&Process| process.tgid == Tgid(facts.tgid) && process.facts.is_some();
        self.ended.iter().filter(has_facts).any(|process| process.is_of(facts))
    }

    /// Forgets the ones that nobody asks for any more.
    pub(crate) fn forget_ended(&mut self) {
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
            self.forget_leaks();
        }
    }

    /// Whether a process with this number has ended and is in the snapshots still.
    pub fn remembers(&self, tgid: Tgid) -> bool {
        self.ended.contains(tgid)
    }

    /// A child has the open files of its parent, also those of the kernel driver, until it becomes another program.
    pub(crate) fn note_fork(&mut self, parent: Tgid, child: Tgid) {
        // An earlier process with this number has exited.
        self.forget_fork(child);
        let has_memory = self.kernel_driver.books(parent).is_some_and(Books::has_video_memory);
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
