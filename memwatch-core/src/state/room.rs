//! Capacity of the ledgers, and its division among users: a user may take at most as much as
//! remains free, so that a single user leaves half of the capacity to others.

use std::collections::BTreeSet;

use memwatch_common::loss::Loss;
use serde::{Deserialize, Serialize};

use crate::attribution::process::Process;
use crate::decode::Call;
use crate::ledger::bound::LEAST;
use crate::state::State;
use crate::words::Tgid;

/// Maximum number of entries granted to a process at a time.
const MOST_AT_A_TIME: usize = 1 << 14;

/// Capacity of all ledgers together; unlimited until set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Room {
    /// Number of entries.
    capacity: usize,
    /// Processes that get no entries until the next tick.
    full: BTreeSet<Tgid>,
}

impl Default for Room {
    fn default() -> Self {
        Self { capacity: usize::MAX, full: BTreeSet::new() }
    }
}

/// Returns the login user that a process is charged to, also for a subordinate id; `None` if
/// unknown.
pub(crate) fn answers(process: &Process) -> Option<u32> {
    process.facts.as_ref().and_then(|facts| facts.login_uid.or(facts.uid))
}

/// Returns the number of entries granted to a process beyond the base number that each process has.
fn given(process: &Process) -> usize {
    process.ledger.most_listed().saturating_sub(LEAST)
}

impl State {
    /// Sets the capacity of all ledgers together. Entries above it stay.
    pub fn bound(&mut self, capacity: usize) {
        self.room.capacity = capacity;
    }

    /// Reserves entries before a driver call that may add some. Returns false if there is no capacity:
    /// the call must then not be applied, and counts as lost.
    pub(crate) fn make_room(&mut self, call: &Call) -> bool {
        let has_room = !self.room.full.contains(&call.tgid) && self.give_room(call.tgid);
        if !has_room {
            self.room.full.insert(call.tgid);
            self.lose(Some(call.tgid), Loss::Unlisted, 1);
        }
        has_room
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

    /// Returns the number of further entries that a process may get.
    fn room_for(&self, tgid: Tgid) -> usize {
        let owner = self.processes.get(&tgid).and_then(answers);
        let (mut all, mut own) = (0, 0);
        for process in self.processes.values() {
            all += given(process);
            own += if answers(process) == owner { given(process) } else { 0 };
        }
        self.room.capacity.saturating_sub(all).saturating_sub(own)
    }

    /// Reserves entries before this many are added at once. Returns false if there is no capacity.
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
