//! Peaks of an allocator's statistics: those of the program, until memwatch resets its own.

use super::device::{Base, DeviceAllocator};
use super::statistics::{AllocatorStatistics, OwnPeaks, StatScope};
use super::trust::Doubt;
use crate::allocators::pytorch::StatFamily;

impl DeviceAllocator {
    /// Resets the peaks to the current values, in memwatch's counters only.
    pub(crate) fn begin_own_peaks(&mut self, now_ns: u64) {
        self.statistics.reset_peaks();
        self.pools.reset_peaks();
        let current = |family| self.statistics.get(family, StatScope::All).current;
        let cached = current(StatFamily::ReservedBytes).saturating_sub(current(StatFamily::AllocatedBytes));
        let reported = self.reported.map(|now| now.reserved_bytes.saturating_sub(now.allocated_bytes));
        let cached_bytes = reported.or(u64::try_from(cached).ok()).unwrap_or(0);
        self.peaks = OwnPeaks { cached_bytes, begun_ns: Some(now_ns), missed: false };
    }

    /// Returns when memwatch's peaks were reset; `None` while they equal the program's own.
    pub const fn peaks_begun_ns(&self) -> Option<u64> {
        self.peaks.begun_ns
    }

    /// Follows a reset by the program, after which both have the same peaks.
    pub(super) fn follow_peaks_reset(&mut self) {
        self.statistics.reset_peaks();
        self.pools.reset_peaks();
        (self.peaks.begun_ns, self.peaks.missed) = (None, false);
    }

    /// Keeps memwatch's peaks, if they were reset, when the allocator's statistics are read: those
    /// contain the program's peaks.
    pub(super) fn keep_own_peaks(&mut self, read: &mut AllocatorStatistics) {
        if self.peaks.begun_ns.is_none() {
            return;
        }
        let was_followed = self.base != Base::None && self.doubts.iter().all(|doubt| *doubt == Doubt::RoundedOnly);
        self.peaks.missed |= !was_followed;
        read.keep_peaks(&self.statistics);
    }

    /// Returns the reason why a peak may have been higher than reported.
    pub(super) fn peaks_doubt(&self) -> Option<Doubt> {
        self.peaks.missed.then_some(Doubt::PeaksMissed)
    }
}
