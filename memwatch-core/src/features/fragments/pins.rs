//! Attributes free memory that cannot be released to the blocks that pin it.
//!
//! The allocator releases memory in units: a whole segment, or each page of an expandable segment.
//! A single block in a unit pins all free bytes of the unit. The free bytes of a unit in use are
//! therefore divided among the owners of its blocks, in proportion to their bytes in the unit; all
//! shares add up to the free bytes between blocks. Bytes that one owner pins alone are released as
//! soon as the owner's blocks are freed.

use std::collections::BTreeMap;

use crate::allocators::names::{ModuleKey, SiteKey};
use crate::allocators::pytorch::{AllocatorMemory, AllocatorSegment, BlockState, PoolSize};
use crate::allocators::threads::Attribution;
use crate::features::simulate::model::{LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES};

/// Memory pinned by the blocks of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pinned {
    /// The owner's own bytes in units that are not full.
    pub held_bytes: u64,
    /// The owner's share of the free bytes in these units, in proportion to its bytes in each.
    pub share_bytes: u64,
    /// Free bytes in units in which the owner has all blocks.
    pub alone_bytes: u64,
}

/// Pinned memory by owner: `None` for blocks that the program has freed and a stream still uses.
pub type PinnedByOwner<K> = BTreeMap<Option<K>, Pinned>;

/// Pinned memory by call site and by module.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PinnedMemory {
    /// Pinned memory by call site.
    pub sites: PinnedByOwner<SiteKey>,
    /// Pinned memory by module.
    pub modules: PinnedByOwner<ModuleKey>,
}

/// Returns the size in bytes of the units in which a segment is released to the driver.
pub const fn unit_bytes(segment: &AllocatorSegment) -> u64 {
    match segment.pool {
        _ if !segment.is_expandable => segment.bytes,
        // If pages have another size, assume the driver's minimum.
        PoolSize::Large if segment.bytes.is_multiple_of(LARGE_SEGMENT_BYTES) => LARGE_SEGMENT_BYTES,
        _ => SMALL_SEGMENT_BYTES,
    }
}

/// Returns the memory pinned by each owner; `whose` returns the owner of the block at an address.
pub fn pins(memory: &AllocatorMemory, whose: impl Fn(u64) -> Option<Attribution>) -> PinnedMemory {
    let mut pins = PinnedMemory::default();
    for (begin, segment) in memory.segments() {
        let (unit_bytes, mut unit) = (unit_bytes(segment).max(1), ReleaseUnit::default());
        for (address, cell) in memory.cells().range(*begin..begin.saturating_add(segment.bytes)) {
            let owner = match cell.state {
                BlockState::Inactive => None,
                BlockState::Pending => Some((None, None)),
                BlockState::Allocated => {
                    let known = whose(*address).map(|whose| (whose.site, whose.module));
                    let (site, module) = known.unwrap_or((SiteKey::BEFORE_ATTACH, ModuleKey::BEFORE_ATTACH));
                    Some((Some(site), Some(module)))
                }
            };
            let (mut from, end) = (address - begin, address - begin + cell.bytes);
            while from < end {
                let unit_end = (from / unit_bytes + 1) * unit_bytes;
                let to = end.min(unit_end);
                unit.add(owner, to - from);
                if to == unit_end {
                    std::mem::take(&mut unit).share(&mut pins);
                }
                from = to;
            }
        }
        unit.share(&mut pins);
    }
    pins
}

/// State of one unit during the walk over its blocks.
#[derive(Default)]
struct ReleaseUnit {
    free_bytes: u64,
    sites: BTreeMap<Option<SiteKey>, u64>,
    modules: BTreeMap<Option<ModuleKey>, u64>,
}

impl ReleaseUnit {
    fn add(&mut self, owner: Option<(Option<SiteKey>, Option<ModuleKey>)>, bytes: u64) {
        match owner {
            None => self.free_bytes += bytes,
            Some((site, module)) => {
                *self.sites.entry(site).or_default() += bytes;
                *self.modules.entry(module).or_default() += bytes;
            }
        }
    }

    fn share(self, pins: &mut PinnedMemory) {
        if self.free_bytes > 0 {
            share(&mut pins.sites, &self.sites, self.free_bytes);
            share(&mut pins.modules, &self.modules, self.free_bytes);
        }
    }
}

