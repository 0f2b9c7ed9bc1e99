use super::*;
use crate::allocators::TensorLedger;
use crate::decode::StackRef;
use crate::input::arenas::ArenaCounters;
use crate::words::{Tgid, Tid};

const GPU: Ordinal = Ordinal(0);
const ARENA: u64 = 0x5000;
const HOST_ARENA: u64 = 0x6000;
const SEGMENT: DriverSegment =
    DriverSegment { address: 0x10_0000, bytes: 0x10_0000, memory: SegmentLocation::Device(GPU) };

fn counters(num_allocs: u64, bytes_in_use: u64, peak_bytes_in_use: u64) -> ArenaCounters {
    ArenaCounters { num_allocs, bytes_in_use, peak_bytes_in_use }
}

fn event(time_ns: u64, chunk: ArenaChunkReport) -> TensorEvent {
    TensorEvent::made((Tgid(1), Tid(1)), time_ns, StackRef::NoPython, TensorChange::Chunk(chunk))
}

fn chunk(is_grant: bool, address: u64, bytes: u64, now: ArenaCounters) -> ArenaChunkReport {
    ArenaChunkReport {
        allocator: ARENA,
        framework: Framework::Jax,
        is_grant,
        is_of_stream: false,
        address,
        requested_bytes: bytes - 1,
        bytes,
        counters: Some(now),
    }
}

fn with_segment() -> Arenas {
    let mut arenas = Arenas::default();
    arenas.note(AllocatorNotice::DriverKnown(true));
    arenas.learn_segment(SEGMENT);
    arenas
}

fn book(chunks: &[(u64, u64)], now: ArenaCounters) -> ArenaReadings {
    let chunks = chunks.iter().map(|&(address, bytes)| ArenaChunk { address, bytes, requested_bytes: bytes });
    let arena = ArenaReading {
        allocator: ARENA,
        framework: Some(Framework::Jax),
        name: "GPU_0_bfc".into(),
        device: None,
        counters: now,
        largest_alloc_bytes: 4096,
        regions: vec![(SEGMENT.address, SEGMENT.bytes)],
        chunks: chunks.collect(),
    };
    ArenaReadings { tgid: Tgid(1), began_ns: 100, time_ns: 200, arenas: vec![arena] }
}

#[test]
fn an_arenas_counters_are_its_own_and_are_checked_with_each_event() {
    let mut arenas = with_segment();
    let granted = arenas.apply(&event(1, chunk(true, 0x10_0100, 1024, counters(1, 1024, 1024))));
    assert!(matches!(granted, Some(BlockChange::Granted(block)) if block.ordinal == GPU && block.block_bytes == 1024));
    arenas.apply(&event(2, chunk(true, 0x10_0800, 512, counters(2, 1536, 1536))));
    let freed = arenas.apply(&event(3, chunk(false, 0x10_0100, 1024, counters(2, 512, 1536))));
    assert_eq!(freed, Some(BlockChange::Freed { ordinal: GPU, address: 0x10_0100, block_bytes: 1024 }));
    let arena = &arenas.arenas()[&ARENA];
    assert_eq!((arena.known_bytes(), arena.requested_bytes(), arena.largest_bytes()), (512, 511, Some(1024)));
    assert!(arena.is_exact());
    let reported = arenas.reported()[&GPU];
    assert_eq!((reported.allocated_bytes, reported.reserved_bytes), (512, SEGMENT.bytes));
}

#[test]
fn bfc_arena_contradicted_by_an_event_is_not_exact() {
    let mut arenas = with_segment();
    arenas.apply(&event(1, chunk(true, 0x10_0100, 1024, counters(1, 1024, 1024))));
    arenas.apply(&event(2, chunk(true, 0x10_0800, 512, counters(2, 9999, 9999))));
    assert_eq!(arenas.arenas()[&ARENA].out_of_step(), 1);
    assert!(!arenas.arenas()[&ARENA].is_exact());
    assert_eq!(arenas.reported().len(), 0);
}

#[test]
fn bfc_loss_is_not_out_of_step_but_clears_the_largest_bytes() {
    let mut arenas = with_segment();
    arenas.apply(&event(1, chunk(true, 0x10_0100, 1024, counters(1, 1024, 1024))));
    arenas.lose();
    arenas.apply(&event(2, chunk(true, 0x10_0800, 512, counters(3, 5632, 5632))));
    let arena = &arenas.arenas()[&ARENA];
    assert_eq!((arena.out_of_step(), arena.is_exact(), arena.largest_bytes()), (0, false, None));
    assert_eq!(arenas.reported()[&GPU].allocated_bytes, 5632, "the totals are the arena's own");
}

