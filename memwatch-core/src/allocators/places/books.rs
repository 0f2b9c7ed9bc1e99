//! The blocks that an allocator has by its own books: one whose beginning was not traced is older than the watch, and one that is not there any more goes.

use std::collections::BTreeMap;

use super::live::LiveBlock;
use super::{BEFORE_ATTACH, Places, Step};
use crate::allocators::names::SiteKey;
use crate::input::books::BookBlock;
use crate::words::{Ordinal, Tid};

impl Places {
    /// Blocks that were counted as older than the watch are known one by one from now on.
    pub(in crate::allocators) fn list_older(&mut self, ordinal: Ordinal, blocks: &[BookBlock]) {
        for block in blocks {
            let (address, bytes, whose) = (block.address, block.bytes, BEFORE_ATTACH);
            self.live.insert(LiveBlock { ordinal, address, bytes, granted_ns: 0, tid: Tid(0), whose });
        }
    }

    /// Of the device's blocks, by address with their sizes in bytes, what is not there any more has gone unseen.
    pub(in crate::allocators) fn drop_gone(&mut self, ordinal: Ordinal, blocks: &BTreeMap<u64, u64>) {
        let has_gone =
            |block: &&LiveBlock| block.ordinal == ordinal && blocks.get(&block.address) != Some(&block.bytes);
        let gone: Vec<LiveBlock> = self.live.all().filter(has_gone).copied().collect();
        for block in gone {
            self.live.remove(ordinal, block.address);
            self.device(ordinal).change(&block.whose, Step::Free(block.bytes, None));
        }
        self.device(ordinal).allocated_bytes = blocks.values().copied().fold(0, u64::saturating_add);
    }

    /// Of the same, what no event has granted is older than the watch: none was lost.
    pub(in crate::allocators) fn adopt_older(&mut self, ordinal: Ordinal, blocks: &BTreeMap<u64, u64>) {
        let mut older_bytes = 0u64;
        for (address, bytes) in blocks {
            let whose = self.live.get(ordinal, *address).map_or(BEFORE_ATTACH, |block| block.whose);
            if whose.site == SiteKey::BEFORE_ATTACH {
                older_bytes = older_bytes.saturating_add(*bytes);
                let (address, bytes) = (*address, *bytes);
                self.live.insert(LiveBlock { ordinal, address, bytes, granted_ns: 0, tid: Tid(0), whose });
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
