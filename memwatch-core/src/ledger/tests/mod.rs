//! The ledger on short stories: calls one after another, each as the driver would report it.

use super::totals::{AllocationKind, ByteCounter, DeviceRef, DeviceTotals};
use super::{FAILURES_KEPT, ProcessLedger};
use crate::decode::decode;
use crate::test_calls::*;
use crate::words::Ordinal;

pub(super) const MIB: u64 = 1 << 20;
/// Primary contexts of devices 0 and 1.
const PRIMARY: [u64; 2] = [0xc0, 0xc1];
pub(super) const DEVICE_0: (u32, u32) = (ON_DEVICE, 0);

/// A process whose calls do not overlap unless they set their times.
pub(super) struct LedgerStory {
    pub(super) ledger: ProcessLedger,
    now_ns: u64,
}

impl LedgerStory {
    pub(super) fn unseen_before() -> Self {
        Self { ledger: ProcessLedger::new(false), now_ns: 1000 }
    }

    fn from_start() -> Self {
        Self { ledger: ProcessLedger::new(true), now_ns: 1000 }
    }

    /// Starts a story with the first calls of the CUDA runtime.
    pub(super) fn on_device_0() -> Self {
        let mut story = Self::from_start();
        story.report([primary_ctx_retain(PRIMARY[0], 0), ctx_set_current(PRIMARY[0])]);
        story
    }

    pub(super) fn report<const N: usize>(&mut self, calls: [TestCall; N]) -> &mut Self {
        for mut call in calls {
            if call.0.returned_ns == 0 {
                call = call.at(self.now_ns + 10, self.now_ns + 20);
            }
            self.now_ns = self.now_ns.max(call.0.returned_ns);
            self.ledger.apply(&decode(&call.0).expect("a well-formed record"));
        }
        self
    }

    pub(super) fn live(&self) -> u64 {
        self.ledger.totals().whole().owned.live_bytes
    }

    pub(super) fn peak(&self) -> u64 {
        self.ledger.totals().whole().owned.peak_bytes
    }

    fn kind(&self, kind: AllocationKind) -> ByteCounter {
        let totals = self.ledger.totals();
        *if kind.is_host() { totals.host() } else { totals.whole() }.kind(kind)
    }

    pub(super) fn device(&self, ordinal: i32) -> DeviceTotals {
        self.on(DeviceRef::Ordinal(Ordinal(ordinal)))
    }

    fn on(&self, device: DeviceRef) -> DeviceTotals {
        self.ledger
            .totals()
            .devices()
            .find(|(other, _)| *other == device)
            .map_or_else(Default::default, |(_, own)| *own)
    }

    pub(super) fn frees(&self) -> (u64, u64, u64) {
        (self.ledger.totals().whole().frees, self.ledger.unknown_frees(), self.ledger.implicit_frees())
    }
}

#[test]
fn live_bytes_fall_on_free_and_the_peak_is_kept() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, 5 * MIB), mem_alloc(0xd1, 2 * MIB), mem_free(0xd0), mem_alloc(0xd2, MIB)]);
    let device = story.device(0);
    assert_eq!(
        (device.owned.live_bytes, device.owned.peak_bytes, device.owned.total_bytes),
        (3 * MIB, 7 * MIB, 8 * MIB)
    );
    assert_eq!((device.allocations, device.frees), (3, 1));
    assert_eq!(*device.kind(AllocationKind::Device), device.owned);
}

