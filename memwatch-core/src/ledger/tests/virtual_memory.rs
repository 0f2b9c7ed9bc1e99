//! Physical memory as real programs use it: creates, maps, retains, releases and unmaps in
//! different orders.

use crate::ledger::tests::{DEVICE_0, LedgerStory, MIB};
use crate::test_calls::*;
use crate::words::Ordinal;

#[test]
fn mapping_at_an_address_with_a_pending_unmap_is_kept() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, 100, DEVICE_0), mem_map(0xe0, 100, 0, 0x40), mem_release(0x40)]);
    story.report([mem_create(0x41, 7, DEVICE_0), mem_map(0xe0, 7, 0, 0x41).at(2010, 2020), mem_release(0x41)]);
    assert_eq!(story.live(), 7, "the new mapping shows that the old one is gone");
    story.report([mem_unmap(0xe0, 100).at(2000, 2050)]);
    assert_eq!(story.live(), 7);
    story.report([mem_unmap(0xe0, 7)]);
    assert_eq!((story.live(), story.frees()), (0, (2, 0, 0)));
}

#[test]
fn nccl_retained_buffer_lives_until_unmapped_and_released() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, 4 * MIB, DEVICE_0), mem_map(0xe0, 4 * MIB, 0, 0x40)]);
    story.report([mem_retain(0x40, 0xe0), mem_release(0x40)]);
    assert_eq!(story.live(), 4 * MIB);
    story.report([mem_unmap(0xe0, 4 * MIB)]);
    assert_eq!(story.live(), 4 * MIB, "a handle reference is left");
    story.report([mem_release(0x40)]);
    assert_eq!((story.live(), story.frees()), (0, (1, 0, 0)));
}

#[test]
fn llama_cpp_releases_at_once_and_unmaps_its_whole_pool_with_one_call() {
    let mut story = LedgerStory::on_device_0();
    for granule in 0..3 {
        let (handle, address) = (0x40 + granule, 0x10_0000 + granule * 2 * MIB);
        story.report([
            mem_create(handle, 2 * MIB, DEVICE_0),
            mem_map(address, 2 * MIB, 0, handle),
            mem_release(handle),
        ]);
    }
    assert_eq!((story.live(), story.frees()), (6 * MIB, (0, 0, 0)), "a release while mapped frees nothing");
    story.report([mem_unmap(0x10_0000, 32 << 30)]);
    assert_eq!((story.live(), story.frees()), (0, (3, 0, 0)));
}

#[test]
fn vllm_sleep_frees_memory_and_wake_maps_new_memory_at_its_address() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, 8 * MIB, DEVICE_0), mem_map(0xe0, 8 * MIB, 0, 0x40)]);
    story.report([mem_unmap(0xe0, 8 * MIB), mem_release(0x40)]);
    assert_eq!(story.live(), 0);
    story.report([mem_create(0x40, 8 * MIB, DEVICE_0), mem_map(0xe0, 8 * MIB, 0, 0x40)]);
    assert_eq!((story.live(), story.peak()), (8 * MIB, 8 * MIB));
}

#[test]
fn expandable_segments_grow_and_shrink_by_granules_of_one_range() {
    let mut story = LedgerStory::on_device_0();
    let address = |granule: u64| 0x10_0000 + granule * 20 * MIB;
    for granule in 0..4 {
        story.report([
            mem_create(0x40 + granule, 20 * MIB, DEVICE_0),
            mem_map(address(granule), 20 * MIB, 0, 0x40 + granule),
        ]);
    }
    story.report([
        mem_unmap(address(1), 20 * MIB),
        mem_release(0x41),
        mem_unmap(address(2), 20 * MIB),
        mem_release(0x42),
    ]);
    assert_eq!((story.live(), story.peak()), (40 * MIB, 80 * MIB));
    story.report([mem_create(0x42, 20 * MIB, DEVICE_0), mem_map(address(1), 20 * MIB, 0, 0x42)]);
    assert_eq!((story.live(), story.frees()), (60 * MIB, (2, 0, 0)));
}

