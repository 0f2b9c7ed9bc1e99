//! Random histories of two devices and three threads: the followed allocators equal the naive ones.

use crate::allocators::FrameworkAllocator as _;
use proptest::collection::vec;
use proptest::prelude::*;

use super::ACTIONS;
use super::naive::{BlockUse, NaiveAllocator};
use crate::allocators::pytorch::{
    Allocators, BlockState, Certainty, DriverChange, StatFamily, StatScope, StatisticsWords,
};
use crate::decode::{StackRef, TensorChange, TensorEvent, Traced};
use crate::words::{Ordinal, Tgid, Tid};

const CASES: u32 = 60;

/// Next step: action, place and amount.
pub(crate) type AllocatorStep = (u8, u8, u32);

/// An allocator's address and its words.
pub(crate) type Readable = (u64, Box<StatisticsWords>);

pub(crate) fn steps() -> impl Strategy<Value = Vec<AllocatorStep>> {
    vec(any::<AllocatorStep>(), 1..120)
}

/// Events of all devices in their order, each report followed by the words of its allocator.
pub(crate) struct TensorEventHistory {
    pub(super) devices: [NaiveAllocator; 2],
    pub(crate) events: Vec<(TensorEvent, Option<Readable>)>,
    time_ns: u64,
    map_words: usize,
}

impl TensorEventHistory {
    pub(crate) fn new(expandable: bool, map_words: usize) -> Self {
        let devices = [NaiveAllocator::new(0, expandable), NaiveAllocator::new(1, false)];
        Self { devices, events: Vec::new(), time_ns: 0, map_words }
    }

    pub(crate) fn step(&mut self, (what, place, amount): AllocatorStep) {
        let tid = Tid(u32::from(place % 3) + 1);
        let which = usize::try_from(amount).expect("a word");
        let (stream, private) = (u64::from(place >> 6), u64::from(place % 16 == 0));
        let own = usize::from(place / 3 % 4 == 0);
        let device = &mut self.devices[own];
        match what {
            0..110 => {
                let requested = requested(amount);
                device.request(tid, requested);
                // Meanwhile another thread requests memory, which is granted later.
                if what < 20 {
                    let other = Tid(tid.0 % 3 + 1);
                    device.request(other, requested / 2 + 1);
                    device.grant(tid, requested, stream, private);
                    device.grant(other, requested / 2 + 1, stream, 0);
                } else {
                    device.grant(tid, requested, stream, private);
                }
            }
            110..200 => device.give_back(tid, which, amount % 5 == 0),
            200..225 => device.complete(tid, which),
            225..235 => device.empty_cache(tid),
            235..240 => {
                device.request(tid, 1 << 40);
                device.refuse(tid, 1 << 40);
            }
            240..245 => device.reset(tid, true),
            245..248 => device.reset(tid, false),
            _ => {}
        }
        let words = device.words(self.map_words);
        let (allocator, reported) = (device.allocator, std::mem::take(&mut device.reported));
        let last = reported.iter().rposition(|(_, what)| matches!(what, TensorChange::Reported { .. }));
        for (index, (tid, what)) in reported.into_iter().enumerate() {
            self.time_ns += 1_000_000;
            let event = TensorEvent::made((Tgid(7), tid), self.time_ns, StackRef::NotAsked, what);
            let is_last = Some(index) == last;
            self.events.push((event, is_last.then(|| (allocator, words.clone()))));
        }
    }
}

fn requested(amount: u32) -> u64 {
    let amount = u64::from(amount);
    match amount % 4 {
        0 | 1 => amount % 60_000 + 1,
        2 => amount % (4 << 20) + 1,
        _ => amount % (40 << 20) + 1,
    }
}

fn equal(allocators: &Allocators, history: &TensorEventHistory) -> Result<(), TestCaseError> {
    for naive in &history.devices {
        let Some(device) = allocators.devices().get(&naive.ordinal) else { continue };
        prop_assert_eq!(device.statistics(), &naive.truth);
        prop_assert_eq!(device.out_of_step(), 0);
        let inexact: Vec<_> = device
            .numbers()
            .into_iter()
            .filter(|(key, trust)| {
                trust.certainty() != Certainty::Exact
                    && !["max_split_size", "num_oom_rejections"].contains(&key.as_ref())
                    && !key.starts_with("oversize")
                    && device.sight.trace
            })
            .collect();
        prop_assert_eq!(inexact, vec![]);
    }
    Ok(())
}

