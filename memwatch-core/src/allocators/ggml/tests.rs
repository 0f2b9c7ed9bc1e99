use super::*;
use crate::decode::{StackRef, TensorName};
use crate::words::{Tgid, Tid};

const GPU: Ordinal = Ordinal(0);
const CONTEXT: u64 = 0x5000;
const ADDRESS: u64 = 0x7f00_0000;
const BYTES: u64 = 1 << 20;

fn event(context: u64, turn: BufferTurn) -> TensorEvent {
    let what = TensorChange::Buffer(BufferChange { context, turn });
    TensorEvent::made((Tgid(1), Tid(1)), 5, StackRef::NoPython, what)
}

fn segment(address: u64, bytes: u64) -> DriverSegment {
    DriverSegment { address, bytes, memory: SegmentLocation::Device(GPU) }
}

/// Creates a buffer whose address is in this driver allocation.
fn make(
    buffers: &mut Buffers,
    context: u64,
    (address, bytes): (u64, u64),
    held: Option<DriverSegment>,
) -> Option<BlockChange> {
    let made = event(context, BufferTurn::Made { bytes, ordinal: GPU, address });
    buffers.place(&made, &|asked| held.filter(|_| asked == address));
    buffers.apply(&made)
}

fn plain(buffers: &mut Buffers, context: u64, address: u64) {
    let granted = make(buffers, context, (address, BYTES), Some(segment(address, BYTES)));
    assert!(
        matches!(granted, Some(BlockChange::Granted(block)) if block.address == address && block.block_bytes == BYTES)
    );
}

fn watched() -> Buffers {
    let mut buffers = Buffers::default();
    buffers.watch(Framework::Ggml, true);
    buffers
}

fn usages(buffers: &Buffers) -> Vec<(BufferUsage, u64, u64)> {
    buffers.devices()[&GPU].usages().iter().map(|(usage, sum)| (*usage, sum.buffers, sum.bytes)).collect()
}

#[test]
fn ggml_buffer_counts_under_its_usage_until_freed() {
    let mut buffers = watched();
    plain(&mut buffers, CONTEXT, ADDRESS);
    plain(&mut buffers, CONTEXT + 8, ADDRESS + BYTES);
    assert_eq!(usages(&buffers), [(BufferUsage::Other, 2, 2 * BYTES)], "nothing says what they are for yet");
    buffers.apply(&event(CONTEXT, BufferTurn::Labelled(BufferUsage::Weights)));
    buffers.apply(&event(CONTEXT + 8, BufferTurn::Labelled(BufferUsage::Compute)));
    assert_eq!(usages(&buffers), [(BufferUsage::Weights, 1, BYTES), (BufferUsage::Compute, 1, BYTES)]);
    let gone = buffers.apply(&event(CONTEXT + 8, BufferTurn::Goes));
    assert_eq!(gone, Some(BlockChange::Freed { ordinal: GPU, address: ADDRESS + BYTES, block_bytes: BYTES }));
    buffers.driver(DriverChange::Freed { address: ADDRESS + BYTES });
    let device = &buffers.devices()[&GPU];
    assert_eq!((device.buffers(), device.bytes(), device.peak_bytes(), device.made()), (1, BYTES, 2 * BYTES, 2));
    assert!(buffers.is_exact());
}

/// Maps a piece for the pool of temporaries, which the driver has granted on the device.
fn grow(buffers: &mut Buffers, address: u64, bytes: u64, asked: Ordinal) -> Option<BlockChange> {
    let grows = event(address, BufferTurn::Grows { bytes, ordinal: asked });
    buffers.place(&grows, &|at| Some(segment(at, bytes)));
    buffers.apply(&grows)
}

fn all_gone(buffers: &mut Buffers, address: u64, bytes: u64) -> Vec<(u64, u64)> {
    assert_eq!(buffers.apply(&event(address, BufferTurn::Shrinks { bytes })), None);
    let gone = std::iter::from_fn(|| buffers.also());
    gone.map(|change| match change {
        BlockChange::Freed { ordinal: GPU, address, block_bytes } => (address, block_bytes),
        other => panic!("{other:?}"),
    })
    .collect()
}

#[test]
fn the_pool_for_temporaries_grows_by_pieces_and_goes_as_a_whole() {
    let mut buffers = watched();
    plain(&mut buffers, CONTEXT, ADDRESS - BYTES);
    let granted = grow(&mut buffers, ADDRESS, 2 * BYTES, GPU);
    assert!(matches!(granted, Some(BlockChange::Granted(block)) if block.block_bytes == 2 * BYTES));
    // A pool used by several devices reports another device first.
    assert!(grow(&mut buffers, ADDRESS + 2 * BYTES, BYTES, Ordinal(1)).is_some());
    assert_eq!(usages(&buffers), [(BufferUsage::Scratch, 2, 3 * BYTES), (BufferUsage::Other, 1, BYTES)]);
    let gone = all_gone(&mut buffers, ADDRESS, 3 * BYTES);
    assert_eq!(gone, [(ADDRESS, 2 * BYTES), (ADDRESS + 2 * BYTES, BYTES)]);
    buffers.driver(DriverChange::Freed { address: ADDRESS });
    assert_eq!(usages(&buffers), [(BufferUsage::Other, 1, BYTES)]);
    assert!(buffers.is_exact());
}

