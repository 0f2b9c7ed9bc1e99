//! The last reading of the process's live objects, and the names it gives to blocks from before the
//! attach.
//!
//! Such a block has not changed if it still exists, so a later reading identifies it. For blocks
//! allocated since, the call site says more.

use std::collections::BTreeMap;

use super::TensorLedger;
use super::names::{CallSite, HeldAs, SiteKey};
use super::places::LiveBlock;
use crate::input::holdings::{Holding, Holdings};

/// Call site and time of the allocation, by the index of a row of a reading.
pub(super) type HeldSites = BTreeMap<usize, (SiteKey, u64)>;

impl TensorLedger {
    /// Learns the live objects of the process, replacing an earlier reading.
    pub fn learn_holdings(&mut self, holdings: Box<Holdings>) {
        let site = |row: &Holding| self.block_of(&holdings, row).map(|block| (block.whose.site, block.granted_ns));
        let sites = holdings.rows.iter().enumerate().filter_map(|(index, row)| Some((index, site(row)?))).collect();
        (self.held, self.held_sites) = (Some(holdings), sites);
        self.name_older();
    }

    /// Returns the last reading of the live objects.
    pub fn held(&self) -> Option<&Holdings> {
        self.held.as_deref()
    }

    /// Returns the objects of the last reading whose blocks existed at its time and still exist.
    pub fn still_held(&self) -> impl Iterator<Item = &Holding> {
        self.held()
            .into_iter()
            .flat_map(move |held| held.rows.iter().filter(move |row| self.block_of(held, row).is_some()))
    }

    /// Returns the objects of the last reading with the call site that had allocated the block of
    /// each, and the time. The block may have been freed since.
    pub fn held_by_site(&self) -> impl Iterator<Item = (&Holding, SiteKey, u64)> {
        let rows = self.held().map(|held| &held.rows[..]).unwrap_or_default();
        self.held_sites.iter().filter_map(|(index, (site, since_ns))| Some((rows.get(*index)?, *site, *since_ns)))
    }

    /// Returns the live block of a row, if it existed at the time of the reading.
    fn block_of(&self, held: &Holdings, row: &Holding) -> Option<&LiveBlock> {
        let block = self.attribution.live(row.ordinal, row.address);
        block.filter(|block| block.bytes == row.block_bytes && block.granted_ns < held.time_ns)
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
