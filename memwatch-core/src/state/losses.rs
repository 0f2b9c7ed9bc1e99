//! Attribution of lost records to processes.

use memwatch_common::loss::Loss;

use crate::attribution::process::Process;
use crate::input::HeldAddresses;
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::words::Tgid;

impl State {
    /// Counts lost records of this process, or of an unknown process.
    pub(crate) fn lose(&mut self, tgid: Option<Tgid>, loss: Loss, count: u64) {
        if count == 0 {
            return;
        }
        self.losses.count(loss, count);
        if let Some(tgid) = tgid {
            // Losses are counted periodically, so the process may have ended, or may not be known
            // yet.
            let ended = self.ended.last_mut(tgid);
            match self.processes.get_mut(&tgid).or(ended) {
                Some(process) => process.lose(loss, count),
                None => self.losses.keep_for(tgid, loss, count),
            }
        } else {
            // The process is unknown, so the totals of every process are uncertain.
            let lately = |process: &&mut Process| process.ended.is_some_and(|ended| ended.time_ns >= self.now_ns);
            let ended = self.ended.iter_mut().filter(lately);
            self.processes.values_mut().chain(ended).for_each(|process| process.lose(loss, count));
            self.losses.keep_for_everybody(loss, count);
        }
    }

    /// Resyncs a process after lost records with the kernel half's allocation map.
    pub(super) fn anchor(&mut self, held: &HeldAddresses, detector: &mut impl Detector) {
        let now_ns = self.now_ns;
        if !self.make_room_for(held.tgid, held.held.len()) {
            return;
        }
        if let Some(process) = self.processes.get_mut(&held.tgid) {
            process.anchor(held, now_ns);
            detector.on(&Event::Resynced { tgid: held.tgid, time_ns: now_ns }, self);
        }
    }
}