#[test]
fn allocation_kind_has_its_own_free_function_and_counter() {
    let kinds = [
        (AllocationKind::Device, mem_alloc(0xd0, 64), mem_free(0xd0)),
        (AllocationKind::Managed, mem_alloc_managed(0xd0, 64), mem_free(0xd0)),
        (AllocationKind::Pool, mem_alloc_async(0xd0, 64), mem_free_async(0xd0)),
        (AllocationKind::Pool, mem_alloc_from_pool_async(0xd0, 64, 0x90), mem_free_async(0xd0)),
        (AllocationKind::PinnedHost, mem_host_alloc(0xd0, 64), mem_free_host(0xd0)),
        (AllocationKind::Registered, mem_host_register(0xd0, 64), mem_host_unregister(0xd0)),
        (AllocationKind::Array, array_create(0xd0, 64), array_destroy(0xd0)),
        (AllocationKind::Physical, mem_create(0xd0, 64, DEVICE_0), mem_release(0xd0)),
        (AllocationKind::HostPhysical, mem_create(0xd0, 64, (ON_HOST, 0)), mem_release(0xd0)),
    ];
    for (kind, allocation, free) in kinds {
        let mut story = LedgerStory::on_device_0();
        story.report([allocation]);
        for other in AllocationKind::ALL {
            assert_eq!(story.kind(other).live_bytes, if other == kind { 64 } else { 0 }, "{other:?} after {kind:?}");
        }
        let counts = if kind.is_owned_device_memory() { 64 } else { 0 };
        assert_eq!(story.live(), counts, "{kind:?} in the device's sum");
        story.report([free]);
        assert_eq!((story.kind(kind).live_bytes, story.kind(kind).peak_bytes), (0, 64), "{kind:?}");
        assert_eq!(story.ledger.unknown_frees(), 0, "{kind:?}");
    }
}

#[test]
fn managed_and_pool_memory_may_be_freed_with_cu_mem_free() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc_managed(0xd0, MIB), mem_alloc_async(0xd1, MIB), mem_free(0xd0), mem_free(0xd1)]);
    assert_eq!((story.kind(AllocationKind::Managed).live_bytes, story.kind(AllocationKind::Pool).live_bytes), (0, 0));
    assert_eq!(story.frees(), (2, 0, 0));
}

#[test]
fn a_free_of_an_unknown_address_is_counted_and_takes_nothing() {
    let mut story = LedgerStory::on_device_0();
    story.report([
        mem_alloc(0xd0, MIB),
        mem_free(0xee),
        array_destroy(0xee),
        mem_release(0xee),
        mem_host_unregister(0xee),
    ]);
    assert_eq!((story.live(), story.frees()), (MIB, (0, 4, 0)));
}

#[test]
fn free_of_null_and_allocation_of_zero_bytes_are_ignored() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_free(0), mem_free_host(0), mem_alloc_async(0, 0), mem_free_async(0)]);
    assert_eq!(story.frees(), (0, 0, 0));
    assert_eq!(story.device(0).allocations, 0);
}

#[test]
fn a_failed_free_frees_nothing() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, MIB), mem_create(0x40, MIB, DEVICE_0), mem_map(0xe0, MIB, 0, 0x40)]);
    let failed = [mem_free(0xd0), mem_release(0x40), mem_unmap(0xe0, MIB), primary_ctx_reset(0)];
    story.report(failed.map(|call| call.failing(INVALID_VALUE)));
    assert_eq!((story.live(), story.frees()), (2 * MIB, (0, 0, 0)));
    story.report([mem_free(0xd0)]);
    assert_eq!((story.live(), story.frees()), (MIB, (1, 0, 0)));
}

