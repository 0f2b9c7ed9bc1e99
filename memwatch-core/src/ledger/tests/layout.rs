//! What addresses show about the layout of memory.

use super::{Holes, Linear};
use crate::ledger::tests::{DEVICE_0, LedgerStory, MIB};
use crate::test_calls::*;

const GRANULE: u64 = 2 * MIB;

#[test]
fn layout_counts_each_granule_once_for_all_its_requests() {
    let mut story = LedgerStory::on_device_0();
    // Three small requests in one granule, one of them freed, and one in another granule. 3 MiB
    // take two granules.
    let at = 100 * GRANULE;
    story.report([
        mem_alloc(at, 512),
        mem_alloc(at + 512, 512),
        mem_alloc(at + MIB, MIB),
        mem_alloc(at + GRANULE, 1000),
        mem_alloc(at + 4 * GRANULE, 3 * MIB),
        mem_free(at + 512),
        mem_alloc_managed(at + 50 * GRANULE, 512),
    ]);
    let all: Vec<Linear> = story.ledger.linear().into_values().collect();
    let linear = Linear {
        allocations: 4,
        bytes: 512 + MIB + 1000 + 3 * MIB,
        small_allocations: 3,
        small_bytes: 512 + MIB + 1000,
        granule_bytes: 4 * GRANULE,
    };
    assert_eq!(all, [linear]);
    assert_eq!(linear.wasted_bytes(), 8 * MIB - 512 - 1000 - 4 * MIB);
}

#[test]
fn layout_reports_unmapped_addresses_as_holes_and_memory_as_idle() {
    let mut story = LedgerStory::on_device_0();
    let at = 1 << 40;
    story.report([
        mem_address_reserve(at, 100 * MIB),
        mem_create(1, 20 * MIB, DEVICE_0),
        mem_create(2, 30 * MIB, DEVICE_0),
    ]);
    story.report([mem_map(at + 40 * MIB, 20 * MIB, 0, 1)]);
    let holes = Holes { reserved_bytes: 100 * MIB, hole_bytes: 80 * MIB, holes: 2, largest_hole_bytes: 40 * MIB };
    assert_eq!(story.ledger.holes(), holes);
    assert_eq!(story.ledger.idle_physical().into_values().collect::<Vec<_>>(), [30 * MIB]);
    story.report([mem_map(at + 70 * MIB, 30 * MIB, 0, 2)]);
    let holes = Holes { reserved_bytes: 100 * MIB, hole_bytes: 50 * MIB, holes: 2, largest_hole_bytes: 40 * MIB };
    assert_eq!(story.ledger.holes(), holes);
    assert_eq!(story.ledger.idle_physical().into_values().collect::<Vec<_>>(), [0]);
}
