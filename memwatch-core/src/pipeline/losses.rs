//! Records that did not arrive: which process they were of.

use memwatch_common::loss::Loss;

use crate::Pipeline;
use crate::attribution::process::Process;
use crate::input::HeldAddresses;
use crate::words::Tgid;

impl Pipeline {
    /// Records did not arrive: of this process, or of nobody knows which.
    pub(crate) fn lose(&mut self, tgid: Option<Tgid>, loss: Loss, count: u64) {
        if count == 0 {
            return;
        }
        self.losses.count(loss, count);
        if let Some(tgid) = tgid {
            // Losses are counted now and then, so their process may have ended since, or may not have been heard of.
            let ended = self.ended.last_mut(tgid);
            match self.processes.get_mut(&tgid).or(ended) {
                Some(process) => process.lose(loss, count),
                None => self.losses.keep_for(tgid, loss, count),
            }
        } else {
            // Nobody knows whose they were, so nobody's totals are sure any more.
            let lately = |process: &&mut Process| process.ended.is_some_and(|ended| ended.time_ns >= self.now_ns);
            let ended = self.ended.iter_mut().filter(lately);
            self.processes.values_mut().chain(ended).for_each(|process| process.lose(loss, count));
            self.losses.keep_for_everybody(loss, count);
        }
    }

    /// A process whose records were lost goes by the kernel half's own allocation map.
    pub(crate) fn anchor(&mut self, held: &HeldAddresses) {
        let now_ns = self.now_ns;
        if !self.make_room_for(held.tgid, held.held.len()) {
            return;
        }
        if let Some(process) = self.processes.get_mut(&held.tgid) {
            process.anchor(held, now_ns);
            self.follow_process(held.tgid, now_ns);
        }
    }
}
