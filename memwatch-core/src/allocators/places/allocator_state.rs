//! Applies readings of the allocator state. A block without an event was allocated before the
//! attach; a block that is missing was freed.

use std::collections::BTreeMap;

use super::live::LiveBlock;
use super::{BEFORE_ATTACH, BlockSum, CallPath, CodeAttribution, DeviceAttribution, SumChange, UNTRACED, at};
use crate::allocators::names::{ModuleKey, SiteKey};
use crate::allocators::threads::Attribution;
use crate::words::{Ordinal, Tid};

impl CodeAttribution {
    /// Names a block of this size without an allocation event, retroactively. `whose` receives
    /// whether it was allocated before the attach.
    pub(in crate::allocators) fn name_older(
        &mut self,
        (ordinal, address): (Ordinal, u64),
        bytes: u64,
        whose: impl FnOnce(bool) -> (SiteKey, Option<ModuleKey>),
    ) {
        let is_unnamed = |block: &&LiveBlock| {
            block.bytes == bytes && [SiteKey::BEFORE_ATTACH, SiteKey::UNTRACED].contains(&block.whose.site)
        };
        let Some(block) = self.live.get(ordinal, address).filter(is_unnamed).copied() else { return };
        let (site, module) = whose(block.whose.site == SiteKey::BEFORE_ATTACH);
        let named = Attribution { site, module: module.unwrap_or(block.whose.module), ..block.whose };
        self.live.insert(LiveBlock { whose: named, ..block });
        self.device(ordinal).rename(&block.whose, &named, bytes);
    }

    /// Removes the device's blocks that are neither in `blocks` nor in `beside` (other allocators'
    /// blocks): they were freed unseen. Both map addresses to sizes in bytes.
    pub(in crate::allocators) fn drop_gone(
        &mut self,
        ordinal: Ordinal,
        blocks: &BTreeMap<u64, u64>,
        beside: &BTreeMap<u64, u64>,
    ) {
        for block in self.missing_from(ordinal, [blocks, beside]) {
            self.live.remove(ordinal, block.address);
            self.device(ordinal).lose(&block, SumChange::Free(block.bytes, None));
        }
        let all = blocks.values().chain(beside.values());
        self.device(ordinal).allocated_bytes = all.copied().fold(0, u64::saturating_add);
    }

    /// Records that the process started during the session, so that none of its blocks is older.
    pub(in crate::allocators) const fn begin_with_process(&mut self) {
        self.is_from_start = true;
    }

    /// Applies the allocated bytes of a device while events are not traced. Bytes in no row were
    /// allocated untraced. If fewer bytes are left than known, the youngest blocks are assumed to
    /// be freed.
    pub(in crate::allocators) fn count_allocated(&mut self, ordinal: Ordinal, allocated_bytes: u64) {
        self.device(ordinal).allocated_bytes = allocated_bytes;
        for unseen in [&UNTRACED, &BEFORE_ATTACH] {
            let excess_bytes = self.device(ordinal).total.live_bytes.saturating_sub(allocated_bytes);
            let unlisted_bytes = self.unlisted_bytes(ordinal, unseen.site).min(excess_bytes);
            if unlisted_bytes > 0 {
                self.device(ordinal).change(unseen, SumChange::Forget(unlisted_bytes));
            }
        }
        let excess_bytes = self.device(ordinal).total.live_bytes.saturating_sub(allocated_bytes);
        for block in self.likely_gone(ordinal, excess_bytes) {
            self.live.remove(ordinal, block.address);
            self.device(ordinal).lose(&block, SumChange::Free(block.bytes, None));
        }
        let missing_bytes = allocated_bytes.saturating_sub(self.device(ordinal).total.live_bytes);
        if missing_bytes > 0 {
            let unseen = self.unseen(ordinal);
            self.device(ordinal).change(&unseen, SumChange::Adopt(missing_bytes));
        }
    }

    /// Returns the blocks that most likely were freed if so many bytes are gone: the youngest ones, and
    /// none that is larger than what is left of these bytes unless nothing else explains them. A few
    /// bytes that the counters lag behind must not cost the largest block its row.
    fn likely_gone(&self, ordinal: Ordinal, all_bytes: u64) -> Vec<LiveBlock> {
        let mut excess_bytes = all_bytes;
        if excess_bytes == 0 {
            return Vec::new();
        }
        let mut own: Vec<LiveBlock> = self.live.all().filter(|block| block.ordinal == ordinal).copied().collect();
        // Blocks whose allocation was not seen are the least certain to exist, so they go first.
        own.sort_unstable_by_key(|block| (block.whose.site == SiteKey::UNTRACED, block.granted_ns, block.address));
        let (mut gone, mut smallest) = (Vec::new(), None::<LiveBlock>);
        for block in own.into_iter().rev() {
            if excess_bytes > 0 && block.bytes <= excess_bytes {
                excess_bytes -= block.bytes;
                gone.push(block);
            } else if smallest.is_none_or(|smallest| block.bytes < smallest.bytes) {
                smallest = Some(block);
            }
        }
        match smallest.filter(|_| excess_bytes > 0) {
            // One block explains all.
            Some(smallest) if smallest.bytes >= all_bytes => vec![smallest],
            smallest => gone.into_iter().chain(smallest).collect(),
        }
    }

