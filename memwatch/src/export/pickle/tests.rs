use std::sync::Arc;

use super::*;
use crate::render::fixture;

/// Returns a history with two stacks, one of them used twice, and a device without lines before one
/// with some.
fn history() -> MemoryHistory {
    let frame = |name: &str, line| HistoryFrame { name: name.into(), file: "train.py".into(), line };
    let line = |action, bytes, phase: Option<&'static str>| HistoryLine {
        action,
        address: 0x7f06_4c00_0000,
        bytes,
        stream: 0,
        private_pool: (0, 0),
        time_ns: fixture::at(14, 2, 11),
        stack: 0,
        phase: phase.map(Into::into),
    };
    let block = |address, bytes, state| HistoryBlock { address, bytes, requested_bytes: bytes - 8, state, stack: 1 };
    let segment = HistorySegment {
        address: 0x7f06_4c00_0000,
        stream: 0,
        is_small: true,
        private_pool: (0, 1),
        is_expandable: false,
        stack: 0,
        blocks: vec![block(0x7f06_4c00_0000, 512, "active_allocated"), block(0x7f06_4c00_0200, 1024, "inactive")],
    };
    let lines = vec![
        line(LineAction::SegmentAlloc, 1536, None),
        line(LineAction::Alloc, 504, Some("forward")),
        line(LineAction::OutOfMemory, 1 << 40, None),
    ];
    MemoryHistory {
        devices: vec![DeviceHistory { device: 1, segments: vec![segment], lines, cut: 0, max_split_size: Some(-1) }],
        stacks: vec![vec![frame("forward", 12), frame("main", 40)], vec![frame("main", 40)]],
        marks: vec![HistoryMark {
            name: Arc::from("Optimizer.step#AdamW.step"),
            begins: true,
            time_ns: fixture::at(14, 2, 12),
        }],
    }
}

fn pickled(history: &MemoryHistory) -> Vec<u8> {
    let mut out = Vec::new();
    write(&mut out, history, fixture::at(14, 3, 0), &fixture::clock()).expect("memory takes all");
    out
}

#[test]
fn a_history_is_written_as_the_bytes_that_python_was_seen_to_load() {
    assert_eq!(pickled(&history()), include_bytes!("history.pickle"));
}

#[test]
fn every_text_and_every_stack_is_written_once() {
    let bytes = pickled(&history());
    let times = |text: &[u8]| bytes.windows(text.len()).filter(|window| *window == text).count();
    for text in ["frames", "train.py", "active_allocated", "segment_alloc", "forward"] {
        assert_eq!(times(text.as_bytes()), 1, "{text}");
    }
}

#[test]
fn pickle_of_an_empty_history_is_valid() {
    assert!(pickled(&MemoryHistory::default()).ends_with(b"u."));
}
