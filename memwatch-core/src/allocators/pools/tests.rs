use memwatch_common::tensor::STATISTICS_WORDS;

use super::*;
use crate::decode::{PoolCounter, TraceAction, Traced};
use crate::input::allocator_state::{AllocatorState, DeviceAllocatorState};
use crate::words::Tgid;

const GPU: Ordinal = Ordinal(0);
const POOL: u64 = 0x5000;
const OTHER: u64 = 0x6000;
const BASE: u64 = 0x7f00_0000;
const SIZE: u64 = 1 << 20;
const BYTES: u64 = 4096;

fn event(kind: PoolKind, turn: PoolTurn) -> TensorEvent {
    let what = TensorChange::Pool(PoolChange { kind, turn });
    TensorEvent::made((Tgid(1), Tid(1)), 5, StackRef::NoPython, what)
}

const fn block(pool: u64, address: u64, bytes: u64, counter: Option<PoolCounter>) -> PoolBlock {
    PoolBlock { pool, address, bytes, counter, ordinal: None }
}

/// Returns a block of RAPIDS' pool of this size.
const fn sized(pool: u64, address: u64, bytes: u64) -> PoolBlock {
    block(pool, address, bytes, Some(PoolCounter::Size(SIZE)))
}

fn segment(address: u64) -> Option<DriverSegment> {
    (BASE..BASE + SIZE).contains(&address).then_some(DriverSegment {
        address: BASE,
        bytes: SIZE,
        memory: SegmentLocation::Device(GPU),
    })
}

fn take(pools: &mut MemoryPools, kind: PoolKind, turn: PoolTurn) -> Option<BlockChange> {
    let event = event(kind, turn);
    pools.place(&event, &segment);
    pools.apply(&event)
}

fn watched(from_start: bool) -> MemoryPools {
    let mut pools = MemoryPools::default();
    pools.watch(Framework::Rmm, from_start);
    pools.watch(Framework::CuPy, from_start);
    pools
}

fn in_use(pools: &MemoryPools, pool: u64) -> Option<u64> {
    pools.pools()[&pool].bytes_in_use()
}

#[test]
fn blocks_of_a_pool_count_until_they_go_and_its_size_is_its_own_number() {
    let mut pools = watched(true);
    take(&mut pools, PoolKind::Pool, PoolTurn::Begins(POOL));
    let granted = take(&mut pools, PoolKind::Pool, PoolTurn::Granted(sized(POOL, BASE, BYTES)));
    assert!(matches!(granted, Some(BlockChange::Granted(TensorBlock { address: BASE, block_bytes: BYTES, .. }))));
    take(&mut pools, PoolKind::Pool, PoolTurn::Granted(sized(POOL, BASE + BYTES, 512)));
    let freed = take(&mut pools, PoolKind::Pool, PoolTurn::Freed(sized(POOL, BASE, BYTES)));
    assert_eq!(freed, Some(BlockChange::Freed { ordinal: GPU, address: BASE, block_bytes: BYTES }));
    let pool = &pools.pools()[&POOL];
    assert_eq!((pool.bytes_in_use(), pool.peak_bytes(), pool.granted()), (Some(512), Some(BYTES + 512), Some(2)));
    assert!(pool.is_exact() && pools.size_bytes(pool) == Some(SIZE));
    let reported = pools.reported()[&GPU];
    assert_eq!((reported.allocated_bytes, reported.reserved_bytes), (512, SIZE));
    take(&mut pools, PoolKind::Pool, PoolTurn::Ends(POOL));
    assert_eq!(pools.also(), Some(BlockChange::Freed { ordinal: GPU, address: BASE + BYTES, block_bytes: 512 }));
    assert!(pools.also().is_none() && pools.pools().is_empty());
}

#[test]
fn pool_older_than_attach_has_no_totals_unless_it_counts_them() {
    let mut pools = watched(false);
    take(&mut pools, PoolKind::Pool, PoolTurn::Granted(sized(POOL, BASE, BYTES)));
    let pool = &pools.pools()[&POOL];
    assert_eq!((pool.bytes_in_use(), pool.peak_bytes(), pool.known_bytes()), (None, None, BYTES));
    assert!(!pool.is_exact() && pool.has_older());
    take(&mut pools, PoolKind::Pool, PoolTurn::Freed(sized(POOL, BASE + BYTES, 512)));
    assert_eq!(pools.pools()[&POOL].out_of_step(), 0, "that one is older");
    take(&mut pools, PoolKind::Pool, PoolTurn::Begins(OTHER));
    take(&mut pools, PoolKind::Pool, PoolTurn::Granted(sized(OTHER, BASE + 2 * BYTES, BYTES)));
    assert!(pools.pools()[&OTHER].is_exact(), "it was made since");
}