#[test]
fn a_program_that_begins_its_counters_again_does_not_contradict_them() {
    let mut arenas = with_segment();
    arenas.apply(&event(1, chunk(true, 0x10_0100, 1024, counters(1, 1024, 1024))));
    arenas.apply(&event(2, chunk(true, 0x10_0800, 512, counters(2, 1536, 1536))));
    arenas.apply(&event(3, chunk(false, 0x10_0800, 512, counters(2, 1024, 1536))));
    arenas.apply(&event(4, chunk(true, 0x10_0800, 256, counters(1, 1280, 1280))));
    assert!(arenas.arenas()[&ARENA].is_exact());
}

#[test]
fn bfc_arena_in_host_memory_is_not_reported_on_a_device() {
    let mut arenas = with_segment();
    let host = ArenaChunkReport { allocator: HOST_ARENA, ..chunk(true, 0x7f00_0000, 512, counters(1, 512, 512)) };
    assert_eq!(arenas.apply(&event(1, host)), None, "all of the driver's memory was seen, and it is in none of it");
    assert_eq!(arenas.arenas()[&HOST_ARENA].home(), Home::Host);
    assert_eq!(arenas.reported().len(), 0);
}

#[test]
fn bfc_segment_granted_before_attach_gets_its_device_from_arena_state() {
    let mut arenas = Arenas::default();
    let granted = arenas.apply(&event(50, chunk(true, 0x10_0100, 1024, counters(7, 5120, 5120))));
    assert_eq!(granted, None, "nobody knows on which device");
    assert_eq!(arenas.wanted_allocator_state(Framework::Jax), [ARENA]);
    let older = arenas.learn_arenas(&book(&[(0x10_0100, 1024), (0x10_1000, 4096)], counters(7, 5120, 5120)));
    let [older] = older.as_slice() else { panic!("{older:?}") };
    assert_eq!((older.ordinal, older.chunks.len()), (GPU, 1), "one of the two had come with an event");
    let arena = &arenas.arenas()[&ARENA];
    assert_eq!((arena.home(), arena.is_exact(), arena.largest_bytes()), (Home::Named(GPU), true, Some(4096)));
    assert_eq!(arenas.wanted_allocator_state(Framework::Jax), [0_u64; 0]);
    assert_eq!(arenas.reported()[&GPU].reserved_bytes, SEGMENT.bytes);
}

#[test]
fn a_reading_that_an_event_overtook_is_not_taken() {
    let mut arenas = with_segment();
    arenas.apply(&event(150, chunk(true, 0x10_0100, 1024, counters(7, 5120, 5120))));
    assert_eq!(arenas.learn_arenas(&book(&[(0x10_1000, 4096)], counters(6, 4096, 4096))), Vec::new());
    assert_eq!(arenas.arenas()[&ARENA].counters(), Some(counters(7, 5120, 5120)));
}

#[test]
fn chunks_that_do_not_add_up_are_not_taken_and_the_counters_are() {
    let mut arenas = Arenas::default();
    assert_eq!(arenas.learn_arenas(&book(&[(0x10_1000, 512)], counters(6, 4096, 8192)))[0].chunks, Vec::new());
    let arena = &arenas.arenas()[&ARENA];
    assert_eq!((arena.known_bytes(), arena.is_exact()), (0, false));
    assert_eq!(arena.counters(), Some(counters(6, 4096, 8192)));
}

#[test]
fn the_ledger_adopts_older_chunks_and_has_the_arenas_sum() {
    let mut ledger = TensorLedger::default();
    ledger.learn_arenas(&book(&[(0x10_0100, 1024), (0x10_1000, 4096)], counters(7, 5120, 6144)));
    assert_eq!(ledger.reported()[&GPU].allocated_bytes, 5120);
    ledger.apply(&event(300, chunk(true, 0x10_4000, 512, counters(8, 5632, 6144))));
    assert_eq!(ledger.attribution().devices()[&GPU].allocated_bytes(), 5632);
    assert_eq!(ledger.attribution().devices()[&GPU].total().live_bytes, 5632);
    ledger.apply(&event(301, chunk(false, 0x10_1000, 4096, counters(8, 1536, 6144))));
    assert_eq!(ledger.attribution().devices()[&GPU].total().live_bytes, 1536);
    assert!(ledger.arenas().arenas()[&ARENA].is_exact());
}