#[test]
fn a_pool_that_gives_back_more_than_is_known_of_it_has_older_memory() {
    let mut buffers = watched();
    grow(&mut buffers, ADDRESS + BYTES, BYTES, GPU);
    assert_eq!(all_gone(&mut buffers, ADDRESS, 2 * BYTES), [(ADDRESS + BYTES, BYTES)]);
    assert!(buffers.has_older() && !buffers.is_exact());
}

#[test]
fn ggml_pool_unmapped_without_an_event_is_out_of_step() {
    let mut buffers = watched();
    grow(&mut buffers, ADDRESS, BYTES, GPU);
    grow(&mut buffers, ADDRESS + BYTES, BYTES, GPU);
    buffers.driver(DriverChange::Unmapped { address: ADDRESS, bytes: 2 * BYTES });
    assert_eq!((buffers.out_of_step(), buffers.devices()[&GPU].bytes()), (2, 0));
}

#[test]
fn a_buffer_of_another_backend_is_none_of_a_device() {
    let mut buffers = watched();
    let other = Some(segment(ADDRESS - 4096, 2 * BYTES));
    let pinned = Some(DriverSegment { memory: SegmentLocation::Host, ..segment(ADDRESS, BYTES) });
    let elsewhere = Some(DriverSegment { memory: SegmentLocation::Device(Ordinal(1)), ..segment(ADDRESS, BYTES) });
    for held in [None, other, pinned, elsewhere, Some(segment(ADDRESS, BYTES - 1))] {
        assert_eq!(make(&mut buffers, CONTEXT, (ADDRESS, BYTES), held), None, "{held:?}");
    }
    assert_eq!(buffers.apply(&event(CONTEXT, BufferTurn::Goes)), None);
    assert!(buffers.devices().is_empty() && buffers.is_exact());
}

#[test]
fn ggml_buffer_names_its_device_when_the_driver_ledger_cannot() {
    let mut buffers = watched();
    let somewhere = DriverSegment { memory: SegmentLocation::SomeDevice, ..segment(ADDRESS, BYTES) };
    let granted = make(&mut buffers, CONTEXT, (ADDRESS, BYTES), Some(somewhere));
    assert!(matches!(granted, Some(BlockChange::Granted(block)) if block.ordinal == GPU));
}

#[test]
fn ggml_lookup_result_applies_to_one_event_only() {
    let mut buffers = watched();
    plain(&mut buffers, CONTEXT, ADDRESS);
    let unplaced = event(CONTEXT + 8, BufferTurn::Made { bytes: BYTES, ordinal: GPU, address: ADDRESS });
    assert_eq!(buffers.apply(&unplaced), None);
    assert_eq!(buffers.devices()[&GPU].buffers(), 1);
}

#[test]
fn memory_that_goes_under_a_buffer_shows_that_an_event_was_missed() {
    let mut buffers = watched();
    plain(&mut buffers, CONTEXT, ADDRESS);
    buffers.driver(DriverChange::Freed { address: ADDRESS });
    assert_eq!((buffers.out_of_step(), buffers.is_exact()), (1, false));
    assert_eq!(buffers.devices()[&GPU].bytes(), 0);
    plain(&mut buffers, CONTEXT, ADDRESS);
    plain(&mut buffers, CONTEXT + 8, ADDRESS);
    assert_eq!((buffers.out_of_step(), buffers.devices()[&GPU].buffers()), (2, 1), "an address is one buffer's");
}

