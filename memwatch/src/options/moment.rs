//! Options that select a recording or the agent's history, and a time window in it. Parses times.

use std::path::PathBuf;
use std::time::Duration;

use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};

use super::values;

/// Ids of the options that select past data instead of a live session.
pub(crate) const PAST: [&str; 3] = ["recording", "since", "until"];

/// Recording or history to read instead of a live session.
#[derive(Clone, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct Past {
    /// Read this recording instead of watching; all its processes unless some are named
    #[arg(long = "in", value_name = "FILE", help_heading = "Recordings and history")]
    pub(crate) recording: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) window: TimeWindow,
}

impl Past {
    /// Returns whether a recording or the history is read instead of tracing live.
    pub(crate) fn is_meant(&self) -> bool {
        self.recording.is_some() || !self.window.is_whole()
    }
}

/// Time window of a recording, or of the agent's history if no recording is named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub(crate) struct TimeWindow {
    /// Start of the period, in the recording of --in or in the agent's history: 14:05:30, 2026-11-22T14:05, or 10m for ten
    /// minutes before the end
    #[arg(long, value_name = "TIME", value_parser = moment, help_heading = "Recordings and history")]
    pub(crate) since: Option<RecordingTime>,
    /// End of the period, in the recording of --in or in the agent's history
    #[arg(long, value_name = "TIME", value_parser = moment, help_heading = "Recordings and history")]
    pub(crate) until: Option<RecordingTime>,
}

impl TimeWindow {
    /// Returns whether the window is unbounded.
    pub(crate) const fn is_whole(self) -> bool {
        self.since.is_none() && self.until.is_none()
    }
}

/// A time in a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecordingTime {
    /// This long before the end of the recording; for a history that is still being written, before
    /// the present.
    BeforeEnd(Duration),
    /// Last occurrence of this time of day, in the local time zone.
    TimeOfDay(Time),
    /// A date and time in the local time zone.
    Date(DateTime),
    /// A date and time with an explicit zone.
    At(Timestamp),
}

/// # Errors
/// If the text is not a time.
pub(crate) fn moment(text: &str) -> Result<RecordingTime, String> {
    if let Ok(timestamp) = text.parse() {
        return Ok(RecordingTime::At(timestamp));
    }
    if !text.contains(':') {
        let before = values::duration(text).ok().ok_or_else(sentence)?;
        return Ok(RecordingTime::BeforeEnd(before));
    }
    let found = if text.contains('-') {
        text.parse().map(RecordingTime::Date)
    } else {
        text.parse().map(RecordingTime::TimeOfDay)
    };
    found.ok().ok_or_else(sentence)
}

fn sentence() -> String {
    "a time is 14:05, 14:05:30, 2026-11-22T14:05, 2026-11-22T14:05:30Z, or 10m for so long before the end".to_owned()
}

impl RecordingTime {
    /// Returns the time in nanoseconds since 1970. `end_unix_ns` is the end of the recording, or
    /// the present.
    pub(crate) fn unix_ns(self, end_unix_ns: i128) -> i128 {
        self.in_zone(end_unix_ns, &TimeZone::system())
    }

    fn in_zone(self, end_unix_ns: i128, zone: &TimeZone) -> i128 {
        let at = |zoned: Result<Zoned, jiff::Error>| zoned.ok().map(|zoned| zoned.timestamp().as_nanosecond());
        let found = match self {
            Self::BeforeEnd(before) => i128::try_from(before.as_nanos()).ok().map(|before| end_unix_ns - before),
            Self::At(timestamp) => Some(timestamp.as_nanosecond()),
            Self::Date(date) => at(zone.to_zoned(date)),
            Self::TimeOfDay(time) => Timestamp::from_nanosecond(end_unix_ns).ok().and_then(|end| {
                let end = end.to_zoned(zone.clone());
                let today = at(zone.to_zoned(end.date().to_datetime(time)))?;
                let yesterday = || at(zone.to_zoned(end.date().yesterday().ok()?.to_datetime(time)));
                if today <= end_unix_ns { Some(today) } else { yesterday() }
            }),
        };
        found.unwrap_or(end_unix_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_before_the_end_of_the_day_or_of_a_date() {
        // 2026-11-21T01:17:43Z.
        let end = 1_795_223_863_000_000_000_i128;
        let at = |text: &str| {
            let moment = moment(text).expect("it is a time");
            let timestamp =
                Timestamp::from_nanosecond(moment.in_zone(end, &TimeZone::UTC)).expect("it is in the calendar");
            timestamp.to_string()
        };
        assert_eq!(at("10m"), "2026-11-21T01:07:43Z");
        assert_eq!(at("01:15"), "2026-11-21T01:15:00Z");
        assert_eq!(at("23:15:30"), "2026-11-20T23:15:30Z", "not of a time that is yet to come");
        assert_eq!(at("2026-11-19T12:00"), "2026-11-19T12:00:00Z");
        assert_eq!(at("2026-11-19T12:00:00+01:00"), "2026-11-19T11:00:00Z");
        for text in ["", "soon", "25:00", "-10m", "2026-13-01T00:00"] {
            assert!(moment(text).is_err(), "{text}");
        }
    }
}
