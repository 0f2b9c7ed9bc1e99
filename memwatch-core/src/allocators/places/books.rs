//! The blocks that an allocator has by its own books: one whose beginning was not traced is older than the watch, and one that is not there any more goes.

use std::collections::BTreeMap;

use super::live::LiveBlock;
use super::{BEFORE_ATTACH, CallPath, DevicePlaces, Places, Step, Sum, at};
use crate::allocators::names::{LayerKey, SiteKey};
use crate::allocators::threads::Attribution;
use crate::input::books::BookBlock;
use crate::words::{Ordinal, Tid};

impl Places {
    /// Blocks that were counted as older than the watch are known one by one from now on.
    pub(in crate::allocators) fn list_older(&mut self, ordinal: Ordinal, blocks: &[BookBlock]) {
        for block in blocks {
            let (address, bytes, whose) = (block.address, block.bytes, BEFORE_ATTACH);
            self.live.insert(LiveBlock { ordinal, address, bytes, granted_ns: 0, tid: Tid(0), whose, is_drawn: false });
        }
    }

    /// A block of this size that is older than the watch is this: it was so all the time.
    pub(in crate::allocators) fn name_older(
        &mut self,
        (ordinal, address): (Ordinal, u64),
        bytes: u64,
        whose: impl FnOnce() -> (SiteKey, LayerKey),
    ) {
        let is_unnamed = |block: &&LiveBlock| block.bytes == bytes && block.whose.site == SiteKey::BEFORE_ATTACH;
        let Some(block) = self.live.get(ordinal, address).filter(is_unnamed).copied() else { return };
        let (site, layer) = whose();
        let named = Attribution { site, layer, ..block.whose };
        self.live.insert(LiveBlock { whose: named, ..block });
        self.device(ordinal).rename(&block.whose, &named, bytes);
    }

    /// Of the device's blocks, by address with their sizes in bytes, what is not there any more has gone unseen; other allocators' beside these stay.
    pub(in crate::allocators) fn drop_gone(
        &mut self,
        ordinal: Ordinal,
        blocks: &BTreeMap<u64, u64>,
        beside: &BTreeMap<u64, u64>,
    ) {
        let is_there =
            |block: &LiveBlock| [blocks, beside].iter().any(|all| all.get(&block.address) == Some(&block.bytes));
        let has_gone = |block: &&LiveBlock| block.ordinal == ordinal && !is_there(block);
        let gone: Vec<LiveBlock> = self.live.all().filter(has_gone).copied().collect();
        for block in gone {
            self.live.remove(ordinal, block.address);
            self.device(ordinal).lose(&block, Step::Free(block.bytes, None));
        }
        let all = blocks.values().chain(beside.values());
        self.device(ordinal).allocated_bytes = all.copied().fold(0, u64::saturating_add);
    }

    /// No event is traced: the device's allocator has granted so much, and whose that is is not known.
    pub(in crate::allocators) fn read_only(&mut self, ordinal: Ordinal, allocated_bytes: u64) {
        let gone: Vec<LiveBlock> = self.live.all().filter(|block| block.ordinal == ordinal).copied().collect();
        for block in gone {
            self.live.remove(ordinal, block.address);
            self.device(ordinal).lose(&block, Step::Forget(block.bytes));
        }
        let device = self.device(ordinal);
        let site = device.sites.get(SiteKey::BEFORE_ATTACH.0 as usize);
        let counted_bytes = site.map_or(0, |site| site.live_bytes);
        device.change(&BEFORE_ATTACH, Step::Forget(counted_bytes));
        device.change(&BEFORE_ATTACH, Step::Adopt(allocated_bytes));
        device.allocated_bytes = allocated_bytes;
    }

    /// The device's allocator has granted so much: of blocks that came or went since the last window, no place has word.
    pub(in crate::allocators) fn count_allocated(&mut self, ordinal: Ordinal, allocated_bytes: u64) {
        self.device(ordinal).allocated_bytes = allocated_bytes;
    }

    /// By a reading in a window, these blocks by address with their sizes in bytes are there that no event of the window speaks of. One that was there in an
    /// earlier window is still whose it was; the others that are as old have gone unseen.
    pub(in crate::allocators) fn settle_window(
        &mut self,
        (ordinal, opened_ns): (Ordinal, u64),
        mut blocks: BTreeMap<u64, u64>,
        beside: &BTreeMap<u64, u64>,
    ) {
        let is_new = |block: &&LiveBlock| {
            block.ordinal == ordinal && block.granted_ns >= opened_ns && !beside.contains_key(&block.address)
        };
        let new: Vec<(u64, u64)> = self.live.all().filter(is_new).map(|block| (block.address, block.bytes)).collect();
        blocks.extend(new);
        self.drop_gone(ordinal, &blocks, beside);
        self.adopt_older(ordinal, &blocks);
    }

    /// Of the same, what no event has granted is older than the watch: none was lost.
    pub(in crate::allocators) fn adopt_older(&mut self, ordinal: Ordinal, blocks: &BTreeMap<u64, u64>) {
        let mut older_bytes = 0u64;
        for (address, bytes) in blocks {
            let whose = self.live.get(ordinal, *address).map_or(BEFORE_ATTACH, |block| block.whose);
            if whose.site == SiteKey::BEFORE_ATTACH {
                older_bytes = older_bytes.saturating_add(*bytes);
                let (address, bytes) = (*address, *bytes);
                self.live.insert(LiveBlock {
                    ordinal,
                    address,
                    bytes,
                    granted_ns: 0,
                    tid: Tid(0),
                    whose,
                    is_drawn: false,
                });
            }
        }
        let device = self.device(ordinal);
        let site = device.sites.get(SiteKey::BEFORE_ATTACH.0 as usize);
        let counted_bytes = site.map_or(0, |site| site.live_bytes);
        if older_bytes > counted_bytes {
            device.change(&BEFORE_ATTACH, Step::Adopt(older_bytes - counted_bytes));
        } else if older_bytes < counted_bytes {
            device.change(&BEFORE_ATTACH, Step::Forget(counted_bytes - older_bytes));
        }
    }
}

impl DevicePlaces {
    /// What was there all the time is known to be another's.
    fn rename(&mut self, from: &Attribution, to: &Attribution, bytes: u64) {
        let epoch = self.epoch;
        let by_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        for (whose, by_bytes) in [(from, -by_bytes), (to, by_bytes)] {
            let take = |sum: &mut Sum| if by_bytes < 0 { sum.leave(bytes, epoch) } else { sum.join(bytes, epoch) };
            let place = whose.site.0 as usize;
            let site = at(&mut self.sites, place);
            self.floors.shift(place, site.live_bytes, by_bytes);
            self.step_floors.shift(place, site.live_bytes, by_bytes);
            take(site);
            take(self.call_path(CallPath::of(whose)));
            let layer = at(&mut self.layers, whose.layer.0 as usize);
            take(&mut layer.sum);
            let live = &mut layer.live_by_stage[whose.stage as usize];
            *live = live.saturating_add_signed(by_bytes);
        }
    }
}
