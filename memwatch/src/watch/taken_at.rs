//! Where and when a report was taken.

use crate::render::json::ReportOrigin;
use crate::render::output::host_name;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;
use crate::watch::replay::ReplayedRecording;

/// Source and clock of a snapshot.
pub(crate) struct TakenAt {
    host: String,
    pub(crate) clock: WallClock,
}

impl TakenAt {
    /// Returns the source and clock of a recording.
    pub(crate) fn of(replay: &ReplayedRecording) -> Self {
        Self { clock: WallClock::local(replay.boottime_to_unix_ns), host: replay.front.host.clone() }
    }

    /// Returns this machine and its current clock.
    pub(crate) fn here() -> Self {
        Self { host: host_name(), clock: WallClock::local(clock::boottime_to_unix_ns()) }
    }

    /// Returns the header of JSON reports.
    pub(crate) fn origin(&self) -> ReportOrigin<'_> {
        ReportOrigin { host: &self.host, clock: &self.clock }
    }
}