#[test]
fn free_seen_after_its_address_is_reused_frees_the_previous_tenant() {
    let create = |handle, bytes| mem_create(handle, bytes, DEVICE_0);
    let families = [
        (AllocationKind::Device, mem_alloc(0xd0, 100), mem_alloc(0xd0, 7), mem_free(0xd0)),
        (AllocationKind::Managed, mem_alloc_managed(0xd0, 100), mem_alloc_managed(0xd0, 7), mem_free(0xd0)),
        (AllocationKind::Pool, mem_alloc_async(0xd0, 100), mem_alloc_async(0xd0, 7), mem_free_async(0xd0)),
        (AllocationKind::PinnedHost, mem_host_alloc(0xd0, 100), mem_host_alloc(0xd0, 7), mem_free_host(0xd0)),
        (
            AllocationKind::Registered,
            mem_host_register(0xd0, 100),
            mem_host_register(0xd0, 7),
            mem_host_unregister(0xd0),
        ),
        (AllocationKind::Array, array_create(0xd0, 100), array_create(0xd0, 7), array_destroy(0xd0)),
        (AllocationKind::Physical, create(0xd0, 100), create(0xd0, 7), mem_release(0xd0)),
    ];
    for (kind, first, second, free) in families {
        let mut story = LedgerStory::on_device_0();
        story.report([first, second.thread(102).at(2010, 2020), free.at(2000, 2030)]);
        let counter = story.kind(kind);
        assert_eq!((counter.live_bytes, counter.total_bytes), (7, 107), "{kind:?}");
        story.report([free]);
        assert_eq!((story.kind(kind).live_bytes, story.ledger.unknown_frees()), (0, 0), "{kind:?}");
        let totals = story.ledger.totals();
        assert_eq!(totals.whole().frees + totals.host().frees, 2, "{kind:?}: each free is counted once");
    }
}

#[test]
fn threads_allocate_on_the_device_of_their_own_current_context() {
    let mut story = LedgerStory::on_device_0();
    story.report([primary_ctx_retain(PRIMARY[1], 1)]);
    story.report([mem_alloc(0xd0, 1)]);
    assert_eq!(story.device(0).owned.live_bytes, 1, "a retain makes no context current");
    story.report([ctx_set_current(PRIMARY[1]).thread(7), mem_alloc(0xd1, 10).thread(7), mem_alloc(0xd2, 100)]);
    assert_eq!((story.device(0).owned.live_bytes, story.device(1).owned.live_bytes), (101, 10));
    story.report([mem_free(0xd0).thread(7), mem_free(0xd1)]);
    assert_eq!((story.device(0).owned.live_bytes, story.device(1).owned.live_bytes), (100, 0), "whoever frees it");
}

#[test]
fn the_context_stack_is_pushed_popped_replaced_and_popped_by_null() {
    let mut story = LedgerStory::on_device_0();
    story.report([primary_ctx_retain(PRIMARY[1], 1), ctx_push(PRIMARY[1]), mem_alloc(0xd0, 1)]);
    assert_eq!(story.device(1).owned.live_bytes, 1, "pushed");
    story.report([ctx_pop(PRIMARY[1]), mem_alloc(0xd1, 10)]);
    assert_eq!(story.device(0).owned.live_bytes, 10, "popped");
    story.report([ctx_set_current(PRIMARY[1]), mem_alloc(0xd2, 100)]);
    assert_eq!(story.device(1).owned.live_bytes, 101, "replaced");
    story.report([ctx_push(PRIMARY[0]), ctx_set_current(0), mem_alloc(0xd3, 1000)]);
    assert_eq!(story.device(1).owned.live_bytes, 1101, "popped by setting null");
    story.report([ctx_pop(PRIMARY[1]), ctx_pop(0), mem_alloc(0xd4, 10_000)]);
    assert_eq!(story.on(DeviceRef::Unknown).owned.live_bytes, 10_000, "an empty stack names no device");
}

#[test]
fn context_destroy_frees_its_memory_but_no_pool_or_physical_memory() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, 1), ctx_create(0xcc, 0)]);
    story.report([mem_alloc(0xd1, 10), mem_alloc_managed(0xd2, 20), mem_host_alloc(0xd3, 30), array_create(0xa0, 40)]);
    story.report([mem_alloc_async(0xd4, 50), mem_create(0x40, 60, DEVICE_0), ctx_destroy(0xcc)]);
    let live = |kind| story.kind(kind).live_bytes;
    assert_eq!(
        (
            live(AllocationKind::Device),
            live(AllocationKind::Managed),
            live(AllocationKind::PinnedHost),
            live(AllocationKind::Array)
        ),
        (1, 0, 0, 0)
    );
    assert_eq!((live(AllocationKind::Pool), live(AllocationKind::Physical)), (50, 60));
    assert_eq!(story.frees(), (0, 0, 4));
    story.report([mem_alloc(0xd5, 5)]);
    assert_eq!(story.kind(AllocationKind::Device).live_bytes, 6, "and the context below is current again");
    story.report([primary_ctx_reset(0)]);
    assert_eq!(story.kind(AllocationKind::Device).live_bytes, 0);
}