/// Asserts that numbers reported as exact are true.
fn honest(allocators: &Allocators, history: &TensorEventHistory) -> Result<(), TestCaseError> {
    for naive in &history.devices {
        let Some(device) = allocators.devices().get(&naive.ordinal) else { continue };
        for family in StatFamily::ALL {
            for scope in StatScope::ALL {
                let truth = naive.truth.get(family, scope);
                let sides = [truth.current, truth.peak, truth.allocated, truth.freed];
                for (side, truth) in ["current", "peak", "allocated", "freed"].into_iter().zip(sides) {
                    let own = device.number(family, scope, side).expect("it is one of the four");
                    if own.certainty() == Certainty::Exact {
                        prop_assert_eq!(own.value, truth, "{:?} {:?} {}", family, scope, side);
                    }
                }
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(CASES))]

    #[test]
    fn seen_from_the_start_every_number_is_the_allocators_own(steps in steps(), expandable: bool) {
        let (mut history, mut allocators) = (TensorEventHistory::new(expandable, 0), Allocators::default());
        allocators.begin(true, &[]);
        for step in steps {
            history.step(step);
            for (event, _) in history.events.drain(..) {
                allocators.apply(&event);
            }
            equal(&allocators, &history)?;
        }
        for naive in &history.devices {
            let known = allocators.devices().get(&naive.ordinal).map_or(0, |device| {
                device.memory().cells().values().filter(|cell| cell.state == BlockState::Allocated).count()
            });
            let there = naive.blocks().filter(|block| block.used == BlockUse::Program).count();
            prop_assert!(known == there, "{known} blocks, not {there}");
        }
    }

    #[test]
    fn pytorch_allocators_keep_segments_tiled_under_arbitrary_events(reported in vec(any::<(u8, u8, [u64; 4])>(), 1..60)) {
        let mut allocators = Allocators::default();
        for (kind, small, words) in reported {
            // Some numbers are small, so that they coincide.
            let [first, second, third, fourth] = words.map(|word| if small.is_multiple_of(4) { word } else { word % 8 * 512 });
            let (allocator, ordinal) = (u64::from(small % 2), Ordinal(i32::from(small / 2 % 2)));
            let what = match kind % 12 {
                0..3 => {
                    let block_bytes = second.cast_signed() * if kind > 128 { 1 } else { -1 };
                    let (allocated_bytes, reserved_bytes) = (third, fourth);
                    TensorChange::Reported { ordinal, address: first, block_bytes, allocated_bytes, reserved_bytes }
                }
                3 => {
                    let (wanted_bytes, allocated_bytes, reserved_bytes) = (first, second, third);
                    TensorChange::OutOfMemory { ordinal, wanted_bytes, allocated_bytes, reserved_bytes }
                }
                4 => TensorChange::Requested { allocator, words: [first, second] },
                5 => TensorChange::BlockFreed { allocator, address: Some(first) },
                6 => {
                    allocators.driver(DriverChange::Mapped { address: first, bytes: second });
                    allocators.driver(DriverChange::Unmapped { address: third, bytes: fourth });
                    allocators.driver(DriverChange::Freed { address: first });
                    continue;
                }
                _ => {
                    let action = ACTIONS[usize::from(kind) % ACTIONS.len()];
                    let (address, bytes, stream, pool) = (first, second, third, None);
                    TensorChange::Traced(Traced { allocator, action, address, bytes, stream, ordinal, pool, is_rounded: false })
                }
            };
            let event = TensorEvent::made((Tgid(7), Tid(u32::from(small % 3))), third, StackRef::NotAsked, what);
            allocators.apply(&event);
        }
        for device in allocators.devices().values() {
            let memory = device.memory();
            for (begin, segment) in memory.segments() {
                let tiles: u64 = memory.cells().range(*begin..begin + segment.bytes).map(|(_, cell)| cell.bytes).sum();
                prop_assert_eq!(tiles, segment.bytes, "the blocks of a segment tile it");
            }
        }
    }

    #[test]
    fn late_attach_exact_numbers_equal_the_program_counters(steps in steps(), expandable: bool, late in 0_usize..100, maps in 0_usize..6) {
        let (mut history, mut allocators) = (TensorEventHistory::new(expandable, maps), Allocators::default());
        allocators.begin(false, &[]);
        for (index, step) in steps.into_iter().enumerate() {
            history.step(step);
            for (event, words) in history.events.drain(..) {
                if index >= late {
                    let wanted = allocators.wants_counters();
                    allocators.apply(&event);
                    if let Some((allocator, words)) = words.filter(|_| wanted) {
                        allocators.learn_counters(allocator, event.time_ns, &words);
                    }
                }
            }
            if index >= late {
                honest(&allocators, &history)?;
            }
        }
    }

    #[test]
    fn lost_events_leave_exact_numbers_equal_to_the_program_counters(steps in steps(), lost in vec(any::<bool>(), 1..160), maps in 0_usize..6) {
        let (mut history, mut allocators) = (TensorEventHistory::new(false, maps), Allocators::default());
        allocators.begin(true, &[]);
        for (step, is_lost) in steps.into_iter().zip(lost) {
            history.step(step);
            for (event, words) in history.events.drain(..) {
                if is_lost && event.time_ns % 3_000_000 == 0 {
                    allocators.lose();
                    continue;
                }
                let wanted = allocators.wants_counters();
                allocators.apply(&event);
                if let Some((allocator, words)) = words.filter(|_| wanted) {
                    allocators.learn_counters(allocator, event.time_ns, &words);
                }
            }
            honest(&allocators, &history)?;
        }
    }
}