/// Returns a chunk of CuPy's pool. `used` is the pool's count after the chunk's grant or before its
/// free.
const fn chunk(address: u64, bytes: u64, used: u64) -> PoolBlock {
    block(POOL, address, bytes, Some(PoolCounter::SizeAndUse(SIZE, used)))
}

#[test]
fn cupy_pool_reports_bytes_in_use_and_older_chunks_are_freed_singly() {
    let mut pools = watched(false);
    let turn = |pools: &mut MemoryPools, turn| take(pools, PoolKind::MemoryPool, turn);
    turn(&mut pools, PoolTurn::Granted(chunk(BASE, BYTES, 3 * BYTES)));
    assert_eq!((in_use(&pools, POOL), pools.pools()[&POOL].known_bytes()), (Some(3 * BYTES), BYTES));
    assert!(!pools.pools()[&POOL].is_exact());
    assert_eq!(turn(&mut pools, PoolTurn::Freed(chunk(BASE + BYTES, 2 * BYTES, 3 * BYTES))), None, "it is older");
    assert_eq!(in_use(&pools, POOL), Some(BYTES));
    turn(&mut pools, PoolTurn::Granted(chunk(BASE + BYTES, 512, BYTES + 512)));
    let pool = &pools.pools()[&POOL];
    assert!(pool.is_exact() && pool.peak_bytes().is_none(), "all is known, and not what there was");
    assert_eq!(pools.size_bytes(pool), Some(SIZE));
}

#[test]
fn cupys_device_is_its_own_where_the_driver_granted_the_memory_before() {
    let mut pools = watched(false);
    let ordinal = Some(Ordinal(1));
    let granted = event(PoolKind::MemoryPool, PoolTurn::Granted(PoolBlock { ordinal, ..chunk(0x1000, BYTES, BYTES) }));
    pools.place(&granted, &|_| None);
    let change = pools.apply(&granted);
    assert!(matches!(change, Some(BlockChange::Granted(TensorBlock { ordinal: Ordinal(1), .. }))));
    assert_eq!(pools.pools()[&POOL].home(), Home::Named(Ordinal(1)));
}