#[test]
fn a_context_destroyed_by_another_thread_stays_on_this_threads_stack() {
    let mut story = LedgerStory::on_device_0();
    story.report([ctx_create(0xcc, 1), ctx_destroy(0xcc).thread(7), mem_alloc(0xd0, 10)]);
    assert_eq!(story.on(DeviceRef::Unknown).owned.live_bytes, 10, "the driver would refuse, so nothing is guessed");
}

#[test]
fn what_is_granted_after_a_teardown_began_survives_it() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, 1), ctx_create(0xcc, 0).thread(7), mem_alloc(0xd1, 10).at(3010, 3020)]);
    story.report([primary_ctx_reset(0).thread(7).at(3000, 3030)]);
    assert_eq!(story.live(), 10);
}

#[test]
fn the_last_release_of_a_primary_context_frees_what_is_in_it() {
    let mut story = LedgerStory::on_device_0();
    story.report([primary_ctx_retain(PRIMARY[0], 0), mem_alloc(0xd0, MIB), primary_ctx_release(0)]);
    assert_eq!((story.live(), story.frees()), (MIB, (0, 0, 0)), "one reference is left");
    story.report([primary_ctx_release(0)]);
    assert_eq!((story.live(), story.frees()), (0, (0, 0, 1)));
}

#[test]
fn a_primary_context_that_was_released_and_made_again_is_the_only_one() {
    let mut story = LedgerStory::on_device_0();
    story.report([primary_ctx_release(0), primary_ctx_retain(PRIMARY[1], 0)]);
    story.ledger.see_context_changes(false);
    story.report([mem_alloc(0xd0, MIB).thread(7)]);
    assert!(!story.ledger.contexts().are_several());
    assert_eq!((story.device(0).owned.live_bytes, story.live()), (MIB, MIB));
}

#[test]
fn primary_context_reset_frees_memory_without_releasing_the_context() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, MIB), primary_ctx_reset(0), mem_alloc(0xd1, 3)]);
    assert_eq!((story.live(), story.frees()), (3, (0, 0, 1)));
    story.report([primary_ctx_release(0)]);
    assert_eq!((story.live(), story.frees()), (0, (0, 0, 2)));
}

#[test]
fn a_reset_leaves_the_other_contexts_and_devices_alone() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, 1), ctx_create(0xcc, 0), mem_alloc(0xd1, 10)]);
    story.report([primary_ctx_retain(PRIMARY[1], 1), ctx_set_current(PRIMARY[1]), mem_alloc(0xd2, 100)]);
    story.report([primary_ctx_reset(0)]);
    assert_eq!(story.live(), 110);
}

#[test]
fn a_reset_of_a_primary_context_never_seen_spares_contexts_that_were() {
    let mut story = LedgerStory::unseen_before();
    story.report([ctx_create(0xcc, 0), mem_alloc(0xd0, 10), primary_ctx_reset(0)]);
    assert_eq!(story.live(), 10);
}

#[test]
fn attached_late_the_last_release_is_not_known_but_a_reset_can() {
    let mut story = LedgerStory::unseen_before();
    story.report([primary_ctx_retain(PRIMARY[0], 0), ctx_set_current(PRIMARY[0]), mem_alloc(0xd0, MIB)]);
    story.report([primary_ctx_release(0), primary_ctx_release(0)]);
    assert_eq!(story.live(), MIB, "older references may be left");
    story.report([primary_ctx_reset(0)]);
    assert_eq!(story.live(), 0);
}

