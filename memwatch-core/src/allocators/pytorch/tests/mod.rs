//! The allocator's rules against what real PyTorch reported, and against a naive allocator.

mod allocator_state;
pub(crate) mod naive;
mod peaks;
pub(crate) mod properties;
mod readout;
mod recorded;

use crate::allocators::FrameworkAllocator as _;
use std::collections::BTreeMap;

use super::{Allocators, Certainty, DeviceAllocator, RatedNumber, StatFamily, StatScope};
use crate::allocators::BlockChange;
use crate::decode::{StackRef, TensorChange, TensorEvent, TraceAction, Traced};
use crate::words::{Ordinal, Tgid, Tid};

/// Address of the allocator of device 0.
const ALLOCATOR: u64 = 0x55aa_0000;

/// Actions in the order of their numbers.
const ACTIONS: [TraceAction; 9] = [
    TraceAction::Alloc,
    TraceAction::FreeRequested,
    TraceAction::FreeCompleted,
    TraceAction::SegmentAlloc,
    TraceAction::SegmentFree,
    TraceAction::SegmentMap,
    TraceAction::SegmentUnmap,
    TraceAction::Snapshot,
    TraceAction::OutOfMemory,
];

fn event(what: TensorChange) -> TensorEvent {
    TensorEvent::made((Tgid(7), Tid(8)), 9, StackRef::NotAsked, what)
}

fn traced(action: TraceAction, address: u64, bytes: u64, stream: u64) -> TensorChange {
    let (ordinal, pool) = (Ordinal(0), None);
    TensorChange::Traced(Traced {
        allocator: ALLOCATOR,
        action,
        address,
        bytes,
        stream,
        ordinal,
        pool,
        is_rounded: false,
    })
}

fn reported(address: u64, block_bytes: i64, allocated_bytes: u64, reserved_bytes: u64) -> TensorChange {
    TensorChange::Reported { ordinal: Ordinal(0), address, block_bytes, allocated_bytes, reserved_bytes }
}

fn started() -> Allocators {
    let mut allocators = Allocators::default();
    allocators.begin(true, &[]);
    allocators
}

fn device(allocators: &Allocators) -> &DeviceAllocator {
    &allocators.devices()[&Ordinal(0)]
}

fn values(allocators: &Allocators) -> BTreeMap<String, i64> {
    device(allocators).numbers().into_iter().map(|(key, trust)| (key.into_owned(), trust.value)).collect()
}

#[test]
fn private_pool_reserved_bytes_are_counted_even_after_the_pool_is_gone() {
    let mut allocators = started();
    let (mut naive, id) = (naive::NaiveAllocator::new(0, false), (0, 3));
    let report = |allocators: &mut Allocators, action, address, bytes| {
        let ordinal = Ordinal(0);
        let traced = Traced {
            allocator: ALLOCATOR,
            action,
            address,
            bytes,
            stream: 0,
            ordinal,
            pool: Some(id),
            is_rounded: false,
        };
        allocators.apply(&event(TensorChange::Traced(traced)));
    };
    report(&mut allocators, TraceAction::SegmentAlloc, 0x4000_0000, 20 << 20);
    report(&mut allocators, TraceAction::Alloc, 0x4000_0000, 3 << 20);
    allocators.apply(&event(reported(0x4000_0000, 3 << 20, 3 << 20, 20 << 20)));
    // The layout of the counters shows that this version counts pools.
    naive.request(Tid(1), 3 << 20);
    naive.grant(Tid(1), 3 << 20, 0, 0);
    assert!(allocators.learn_counters(ALLOCATOR, 9, &naive.words(4)));
    report(&mut allocators, TraceAction::FreeRequested, 0x4000_0000, 3 << 20);
    report(&mut allocators, TraceAction::FreeCompleted, 0x4000_0000, 3 << 20);
    allocators.apply(&event(reported(0x4000_0000, -(3 << 20), 0, 20 << 20)));
    report(&mut allocators, TraceAction::SegmentFree, 0x4000_0000, 20 << 20);
    allocators.apply(&event(TensorChange::AccumulatedReset { ordinal: Ordinal(0) }));
    let pools: Vec<_> = device(&allocators)
        .numbers()
        .into_iter()
        .filter(|(key, trust)| key.contains("private") && (trust.value != 0 || trust.doubt.is_some()))
        .map(|(key, trust)| (key.into_owned(), trust.value))
        .collect();
    let peak = |scope| (format!("reserved_bytes_by_private_pools.0_3.{scope}.peak"), 20 << 20);
    assert_eq!(pools, [peak("all"), peak("large_pool")]);
}

