//! Resync after lost records, as stories of calls. A lost record is one that the story does not
//! report to the ledger.

use memwatch_common::probes::PROBES;

use crate::input::LiveAddress;
use crate::ledger::tests::{DEVICE_0, LedgerStory, MIB};
use crate::ledger::totals::AllocationKind;
use crate::test_calls::*;

fn held(symbol: &str, address: u64, bytes: u64) -> LiveAddress {
    let probe = PROBES.iter().find(|probe| probe.symbol == symbol).expect("a row").id;
    LiveAddress { address, bytes, probe }
}

#[test]
fn resync_adopts_unseen_allocations_and_removes_unseen_frees() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, 4 * MIB), mem_alloc(0xd1, 2 * MIB)]);
    let truth = [
        held("cuMemAlloc_v2", 0xd1, 2 * MIB),
        held("cuMemAllocAsync", 0xd2, 8 * MIB),
        held("cuMemHostAlloc", 0xd3, MIB),
        held("cuMemAllocManaged", 0xd4, 16 * MIB),
    ];
    assert!(story.ledger.anchor(&truth, 0, 1085));
    assert_eq!((story.live(), story.device(0).owned.live_bytes), (10 * MIB, 10 * MIB));
    assert_eq!(story.ledger.totals().host().kind(AllocationKind::PinnedHost).live_bytes, MIB);
    assert_eq!(story.ledger.totals().whole().kind(AllocationKind::Managed).live_bytes, 16 * MIB);
    story.report([mem_free(0xd1), mem_free_async(0xd2), mem_free_host(0xd3), mem_free(0xd4)]);
    assert_eq!((story.live(), story.ledger.unknown_frees()), (0, 0), "what was adopted is freed like anything else");
    let whole = story.ledger.totals().whole();
    assert_eq!((whole.allocations, whole.frees), (2, 3), "only calls that were seen are counted");
}

#[test]
fn an_address_that_was_freed_and_granted_again_unseen_has_its_new_size() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, 4 * MIB)]);
    assert!(story.ledger.anchor(&[held("cuMemAlloc_v2", 0xd0, MIB)], 0, 1085));
    assert_eq!(story.live(), MIB);
}

#[test]
fn an_address_that_was_freed_and_granted_again_unseen_has_its_new_kind() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, MIB), external_memory_get_mapped_buffer(0xd1)]);
    let truth = [held("cuMemAllocManaged", 0xd0, MIB), held("cuMemAlloc_v2", 0xd1, 2 * MIB)];
    assert!(story.ledger.anchor(&truth, 0, 1085));
    assert_eq!((story.live(), story.ledger.aliases()), (2 * MIB, 0), "nor is it another owner's any more");
    assert_eq!(story.ledger.totals().whole().kind(AllocationKind::Managed).live_bytes, MIB);
}

#[test]
fn resync_older_than_a_lost_teardown_changes_nothing() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, 4 * MIB)]);
    assert!(!story.ledger.anchor(&[], 1, 1085));
    assert_eq!(story.live(), 4 * MIB, "nothing was changed");
    story.report([primary_ctx_reset(0)]);
    assert_eq!(
        story.ledger.take_unnamed().iter().map(|gone| gone.address).collect::<Vec<_>>(),
        [0xd0],
        "the allocation map has it still"
    );
    assert!(story.ledger.anchor(&[], 1, 6000));
    assert_eq!(story.live(), 0);
}

#[test]
fn physical_memory_and_graphs_stay_as_the_records_reported() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_create(0x40, 2 * MIB, DEVICE_0), call("cuStreamBeginCapture_v2", [0x51, 0])]);
    story.report([call("cuMemAllocAsync", [0x7fff_0000, MIB, 0x51]).out([0xd0, 0])]);
    assert!(story.ledger.anchor(&[held("cuMemAllocAsync", 0xd0, MIB)], 0, 1085));
    assert_eq!(story.live(), 2 * MIB, "an address of a graph is no memory");
}