#[test]
fn late_attach_reset_frees_unknown_context_memory_on_a_single_device() {
    let mut story = LedgerStory::unseen_before();
    story.report([mem_alloc(0xd0, MIB), ctx_set_current(0xee).thread(7), mem_alloc(0xd1, MIB).thread(7)]);
    assert_eq!(story.on(DeviceRef::Unknown).owned.live_bytes, 2 * MIB);
    story.report([primary_ctx_reset(0)]);
    assert_eq!((story.live(), story.frees()), (0, (0, 0, 2)));
}

#[test]
fn late_attach_reset_keeps_unknown_context_memory_with_two_devices() {
    let mut story = LedgerStory::unseen_before();
    story.report([mem_alloc(0xd0, MIB), ctx_create(0xcc, 1).thread(7), primary_ctx_reset(0)]);
    assert_eq!(story.live(), MIB);
}

#[test]
fn refused_allocations_are_kept_with_what_they_asked_for() {
    let mut story = LedgerStory::on_device_0();
    let pitched = call("cuMemAllocPitch_v2", [0, 0, 100, 10, 4]);
    story.report(
        [mem_alloc(0xd0, 80 << 30), pitched, mem_create(0x40, 3, (ON_DEVICE, 1)), mem_alloc_async(0, 4)]
            .map(|call| call.failing(OUT_OF_MEMORY)),
    );
    let device = |ordinal| Some(DeviceRef::Ordinal(Ordinal(ordinal)));
    let kept: Vec<_> = story.ledger.failures().map(|kept| (kept.symbol, kept.requested_bytes, kept.device)).collect();
    let expected = [
        ("cuMemAlloc_v2", 80 << 30, device(0)),
        ("cuMemAllocPitch_v2", 1000, device(0)),
        ("cuMemCreate", 3, device(1)),
        ("cuMemAllocAsync", 4, device(0)),
    ];
    assert_eq!(kept, expected);
    assert_eq!((story.device(0).failed_allocations, story.device(1).failed_allocations), (3, 1));
    assert_eq!((story.live(), story.device(0).allocations), (0, 0));
    assert!(story.ledger.failures().all(|kept| kept.status == OUT_OF_MEMORY && kept.time_ns > 0));
}

#[test]
fn refused_host_memory_is_not_a_device_failure() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_host_alloc(0, MIB), mem_create(0, MIB, (ON_HOST, 0))].map(|call| call.failing(OUT_OF_MEMORY)));
    assert_eq!(story.ledger.failures().filter(|failure| failure.device.is_none()).count(), 2);
    assert_eq!(
        (story.ledger.totals().whole().failed_allocations, story.ledger.totals().host().failed_allocations),
        (0, 2)
    );
}

#[test]
fn only_the_last_failures_are_kept_but_all_are_counted() {
    let mut story = LedgerStory::on_device_0();
    for bytes in 1..=20 {
        story.report([mem_alloc(0, bytes).failing(OUT_OF_MEMORY)]);
    }
    let kept: Vec<u64> = story.ledger.failures().map(|failure| failure.requested_bytes).collect();
    assert_eq!((kept.len(), kept.first(), kept.last()), (FAILURES_KEPT, Some(&5), Some(&20)));
    assert_eq!(story.device(0).failed_allocations, 20);
}

#[test]
fn failed_call_that_requests_no_memory_is_not_a_failed_allocation() {
    let mut story = LedgerStory::on_device_0();
    let calls = [mem_free(0xd0), mem_map(0xe0, MIB, 0, 0x40), mem_import(0x40), mem_host_register(0xd0, MIB)];
    story.report(calls.map(|call| call.failing(INVALID_VALUE)));
    assert_eq!((story.ledger.failures().count(), story.frees()), (0, (0, 0, 0)));
}

