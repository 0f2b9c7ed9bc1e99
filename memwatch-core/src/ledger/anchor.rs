//! Back to the truth after records were lost: the kernel half's own allocation map says which addresses are live.
//!
//! They cover what has an address and one free: linear, managed, pinned and stream-ordered memory. Physical memory, arrays, registered
//! ranges and graphs stay as the records reported.

use std::collections::HashMap;

use memwatch_common::meaning::{Meaning, MemoryCall};
use memwatch_common::probes;

use crate::input::Held;
use crate::words::Span;

use super::ProcessLedger;
use super::grants::{Allocation, Tenancy, linear_kind};
use super::totals::{DeviceRef, Kind};

impl ProcessLedger {
    /// Makes the live addresses the ones that `held` names, at a moment between two calls of the process.
    ///
    /// False, and nothing is changed, where a context was torn down whose record is lost: what went with it, the allocation map does not know.
    pub fn anchor(&mut self, held: &[Held], teardowns: u64, now_ns: u64) -> bool {
        if teardowns != self.teardowns {
            return false;
        }
        let span = Span { entered_ns: now_ns, returned_ns: now_ns };
        let truly: HashMap<u64, &Held> = held.iter().map(|held| (held.address, held)).collect();
        let is_ghost = |address: u64, tenancy: &Tenancy| match (tenancy, truly.get(&address)) {
            (Tenancy::Own(own), Some(held)) => !is_same(own, held),
            (Tenancy::Own(_), None) => true,
            // What is in the allocation map is the process's own.
            (Tenancy::Foreign, held) => held.is_some(),
        };
        for (address, ghost) in self.addresses.extract(is_ghost) {
            self.bury(span, address, ghost);
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
        let kind = linear_kind_of(held).unwrap_or(Kind::Pool);
        let pool = (kind == Kind::Pool).then(|| self.pools.of(None, device));
        let device = if kind.is_host() { DeviceRef::Unknown } else { device };
        let allocation = Allocation::adopted(held.bytes, device, kind, pool);
        self.addresses.grant(held.address, span.returned_ns, Tenancy::Own(allocation));
        if let Some(pool) = pool {
            self.pools.take(pool, held.bytes);
        }
        self.totals.adopt(device, kind, held.bytes, span);
    }

    /// An allocation whose free is lost: it counts as no free that was seen.
    fn bury(&mut self, span: Span, address: u64, ghost: Tenancy) {
        match ghost {
            Tenancy::Own(own) => {
                if let Some(pool) = own.pool {
                    self.pools.give_back(pool, own.bytes);
                }
                self.totals.free_implicitly(own.device, own.kind, own.bytes, span);
            }
            Tenancy::Foreign => {
                self.aliases.close(address);
            }
        }
    }
}

/// The kind of linear memory it is; `None` for stream-ordered memory.
fn linear_kind_of(held: &Held) -> Option<Kind> {
    match probes::by_id(held.probe)?.meaning {
        Meaning::Memory(MemoryCall::Allocate { kind, .. }) => Some(linear_kind(kind)),
        _ => None,
    }
}

/// Whether an allocation may be the one in the allocation map; which pool it is from, they do not say.
fn is_same(own: &Allocation, held: &Held) -> bool {
    let is_like = linear_kind_of(held).map_or(own.pool.is_some(), |kind| own.pool.is_none() && own.kind == kind);
    own.bytes == held.bytes && is_like
}

#[cfg(test)]
#[path = "tests/anchor.rs"]
mod tests;
