//! Resets of peaks in memwatch's own counters.

use memwatch_core::input::Input;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;

use super::Session;
use crate::sources::clock;

impl Session {
    /// Resets the peaks of one process, or of all.
    pub(crate) fn reset_peaks(&mut self, tgid: Option<Tgid>) {
        self.pump();
        self.sink.step(Input::PeaksReset { tgid, time_ns: clock::boottime_ns() });
    }

    /// Resets all peaks as of `last`, which is the latest snapshot. Changes since then count for
    /// the new peaks.
    pub(crate) fn reset_peaks_after(&mut self, last: &Snapshot) {
        self.sink.step(Input::PeaksReset { tgid: None, time_ns: last.time_ns });
    }
}
