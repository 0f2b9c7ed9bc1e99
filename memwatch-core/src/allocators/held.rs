//! The last reading of the process's live objects, and the names it gives to blocks from before the
//! attach.
//!
//! Such a block has not changed if it still exists, so a later reading identifies it. For blocks
//! allocated since, the call site says more.

use super::names::{CallSite, HeldAs};
use super::{FrameworkAllocator, TensorLedger};
use crate::input::holdings::{Holding, Holdings};

impl<A: FrameworkAllocator> TensorLedger<A> {
    /// Learns the live objects of the process, replacing an earlier reading.
    pub fn learn_holdings(&mut self, holdings: Box<Holdings>) {
        self.held = Some(holdings);
        self.name_older();
    }

    /// Returns the last reading of the live objects.
    pub fn held(&self) -> Option<&Holdings> {
        self.held.as_deref()
    }

    /// Returns the objects of the last reading whose blocks existed at its time and still exist.
    pub fn still_held(&self) -> impl Iterator<Item = &Holding> {
        let is_same = |held: &Holdings, row: &Holding| {
            let block = self.attribution.live(row.ordinal, row.address);
            block.is_some_and(|block| block.bytes == row.block_bytes && block.granted_ns < held.time_ns)
        };
        self.held().into_iter().flat_map(move |held| held.rows.iter().filter(move |row| is_same(held, row)))
    }

    /// Names blocks without an allocation event that became known since the last reading.
    pub(super) fn name_older(&mut self) {
        let Self { held, attribution: places, threads, names, .. } = self;
        for row in held.iter().flat_map(|held| &held.rows).filter(|row| row.class.is_named()) {
            places.name_older((row.ordinal, row.address), row.block_bytes, |is_older| {
                let held = HeldAs { class: row.class, name: row.pattern().map(Into::into) };
                let site = names.site(if is_older { CallSite::Held(held) } else { CallSite::UntracedHeld(held) });
                let module = row.owner.as_ref().map(|owner| threads.owner_module(owner, names));
                (site, module)
            });
        }
    }
}
