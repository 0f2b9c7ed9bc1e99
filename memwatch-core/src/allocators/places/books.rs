//! The blocks that an allocator has by its own books: one whose beginning was not traced is older than the watch, and one that is not there any more goes.

use std::collections::BTreeMap;

use super::live::LiveBlock;
use super::{BEFORE_ATTACH, CallPath, DevicePlaces, Places, Step, Sum, UNTRACED, at};
use crate::allocators::names::{LayerKey, SiteKey};
use crate::allocators::threads::Attribution;
use crate::words::{Ordinal, Tid};

impl Places {
    /// A block of this size of which no event is known is this: it was so all the time. `whose` is asked whether it is older than the watch.
    pub(in crate::allocators) fn name_older(
        &mut self,
        (ordinal, address): (Ordinal, u64),
        bytes: u64,
        whose: impl FnOnce(bool) -> (SiteKey, Option<LayerKey>),
    ) {
        let is_unnamed = |block: &&LiveBlock| {
            block.bytes == bytes && [SiteKey::BEFORE_ATTACH, SiteKey::UNTRACED].contains(&block.whose.site)
        };
        let Some(block) = self.live.get(ordinal, address).filter(is_unnamed).copied() else { return };
        let (site, layer) = whose(block.whose.site == SiteKey::BEFORE_ATTACH);
        let named = Attribution { site, layer: layer.unwrap_or(block.whose.layer), ..block.whose };
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
        for block in self.missing_from(ordinal, [blocks, beside]) {
            self.live.remove(ordinal, block.address);
            self.device(ordinal).lose(&block, Step::Free(block.bytes, None));
        }
        let all = blocks.values().chain(beside.values());
        self.device(ordinal).allocated_bytes = all.copied().fold(0, u64::saturating_add);
    }

    /// The process began under the watch: nothing of it is older.
    pub(in crate::allocators) const fn begin_with_process(&mut self) {
        self.is_from_start = true;
    }

    /// No event is traced: the device's allocator has granted so much. What of that is in no place came while none was traced; where less is left than is
    /// known, the youngest blocks went.
    pub(in crate::allocators) fn count_allocated(&mut self, ordinal: Ordinal, allocated_bytes: u64) {
        self.device(ordinal).allocated_bytes = allocated_bytes;
        for unseen in [&UNTRACED, &BEFORE_ATTACH] {
            let excess_bytes = self.device(ordinal).total.live_bytes.saturating_sub(allocated_bytes);
            let unlisted_bytes = self.unlisted_bytes(ordinal, unseen.site).min(excess_bytes);
            if unlisted_bytes > 0 {
                self.device(ordinal).change(unseen, Step::Forget(unlisted_bytes));
            }
        }
        if self.device(ordinal).total.live_bytes > allocated_bytes {
            let mut own: Vec<LiveBlock> = self.live.all().filter(|block| block.ordinal == ordinal).copied().collect();
            // Of what was never seen to come it is least known that it stands.
            own.sort_unstable_by_key(|block| (block.whose.site == SiteKey::UNTRACED, block.granted_ns, block.address));
            while self.device(ordinal).total.live_bytes > allocated_bytes
                && let Some(youngest) = own.pop()
            {
                self.live.remove(ordinal, youngest.address);
                self.device(ordinal).lose(&youngest, Step::Free(youngest.bytes, None));
            }
        }
        let missing_bytes = allocated_bytes.saturating_sub(self.device(ordinal).total.live_bytes);
        if missing_bytes > 0 {
            let unseen = self.unseen(ordinal);
            self.device(ordinal).change(&unseen, Step::Adopt(missing_bytes));
        }
    }

    /// Whose a device's blocks are that no event speaks of: older than the watch until all that was there before is known one by one, or there was nothing.
    fn unseen(&self, ordinal: Ordinal) -> Attribution {
        let device = self.devices.get(&ordinal);
        let was_traced = device.is_some_and(|device| device.total.allocations > 0);
        let has_older = !was_traced || self.unlisted_bytes(ordinal, SiteKey::BEFORE_ATTACH) > 0;
        let is_watched = self.is_from_start || device.is_some_and(|device| device.is_watched);
        if is_watched || !has_older { UNTRACED } else { BEFORE_ATTACH }
    }

    /// Whether anything of a device is known but its total: lines of what was traced, or its blocks one by one.
    pub fn has_traced(&self, ordinal: Ordinal) -> bool {
        let device = self.devices.get(&ordinal);
        device.is_some_and(|device| device.total.allocations > 0)
            || self.live.all().any(|block| block.ordinal == ordinal)
    }

    /// The device's known blocks that are in none of these, by address with their sizes in bytes.
    fn missing_from(&self, ordinal: Ordinal, read: [&BTreeMap<u64, u64>; 2]) -> Vec<LiveBlock> {
        let is_there = |block: &LiveBlock| read.iter().any(|all| all.get(&block.address) == Some(&block.bytes));
        self.live.all().filter(|block| block.ordinal == ordinal && !is_there(block)).copied().collect()
    }