#[test]
fn memory_mapped_twice_at_offsets_is_counted_once_and_outlives_one_unmap() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, 4 * MIB, DEVICE_0)]);
    story.report([mem_map(0x10_0000, 2 * MIB, 0, 0x40), mem_map(0x90_0000, 2 * MIB, 2 * MIB, 0x40), mem_release(0x40)]);
    assert_eq!(story.live(), 4 * MIB);
    story.report([mem_unmap(0x10_0000, 2 * MIB)]);
    assert_eq!(story.live(), 4 * MIB);
    story.report([mem_unmap(0x90_0000, 2 * MIB)]);
    assert_eq!(story.live(), 0);
}

#[test]
fn an_unmap_leaves_the_mappings_beside_its_range() {
    let mut story = LedgerStory::on_device_0();
    for (handle, address) in [(0x40, 0x1000), (0x41, 0x2000), (0x42, 0x3000)] {
        story.report([mem_create(handle, 0x1000, DEVICE_0), mem_map(address, 0x1000, 0, handle), mem_release(handle)]);
    }
    story.report([mem_unmap(0x2000, 0x1000)]);
    assert_eq!(story.live(), 0x2000);
}

#[test]
fn physical_handle_reused_while_mapped_is_new_memory() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, MIB, DEVICE_0), mem_map(0xe0, MIB, 0, 0x40), mem_release(0x40)]);
    story.report([mem_create(0x40, 2 * MIB, DEVICE_0)]);
    assert_eq!(story.live(), 3 * MIB);
    story.report([mem_release(0x40)]);
    assert_eq!(story.live(), MIB);
    story.report([mem_unmap(0xe0, MIB)]);
    assert_eq!((story.live(), story.frees()), (0, (2, 0, 0)));
}

#[test]
fn a_retain_finds_memory_by_its_address_when_its_handle_is_long_released() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, MIB, DEVICE_0), mem_map(0x1000, MIB, 0, 0x40), mem_release(0x40)]);
    story.report([mem_retain(0x55, 0x1000 + MIB - 1), mem_unmap(0x1000, MIB)]);
    assert_eq!(story.live(), MIB, "the retained handle keeps it");
    story.report([mem_release(0x55)]);
    assert_eq!((story.live(), story.frees()), (0, (1, 0, 0)));
}

#[test]
fn imported_memory_never_counts_in_the_importer() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_import(0x40), mem_map(0xe0, MIB, 0, 0x40), mem_retain(0x40, 0xe0), mem_release(0x40)]);
    story.report([mem_unmap(0xe0, MIB), mem_release(0x40)]);
    story.report([call("cuIpcOpenMemHandle_v2", [0, 1]).out([0xf0, 0]), call("cuIpcCloseMemHandle", [0xf0])]);
    assert_eq!((story.live(), story.peak(), story.frees()), (0, 0, (0, 0, 0)));
    assert_eq!(story.ledger.totals().devices().count(), 0, "no device is named for it");
    story.report([mem_import(0x41)]);
    story.ledger.end(9999);
    assert_eq!(story.ledger.implicit_frees(), 0);
}

#[test]
fn nccl_release_of_memory_before_attach_is_one_unknown_free() {
    let mut story = LedgerStory::unseen_before();
    story.report([mem_retain(0x40, 0xe0), mem_release(0x40), mem_unmap(0xe0, MIB), mem_release(0x40)]);
    assert_eq!((story.live(), story.frees()), (0, (0, 1, 0)));
}

#[test]
fn memory_mapped_from_an_older_handle_adds_nothing() {
    let mut story = LedgerStory::unseen_before();
    story.report([mem_map(0xe0, MIB, 0, 0x40), mem_unmap(0xe0, MIB)]);
    assert_eq!((story.live(), story.frees()), (0, (0, 0, 0)));
}

#[test]
fn physical_memory_counts_on_its_own_device_and_linear_on_the_current() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, MIB, (ON_DEVICE, 1)), mem_alloc(0xd0, 2 * MIB)]);
    assert_eq!((story.device(1).owned.live_bytes, story.device(0).owned.live_bytes), (MIB, 2 * MIB));
}

