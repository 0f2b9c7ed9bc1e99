//! What the next calls are going to read, looked up before they are applied. Changes no number.
//!
//! A ledger with millions of allocations lies in memory that is far from the processor, in no order. Applied one by one, each call waits
//! for its own; looked up together in a loop of nothing else, they wait at the same time.

use super::ProcessLedger;
use crate::decode::Action;

/// From so many addresses on, the table does not fit the caches of a core.
const FAR: usize = 10_000;

impl ProcessLedger {
    /// Whether looking things up beforehand pays.
    pub fn is_far(&self) -> bool {
        self.addresses.len() >= FAR
    }

    /// Looks up what these calls are going to change.
    pub fn foresee(&self, actions: impl Iterator<Item = Action>) {
        let keys: Vec<u64> = actions.filter_map(|action| address_of(&action)).collect();
        self.addresses.foresee(&keys);
    }
}

/// The address that is granted or freed by a call of which there may be millions.
const fn address_of(action: &Action) -> Option<u64> {
    match *action {
        Action::Allocate { address, .. }
        | Action::AllocateFromPool { address, .. }
        | Action::Free { address }
        | Action::FreeAsync { address, .. }
        | Action::FreeHost { address } => Some(address),
        _ => None,
    }
}
