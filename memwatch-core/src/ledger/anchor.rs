//! Resync after lost records: the kernel half's allocation map says which addresses are live.
//!
//! The map covers memory that has an address and is freed by one call: linear, managed, pinned and
//! stream-ordered memory. Physical memory, arrays, registered ranges and graphs stay as the records
//! reported them.

use std::collections::HashMap;

use memwatch_common::meaning::{Meaning, MemoryCall};
use memwatch_common::probes;

use crate::input::LiveAddress;
use crate::words::CallSpan;

use super::ProcessLedger;
use super::grants::{Allocation, Tenancy, linear_kind};
use super::totals::{AllocationKind, DeviceRef};

impl ProcessLedger {
    /// Replaces the live addresses by those in `held`, at a moment between two calls of the
    /// process.
    ///
    /// Returns false and changes nothing if the record of a context teardown was lost: the
    /// allocation map does not show what the teardown freed.
    pub fn anchor(&mut self, held: &[LiveAddress], teardowns: u64, now_ns: u64) -> bool {
        if teardowns != self.teardowns {
            return false;
        }
        let span = CallSpan { entered_ns: now_ns, returned_ns: now_ns };
        let truly: HashMap<u64, &LiveAddress> = held.iter().map(|held| (held.address, held)).collect();
        let is_ghost = |address: u64, tenancy: &Tenancy| match (tenancy, truly.get(&address)) {
            (Tenancy::Own(own), Some(held)) => !is_same(own, held),
            (Tenancy::Own(_), None) => true,
            // The allocation map lists only the process's own memory.
            (Tenancy::Foreign, held) => held.is_some(),
        };
        for (address, ghost) in self.addresses.extract(is_ghost) {
            self.bury(span, address, ghost);
        }
        // Lost frees of replaced allocations will never arrive.
        self.addresses.await_nothing();
        for held in held {
            if self.addresses.get(held.address).is_none() && !self.graphs.holds(held.address) {
                self.adopt(held, span);
            }
        }
        true
    }

    /// Adds an allocation after its record was lost: the size is known, the context and pool are
    /// not.
    fn adopt(&mut self, held: &LiveAddress, span: CallSpan) {
        let device = self.contexts.only_device();
        let kind = linear_kind_of(held).unwrap_or(AllocationKind::Pool);
        let pool = (kind == AllocationKind::Pool).then(|| self.pools.of(None, device));
        let device = if kind.is_host() { DeviceRef::Unknown } else { device };
        let allocation = Allocation::adopted(held.bytes, device, kind, pool);
        self.addresses.grant(held.address, span.returned_ns, Tenancy::Own(allocation));
        if let Some(pool) = pool {
            self.pools.take(pool, held.bytes);
        }
        self.totals.adopt(device, kind, held.bytes, span);
    }

    /// Removes an allocation after the record of its free was lost. It counts as an implicit free.
    fn bury(&mut self, span: CallSpan, address: u64, ghost: Tenancy) {
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

/// Returns the kind of linear memory; `None` for stream-ordered memory.
fn linear_kind_of(held: &LiveAddress) -> Option<AllocationKind> {
    match probes::by_id(held.probe)?.meaning {
        Meaning::Memory(MemoryCall::Allocate { kind, .. }) => Some(linear_kind(kind)),
        _ => None,
    }
}

/// Returns whether an allocation may be the one in the allocation map, which does not name pools.
fn is_same(own: &Allocation, held: &LiveAddress) -> bool {
    let is_like = linear_kind_of(held).map_or(own.pool.is_some(), |kind| own.pool.is_none() && own.kind == kind);
    own.bytes == held.bytes && is_like
}

#[cfg(test)]
#[path = "tests/anchor.rs"]
mod tests;
