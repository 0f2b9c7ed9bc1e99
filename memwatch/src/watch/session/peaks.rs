//! Peaks that begin again: in memwatch's own counters.

use memwatch_core::input::Input;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;

use super::Session;
use crate::sources::clock;

impl Session {
    /// Peaks of this process, or of all, begin again now.
    pub(crate) fn reset_peaks(&mut self, tgid: Option<Tgid>) {
        self.pump();
        self.pipeline.step(Input::PeaksReset { tgid, time_ns: clock::boottime_ns() });
    }

    /// Peaks of all begin again where this snapshot ends, the last one that was made: what has come since counts for the new ones.
    pub(crate) fn reset_peaks_after(&mut self, last: &Snapshot) {
        self.pipeline.step(Input::PeaksReset { tgid: None, time_ns: last.time_ns });
    }
}