    /// Returns the attribution of a device's blocks without an event. They count as allocated
    /// before the attach until all such blocks are known individually, or there were none.
    fn unseen(&self, ordinal: Ordinal) -> Attribution {
        let device = self.devices.get(&ordinal);
        let was_traced = device.is_some_and(|device| device.total.allocations > 0);
        let has_older = !was_traced || self.unlisted_bytes(ordinal, SiteKey::BEFORE_ATTACH) > 0;
        let is_watched = self.is_from_start || device.is_some_and(|device| device.is_watched);
        if is_watched || !has_older { UNTRACED } else { BEFORE_ATTACH }
    }

    /// Returns whether more than the total of a device is known: traced call sites, or individual
    /// blocks.
    pub fn has_traced(&self, ordinal: Ordinal) -> bool {
        let device = self.devices.get(&ordinal);
        device.is_some_and(|device| device.total.allocations > 0)
            || self.live.all().any(|block| block.ordinal == ordinal)
    }

    /// Returns the device's known blocks that are in neither map of addresses to sizes in bytes.
    fn missing_from(&self, ordinal: Ordinal, read: [&BTreeMap<u64, u64>; 2]) -> Vec<LiveBlock> {
        let is_there = |block: &LiveBlock| read.iter().any(|all| all.get(&block.address) == Some(&block.bytes));
        self.live.all().filter(|block| block.ordinal == ordinal && !is_there(block)).copied().collect()
    }

    /// Returns the bytes in a row for blocks without an event that are not known individually.
    fn unlisted_bytes(&self, ordinal: Ordinal, site: SiteKey) -> u64 {
        let live_bytes = self.devices.get(&ordinal).map_or(0, |device| device.live_bytes(site));
        if live_bytes == 0 {
            return 0;
        }
        let listed = self.live.all().filter(|block| block.ordinal == ordinal && block.whose.site == site);
        live_bytes.saturating_sub(listed.map(|block| block.bytes).fold(0, u64::saturating_add))
    }

    /// Applies a reading of a device's blocks, size in bytes by address, made while events are not
    /// traced.
    ///
    /// A known block that still exists keeps its attribution. A caching allocator may have reused
    /// its address meanwhile, but not for a short-lived block, which would be missing in one of the
    /// next readings. A reading made while the allocators were running (not `is_whole`) may miss an
    /// existing block once, but not twice.
    pub(in crate::allocators) fn stand(
        &mut self,
        ordinal: Ordinal,
        (blocks, is_whole): (&BTreeMap<u64, u64>, bool),
        beside: &BTreeMap<u64, u64>,
    ) {
        let before = std::mem::take(&mut self.missed);
        for block in self.missing_from(ordinal, [blocks, beside]) {
            let key = (ordinal, block.address);
            // Another block is at this address.
            let is_replaced = blocks.contains_key(&block.address);
            if is_whole || is_replaced || before.contains(&key) {
                self.live.remove(ordinal, block.address);
                self.device(ordinal).lose(&block, SumChange::Free(block.bytes, None));
            } else {
                self.missed.insert(key);
            }
        }
        self.missed.extend(before.into_iter().filter(|(other, _)| *other != ordinal));
        self.adopt_older(ordinal, blocks);
    }

    /// Applies a reading of the blocks, size in bytes by address, that no event mentioned since
    /// tracing resumed at `since_ns`. Known ones keep their attribution. Other blocks of that age
    /// were freed unseen.
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

    /// Adopts the blocks of a reading without an allocation event. They were allocated before the
    /// attach if this is the first reading, and untraced otherwise. No events were lost.
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
                LiveBlock { ordinal, address, bytes, granted_ns: 0, tid: Tid(0), whose: unseen, is_sampled: false };
            if known.is_none()
                && let Some(gone) = self.live.insert(block)
            {
                self.device(ordinal).lose(&gone, SumChange::Free(gone.bytes, None));
            }
        }
        let device = self.device(ordinal);
        let counted_bytes = device.live_bytes(site);
        if unseen_bytes > counted_bytes {
            device.change(&unseen, SumChange::Adopt(unseen_bytes - counted_bytes));
        } else if unseen_bytes < counted_bytes {
            device.change(&unseen, SumChange::Forget(counted_bytes - unseen_bytes));
        }
    }
}

impl DeviceAttribution {
    /// Moves a block that existed all the time to another attribution.
    fn rename(&mut self, from: &Attribution, to: &Attribution, bytes: u64) {
        let epoch = self.epoch;
        let by_bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        for (whose, by_bytes) in [(from, -by_bytes), (to, by_bytes)] {
            // Untraced blocks did not exist at earlier peaks.
            let was_there = from.site != SiteKey::UNTRACED;
            let take = |sum: &mut BlockSum| match (by_bytes < 0, was_there) {
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
            let module = at(&mut self.modules, whose.module.0 as usize);
            take(&mut module.sum);
            let live = &mut module.live_by_phase[whose.phase as usize];
            *live = live.saturating_add_signed(by_bytes);
        }
    }
}
