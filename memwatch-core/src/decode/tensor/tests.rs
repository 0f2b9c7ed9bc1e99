use memwatch_common::record::RingRecord;
use memwatch_common::tensor::{
    FLAG_BY_DRAW, FLAG_EXTRA_UNREADABLE, FLAG_NO_PYTHON, FLAG_STACK_OVER_BUDGET, TENSOR_PROBES, TensorRecord,
};

use super::{NodeWords, StackRef, TensorChange, TraceAction, decode_tensor};
use crate::words::Ordinal;

#[test]
fn tensor_decode_ignores_unused_register_bits() {
    for row in TENSOR_PROBES {
        let bits = row.meaning.argument_bits();
        for (fill, device) in [(0, 0x0001), (u64::MAX, 0x0301), (0x5a5a_5a5a_5a5a_5a5a, 0xff01)] {
            let mut args = [fill; 6];
            // A packed device has to be a GPU; other devices give no event.
            args.iter_mut()
                .zip(bits)
                .filter(|(_, bits)| *bits == 0xffff)
                .for_each(|(word, _)| *word = fill << 16 | device);
            let reported: [u64; 6] = std::array::from_fn(|index| args[index] & bits[index]);
            let event = |args| decode_tensor(&RingRecord::Tensor(record(row.id, args, [3, 4])));
            assert_eq!(event(args), event(reported), "row {}: {args:x?}", row.id);
        }
    }
}

fn record(probe: u16, args: [u64; 6], extra: [u64; 2]) -> TensorRecord {
    TensorRecord { kind: 3, probe, tgid: 7, tid: 8, time_ns: 9, args, extra, ..TensorRecord::default() }
}

fn change(record: TensorRecord) -> Option<TensorChange> {
    decode_tensor(&RingRecord::Tensor(record)).map(|event| event.what)
}

#[test]
fn tensor_free_has_negative_bytes_and_only_the_device_bits_of_its_word() {
    let freed = change(record(1, [0x7000, 512_u64.wrapping_neg(), 1024, 4096, 0xdead_0101, 0], [0, 0]));
    let Some(TensorChange::Reported { ordinal, block_bytes, allocated_bytes, .. }) = freed else { panic!("{freed:?}") };
    assert_eq!((ordinal, block_bytes, allocated_bytes), (Ordinal(1), -512, 1024));
}

#[test]
fn host_memory_report_is_not_a_tensor_event() {
    assert_eq!(change(record(1, [0x7000, 512, 512, 512, 0, 0], [0, 0])), None);
}

#[test]
fn the_trace_has_its_action_device_and_pool() {
    let Some(TensorChange::Traced(traced)) = change(record(3, [1, 0xff_0000_0005, 0x10, 20, 0, 0xff02], [3, 4])) else {
        panic!("a trace must be read")
    };
    assert_eq!(traced.action, TraceAction::SegmentMap);
    assert_eq!((traced.ordinal, traced.pool), (Ordinal(2), Some((3, 4))));
}

#[test]
fn a_node_has_the_words_that_could_be_read() {
    let node = |flags| change(TensorRecord { flags, ..record(22, [0; 6], [12, 3]) });
    assert_eq!(node(0), Some(TensorChange::NodeBegins { words: Some(NodeWords([12, 3])) }));
    assert_eq!(node(FLAG_EXTRA_UNREADABLE), Some(TensorChange::NodeBegins { words: None }));
}

#[test]
fn why_a_stack_is_missing_is_kept() {
    let event = |flags, stack| {
        let record = TensorRecord { flags, stack, ..record(21, [0; 6], [0; 2]) };
        decode_tensor(&RingRecord::Tensor(record)).map(|event| event.stack)
    };
    assert_eq!(event(0, 0), Some(StackRef::NotAsked));
    assert_eq!(event(0, 5), Some(StackRef::Known(5)));
    assert_eq!(event(FLAG_NO_PYTHON, 0), Some(StackRef::NoPython));
    assert_eq!(event(FLAG_NO_PYTHON, 5), Some(StackRef::Native(5)));
    assert_eq!(event(FLAG_BY_DRAW, 0), Some(StackRef::NotDrawn));
}

#[test]
fn sampled_flag_of_a_small_block_does_not_depend_on_its_stack() {
    let is_drawn = |flags, stack| {
        let record = TensorRecord { flags, stack, ..record(21, [0; 6], [0; 2]) };
        decode_tensor(&RingRecord::Tensor(record)).expect("an event").is_sampled
    };
    let fates = [(0, 5), (FLAG_NO_PYTHON, 0), (FLAG_NO_PYTHON, 5), (FLAG_STACK_OVER_BUDGET, 0)];
    assert!(fates.into_iter().all(|(flags, stack)| is_drawn(flags | FLAG_BY_DRAW, stack)));
    assert!(!fates.into_iter().any(|(flags, stack)| is_drawn(flags, stack)) && !is_drawn(FLAG_BY_DRAW, 0));
}
