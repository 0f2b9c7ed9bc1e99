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
        Self::at(&replay.front.host, replay.boottime_to_unix_ns)
    }

    /// Returns this host and the clock with this offset to nanoseconds since 1970.
    pub(crate) fn at(host: &str, boottime_to_unix_ns: i128) -> Self {
        Self { clock: WallClock::local(boottime_to_unix_ns), host: host.to_owned() }
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
