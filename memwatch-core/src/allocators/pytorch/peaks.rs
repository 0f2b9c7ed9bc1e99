//! Peaks of an allocator's numbers: the program's own, until memwatch is asked to reset them in its own counters.

use super::device::{Base, DeviceAllocator};
use super::statistics::{OwnPeaks, Scope, Statistics};
use super::trust::Doubt;
use crate::allocators::pytorch::Family;

impl DeviceAllocator {
    /// Peaks begin again at what is now, in memwatch's counters alone.
    pub(crate) fn begin_own_peaks(&mut self, now_ns: u64) {
        self.statistics.reset_peaks();
        self.pools.reset_peaks();
        let current = |family| self.statistics.get(family, Scope::All).current;
        let cached = current(Family::ReservedBytes).saturating_sub(current(Family::AllocatedBytes));
        let reported = self.reported.map(|now| now.reserved_bytes.saturating_sub(now.allocated_bytes));
        let cached_bytes = reported.or(u64::try_from(cached).ok()).unwrap_or(0);
        self.peaks = OwnPeaks { cached_bytes, begun_ns: Some(now_ns), missed: false };
    }

    /// Since when its peaks count in memwatch's counters; `None` where they are the ones that the program itself has.
    pub const fn peaks_begun_ns(&self) -> Option<u64> {
        self.peaks.begun_ns
    }

    /// The program begins its peaks again: from now on they are the same for both.
    pub(super) fn follow_peaks_reset(&mut self) {
        self.statistics.reset_peaks();
        self.pools.reset_peaks();
        (self.peaks.begun_ns, self.peaks.missed) = (None, false);
    }

    /// The allocator's own numbers come with the program's peaks; where memwatch has begun them again, those stay.
    pub(super) fn keep_own_peaks(&mut self, read: &mut Statistics) {
        if self.peaks.begun_ns.is_none() {
            return;
        }
        let was_followed = self.base != Base::None && self.doubts.iter().all(|doubt| *doubt == Doubt::RoundedOnly);
        self.peaks.missed |= !was_followed;
        read.keep_peaks(&self.statistics);
    }

    /// Why a peak may have been higher than reported.
    pub(super) fn peaks_doubt(&self) -> Option<Doubt> {
        self.peaks.missed.then_some(Doubt::PeaksMissed)
    }
}
