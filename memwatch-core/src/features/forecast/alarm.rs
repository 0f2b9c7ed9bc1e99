//! Decides when to send an alert: once per level, and again only after the level was left for a
//! while.

use serde::{Deserialize, Serialize};

use super::model::Level;

/// Time below a level, in nanoseconds, after which it counts as left: forecasts fluctuate.
const GONE_NS: u64 = 10_000_000_000;
/// Decrease of the need below a threshold, in percent of the total, after which the threshold can
/// be passed again.
const SLACK_PERCENT: f64 = 2.0;

/// A change to report.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ForecastChange {
    /// The level of the forecast changed.
    Level {
        /// Previous level.
        before: Level,
        /// New level.
        now: Level,
    },
    /// The need passed a threshold.
    Threshold {
        /// Threshold in percent.
        percent: f64,
    },
}

/// State of the alerts for one GPU.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Alarm {
    reported: Level,
    /// Time since which the level has been below the reported one.
    below_since_ns: Option<u64>,
    /// Thresholds passed, in percent.
    passed: Vec<f64>,
}

impl Alarm {
    /// Updates the state and returns the changes to report. `percent` is the need in percent of the
    /// total, if it is known.
    pub fn observe(
        &mut self,
        level: Level,
        percent: Option<f64>,
        thresholds: &[f64],
        now_ns: u64,
    ) -> Vec<ForecastChange> {
        let mut changes = Vec::new();
        if level >= self.reported {
            self.below_since_ns = None;
        }
        let since_ns = *self.below_since_ns.get_or_insert(now_ns);
        if level > self.reported || (level < self.reported && now_ns.saturating_sub(since_ns) >= GONE_NS) {
            changes.push(ForecastChange::Level { before: self.reported, now: level });
            self.reported = level;
            self.below_since_ns = None;
        }
        let Some(needed) = percent else { return changes };
        self.passed.retain(|passed| needed > passed - SLACK_PERCENT);
        for threshold in thresholds {
            if needed >= *threshold && !self.passed.contains(threshold) {
                self.passed.push(*threshold);
                changes.push(ForecastChange::Threshold { percent: *threshold });
            }
        }
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::{Alarm, ForecastChange};
    use crate::features::forecast::model::Level;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_level_is_reported_once_and_again_only_after_it_was_gone_for_a_while() {
        let mut alarm = Alarm::default();
        let mut at = |second: u64, level| alarm.observe(level, None, &[], second * SECOND);
        assert_eq!(at(0, Level::None), []);
        assert_eq!(at(1, Level::High), [ForecastChange::Level { before: Level::None, now: Level::High }]);
        assert_eq!(at(2, Level::Low), [], "it wavers");
        assert_eq!(at(3, Level::High), []);
        assert_eq!(at(4, Level::Critical), [ForecastChange::Level { before: Level::High, now: Level::Critical }]);
        assert_eq!(at(5, Level::None), []);
        assert_eq!(at(16, Level::None), [ForecastChange::Level { before: Level::Critical, now: Level::None }]);
    }

    #[test]
    fn a_threshold_is_reported_once_until_clearly_less_is_needed() {
        let mut alarm = Alarm::default();
        let mut at = |percent| alarm.observe(Level::None, percent, &[80.0, 90.0], 0).len();
        assert_eq!(at(Some(79.0)), 0);
        assert_eq!(at(Some(95.0)), 2);
        assert_eq!((at(Some(89.0)), at(Some(91.0)), at(None)), (0, 0, 0), "it wavers");
        assert_eq!((at(Some(85.0)), at(Some(92.0))), (0, 1));
    }
}