type PoolContradiction = (&'static str, PoolKind, fn(&mut MemoryPools));

#[test]
fn a_pool_that_contradicts_itself_is_inexact_and_in_no_sum() {
    let contradictions: [PoolContradiction; 6] = [
        ("more than the pool has", PoolKind::Pool, |pools| {
            take(pools, PoolKind::Pool, PoolTurn::Granted(sized(POOL, BASE + BYTES, SIZE)));
        }),
        ("two blocks at one address", PoolKind::Pool, |pools| {
            take(pools, PoolKind::Pool, PoolTurn::Granted(sized(POOL, BASE + 256, 256)));
        }),
        ("a block of another size goes", PoolKind::Pool, |pools| {
            take(pools, PoolKind::Pool, PoolTurn::Freed(sized(POOL, BASE, 256)));
        }),
        ("a block that nobody was given goes", PoolKind::Pool, |pools| {
            take(pools, PoolKind::Pool, PoolTurn::Freed(sized(POOL, BASE + 2 * BYTES, BYTES)));
        }),
        ("the memory goes under a block", PoolKind::Pool, |pools| {
            pools.driver(DriverChange::Freed { address: BASE });
        }),
        ("another number of bytes in use", PoolKind::MemoryPool, |pools| {
            take(pools, PoolKind::MemoryPool, PoolTurn::Granted(chunk(BASE + BYTES, 512, BYTES)));
        }),
    ];
    for (what, kind, contradict) in contradictions {
        let mut pools = watched(true);
        let first = if kind == PoolKind::Pool { sized(POOL, BASE, BYTES) } else { chunk(BASE, BYTES, BYTES) };
        take(&mut pools, kind, PoolTurn::Granted(first));
        assert!(pools.pools()[&POOL].is_exact() && !pools.reported().is_empty(), "{what}");
        contradict(&mut pools);
        assert!(!pools.pools()[&POOL].is_exact() && pools.pools()[&POOL].out_of_step() > 0, "{what}");
        assert!(pools.reported().is_empty(), "{what}");
    }
}

#[test]
fn cupy_pool_is_exact_again_after_a_loss_but_rmm_totals_are_unknown() {
    let mut pools = watched(true);
    take(&mut pools, PoolKind::MemoryPool, PoolTurn::Granted(chunk(BASE, BYTES, BYTES)));
    take(&mut pools, PoolKind::Pool, PoolTurn::Granted(sized(OTHER, BASE + 2 * BYTES, BYTES)));
    pools.note(AllocatorNotice::EventsLost);
    assert!(pools.pools().values().all(|pool| !pool.is_exact()));
    take(&mut pools, PoolKind::MemoryPool, PoolTurn::Granted(chunk(BASE + BYTES, 512, BYTES + 512)));
    take(&mut pools, PoolKind::Pool, PoolTurn::Granted(sized(OTHER, BASE + 2 * BYTES, BYTES)));
    assert!(pools.pools()[&POOL].is_exact(), "what it counts is what is known");
    let rapids = &pools.pools()[&OTHER];
    assert_eq!((rapids.bytes_in_use(), rapids.known_bytes(), rapids.out_of_step()), (None, BYTES, 0));
    assert!(!rapids.is_exact());
}

#[test]
fn fixed_size_pool_blocks_count_their_block_size() {
    let mut pools = watched(true);
    let fixed = |address, bytes| block(POOL, address, bytes, Some(PoolCounter::BlockSize(BYTES)));
    take(&mut pools, PoolKind::FixedSize, PoolTurn::Granted(fixed(BASE, 256)));
    let pool = &pools.pools()[&POOL];
    assert_eq!((pool.bytes_in_use(), pool.block_size_bytes()), (Some(BYTES), Some(BYTES)));
    assert_eq!(pools.size_bytes(pool), Some(SIZE), "it lies in that");
    let freed = take(&mut pools, PoolKind::FixedSize, PoolTurn::Freed(fixed(BASE, 256)));
    assert_eq!(freed, Some(BlockChange::Freed { ordinal: GPU, address: BASE, block_bytes: BYTES }));
    assert!(pools.pools()[&POOL].is_exact());
}

#[test]
fn an_arena_answers_the_thread_that_asked_and_one_that_threw_is_forgotten() {
    let mut pools = watched(true);
    let mut turn = |turn| take(&mut pools, PoolKind::Arena, turn);
    turn(PoolTurn::Wanted { pool: POOL, bytes: 1 << 30 });
    turn(PoolTurn::Wanted { pool: POOL, bytes: 1000 });
    let granted = turn(PoolTurn::Answered(BASE));
    assert!(
        matches!(
            granted,
            Some(BlockChange::Granted(TensorBlock { block_bytes: 1024, requested_bytes: Some(1000), .. }))
        ),
        "{granted:?}"
    );
    assert_eq!(turn(PoolTurn::Answered(BASE + BYTES)), None, "nobody asked");
    turn(PoolTurn::Wanted { pool: POOL, bytes: 0 });
    assert_eq!(turn(PoolTurn::Answered(0)), None);
    let freed = turn(PoolTurn::Freed(block(POOL, BASE, 1000, None)));
    assert_eq!(freed, Some(BlockChange::Freed { ordinal: GPU, address: BASE, block_bytes: 1024 }));
    assert!(pools.pools()[&POOL].is_exact());
}

#[test]
fn a_pool_in_host_memory_is_none_of_a_device() {
    let mut pools = watched(true);
    let granted = event(PoolKind::Pool, PoolTurn::Granted(sized(POOL, BASE, BYTES)));
    pools.place(&granted, &|address| {
        segment(address).map(|held| DriverSegment { memory: SegmentLocation::Host, ..held })
    });
    assert_eq!(pools.apply(&granted), None);
    assert_eq!((pools.pools()[&POOL].home(), pools.pools()[&POOL].blocks()), (Home::Host, 0));
    assert_eq!(take(&mut pools, PoolKind::Pool, PoolTurn::Freed(sized(POOL, BASE, BYTES))), None);
    assert!(pools.reported().is_empty());
}

#[test]
fn nested_pool_block_counts_in_the_inner_pool_only() {
    let mut pools = watched(true);
    take(&mut pools, PoolKind::Pool, PoolTurn::Granted(sized(POOL, BASE, 64 * BYTES)));
    let inner = block(OTHER, BASE, BYTES, Some(PoolCounter::Size(64 * BYTES)));
    take(&mut pools, PoolKind::Pool, PoolTurn::Granted(inner));
    assert_eq!(pools.also(), Some(BlockChange::Freed { ordinal: GPU, address: BASE, block_bytes: 64 * BYTES }));
    take(&mut pools, PoolKind::Pool, PoolTurn::Granted(PoolBlock { address: BASE + BYTES, ..inner }));
    assert_eq!(pools.also(), None, "it is divided once");
    assert_eq!((in_use(&pools, POOL), in_use(&pools, OTHER)), (Some(64 * BYTES), Some(2 * BYTES)));
    let reported = pools.reported()[&GPU];
    assert_eq!((reported.allocated_bytes, reported.reserved_bytes), (2 * BYTES, SIZE), "each byte once");
    for address in [BASE, BASE + BYTES] {
        take(&mut pools, PoolKind::Pool, PoolTurn::Freed(PoolBlock { address, ..inner }));
    }
    let outer = take(&mut pools, PoolKind::Pool, PoolTurn::Freed(sized(POOL, BASE, 64 * BYTES)));
    assert_eq!(outer, None, "no sum by place has it");
    assert!(pools.pools().values().all(MemoryPool::is_exact));
}

#[test]
fn nested_pool_first_block_at_the_outer_address_is_counted() {
    let mut ledger = TensorLedger::default();
    ledger.watch(Framework::Rmm, true);
    let inner = block(OTHER, BASE, BYTES, Some(PoolCounter::Size(64 * BYTES)));
    for granted in [sized(POOL, BASE, 64 * BYTES), inner] {
        let event = event(PoolKind::Pool, PoolTurn::Granted(granted));
        ledger.place(&event, &segment);
        ledger.apply(&event);
    }
    assert_eq!(ledger.attribution().devices()[&GPU].total().live_bytes, BYTES);
}

#[test]
fn pytorch_within_a_block_of_rapids_adds_nothing_twice() {
    let mut ledger = TensorLedger::default();
    ledger.begin(true, &[]);
    ledger.watch(Framework::Rmm, true);
    let mut take = |what| {
        let event = TensorEvent::made((Tgid(1), Tid(1)), 5, StackRef::NoPython, what);
        ledger.place(&event, &segment);
        ledger.apply(&event);
        (ledger.reported()[&GPU], ledger.attribution().devices()[&GPU].total().live_bytes)
    };
    let pool = |turn| TensorChange::Pool(PoolChange { kind: PoolKind::Pool, turn });
    let (reported, lines) = take(pool(PoolTurn::Granted(sized(POOL, BASE, 512 << 10))));
    assert_eq!((reported.allocated_bytes, reported.reserved_bytes, lines), (512 << 10, SIZE, 512 << 10));
    let (address, bytes) = (BASE, 512 << 10);
    let action = TraceAction::SegmentAlloc;
    let traced =
        Traced { allocator: 1, action, address, bytes, stream: 0, ordinal: GPU, pool: None, is_rounded: false };
    let (_, lines) = take(TensorChange::Traced(traced));
    assert_eq!(lines, 0, "a segment is no block, and RAPIDS' block is divided now");
    let tensor = |block_bytes: i64, allocated_bytes| TensorChange::Reported {
        ordinal: GPU,
        address: BASE + allocated_bytes,
        block_bytes,
        allocated_bytes,
        reserved_bytes: 512 << 10,
    };
    let (reported, lines) = take(tensor(1024, 1024));
    assert_eq!((reported.allocated_bytes, reported.reserved_bytes, lines), (1024, SIZE, 1024));
    let (reported, lines) = take(pool(PoolTurn::Granted(sized(POOL, BASE + (512 << 10), BYTES))));
    assert_eq!((reported.allocated_bytes, lines), (1024 + BYTES, 1024 + BYTES), "one beside it counts");
    take(tensor(512, 1536));
    assert_eq!(
        ledger.attribution().devices()[&GPU].unplaced_bytes(),
        0,
        "what RAPIDS has is no doubt of PyTorch's report"
    );
    let view = &ledger.pools().pools()[&POOL];
    assert_eq!((view.known_bytes(), view.divided_bytes()), ((512 << 10) + BYTES, 512 << 10));
}

#[test]
fn rmm_sums_are_kept_when_pytorch_allocator_state_is_read() {
    let mut ledger = TensorLedger::default();
    ledger.begin(false, &[]);
    ledger.watch(Framework::Rmm, true);
    let turn = PoolTurn::Granted(sized(POOL, BASE, BYTES));
    let event = event(PoolKind::Pool, turn);
    ledger.place(&event, &segment);
    ledger.apply(&event);
    let lines = |ledger: &TensorLedger| ledger.attribution().devices()[&GPU].total().live_bytes;
    assert_eq!(lines(&ledger), BYTES);
    let allocator_state =
        DeviceAllocatorState { ordinal: GPU, allocator: 1, words: vec![0; STATISTICS_WORDS], segments: Vec::new() };
    let (began_ns, time_ns) = (10, 20);
    ledger.learn_allocator_state(&AllocatorState { tgid: Tgid(1), began_ns, time_ns, devices: vec![allocator_state] });
    assert_eq!((lines(&ledger), ledger.attribution().devices()[&GPU].allocated_bytes()), (BYTES, BYTES));
}