#[test]
fn the_words_of_a_request_distinguished_by_what_is_granted() {
    for size_word in [0, 1] {
        let mut allocators = started();
        let mut words = [7, 7];
        words[size_word] = 1000;
        allocators.apply(&event(TensorChange::Requested { allocator: ALLOCATOR, words }));
        let change = allocators.apply(&event(reported(0x4000_0000, 1024, 1024, 2 << 20)));
        let Some(BlockChange::Granted(block)) = change else { panic!("{change:?}") };
        assert_eq!(block.requested_bytes, Some(1000), "word {size_word}");
        assert_eq!(block.cached, Some(true), "no segment was looked for");
    }
}

#[test]
fn an_allocator_has_a_trace_once_it_has_traced_what_it_reports() {
    let mut allocators = started();
    assert!(!allocators.has_trace(), "nobody has reported");
    allocators.apply(&event(reported(0x4000_0000, 512, 512, 2 << 20)));
    assert!(!allocators.has_trace());
    allocators.apply(&event(traced(TraceAction::Alloc, 0x4000_0200, 100, 0)));
    allocators.apply(&event(reported(0x4000_0200, 512, 1024, 2 << 20)));
    assert!(allocators.has_trace());
    // The trace continues only while the program records it.
    allocators.apply(&event(reported(0x4000_0400, 512, 1536, 2 << 20)));
    assert!(!allocators.has_trace());
}

#[test]
fn a_block_in_a_segment_of_the_other_pool_makes_the_numbers_doubtful() {
    for (segment, block, is_as_expected) in
        [(2 << 20, 1 << 20, true), (20 << 20, 2 << 20, true), (2 << 20, 2 << 20, false)]
    {
        let mut allocators = started();
        allocators.apply(&event(traced(TraceAction::SegmentAlloc, 0x4000_0000, segment, 0)));
        allocators.apply(&event(traced(TraceAction::Alloc, 0x4000_0000, block, 0)));
        allocators.apply(&event(reported(0x4000_0000, block.cast_signed(), block, segment)));
        let number = |key: &str| {
            let numbers = device(&allocators).numbers();
            numbers.into_iter().find(|(name, _)| name == key).map(|(_, trust)| trust.certainty())
        };
        let expected = if is_as_expected { Certainty::Exact } else { Certainty::Derived };
        assert_eq!(number("segment.small_pool.current"), Some(expected), "{block} bytes in {segment}");
    }
}

#[test]
fn an_event_that_no_gpu_can_report_is_counted_and_changes_nothing() {
    let mut allocators = started();
    allocators.apply(&event(reported(u64::MAX, 512, 512, 512)));
    allocators.apply(&event(reported(0x4000_0000, i64::MIN, 512, 512)));
    assert_eq!((allocators.devices().len(), allocators.unbelievable()), (0, 2));
}

#[test]
fn preexisting_bytes_are_the_allocated_bytes_never_granted_in_the_watch() {
    let mut allocators = Allocators::default();
    allocators.begin(false, &[]);
    allocators.apply(&event(reported(0x4000_0000, 512, 4096, 2 << 20)));
    assert_eq!(device(&allocators).preexisting_bytes(), Some(3584));
    allocators.apply(&event(reported(0x5000_0000, -1024, 3072, 2 << 20)));
    assert_eq!(device(&allocators).preexisting_bytes(), Some(2560));
    let all_peak = device(&allocators).number(StatFamily::AllocatedBytes, StatScope::All, "peak");
    assert_eq!(all_peak.map(RatedNumber::certainty), Some(Certainty::Unknown), "it may have been more before");
}
