//! Peaks that are reset in memwatch's counters while the allocator keeps its own.

use super::naive::NaiveAllocator;
use super::*;
use crate::allocators::FrameworkAllocator as _;

const THREAD: Tid = Tid(8);
const MIB: u64 = 1 << 20;

/// An allocator, and memwatch's model of it.
struct FollowedAllocator {
    naive: NaiveAllocator,
    allocators: Allocators,
}

impl FollowedAllocator {
    fn new() -> Self {
        let mut pair = Self { naive: NaiveAllocator::new(0, false), allocators: started() };
        pair.grants(5 * MIB);
        pair.grants(3 * MIB);
        pair.frees(0);
        pair
    }

    fn report(&mut self) {
        for (tid, what) in std::mem::take(&mut self.naive.reported) {
            self.allocators.apply(&TensorEvent { tid, ..event(what) });
        }
    }

    fn grants(&mut self, bytes: u64) {
        self.naive.request(THREAD, bytes);
        self.naive.grant(THREAD, bytes, 0, 0);
        self.report();
    }

    fn frees(&mut self, which: usize) {
        self.naive.give_back(THREAD, which, false);
        self.report();
    }

    fn reads(&mut self) {
        assert!(self.allocators.learn_counters(self.naive.allocator, 99, &self.naive.words(0)));
    }

    fn peak(&self) -> (u64, Certainty) {
        let trust =
            device(&self.allocators).number(StatFamily::AllocatedBytes, StatScope::All, "peak").expect("it is one");
        (u64::try_from(trust.value).expect("never below 0") / MIB, trust.certainty())
    }

    fn since(&self) -> Option<u64> {
        device(&self.allocators).peaks_begun_ns()
    }
}

#[test]
fn own_peaks_follow_the_program_until_they_are_reset_separately() {
    let mut pair = FollowedAllocator::new();
    pair.reads();
    assert_eq!((pair.peak(), pair.since()), ((8, Certainty::Exact), None));
    pair.allocators.begin_own_peaks(70);
    assert_eq!((pair.peak(), pair.since()), ((3, Certainty::Exact), Some(70)));
    pair.grants(2 * MIB);
    pair.frees(0);
    pair.reads();
    assert_eq!((pair.peak(), pair.since()), ((5, Certainty::Exact), Some(70)), "the program's own is still 8");
    assert_eq!(device(&pair.allocators).out_of_step(), 0, "that its peaks are others is no surprise");
}

#[test]
fn peaks_reset_by_the_program_end_the_separate_peaks() {
    let mut pair = FollowedAllocator::new();
    pair.allocators.begin_own_peaks(70);
    pair.naive.reset(THREAD, true);
    pair.grants(6 * MIB);
    pair.reads();
    assert_eq!((pair.peak(), pair.since()), ((9, Certainty::Exact), None));
}

#[test]
fn peak_after_a_loss_since_the_reset_is_only_derived() {
    let mut pair = FollowedAllocator::new();
    pair.allocators.begin_own_peaks(70);
    pair.naive.request(THREAD, 50 * MIB);
    pair.naive.grant(THREAD, 50 * MIB, 0, 0);
    pair.naive.give_back(THREAD, 1, false);
    pair.naive.reported.clear();
    pair.allocators.lose();
    pair.grants(MIB);
    pair.reads();
    assert_eq!(pair.peak(), (4, Certainty::Derived));
    pair.allocators.begin_own_peaks(80);
    assert_eq!((pair.peak(), pair.since()), ((4, Certainty::Exact), Some(80)), "from here on nothing is missed");
}