#[test]
fn bfc_event_older_than_the_arena_state_only_attributes_its_chunk() {
    let mut arenas = with_segment();
    arenas.learn_arenas(&book(&[(0x10_1000, 4096)], counters(6, 4096, 8192)));
    let late = |chunk| event(90, chunk);
    let granted = arenas.apply(&late(chunk(true, 0x10_1000, 4096, counters(5, 8192, 8192))));
    assert!(matches!(granted, Some(BlockChange::Granted(_))));
    assert_eq!(arenas.apply(&late(chunk(false, 0x10_3000, 4096, counters(5, 4096, 8192)))), None);
    let arena = &arenas.arenas()[&ARENA];
    assert_eq!((arena.counters(), arena.out_of_step()), (Some(counters(6, 4096, 8192)), 0));
}

#[test]
fn bfc_unmapped_memory_is_not_counted_as_a_segment() {
    let mut arenas = with_segment();
    arenas.apply(&event(1, chunk(true, 0x10_0100, 1024, counters(1, 1024, 1024))));
    assert_eq!(arenas.segment_bytes(&arenas.arenas()[&ARENA]), SEGMENT.bytes);
    arenas.driver(DriverChange::Mapped { address: 0x40_0000, bytes: 512 });
    arenas.driver(DriverChange::Unmapped { address: SEGMENT.address, bytes: SEGMENT.bytes });
    assert_eq!(arenas.segment_bytes(&arenas.arenas()[&ARENA]), 0);
}

#[test]
fn bfc_arenas_without_events_keep_the_last_reading_and_are_not_exact() {
    let mut ledger = TensorLedger::default();
    ledger.learn_arenas(&book(&[(0x10_0100, 1024)], counters(7, 1024, 6144)));
    assert!(
        ledger.arenas().arenas()[&ARENA].is_exact()
            && ledger.arenas().wanted_allocator_state(Framework::Jax).is_empty()
    );
    ledger.stop();
    assert!(!ledger.arenas().arenas()[&ARENA].is_exact() && ledger.arenas().is_stopped());
    let later = ArenaReadings { began_ns: 300, time_ns: 400, ..book(&[(0x10_2000, 512)], counters(9, 512, 6144)) };
    ledger.read_arenas(&later);
    assert_eq!(ledger.reported()[&GPU].allocated_bytes, 512);
    assert_eq!(ledger.attribution().devices()[&GPU].allocated_bytes(), 512);
    assert_eq!(ledger.arenas().wanted_allocator_state(Framework::Jax), [ARENA], "it goes on, and nobody sees it");
    ledger.resume(0);
    assert!(!ledger.arenas().is_stopped() && !ledger.arenas().arenas()[&ARENA].is_exact());
    let again = ArenaReadings { began_ns: 500, time_ns: 600, ..later };
    ledger.learn_arenas(&again);
    assert!(ledger.arenas().arenas()[&ARENA].is_exact());
}

#[test]
fn after_a_loss_an_arena_is_not_exact_until_more_of_it_is_known() {
    let mut arenas = with_segment();
    arenas.apply(&event(1, chunk(true, 0x10_0100, 1024, counters(1, 1024, 1024))));
    arenas.lose();
    assert!(!arenas.arenas()[&ARENA].is_exact(), "what it counts now is not known");
    assert_eq!(arenas.wanted_allocator_state(Framework::Jax), [ARENA]);
}

/// Returns an event of ONNX Runtime's arena, which identifies a freed chunk by its address.
fn goes(time_ns: u64, address: u64, before: ArenaCounters) -> TensorEvent {
    let what = ChunkGoes { allocator: ARENA, framework: Framework::OnnxRuntime, address, before: Some(before) };
    TensorEvent::made((Tgid(1), Tid(1)), time_ns, StackRef::NoPython, TensorChange::ChunkGoes(what))
}

