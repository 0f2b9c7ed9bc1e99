//! An allocator of which no event is traced: what it has counted is read from its process's memory now and then.

use super::device::{Base, DeviceAllocator};
use super::memory::Memory;
use super::pools::Pools;
use super::readout::{self, Words};
use super::statistics::{Family, Scope, Statistics};
use super::trust::Doubt;
use crate::allocators::Reported;

impl DeviceAllocator {
    /// No event of it is traced from now on.
    pub(super) fn stop(&mut self) {
        self.forget_course();
        (self.is_reported_last, self.is_just_read) = (false, false);
        // What is granted and freed from now on is not seen.
        self.memory = Memory::default();
        self.history.forget();
        // What a window did not show is in the allocator's own numbers.
        self.doubts.clear();
        self.doubt(Doubt::AsRead);
    }

    /// Events are traced again: what came meanwhile was missed.
    pub(super) fn resume(&mut self) {
        if self.is_stopped() {
            self.doubts.retain(|doubt| *doubt != Doubt::AsRead);
            self.lose();
        }
    }

    /// Its totals as it reports them, while nothing else of it is traced.
    pub(super) fn follow_totals(&mut self, now: Reported) {
        let totals = [(Family::AllocatedBytes, now.allocated_bytes), (Family::ReservedBytes, now.reserved_bytes)];
        for (family, bytes) in totals {
            let stat = self.statistics.get_mut(family, Scope::All);
            stat.current = i64::try_from(bytes).unwrap_or(i64::MAX);
            stat.peak = stat.peak.max(stat.current);
        }
        self.reported = Some(now);
    }

    /// Whether no event of it is traced.
    pub fn is_stopped(&self) -> bool {
        self.doubts.contains(&Doubt::AsRead)
    }

    /// What it has counted by now. What its blocks are is not in it: they are known no more where anything has changed. Says whether it could be
    /// believed.
    pub(super) fn learn_numbers(&mut self, words: &Words, time_ns: u64) -> bool {
        let is_believed = self.learn_last(words, time_ns);
        if is_believed {
            self.stop();
        }
        is_believed
    }

    /// The same when its process ends: what it has counted is never less than before, and these are its last numbers.
    pub(super) fn settle(&mut self, words: &Words, time_ns: u64) -> bool {
        let granted = |statistics: &Statistics| statistics.get(Family::Allocation, Scope::All).allocated;
        let (allocated_bytes, reserved_bytes) = readout::totals(words);
        let read = readout::read(words, allocated_bytes, reserved_bytes);
        let is_later = read.is_some_and(|read| granted(&read.statistics) >= granted(&self.statistics));
        self.is_settled = is_later && self.learn_last(words, time_ns);
        self.is_settled
    }

    /// The same while its events are traced: some of them were lost.
    pub(super) fn learn_last(&mut self, words: &Words, time_ns: u64) -> bool {
        let (allocated_bytes, reserved_bytes) = readout::totals(words);
        let Some(mut read) = readout::read(words, allocated_bytes, reserved_bytes) else {
            self.refused_readouts += 1;
            return false;
        };
        if read.tail.is_some_and(|tail| tail.pools == Some(0)) {
            self.pools = Pools::new(true);
        }
        self.keep_own_peaks(&mut read.statistics);
        (self.statistics, self.tail, self.base) = (read.statistics, read.tail, Base::Read(time_ns));
        self.reported = Some(Reported { allocated_bytes, reserved_bytes, time_ns });
        true
    }
}