#[test]
fn a_mapping_over_parts_of_older_ones_shows_that_those_are_gone() {
    for (old, new) in [((0x1000, 0x2000), (0x2000, 0x1000)), ((0x2000, 0x1000), (0x1000, 0x2000))] {
        let mut story = LedgerStory::on_device_0();
        story.report([mem_create(0x40, 100, DEVICE_0), mem_map(old.0, old.1, 0, 0x40), mem_release(0x40)]);
        story.report([mem_create(0x41, 7, DEVICE_0), mem_map(new.0, new.1, 0, 0x41).at(2010, 2020), mem_release(0x41)]);
        assert_eq!(story.live(), 7, "{old:x?} under {new:x?}");
        story.report([mem_retain(0x42, 0x2000), mem_unmap(old.0, old.1).at(2000, 2090), mem_unmap(new.0, new.1)]);
        assert_eq!(story.live(), 7, "{old:x?} under {new:x?}: what is there now was retained");
    }
}

#[test]
fn pending_releases_of_a_reused_handle_do_not_free_the_new_memory() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, 100, DEVICE_0), mem_map(0xe0, 100, 0, 0x40), mem_retain(0x40, 0xe0)]);
    story.report([mem_unmap(0xe0, 100), mem_create(0x40, 7, DEVICE_0).at(3010, 3020)]);
    story.report([mem_release(0x40).at(3000, 3030), mem_release(0x40).thread(102).at(3001, 3040)]);
    assert_eq!((story.live(), story.frees()), (7, (1, 0, 0)));
}

#[test]
fn memory_retained_under_a_second_handle_survives_reuse_of_the_first() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, 100, DEVICE_0), mem_map(0xe0, 100, 0, 0x40)]);
    story.report([mem_retain(0x55, 0xe0).at(2010, 2015), mem_create(0x40, 7, DEVICE_0).at(2020, 2025)]);
    story.report([mem_release(0x40).at(2000, 2050), mem_unmap(0xe0, 100)]);
    assert_eq!(story.live(), 107);
    story.report([mem_release(0x55), mem_release(0x40)]);
    assert_eq!((story.live(), story.frees()), (0, (2, 0, 0)));
}

#[test]
fn multicast_unbind_of_one_device_keeps_the_other_memory_bound() {
    let mut story = LedgerStory::on_device_0();
    story.report([multicast_create(0x60), mem_create(0x40, 1, DEVICE_0), mem_create(0x41, 10, (ON_DEVICE, 1))]);
    story.report([multicast_bind(0x60, None, 0, 0x40, 0x1000), multicast_bind(0x60, None, 0, 0x41, 0x1000)]);
    story.report([mem_release(0x40), mem_release(0x41), multicast_unbind(0x60, 1, 0, 0x1000)]);
    assert_eq!((story.live(), story.frees()), (1, (1, 0, 0)), "neither call that bound has named its device");
}

#[test]
fn an_unbind_seen_after_its_part_was_bound_again_ends_the_former_binding() {
    let mut story = LedgerStory::on_device_0();
    story.report([multicast_create(0x60), mem_create(0x40, 1, DEVICE_0), mem_create(0x41, 10, DEVICE_0)]);
    story.report([multicast_bind(0x60, Some(0), 0, 0x40, 0x1000), mem_release(0x40)]);
    story.report([multicast_bind(0x60, Some(0), 0, 0x41, 0x1000).at(2010, 2020), mem_release(0x41)]);
    story.report([multicast_unbind(0x60, 0, 0, 0x1000).thread(102).at(2000, 2090)]);
    assert_eq!(story.live(), 10);
    story.report([multicast_unbind(0x60, 0, 0, 0x1000)]);
    assert_eq!((story.live(), story.frees()), (0, (2, 0, 0)));
}

#[test]
fn segment_lookup_finds_the_mapping_and_the_device_behind_it() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, 8 * MIB, DEVICE_0), mem_map(0x1000_0000, 8 * MIB, 0, 0x40), mem_release(0x40)]);
    let segment = story.ledger.segment_at(0x1000_0000 + MIB).expect("it is mapped");
    assert_eq!((segment.address, segment.bytes, segment.ordinal()), (0x1000_0000, 8 * MIB, Some(Ordinal(0))));
    assert_eq!(story.ledger.segment_at(0x1000_0000 + 8 * MIB), None);
    story.report([mem_unmap(0x1000_0000, 8 * MIB)]);
    assert_eq!(story.ledger.segment_at(0x1000_0000 + MIB), None);
}
