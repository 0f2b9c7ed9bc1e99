//! Used and held memory of pools, as stories of calls.

use crate::ledger::pool::Backed;
use crate::ledger::tests::{LedgerStory, MIB};
use crate::ledger::totals::{AllocationKind, DeviceRef};
use crate::test_calls::*;
use crate::words::Ordinal;

const DEVICE: DeviceRef = DeviceRef::Ordinal(Ordinal(0));
const THRESHOLD: u64 = 4;
const HELD: u64 = 5;

fn pool_create(pool: u64, allocation_type: u32, location: (u32, u32)) -> TestCall {
    let words = [pair(allocation_type, 0), pair(location.0, location.1), 0, 0, 0];
    call("cuMemPoolCreate", [0x7fff_0000, 0x7fff_0100]).out([pool, 0]).peek(words)
}

fn set_threshold(pool: u64, bytes: u64) -> TestCall {
    call("cuMemPoolSetAttribute", [pool, THRESHOLD, 0x7fff_0000]).peek([bytes])
}

fn reported(pool: u64, bytes: u64) -> TestCall {
    call("cuMemPoolGetAttribute", [pool, HELD, 0x7fff_0000]).out([bytes, 0])
}

fn default_pool(pool: u64) -> TestCall {
    call("cuDeviceGetDefaultMemPool", [0x7fff_0000, 0]).out([pool, 0])
}

fn backed(story: &LedgerStory) -> Option<(u64, bool)> {
    story.ledger.pool_backed(DEVICE).map(|Backed { bytes, estimated }| (bytes, estimated))
}

#[test]
fn a_pool_without_a_threshold_is_taken_to_hold_what_is_used() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc_async(0xd0, 5 * MIB), mem_alloc_async(0xd1, MIB), mem_free_async(0xd0)]);
    assert_eq!(backed(&story), Some((MIB, true)));
}

#[test]
fn pool_with_max_threshold_holds_its_peak_until_trimmed() {
    let mut story = LedgerStory::on_device_0();
    story.report([default_pool(0x90), set_threshold(0x90, u64::MAX)]);
    story.report([mem_alloc_async(0xd0, 5 * MIB), mem_alloc_async(0xd1, MIB), mem_free_async(0xd0)]);
    assert_eq!(backed(&story), Some((6 * MIB, true)), "the default pool is the one whose handle was learnt");
    story.report([call("cuMemPoolTrimTo", [0x90, 2 * MIB])]);
    assert_eq!(backed(&story), Some((2 * MIB, true)));
    story.report([mem_free_async(0xd1), call("cuMemPoolTrimTo", [0x90, 0])]);
    assert_eq!(backed(&story), Some((0, false)), "nothing needs no estimate");
}

#[test]
fn pool_size_reported_by_the_driver_is_exact_until_the_next_call() {
    let mut story = LedgerStory::on_device_0();
    story.report([
        default_pool(0x90),
        set_threshold(0x90, u64::MAX),
        mem_alloc_async(0xd0, 5 * MIB),
        reported(0x90, 32 * MIB),
    ]);
    assert_eq!(backed(&story), Some((32 * MIB, false)));
    story.report([mem_alloc_async(0xd1, MIB)]);
    assert_eq!(backed(&story), Some((32 * MIB, true)), "it holds at least as much as it did");
}

#[test]
fn a_pool_older_than_the_attach_is_not_guessed_until_the_driver_says_more() {
    let mut story = LedgerStory::unseen_before();
    story.report([primary_ctx_retain(0xc0, 0), ctx_set_current(0xc0)]);
    story.report([mem_alloc_from_pool_async(0xd0, MIB, 0x90)]);
    assert_eq!(backed(&story), None);
    story.report([reported(0x90, 32 * MIB)]);
    assert_eq!(backed(&story), Some((32 * MIB, false)));
}

#[test]
fn memory_of_host_managed_and_imported_pools_is_in_no_gpus_sum() {
    let mut story = LedgerStory::on_device_0();
    story.report([pool_create(0x91, 1, (ON_HOST, 0)), pool_create(0x92, 2, (ON_DEVICE, 0))]);
    story.report([call("cuMemPoolImportFromShareableHandle", [0x7fff_0000, 5, 1, 0]).out([0x93, 0])]);
    for (address, pool) in [(0xd1, 0x91), (0xd2, 0x92), (0xd3, 0x93)] {
        story.report([mem_alloc_from_pool_async(address, MIB, pool)]);
    }
    assert_eq!(story.live(), 0);
    assert_eq!(story.ledger.totals().host().kind(AllocationKind::HostPhysical).live_bytes, MIB);
    assert_eq!(story.ledger.totals().whole().kind(AllocationKind::Managed).live_bytes, MIB);
    story.report([mem_free_async(0xd1), mem_free_async(0xd2), mem_free_async(0xd3)]);
    assert_eq!(story.ledger.totals().host().kind(AllocationKind::HostPhysical).live_bytes, 0);
    assert_eq!(story.frees(), (1, 0, 0), "an alias is no allocation, and its end no free of the process's own");
}

#[test]
fn current_pool_serves_unnamed_allocations_until_destroyed() {
    let mut story = LedgerStory::on_device_0();
    story.report([pool_create(0x91, 1, (ON_DEVICE, 0)), set_threshold(0x91, u64::MAX)]);
    story.report([call("cuDeviceSetMemPool", [0, 0x91]), mem_alloc_async(0xd0, 4 * MIB), mem_free_async(0xd0)]);
    assert_eq!(backed(&story), Some((4 * MIB, true)), "the given pool keeps what it got");
    story.report([mem_alloc_async(0xd1, MIB), call("cuMemPoolDestroy", [0x91])]);
    assert_eq!((story.live(), backed(&story)), (MIB, Some((MIB, true))), "it goes with its last allocation");
    story.report([mem_alloc_async(0xd2, 2 * MIB), mem_free_async(0xd1), mem_free_async(0xd2)]);
    assert_eq!((story.live(), backed(&story)), (0, Some((0, true))), "the default pool keeps nothing for long");
}

#[test]
fn the_device_of_a_pool_counts_and_not_that_of_the_thread() {
    let mut story = LedgerStory::on_device_0();
    story.report([pool_create(0x91, 1, (ON_DEVICE, 1)), mem_alloc_from_pool_async(0xd0, MIB, 0x91)]);
    assert_eq!((story.device(0).owned.live_bytes, story.device(1).owned.live_bytes), (0, MIB));
}

#[test]
fn the_device_of_a_stream_counts_and_not_that_of_the_thread() {
    let mut story = LedgerStory::on_device_0();
    story.report([primary_ctx_retain(0xc1, 1), ctx_set_current(0xc1)]);
    story.report([call("cuStreamCreate", [0x7fff_0000, 0]).out([0x51, 0]), ctx_set_current(0xc0)]);
    story.report([call("cuMemAllocAsync", [0x7fff_0000, MIB, 0x51]).out([0xd0, 0])]);
    story.report([call("cuMemAllocAsync_ptsz", [0x7fff_0000, 2 * MIB, 0]).out([0xd1, 0])]);
    assert_eq!((story.device(0).owned.live_bytes, story.device(1).owned.live_bytes), (2 * MIB, MIB));
}
