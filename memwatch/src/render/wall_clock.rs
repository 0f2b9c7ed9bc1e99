//! Converts times of the kernel's clock to wall-clock time.

use jiff::Timestamp;
use jiff::tz::TimeZone;

/// Converts `CLOCK_BOOTTIME` nanoseconds to dates and times of day.
#[derive(Clone, Debug)]
pub(crate) struct WallClock {
    /// Offset to nanoseconds since 1970.
    pub(crate) boottime_to_unix_ns: i128,
    zone: TimeZone,
}

impl WallClock {
    /// Uses this machine's time zone for times of day. If it is unknown, times are in UTC and
    /// marked so.
    pub(crate) fn local(boottime_to_unix_ns: i128) -> Self {
        Self { boottime_to_unix_ns, zone: TimeZone::system() }
    }

    /// Uses UTC for times of day.
    pub(crate) fn utc(boottime_to_unix_ns: i128) -> Self {
        Self { boottime_to_unix_ns, zone: TimeZone::UTC }
    }

    /// Formats as RFC 3339 in UTC with microseconds, for programs.
    pub(crate) fn rfc3339(&self, boottime_ns: u64) -> String {
        format!("{:.6}", self.timestamp(boottime_ns))
    }

    /// Returns microseconds since 1970.
    pub(crate) fn unix_us(&self, boottime_ns: u64) -> i64 {
        let unix_us = (i128::from(boottime_ns).saturating_add(self.boottime_to_unix_ns)) / 1000;
        i64::try_from(unix_us).unwrap_or(i64::MAX)
    }

    /// Returns nanoseconds since 1970.
    pub(crate) fn unix_ns(&self, boottime_ns: u64) -> i64 {
        let unix_ns = i128::from(boottime_ns).saturating_add(self.boottime_to_unix_ns);
        i64::try_from(unix_ns).unwrap_or(i64::MAX)
    }

    /// Formats the time of day for people: `14:02:11`.
    pub(crate) fn time_of_day(&self, boottime_ns: u64) -> String {
        let zone = if self.zone.is_unknown() { " UTC" } else { "" };
        let time = self.zone.to_datetime(self.timestamp(boottime_ns)).time();
        format!("{:02}:{:02}:{:02}{zone}", time.hour(), time.minute(), time.second())
    }

    /// Returns the time of day in seconds since midnight.
    pub(crate) fn seconds_of_day(&self, boottime_ns: u64) -> f64 {
        let time = self.zone.to_datetime(self.timestamp(boottime_ns)).time();
        let seconds = i32::from(time.hour()) * 3600 + i32::from(time.minute()) * 60 + i32::from(time.second());
        f64::from(seconds) + f64::from(time.subsec_nanosecond()) / 1e9
    }

    /// Formats like [`Self::time_of_day`], with the date if it differs from the date at `now_ns`:
    /// `2026-11-20 14:02:11`.
    pub(crate) fn moment(&self, boottime_ns: u64, now_ns: u64) -> String {
        let date = |time_ns| self.zone.to_datetime(self.timestamp(time_ns)).date();
        let time = self.time_of_day(boottime_ns);
        if date(boottime_ns) == date(now_ns) { time } else { format!("{} {time}", date(boottime_ns)) }
    }

    /// Returns the timestamp, clamped to the end of the calendar.
    fn timestamp(&self, boottime_ns: u64) -> Timestamp {
        Timestamp::from_nanosecond(i128::from(boottime_ns).saturating_add(self.boottime_to_unix_ns))
            .unwrap_or(Timestamp::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn boot_time_becomes_a_date_in_utc() {
        let clock = WallClock::utc(1_795_223_863_000_000_000);
        assert_eq!(clock.rfc3339(1_500_000), "2026-11-21T01:17:43.001500Z");
        assert_eq!(clock.time_of_day(2_000_000_000), "01:17:45");
    }

    #[test]
    fn a_moment_of_another_day_has_its_date() {
        let clock = WallClock::utc(1_795_223_863_000_000_000);
        assert_eq!(clock.moment(0, 1_000_000_000), "01:17:43");
        assert_eq!(clock.moment(0, 86_400_000_000_000), "2026-11-21 01:17:43");
    }

    #[test]
    fn an_unknown_time_zone_is_marked() {
        let clock = WallClock { boottime_to_unix_ns: 0, zone: TimeZone::unknown() };
        assert_eq!(clock.time_of_day(1_000_000_000), "00:00:01 UTC");
    }

    #[test]
    fn wall_clock_clamps_to_the_year_9999() {
        assert_eq!(WallClock::utc(i128::MAX).rfc3339(u64::MAX), "9999-12-30T22:00:00.999999Z");
    }
}