type BufferDoubt = (&'static str, fn(&mut Buffers));

#[test]
fn ggml_buffers_are_inexact_when_any_may_be_missing() {
    let unsure: [BufferDoubt; 5] = [
        ("older ones", |buffers| buffers.miss_start()),
        ("lost events", |buffers| buffers.note(AllocatorNotice::EventsLost)),
        ("lost calls", |buffers| buffers.note(AllocatorNotice::DriverKnown(false))),
        ("a pause", |buffers| {
            buffers.note(AllocatorNotice::Stopped);
            buffers.note(AllocatorNotice::Resumed);
        }),
        ("memory that went", |buffers| buffers.driver(DriverChange::Freed { address: ADDRESS })),
    ];
    for (what, doubt) in unsure {
        let mut buffers = watched();
        plain(&mut buffers, CONTEXT, ADDRESS);
        assert!(buffers.is_exact());
        doubt(&mut buffers);
        assert!(!buffers.is_exact(), "{what}");
        assert_eq!(buffers.has_older(), ["older ones", "a pause"].contains(&what), "{what}");
    }
    assert!(!Buffers::default().is_exact(), "nothing is probed");
    let mut late = Buffers::default();
    late.watch(Framework::Ggml, false);
    late.watch(Framework::Ggml, true);
    assert!(late.has_older(), "the first word counts");
}

/// Places a tensor of this name at an offset in the buffer at `base`.
fn put(buffers: &mut Buffers, base: u64, offset_bytes: u64, text: &str) {
    let mut words = [0; 6];
    for (at, byte) in text.bytes().enumerate() {
        words[at / 8] |= u64::from(byte) << (at % 8 * 8);
    }
    buffers.apply(&event(0, BufferTurn::Holds(TensorPlace { base, offset_bytes, name: TensorName(words) })));
}

fn tensors(buffers: &Buffers) -> Vec<(&str, u64, BufferUsage)> {
    buffers.tensors_on(GPU).map(|tensor| (tensor.name, tensor.bytes, tensor.usage)).collect()
}

#[test]
fn ggml_tensor_spans_to_the_next_tensor_and_is_dropped_with_its_buffer() {
    let mut buffers = watched();
    plain(&mut buffers, CONTEXT, ADDRESS);
    put(&mut buffers, ADDRESS, 0, "token_embd.weight");
    put(&mut buffers, ADDRESS, 4096, "output.weight");
    put(&mut buffers, ADDRESS + 4, 0, "in a buffer that is not known");
    buffers.apply(&event(CONTEXT, BufferTurn::Labelled(BufferUsage::Weights)));
    let weights = BufferUsage::Weights;
    assert_eq!(tensors(&buffers), [("token_embd.weight", 4096, weights), ("output.weight", BYTES - 4096, weights)]);
    put(&mut buffers, ADDRESS, 4096, "another at the same place");
    assert_eq!(tensors(&buffers).len(), 2);
    assert_eq!(buffers.tensors_on(Ordinal(1)).count(), 0);
    buffers.apply(&event(CONTEXT, BufferTurn::Goes));
    plain(&mut buffers, CONTEXT, ADDRESS);
    assert_eq!(tensors(&buffers), [], "another buffer has nothing of what was there before");
}

#[test]
fn ggml_buffer_without_usage_that_has_a_cache_tensor_is_kv_cache() {
    let mut buffers = watched();
    plain(&mut buffers, CONTEXT, ADDRESS);
    put(&mut buffers, ADDRESS, 0, "cache_k_l0");
    assert_eq!(usages(&buffers), [(BufferUsage::KvCache, 1, BYTES)]);
    buffers.apply(&event(CONTEXT, BufferTurn::Labelled(BufferUsage::Other)));
    assert_eq!(usages(&buffers), [(BufferUsage::KvCache, 1, BYTES)], "no use is no other one");
    buffers.apply(&event(CONTEXT, BufferTurn::Labelled(BufferUsage::Weights)));
    assert_eq!(usages(&buffers), [(BufferUsage::Weights, 1, BYTES)], "the program knows best");
    put(&mut buffers, ADDRESS, 64, "cache_v_l0");
    assert_eq!(usages(&buffers), [(BufferUsage::Weights, 1, BYTES)]);
    assert_eq!(buffers.devices()[&GPU].peak_bytes(), BYTES);
}

#[test]
fn the_sums_by_line_and_the_totals_of_a_device_have_each_buffer() {
    let mut ledger = TensorLedger::default();
    ledger.watch(Framework::Ggml, true);
    for (context, address) in [(CONTEXT, ADDRESS), (CONTEXT + 8, ADDRESS + BYTES)] {
        let made = event(context, BufferTurn::Made { bytes: BYTES, ordinal: GPU, address });
        ledger.place(&made, &|asked| Some(segment(asked, BYTES)));
        ledger.apply(&made);
    }
    assert_eq!(ledger.reported()[&GPU].allocated_bytes, 2 * BYTES);
    assert_eq!(ledger.attribution().blocks().count(), 2);
    ledger.apply(&event(CONTEXT, BufferTurn::Goes));
    let reported = ledger.reported()[&GPU];
    assert_eq!((reported.allocated_bytes, reported.reserved_bytes), (BYTES, BYTES));
    assert_eq!(ledger.attribution().blocks().count(), 1);
    ledger.reset_peaks(9);
    assert_eq!(ledger.buffers().devices()[&GPU].peak_bytes(), BYTES);
}