    /// What a row for blocks of no known event has beside the blocks that are known one by one, in bytes.
    fn unlisted_bytes(&self, ordinal: Ordinal, site: SiteKey) -> u64 {
        let live_bytes = self.devices.get(&ordinal).map_or(0, |device| device.live_bytes(site));
        if live_bytes == 0 {
            return 0;
        }
        let listed = self.live.all().filter(|block| block.ordinal == ordinal && block.whose.site == site);
        live_bytes.saturating_sub(listed.map(|block| block.bytes).fold(0, u64::saturating_add))
    }

    /// While no event is traced, the device's allocator has these blocks, by address with their sizes in bytes. A block that was known and is still there is
    /// still whose it was: a caching allocator may have granted its place again meanwhile, but not to something that comes and goes, since that would be missing in
    /// one of the next readings. Of a reading of allocators that work (not `is_whole`) a block may be missing that is there, but not twice.
    pub(in crate::allocators) fn stand(
        &mut self,
        ordinal: Ordinal,
        (blocks, is_whole): (&BTreeMap<u64, u64>, bool),
        beside: &BTreeMap<u64, u64>,
    ) {
        let before = std::mem::take(&mut self.missed);
        for block in self.missing_from(ordinal, [blocks, beside]) {
            let key = (ordinal, block.address);
            // Another block is at its place.
            let is_replaced = blocks.contains_key(&block.address);
            if is_whole || is_replaced || before.contains(&key) {
                self.live.remove(ordinal, block.address);
                self.device(ordinal).lose(&block, Step::Free(block.bytes, None));
            } else {
                self.missed.insert(key);
            }
        }
        self.missed.extend(before.into_iter().filter(|(other, _)| *other != ordinal));
        self.adopt_older(ordinal, blocks);
    }

    /// By a reading, these blocks by address with their sizes in bytes are there that no event speaks of since events are traced again. One that was there
    /// before is still whose it was; the others that are as old have gone unseen.
    pub(in crate::allocators) fn settle_older(
        &mut self,
        (ordinal, since_ns): (Ordinal, u64),
        mut blocks: BTreeMap<u64, u64>,
        beside: &BTreeMap<u64, u64>,
    ) {
        let is_new = |block: &&LiveBlock| {
            block.ordinal == ordinal && block.granted_ns >= since_ns && !beside.contains_key(&block.address)
        };
        let new: Vec<(u64, u64)> = self.live.all().filter(is_new).map(|block| (block.address, block.bytes)).collect();
        blocks.extend(new);
        self.drop_gone(ordinal, &blocks, beside);
        self.adopt_older(ordinal, &blocks);
    }

    /// Of the same, what no event has granted is older than the watch, where it is the first reading of what was there before it; else it came while no event
    /// was traced. None was lost.
    pub(in crate::allocators) fn adopt_older(&mut self, ordinal: Ordinal, blocks: &BTreeMap<u64, u64>) {
        let unseen = self.unseen(ordinal);
        let site = unseen.site;
        self.device(ordinal).is_watched = true;
        let mut unseen_bytes = 0_u64;
        for (&address, &bytes) in blocks {
            let known = self.live.get(ordinal, address).filter(|block| block.bytes == bytes);
            if known.is_some_and(|block| block.whose.site != site) {
                continue;
            }
            unseen_bytes = unseen_bytes.saturating_add(bytes);
            let block =
                LiveBlock { ordinal, address, bytes, granted_ns: 0, tid: Tid(0), whose: unseen, is_drawn: false };
            if known.is_none()
                && let Some(gone) = self.live.insert(block)
            {
                self.device(ordinal).lose(&gone, Step::Free(gone.bytes, None));
            }
        }
        let device = self.device(ordinal);
        let counted_bytes = device.live_bytes(site);
        if unseen_bytes > counted_bytes {
            device.change(&unseen, Step::Adopt(unseen_bytes - counted_bytes));
        } else if unseen_bytes < counted_bytes {
            device.change(&unseen, Step::Forget(counted_bytes - unseen_bytes));
        }
    }
}

impl DevicePlaces {
    /// What was there all the time is known to be another's.
    fn rename(&mut self, from: &Attribution, to: &Attribution, bytes: u64) {
        let epoch = self.epoch;
        let by_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        for (whose, by_bytes) in [(from, -by_bytes), (to, by_bytes)] {
            // What came while no event was traced was not there at earlier peaks.
            let was_there = from.site != SiteKey::UNTRACED;
            let take = |sum: &mut Sum| match (by_bytes < 0, was_there) {
                (true, true) => sum.leave(bytes, epoch),
                (false, true) => sum.join(bytes, epoch),
                (true, false) => sum.forget(bytes, epoch),
                (false, false) => sum.adopt(bytes, epoch),
            };
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