/// Divides the free bytes by running sums, so that the rounded shares add up.
fn share<K: Ord + Copy>(pins: &mut PinnedByOwner<K>, used: &BTreeMap<Option<K>, u64>, free_bytes: u64) {
    let total: u64 = used.values().sum();
    let part = |bytes: u64| {
        let share = u128::from(free_bytes) * u128::from(bytes) / u128::from(total.max(1));
        u64::try_from(share).unwrap_or(free_bytes)
    };
    let mut before = 0;
    for (owner, bytes) in used {
        let pinned = pins.entry(*owner).or_default();
        pinned.held_bytes += bytes;
        pinned.share_bytes += part(before + bytes) - part(before);
        pinned.alone_bytes += if used.len() == 1 { free_bytes } else { 0 };
        before += bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocators::pytorch::SegmentCell;
    use crate::allocators::threads::{Phase, PhaseEvidence};
    use crate::decode::StackRef;
    use crate::words::Tid;

    const MIB: u64 = 1 << 20;

    fn whose(number: u64) -> Attribution {
        let key = u32::try_from(number).expect("few") + 100;
        Attribution {
            phase: Phase::Outside,
            by: PhaseEvidence::Nothing,
            recomputed: false,
            captured: false,
            site: SiteKey::numbered(key),
            library: crate::allocators::names::LibraryKey::NONE,
            module: ModuleKey::numbered(key / 2),
            range: None,
            range_of: None,
            stack: None,
            step: 0,
        }
    }

    fn segment(mib: u64, is_expandable: bool) -> AllocatorSegment {
        let (pool, stack) = (PoolSize::Large, StackRef::NotAsked);
        AllocatorSegment { bytes: mib * MIB, pool, is_expandable, stream: 0, private_pool: (0, 0), stack }
    }

    fn block(mib: u64) -> SegmentCell {
        let (bytes, state, stack) = (mib * MIB, BlockState::Allocated, StackRef::NotAsked);
        SegmentCell { bytes, requested_bytes: Some(bytes), state, stack, tid: Tid(1), time_ns: 0 }
    }

    #[test]
    fn pinned_shares_sum_to_the_gaps_and_alone_bytes_would_be_returned() {
        let mut memory = AllocatorMemory::default();
        memory.add_segment(0, segment(20, false));
        memory.grant(0, block(9));
        memory.grant(9 * MIB, block(3));
        memory.add_segment(100 * MIB, segment(20, false));
        memory.grant(100 * MIB, block(1));
        memory.add_segment(200 * MIB, segment(20, false));
        memory.add_segment(300 * MIB, segment(20, false));
        memory.grant(300 * MIB, block(20));
        // Call site 0 has 9 MiB at 0. Call site 1 has 3 MiB next to it, and all used bytes at 100
        // MiB. Both belong to one module.
        let pins = pins(&memory, |address| Some(whose(u64::from(address > 0))));
        let of =
            |held, share, alone| Pinned { held_bytes: held * MIB, share_bytes: share * MIB, alone_bytes: alone * MIB };
        assert_eq!(pins.sites.values().copied().collect::<Vec<_>>(), [of(9, 6, 0), of(4, 21, 19)]);
        assert_eq!(pins.modules.values().copied().collect::<Vec<_>>(), [of(13, 27, 27)]);
    }

    #[test]
    fn pinned_pages_of_an_expandable_segment_are_counted_one_by_one() {
        let mut memory = AllocatorMemory::default();
        memory.map(0, segment(80, true));
        memory.grant(0, block(25));
        memory.grant(25 * MIB, block(30));
        memory.give_back(0);
        memory.complete(0);
        // In use are 25 to 55 MiB: 5 MiB of its first page are free before it and 5 MiB of its last
        // page behind it; the first and the fourth page are released.
        let pins = pins(&memory, |_| Some(whose(0)));
        let all: Vec<_> = pins.sites.values().map(|one| (one.share_bytes, one.alone_bytes)).collect();
        assert_eq!(all, [(10 * MIB, 10 * MIB)]);
    }

    #[test]
    fn pinned_bytes_of_pending_and_unknown_blocks_have_their_own_rows() {
        let mut memory = AllocatorMemory::default();
        memory.add_segment(0, segment(20, false));
        memory.grant(0, block(5));
        memory.grant(5 * MIB, block(5));
        memory.give_back(5 * MIB);
        let pins = pins(&memory, |_| None);
        let owners: Vec<_> = pins.sites.iter().map(|(owner, one)| (*owner, one.share_bytes)).collect();
        assert_eq!(owners, [(None, 5 * MIB), (Some(SiteKey::BEFORE_ATTACH), 5 * MIB)]);
    }
}
