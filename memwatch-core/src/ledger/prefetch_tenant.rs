//! What the next calls are going to read, asked for before they are applied. Changes no number.
//!
//! A ledger with millions of allocations lies in memory that is far from the processor, in no order. A call that has to wait for its own
//! takes several times as long as one that finds it near.

use super::ProcessLedger;
use super::table::Tag;

/// From so many addresses on, the table does not fit the nearest cache of a core.
const FAR: usize = 1_000;

impl ProcessLedger {
    /// Asks for where it is written who lives at this address; `None` where that is near already. To be given to [`Self::prefetch_tenant`]
    /// some time later, when that has come.
    #[inline]
    pub fn prefetch(&self, address: u64) -> Option<Tag> {
        (self.addresses.len() > FAR).then(|| self.addresses.prefetch(address))
    }

    /// Asks for what is known of who lives at an address that [`Self::prefetch`] was called with.
    #[inline]
    pub fn prefetch_tenant(&self, tag: Tag) {
        self.addresses.prefetch_tenant(tag);
    }
}