fn onnx(time_ns: u64, address: u64, is_of_stream: bool, now: ArenaCounters) -> TensorEvent {
    let made = ArenaChunkReport { framework: Framework::OnnxRuntime, is_of_stream, ..chunk(true, address, 1024, now) };
    event(time_ns, made)
}

#[test]
fn a_chunk_that_goes_by_its_address_has_the_size_that_it_came_with() {
    let mut arenas = with_segment();
    arenas.apply(&onnx(1, 0x10_0100, false, counters(1, 1024, 1024)));
    arenas.apply(&onnx(2, 0x10_0800, true, counters(2, 2048, 2048)));
    let arena = |arenas: &Arenas| arenas.arenas()[&ARENA].clone();
    assert_eq!((arena(&arenas).framework(), arena(&arenas).early_bytes()), (Some(Framework::OnnxRuntime), Some(1024)));
    let freed = arenas.apply(&goes(3, 0x10_0800, counters(2, 2048, 2048)));
    assert_eq!(freed, Some(BlockChange::Freed { ordinal: GPU, address: 0x10_0800, block_bytes: 1024 }));
    assert_eq!(arena(&arenas).counters(), Some(counters(2, 1024, 2048)));
    assert!(arena(&arenas).is_exact());
    arenas.apply(&onnx(4, 0x10_0c00, false, counters(3, 2048, 2048)));
    assert_eq!(arena(&arenas).early_bytes(), Some(1024), "what comes after the first run is none of the weights");
    arenas.apply(&goes(5, 0x10_0100, counters(3, 2048, 2048)));
    assert_eq!((arena(&arenas).early_bytes(), arena(&arenas).out_of_step()), (Some(0), 0));
}

#[test]
fn bfc_free_of_an_unseen_chunk_makes_the_arena_inexact_until_read() {
    let mut arenas = with_segment();
    arenas.apply(&onnx(1, 0x10_0100, true, counters(5, 4096, 6144)));
    assert_eq!(arenas.apply(&goes(2, 0x10_4000, counters(5, 4096, 6144))), None);
    assert!(!arenas.arenas()[&ARENA].is_exact());
    assert_eq!(arenas.wanted_allocator_state(Framework::OnnxRuntime), [ARENA]);
    assert!(arenas.wanted_allocator_state(Framework::Jax).is_empty(), "another framework's reader does not know it");
    arenas.apply(&onnx(3, 0x10_0800, true, counters(6, 2048, 6144)));
    assert_eq!(arenas.arenas()[&ARENA].out_of_step(), 0, "what was missing is no contradiction");
    assert_eq!(arenas.arenas()[&ARENA].early_bytes(), None);
}

#[test]
fn onnx_runtimes_arenas_say_beside_their_name_on_which_device_they_are() {
    let named = |name: &'static str, device| {
        let mut allocator_state = book(&[(0x10_0100, 1024)], counters(7, 1024, 6144));
        let own = &mut allocator_state.arenas[0];
        (own.framework, own.name, own.device) = (Some(Framework::OnnxRuntime), name.into(), device);
        let mut arenas = Arenas::default();
        arenas.learn_arenas(&allocator_state);
        arenas.arenas()[&ARENA].home()
    };
    assert_eq!(named("Cuda", Some(1)), Home::Named(Ordinal(1)));
    assert_eq!((named("CudaPinned", Some(0)), named("Cuda", None)), (Home::Host, Home::Host));
}

#[test]
fn bfc_failure_is_refused_on_the_arena_device_and_host_arenas_ignored() {
    let fails = |allocator| {
        let change = TensorChange::ArenaFails { allocator, wanted_bytes: 4096 };
        TensorEvent::made((Tgid(1), Tid(1)), 3, StackRef::NoPython, change)
    };
    let mut arenas = with_segment();
    assert!(arenas.apply(&fails(ARENA)).is_none(), "nobody knows where it is");
    arenas.apply(&event(1, chunk(true, 0x10_0100, 1024, counters(1, 1024, 1024))));
    arenas.apply(&event(
        2,
        ArenaChunkReport { allocator: HOST_ARENA, ..chunk(true, 0x1, 1024, counters(1, 1024, 1024)) },
    ));
    let refused = arenas.apply(&fails(ARENA));
    assert!(matches!(refused, Some(BlockChange::Refused { ordinal: GPU, wanted_bytes: 4096 })), "{refused:?}");
    assert!(arenas.apply(&fails(HOST_ARENA)).is_none());
}
