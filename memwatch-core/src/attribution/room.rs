//! The room for what ledgers list, and how it is shared: a user may take as much of it as is left free, so that whoever fills it leaves half of it to
//! the others, and a third one a third.

use std::collections::BTreeSet;

use memwatch_common::loss::Loss;
use serde::{Deserialize, Serialize};

use crate::Pipeline;
use crate::attribution::process::Process;
use crate::decode::Call;
use crate::ledger::bound::LEAST;
use crate::words::Tgid;

/// A process is given room for no more entries than this at a time.
const MOST_AT_A_TIME: usize = 1 << 14;

/// The room for all ledgers together: without end until it is bounded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Room {
    /// Entries.
    capacity: usize,
    /// There is none for these until the next tick.
    full: BTreeSet<Tgid>,
}

impl Default for Room {
    fn default() -> Self {
        Self { capacity: usize::MAX, full: BTreeSet::new() }
    }
}

/// Who answers for a process: the user who logs in with its id, or has it as a subordinate one; `None` where that is not known.
pub(crate) fn answers(process: &Process) -> Option<u32> {
    process.facts.as_ref().and_then(|facts| facts.login_uid.or(facts.uid))
}

/// What a process has been given beyond what any has.
fn given(process: &Process) -> usize {
    process.ledger.most_listed().saturating_sub(LEAST)
}

impl Pipeline {
    /// From now on all ledgers together list no more than so many things. What they list already stays.
    pub fn bound(&mut self, capacity: usize) {
        self.room.capacity = capacity;
    }

    /// Before a call that may add to what a process lists, where there may be no room for it. False: it is not to be applied, and counts as lost.
    pub(crate) fn make_room(&mut self, call: &Call) -> bool {
        let has_room = !self.room.full.contains(&call.tgid) && self.give_room(call.tgid);
        if !has_room {
            self.room.full.insert(call.tgid);
            self.lose(Some(call.tgid), Loss::Unlisted, 1);
        }
        has_room || call.action.takes_away()
    }

    fn give_room(&mut self, tgid: Tgid) -> bool {
        let Some(process) = self.processes.get_mut(&tgid) else { return true };
        let (most, listed) = (process.ledger.most_listed(), process.ledger.listed());
        if most.saturating_sub(listed) > most / 8 {
            return process.ledger.bound(most) > 0;
        }
        let more = (listed / 2).clamp(LEAST, MOST_AT_A_TIME).min(self.room_for(tgid));
        self.processes.get_mut(&tgid).is_some_and(|process| process.ledger.bound(most.max(listed) + more) > 0)
    }

    /// How much more a process may be given.
    fn room_for(&self, tgid: Tgid) -> usize {
        let owner = self.processes.get(&tgid).and_then(answers);
        let (mut all, mut own) = (0, 0);
        for process in self.processes.values() {
            all += given(process);
            own += if answers(process) == owner { given(process) } else { 0 };
        }
        self.room.capacity.saturating_sub(all).saturating_sub(own)
    }

    /// Before so many allocations are listed at once. False: there is no room for them.
    pub(crate) fn make_room_for(&mut self, tgid: Tgid, count: usize) -> bool {
        let more = |process: &Process| count.saturating_sub(process.ledger.most_listed());
        let more = self.processes.get(&tgid).map_or(0, more);
        if more > 0 && more > self.room_for(tgid) {
            return false;
        }
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.ledger.bound(process.ledger.most_listed() + more);
        }
        true
    }

    /// What a process was given and does not need is there for others.
    pub(crate) fn free_room(&mut self) {
        self.room.full.clear();
        for process in self.processes.values_mut().filter(|process| given(process) > 0) {
            let (most, listed) = (process.ledger.most_listed(), process.ledger.listed());
            if listed < most / 4 {
                process.ledger.bound((listed * 2).max(LEAST));
            }
        }
    }
}
