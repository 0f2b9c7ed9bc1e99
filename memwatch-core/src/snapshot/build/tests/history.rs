use std::collections::BTreeMap;

use proptest::collection::vec;
use proptest::prelude::*;

use super::history;
use crate::allocators::TensorLedger;
use crate::allocators::pytorch::LineAction;
use crate::allocators::pytorch::tests::naive::{BlockUse, NaiveAllocator};
use crate::decode::{StackRef, TensorEvent};
use crate::snapshot::{DeviceHistory, MemoryHistory};
use crate::words::{Tgid, Tid};

/// Memory at a moment: segments by address with their ends, and blocks with their requested bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ViewerMemory {
    segments: BTreeMap<u64, u64>,
    blocks: BTreeMap<u64, u64>,
}

impl ViewerMemory {
    fn now(device: &DeviceHistory) -> Self {
        let mut memory = Self::default();
        for segment in &device.segments {
            let mut at = segment.address;
            for block in &segment.blocks {
                assert_eq!(block.address, at, "blocks tile their segment");
                at += block.bytes;
                if block.state != "inactive" {
                    memory.blocks.insert(block.address, block.requested_bytes);
                }
            }
            memory.segments.insert(segment.address, at);
        }
        memory
    }

    /// Undoes the lines like a viewer, and panics at a block outside of all segments or a line
    /// about nothing.
    fn undo(&mut self, device: &DeviceHistory) {
        for line in device.lines.iter().rev() {
            let end = line.address + line.bytes;
            match line.action {
                LineAction::Alloc => assert!(self.blocks.remove(&line.address).is_some(), "{line:?}"),
                LineAction::FreeRequested => assert!(self.blocks.contains_key(&line.address), "{line:?}"),
                LineAction::FreeCompleted => {
                    assert!(self.blocks.insert(line.address, line.bytes).is_none(), "{line:?}");
                }
                LineAction::SegmentFree => assert!(self.segments.insert(line.address, end).is_none(), "{line:?}"),
                LineAction::SegmentAlloc => assert_eq!(self.segments.remove(&line.address), Some(end), "{line:?}"),
                LineAction::SegmentUnmap => {
                    let upper = self.segments.remove(&end);
                    let lower = self.segments.iter().find(|(_, last)| **last == line.address).map(|(begin, _)| *begin);
                    self.segments.insert(lower.unwrap_or(line.address), upper.unwrap_or(end));
                }
                LineAction::SegmentMap => {
                    let (&begin, &last) = self.segments.range(..=line.address).next_back().expect("it is mapped");
                    assert!(end <= last, "{line:?}");
                    self.segments.remove(&begin);
                    for (from, to) in [(begin, line.address), (end, last)] {
                        (from < to).then(|| self.segments.insert(from, to));
                    }
                }
                LineAction::OutOfMemory => {}
            }
            for block in self.blocks.keys() {
                let around = self.segments.range(..=block).next_back();
                assert!(around.is_some_and(|(_, end)| block < end), "{block:x} is in no segment: {line:?}");
            }
        }
    }
}

struct FollowedHistory {
    naive: NaiveAllocator,
    ledger: TensorLedger,
    time_ns: u64,
}

impl FollowedHistory {
    fn new(is_expandable: bool, from_start: bool) -> Self {
        let mut ledger = TensorLedger::default();
        ledger.begin(from_start, &[]);
        ledger.keep_history(100_000);
        Self { naive: NaiveAllocator::new(0, is_expandable), ledger, time_ns: 0 }
    }

    fn step(&mut self, (what, amount): (u8, u32), is_seen: bool) {
        let (tid, which) = (Tid(1), amount as usize);
        let requested = u64::from(amount) % if amount % 2 == 0 { 60_000 } else { 40 << 20 } + 1;
        match what {
            0..130 => {
                self.naive.request(tid, requested);
                self.naive.grant(tid, requested, u64::from(amount % 7 == 0), 0);
            }
            130..210 => self.naive.give_back(tid, which, amount % 5 == 0),
            210..235 => self.naive.complete(tid, which),
            235..245 => self.naive.empty_cache(tid),
            _ => self.naive.refuse(tid, 1 << 40),
        }
        for (tid, what) in std::mem::take(&mut self.naive.reported) {
            self.time_ns += 1;
            let event = TensorEvent::made((Tgid(7), tid), self.time_ns, StackRef::NotAsked, what);
            if is_seen {
                self.ledger.apply(&event);
            }
        }
    }

    fn history(&self) -> MemoryHistory {
        history(&self.ledger, false)
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn snapshot_history_undone_to_its_start_is_empty(steps in vec(any::<(u8, u32)>(), 1..120), expandable: bool) {
        let mut reported = FollowedHistory::new(expandable, true);
        for step in steps {
            reported.step(step, true);
        }
        for device in &reported.history().devices {
            prop_assert_eq!(device.cut, 0);
            let mut memory = ViewerMemory::now(device);
            let used = reported.naive.blocks().filter(|block| block.used != BlockUse::Free);
            let there: BTreeMap<u64, u64> = used.map(|block| (block.address, block.requested)).collect();
            prop_assert_eq!(&memory.blocks, &there);
            memory.undo(device);
            prop_assert_eq!(memory, ViewerMemory::default());
        }
    }

    #[test]
    fn attached_in_the_middle_every_line_can_be_undone(
        steps in vec(any::<(u8, u32)>(), 1..160), expandable: bool, late in 0_usize..80, limit in 1_usize..200
    ) {
        let mut reported = FollowedHistory::new(expandable, false);
        reported.ledger.keep_history(limit);
        for (index, step) in steps.into_iter().enumerate() {
            reported.step(step, index >= late);
        }
        for device in &reported.history().devices {
            ViewerMemory::now(device).undo(device);
        }
    }

    #[test]
    fn snapshot_history_after_a_loss_is_undoable_to_the_loss(steps in vec(any::<(u8, u32)>(), 1..160), lost in 0_usize..80) {
        let mut reported = FollowedHistory::new(false, true);
        for (index, step) in steps.into_iter().enumerate() {
            reported.step(step, index != lost);
            if index == lost {
                reported.ledger.lose(memwatch_common::loss::Loss::TensorEventLost, 1);
            }
        }
        for device in &reported.history().devices {
            ViewerMemory::now(device).undo(device);
        }
    }
}
