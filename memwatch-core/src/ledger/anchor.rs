//! Back to the truth after records were lost: the kernel half's own books say which addresses are live.
//!
//! They cover what has an address and one free: linear, managed, pinned and stream-ordered memory. Physical memory, arrays, registered
//! ranges and graphs stay as the records told.

use std::collections::HashMap;

use memwatch_common::meaning::Meaning;
use memwatch_common::probes;

use crate::input::Held;
use crate::words::Span;

use super::ProcessLedger;
use super::grants::{Allocation, Tenancy, linear_kind};
use super::totals::{DeviceRef, Kind};

impl ProcessLedger {
    /// Makes the live addresses those that `held` names, at a moment between two calls of the process.
    ///
    /// False, and nothing is changed, where a context was torn down whose record is lost: what went with it, the books do not know.
    pub fn anchor(&mut self, held: &[Held], teardowns: u64, now_ns: u64) -> bool {
        if teardowns != self.teardowns {
            return false;
        }
        let span = Span { entered_ns: now_ns, returned_ns: now_ns };
        let truly: HashMap<u64, &Held> = held.iter().map(|held| (held.address, held)).collect();
        let is_ghost = |address: u64, tenancy: &Tenancy| {
            tenancy.own().is_some_and(|own| truly.get(&address).is_none_or(|held| held.bytes != own.bytes))
        };
        for (address, ghost) in self.addresses.extract(is_ghost) {
            self.move_out(span, address, ghost);
        }
        // Frees of replaced tenants whose records are lost will never come.
        self.addresses.await_nothing();
        for held in held {
            if self.addresses.get(held.address).is_none() && !self.graphs.holds(held.address) {
                self.adopt(held, span);
            }
        }
        true
    }

    /// An allocation whose record is lost: its size is known, its context and pool are not.
    fn adopt(&mut self, held: &Held, span: Span) {
        let device = self.contexts.only_device();
        let kind = match probes::by_id(held.probe).map(|probe| probe.meaning) {
            Some(Meaning::Allocate { kind, .. }) => linear_kind(kind),
            _ => Kind::Pool,
        };
        let pool = (kind == Kind::Pool).then(|| self.pools.of(None, device));
        let device = if kind.is_host() { DeviceRef::Unknown } else { device };
        let allocation = Allocation::adopted(held.bytes, device, kind, pool);
        self.settle_in(span, held.address, allocation);
    }
}

#[cfg(test)]
#[path = "tests/anchor.rs"]
mod tests;
