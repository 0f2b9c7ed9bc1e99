//! Allocator state that was read in the middle: the result is as if all events had been followed
//! from the start.

use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use super::naive::NaiveAllocator;
use super::properties::{AllocatorStep, TensorEventHistory, steps};
use super::{StatFamily, StatScope};
use memwatch_common::loss::Loss;

use crate::allocators::TensorLedger;
use crate::allocators::names::SiteKey;
use crate::allocators::pytorch::{Base, BlockState, Certainty, DeviceAllocator};
use crate::input::allocator_state::{AllocatorState, MovingAllocatorState, MovingDevice, StateBlock};
use crate::words::Tgid;

/// Address, bytes and state.
type ShapedBlock = (u64, u64, BlockState);

/// Returns all blocks and segments without their call sites.
fn shape(device: &DeviceAllocator) -> (Vec<ShapedBlock>, Vec<(u64, u64)>) {
    let memory = device.memory();
    (
        memory.cells().iter().map(|(address, cell)| (*address, cell.bytes, cell.state)).collect(),
        memory.segments().iter().map(|(begin, segment)| (*begin, segment.bytes)).collect(),
    )
}

fn allocator_state(history: &TensorEventHistory, map_words: usize, (began_ns, time_ns): (u64, u64)) -> AllocatorState {
    let used = history.devices.iter().filter(|device| device.truth != super::super::AllocatorStatistics::default());
    let devices = used.map(|device| device.allocator_state(map_words)).collect();
    AllocatorState { tgid: Tgid(7), began_ns, time_ns, devices }
}

/// Returns the current blocks at some of the addresses.
fn blocks_of(device: &NaiveAllocator, is_read: impl Fn(u64) -> bool) -> Vec<StateBlock> {
    device.allocator_state(0).blocks().filter(|block| is_read(block.address)).copied().collect()
}

fn apply(history: &mut TensorEventHistory, ledgers: &mut [&mut TensorLedger]) {
    for (event, _) in history.events.drain(..) {
        for ledger in &mut *ledgers {
            ledger.apply(&event);
        }
    }
}

/// Asserts that a late watch that reads the allocator state between two sequences of events knows
/// what an early watch knows.
fn as_an_early_watch(
    before: Vec<AllocatorStep>,
    after: Vec<AllocatorStep>,
    expandable: bool,
    maps: usize,
) -> Result<(), TestCaseError> {
    let mut history = TensorEventHistory::new(expandable, 4 * maps);
    let (mut early, mut late) = (TensorLedger::default(), TensorLedger::default());
    early.begin(true, &[]);
    late.begin(false, &[]);
    for step in before {
        history.step(step);
    }
    let now_ns = history.events.last().map_or(0, |(event, _)| event.time_ns) + 10;
    let read = allocator_state(&history, 4 * maps, (now_ns, now_ns + 20));
    // The last of the earlier events are still in the ring and arrive after the reading.
    let mut underway = history.events.split_off(history.events.len() / 2);
    apply(&mut history, &mut [&mut early, &mut late]);
    prop_assert_eq!(late.learn_allocator_state(&read), !read.devices.is_empty());
    history.events.append(&mut underway);
    apply(&mut history, &mut [&mut early, &mut late]);
    for step in after {
        history.step(step);
        apply(&mut history, &mut [&mut early, &mut late]);
    }
    for naive in
        history.devices.iter().filter(|naive| read.devices.iter().any(|device| device.ordinal == naive.ordinal))
    {
        let [early, late] = [&early, &late].map(|ledger| &ledger.allocators()[&naive.ordinal]);
        prop_assert_eq!(shape(late), shape(early));
        prop_assert_eq!(late.statistics(), &naive.truth);
        prop_assert_eq!((late.out_of_step(), late.base()), (0, Base::Read(now_ns + 20)));
        for family in StatFamily::ALL {
            let certainty = late.number(family, StatScope::All, "current").expect("it is one of the four").certainty();
            prop_assert_eq!(certainty, Certainty::Exact, "{:?}", family);
        }
    }
    for (ordinal, device) in late.attribution().devices() {
        prop_assert_eq!(device.unplaced_bytes(), 0, "{:?}: every block has a place", ordinal);
    }
    Ok(())
}

#[test]
fn allocator_state_before_any_event_does_not_imply_a_missing_trace() {
    let mut history = TensorEventHistory::new(false, 0);
    history.step((0, 39, 0));
    let now_ns = history.events.last().map_or(0, |(event, _)| event.time_ns) + 10;
    let mut late = TensorLedger::default();
    late.begin(false, &[]);
    assert!(late.learn_allocator_state(&allocator_state(&history, 0, (now_ns, now_ns + 20))));
    assert!(!late.lacks_trace() && !late.has_trace());
}

