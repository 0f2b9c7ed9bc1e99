//! Follows an allocator without tracing its events, by reading its statistics from memory at
//! intervals.

use super::device::{Base, DeviceAllocator};
use super::memory::AllocatorMemory;
use super::pools::PrivatePools;
use super::readout::{self, StatisticsWords};
use super::statistics::{AllocatorStatistics, StatFamily, StatScope};
use super::trust::Doubt;
use crate::allocators::ReportedTotals;

impl DeviceAllocator {
    /// Stops following events.
    pub(super) fn stop(&mut self) {
        self.forget_course();
        (self.is_reported_last, self.is_just_read) = (false, false);
        // Grants and frees are not visible from here on.
        self.memory = AllocatorMemory::default();
        self.history.forget();
        // The allocator's statistics include what a window did not show.
        self.doubts.clear();
        self.doubt(Doubt::AsRead);
    }

    /// Follows events again. Those in between were missed.
    pub(super) fn resume(&mut self) {
        if self.is_stopped() {
            self.doubts.retain(|doubt| *doubt != Doubt::AsRead);
            self.lose();
        }
    }

    /// Updates the totals from a report while nothing else is traced.
    pub(super) fn follow_totals(&mut self, now: ReportedTotals) {
        let totals =
            [(StatFamily::AllocatedBytes, now.allocated_bytes), (StatFamily::ReservedBytes, now.reserved_bytes)];
        for (family, bytes) in totals {
            let stat = self.statistics.get_mut(family, StatScope::All);
            stat.current = i64::try_from(bytes).unwrap_or(i64::MAX);
            stat.peak = stat.peak.max(stat.current);
        }
        self.reported = Some(now);
    }

    /// Returns whether events are not traced.
    pub fn is_stopped(&self) -> bool {
        self.doubts.contains(&Doubt::AsRead)
    }

    /// Learns the current statistics. They say nothing about blocks, which are no longer known if
    /// anything changed. Returns whether the statistics are plausible.
    pub(super) fn learn_numbers(&mut self, words: &StatisticsWords, time_ns: u64) -> bool {
        let is_believed = self.learn_last(words, time_ns);
        if is_believed {
            self.stop();
        }
        is_believed
    }

    /// Learns the final statistics at process exit. They must not be lower than before.
    pub(super) fn settle(&mut self, words: &StatisticsWords, time_ns: u64) -> bool {
        let granted =
            |statistics: &AllocatorStatistics| statistics.get(StatFamily::Allocation, StatScope::All).allocated;
        let (allocated_bytes, reserved_bytes) = readout::totals(words);
        let read = readout::read(words, allocated_bytes, reserved_bytes);
        let is_later = read.is_some_and(|read| granted(&read.statistics) >= granted(&self.statistics));
        self.is_settled = is_later && self.learn_last(words, time_ns);
        self.is_settled
    }

    /// Learns statistics while events are traced, some of which were lost.
    pub(super) fn learn_last(&mut self, words: &StatisticsWords, time_ns: u64) -> bool {
        let (allocated_bytes, reserved_bytes) = readout::totals(words);
        let Some(mut read) = readout::read(words, allocated_bytes, reserved_bytes) else {
            self.refused_readouts += 1;
            return false;
        };
        if read.tail.is_some_and(|tail| tail.pools == Some(0)) {
            self.pools = PrivatePools::new(true);
        }
        self.keep_own_peaks(&mut read.statistics);
        (self.statistics, self.tail, self.base) = (read.statistics, read.tail, Base::Read(time_ns));
        self.reported = Some(ReportedTotals { allocated_bytes, reserved_bytes, time_ns });
        true
    }
}