#[test]
fn process_end_frees_all_memory_implicitly_and_keeps_peaks() {
    let mut story = LedgerStory::on_device_0();
    story.report([mem_alloc(0xd0, 1), mem_alloc_managed(0xd1, 2), mem_alloc_async(0xd2, 4), mem_host_alloc(0xd3, 8)]);
    story.report([mem_host_register(0xd4, 16), array_create(0xa0, 32), mem_create(0x40, 64, DEVICE_0)]);
    story.report([mem_map(0xe0, 64, 0, 0x40), mem_release(0x40)]);
    story.ledger.end(story.now_ns + 1);
    for kind in AllocationKind::ALL {
        assert_eq!(story.kind(kind).live_bytes, 0, "{kind:?}");
    }
    assert_eq!((story.live(), story.peak(), story.frees()), (0, 101, (0, 0, 7)));
    assert_eq!(story.device(0).owned.live_bytes, 0);
}

#[test]
fn after_an_exec_nothing_of_the_former_image_is_known() {
    let mut story = LedgerStory::unseen_before();
    story.report([primary_ctx_retain(PRIMARY[0], 0), ctx_set_current(PRIMARY[0]), mem_alloc(0xd0, MIB)]);
    story.ledger.end(story.now_ns + 1);
    story.report([mem_alloc(0xd0, 3)]);
    assert_eq!(story.on(DeviceRef::Unknown).owned.live_bytes, 3, "no context is current in the new image");
    story.report([primary_ctx_retain(PRIMARY[0], 0), ctx_set_current(PRIMARY[0]), mem_alloc(0xd1, 5)]);
    story.report([mem_free(0xd0), primary_ctx_release(0)]);
    assert_eq!((story.live(), story.ledger.unknown_frees()), (0, 0), "and its references are all seen");
}

#[test]
fn peaks_belong_to_their_moment() {
    let mut story = LedgerStory::on_device_0();
    story.report([
        primary_ctx_retain(PRIMARY[1], 1),
        mem_alloc(0xd0, 100),
        mem_free(0xd0),
        ctx_set_current(PRIMARY[1]),
    ]);
    story.report([mem_alloc(0xd1, 70), mem_alloc_async(0xd2, 7), mem_free(0xd1)]);
    assert_eq!((story.device(0).owned.peak_bytes, story.device(1).owned.peak_bytes), (100, 77));
    assert_eq!(story.peak(), 100, "the two devices did not peak together");
    assert_eq!(story.kind(AllocationKind::Pool).peak_bytes, 7);
}

#[test]
fn a_device_reports_its_uuid_once_the_program_has_asked_for_it() {
    let mut story = LedgerStory::on_device_0();
    assert_eq!(story.ledger.reported(Ordinal(1)), None);
    story.report([device_get_uuid(1, 0xab)]);
    assert_eq!(story.ledger.reported(Ordinal(1)).map(|reported| &reported.uuids[..]), Some(&[[0xab; 16]][..]));
    assert_eq!(story.ledger.reported(Ordinal(0)), None);
}

#[test]
fn both_uuids_of_a_device_are_kept_the_latest_last() {
    let mut story = LedgerStory::on_device_0();
    story.report([1, 2, 3, 2].map(|byte| device_get_uuid(0, byte)));
    assert_eq!(story.ledger.reported(Ordinal(0)).map(|reported| &reported.uuids[..]), Some(&[[3; 16], [2; 16]][..]));
}

#[test]
fn the_rate_is_that_between_the_last_two_ticks() {
    let mut story = LedgerStory::on_device_0();
    story.ledger.tick(1_000_000_000);
    story.report([mem_alloc(0xd0, 1), mem_alloc(0xd1, 1), mem_alloc(0xd2, 1), mem_free(0xd0)]);
    assert_eq!(story.ledger.rate(), None, "one tick has no length");
    story.ledger.tick(3_000_000_000);
    let rate = story.ledger.rate().map(|rate| (rate.allocations_per_second, rate.frees_per_second));
    assert_eq!(rate, Some((1.5, 0.5)));
    story.ledger.tick(3_000_000_000);
    assert!(story.ledger.rate().is_some_and(|rate| rate.allocations_per_second > 1.0), "time must pass for a new one");
    story.ledger.tick(4_000_000_000);
    assert!(story.ledger.rate().is_some_and(|rate| rate.allocations_per_second == 0.0));
}
