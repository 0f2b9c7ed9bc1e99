//! Prefetches the memory that the next calls will read. Changes no number.
//!
//! A ledger with millions of allocations does not fit the processor's caches and is accessed in
//! random order. A call that waits for memory takes several times as long as one that hits the
//! cache.

use super::ProcessLedger;
use super::table::Tag;

/// Number of addresses from which the table exceeds the first-level cache of a core.
const FAR: usize = 1_000;

impl ProcessLedger {
    /// Starts to fetch the index entry of an address; `None` if the table is small enough to be
    /// cached. Pass the result to [`Self::prefetch_tenant`] after the fetch has completed.
    #[inline]
    pub fn prefetch(&self, address: u64) -> Option<Tag> {
        (self.addresses.len() > FAR).then(|| self.addresses.prefetch(address))
    }

    /// Starts to fetch the allocation at an address for which [`Self::prefetch`] was called.
    #[inline]
    pub fn prefetch_tenant(&self, tag: Tag) {
        self.addresses.prefetch_tenant(tag);
    }
}
