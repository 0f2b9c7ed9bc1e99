//! What was read of a process by name: the last reading, and the names that it gives to blocks that are older than the watch.
//!
//! A block that is older and is still there has been the same all the time, so that a later reading says what it is. Of younger ones the line says more.

use super::names::{HeldAs, Site};
use super::{FrameworkAllocator, TensorLedger};
use crate::input::holdings::{Holding, Holdings};

impl<A: FrameworkAllocator> TensorLedger<A> {
    /// What the process held at a moment, by name. An earlier reading is forgotten.
    pub fn learn_holdings(&mut self, holdings: Box<Holdings>) {
        self.held = Some(holdings);
        self.name_older();
    }

    /// The last reading of what the process holds.
    pub fn held(&self) -> Option<&Holdings> {
        self.held.as_deref()
    }

    /// The blocks of the last reading that the program has still: they were there when it began, and are the same.
    pub fn still_held(&self) -> impl Iterator<Item = &Holding> {
        let is_same = |held: &Holdings, row: &Holding| {
            let block = self.places.live(row.ordinal, row.address);
            block.is_some_and(|block| block.bytes == row.block_bytes && block.granted_ns < held.time_ns)
        };
        self.held().into_iter().flat_map(move |held| held.rows.iter().filter(move |row| is_same(held, row)))
    }

    /// Gives the blocks of which no event is known, and that have become known since the last reading, the names that they have in it.
    pub(super) fn name_older(&mut self) {
        let Self { held, places, threads, names, .. } = self;
        for row in held.iter().flat_map(|held| &held.rows).filter(|row| row.class.is_named()) {
            places.name_older((row.ordinal, row.address), row.block_bytes, |is_older| {
                let held = HeldAs { class: row.class, name: row.pattern().map(Into::into) };
                let site = names.site(if is_older { Site::Held(held) } else { Site::UntracedHeld(held) });
                let layer = row.owner.as_ref().map(|owner| threads.owner_layer(owner, names));
                (site, layer)
            });
        }
    }
}
