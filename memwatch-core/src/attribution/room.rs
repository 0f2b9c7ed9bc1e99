//! Capacity of the ledgers, and its shares: a user may take as much as is left free, so that a first user leaves half of it
//! for others.

use std::collections::BTreeSet;

use memwatch_common::loss::Loss;
use serde::{Deserialize, Serialize};

use crate::Pipeline;
use crate::attribution::process::Process;
use crate::decode::Call;
use crate::ledger::bound::LEAST;
use crate::words::Tgid;

/// Number of entries granted to a process at a time.
const MOST_AT_A_TIME: usize = 1 << 14;

/// Capacity of all ledgers together; unlimited until set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Room {
    /// Entries.
    capacity: usize,
    /// Processes refused until the next tick.
    full: BTreeSet<Tgid>,
}

impl Default for Room {
    fn default() -> Self {
        Self { capacity: usize::MAX, full: BTreeSet::new() }
    }
}

/// Login user of a process, also through a subordinate id; `None` if unknown.
pub(crate) fn answers(process: &Process) -> Option<u32> {
    process.facts.as_ref().and_then(|facts| facts.login_uid.or(facts.uid))
}

/// Entries granted to a process beyond the base that each has.
fn given(process: &Process) -> usize {
    process.ledger.most_listed().saturating_sub(LEAST)
}

impl Pipeline {
    /// Sets the capacity of all ledgers together. Present entries stay.
    pub fn bound(&mut self, capacity: usize) {
        self.room.capacity = capacity;
    }

    /// Call before a call that may add entries to a process. False: there is no room, the call must not be applied and counts as lost.
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

    /// How many more entries a process may get.
    fn room_for(&self, tgid: Tgid) -> usize {
        let owner = self.processes.get(&tgid).and_then(answers);
        let (mut all, mut own) = (0, 0);
        for process in self.processes.values() {
            all += given(process);
            own += if answers(process) == owner { given(process) } else { 0 };
        }
        self.room.capacity.saturating_sub(all).saturating_sub(own)
    }

    /// Call before this many entries are added at once. False: there is no room.
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

    /// Releases granted entries that a process does not need.
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