#[test]
fn build_features_are_learnt_from_events_older_than_the_allocator_state() {
    as_an_early_watch(vec![(0, 39, 0)], vec![(235, 3, 0)], false, 0)
        .expect("nothing came after the books but a refusal");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn late_attach_with_allocator_state_matches_an_early_attach(
        before in steps(),
        after in steps(),
        expandable: bool,
        maps in 0_usize..2,
    ) {
        as_an_early_watch(before, after, expandable, maps)?;
    }

    #[test]
    fn torn_allocator_state_is_taken_only_where_its_blocks_are_complete(
        before in steps(),
        meanwhile in steps(),
        parity: u64,
    ) {
        let mut history = TensorEventHistory::new(false, 0);
        let (mut early, mut late) = (TensorLedger::default(), TensorLedger::default());
        early.begin(true, &[]);
        late.begin(false, &[]);
        for step in before {
            history.step(step);
        }
        apply(&mut history, &mut [&mut early]);
        let began_ns = early.course.event_ns + 1;
        // Half of the blocks are read at the beginning, the other half at the end, with events in
        // between.
        let is_early = |address: u64| address / 512 % 2 == parity % 2;
        let moving = |device: &NaiveAllocator| MovingDevice {
            ordinal: device.ordinal,
            allocated_bytes: 0,
            reserved_bytes: 0,
            blocks: blocks_of(device, is_early),
        };
        let mut read: Vec<_> = history.devices.iter().map(moving).collect();
        for step in meanwhile {
            history.step(step);
        }
        for (device, moving) in history.devices.iter().zip(&mut read) {
            moving.blocks.extend(blocks_of(device, |address| !is_early(address)));
        }
        let time_ns = history.events.last().map_or(began_ns, |(event, _)| event.time_ns) + 1;
        late.learn_moving_allocator_state(&MovingAllocatorState { tgid: Tgid(7), began_ns, time_ns, devices: read });
        apply(&mut history, &mut [&mut early, &mut late]);
        late.tick(time_ns + 1_000_000_000);
        for (ordinal, device) in late.allocators().iter().filter(|(_, device)| device.reported().is_some()) {
            // The late watch only lacks blocks if its events are missing. Although the reading is
            // not of one moment, half of it is correct.
            prop_assert!(device.knows_blocks(), "{:?}", ordinal);
            let allocated = |ledger: &TensorLedger| {
                let cells = ledger.allocators()[ordinal].memory().cells().clone().into_iter();
                cells.filter(|(_, cell)| cell.state == BlockState::Allocated).map(|(at, cell)| (at, cell.bytes)).collect::<Vec<_>>()
            };
            prop_assert_eq!(allocated(&late), allocated(&early));
        }
    }

    #[test]
    fn allocator_state_older_than_seen_events_is_rejected(before in steps()) {
        let mut history = TensorEventHistory::new(false, 0);
        let mut late = TensorLedger::default();
        late.begin(false, &[]);
        for step in before {
            history.step(step);
        }
        let last_ns = history.events.last().map_or(0, |(event, _)| event.time_ns);
        let read = allocator_state(&history, 0, (last_ns, last_ns + 5));
        apply(&mut history, &mut [&mut late]);
        prop_assert!(last_ns == 0 || !late.learn_allocator_state(&read));
        prop_assert!(late.allocators().values().all(|device| device.base() == Base::None));
    }
}

#[test]
fn block_absent_from_the_reading_is_freed_and_an_unseen_one_is_older() {
    let mut history = TensorEventHistory::new(false, 0);
    for step in [(50, 1, 4096), (51, 1, 8192), (52, 1, 40_000)] {
        history.step(step);
    }
    let mut late = TensorLedger::default();
    late.begin(false, &[]);
    history.events.clear();
    // One block was allocated and freed unseen, another was allocated and seen.
    history.step((53, 1, 12_000));
    apply(&mut history, &mut [&mut late]);
    history.step((150, 1, 0));
    history.events.clear();
    let now_ns = 1_000_000_000;
    assert!(late.learn_allocator_state(&allocator_state(&history, 0, (now_ns, now_ns + 1))));
    let device = late.allocators().values().next().expect("it was read");
    let naive = history.devices.iter().find(|naive| naive.blocks().next().is_some()).expect("one was used");
    let held: u64 =
        naive.blocks().filter(|block| block.used == super::naive::BlockUse::Program).map(|block| block.bytes).sum();
    let places = late.attribution().devices().values().next().expect("it has places");
    assert_eq!((device.memory().allocated_bytes(), places.allocated_bytes()), (held, held));
    assert_eq!(places.unplaced_bytes(), 0);
    let older = device.preexisting_bytes().expect("it was read");
    assert!(older > 0 && older <= held, "{older} of {held}");
}

#[test]
fn unseen_block_after_lost_events_is_not_called_preexisting() {
    let mut history = TensorEventHistory::new(false, 0);
    let mut ledger = TensorLedger::default();
    ledger.begin(true, &[]);
    history.step((50, 1, 4096));
    apply(&mut history, &mut [&mut ledger]);
    history.step((51, 1, 8192));
    let lost = history.events.drain(..).count();
    ledger.lose(Loss::TensorEventLost, u64::try_from(lost).expect("a small number"));
    let now_ns = 1_000_000_000;
    assert!(ledger.learn_allocator_state(&allocator_state(&history, 0, (now_ns, now_ns + 1))));
    let places = ledger.attribution().devices().values().next().expect("it has places");
    let device = ledger.allocators().values().next().expect("it was read");
    assert!(device.knows_blocks(), "the allocator's side has all of them");
    let older = places.sites().find(|(site, _)| *site == SiteKey::BEFORE_ATTACH);
    assert!(older.is_none_or(|(_, sum)| sum.live_bytes == 0), "{older:?}");
    assert!(places.unplaced_bytes() > 0, "it is in no place");
}
