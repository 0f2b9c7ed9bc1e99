//! The readings of a process's live objects by name that are kept: the first, the last, and some
//! between them.

use serde::{Deserialize, Serialize};

use crate::input::held_names::HeldNames;

/// Maximum number of readings.
const KEPT: usize = 4;

/// Readings of a process, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldNamesLog(Vec<HeldNames>);

impl HeldNamesLog {
    /// Adds a reading. Of too many, the one with the closest neighbours is dropped,
    /// compared with the time since then: growth of minutes and of days both stay visible.
    pub fn push(&mut self, reading: HeldNames) {
        let now_ns = reading.time_ns;
        self.0.push(reading);
        if self.0.len() <= KEPT {
            return;
        }
        let gap = |at: usize| {
            let (before, after) = (self.0[at - 1].time_ns, self.0[at + 1].time_ns);
            let age_ns = u128::from(now_ns.saturating_sub(before)).max(1);
            u128::from(after.saturating_sub(before)) * 1_000_000 / age_ns
        };
        if let Some(closest) = (1..self.0.len() - 1).min_by_key(|at| gap(*at)) {
            self.0.remove(closest);
        }
    }

    /// Returns the readings, oldest first.
    pub fn readings(&self) -> &[HeldNames] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kept(times: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut log = HeldNamesLog::default();
        for time_ns in times {
            log.push(HeldNames { time_ns, ..HeldNames::default() });
        }
        log.readings().iter().map(|reading| reading.time_ns).collect()
    }

    #[test]
    fn first_and_last_stay_and_gaps_grow_with_age() {
        assert_eq!(kept([1, 2, 3]), [1, 2, 3]);
        let of_a_day = kept((0..=288).map(|number| number * 300));
        assert_eq!((of_a_day.len(), of_a_day[0], of_a_day[3]), (4, 0, 86_400));
        assert!(of_a_day[1] > 20_000 && of_a_day[1] < of_a_day[2] && of_a_day[2] > 60_000, "{of_a_day:?}");
        // Readings that follow each other closely at the end do not push out those of the past.
        let burst = kept([0, 300, 600, 900, 905, 910]);
        assert_eq!((burst[0], burst[3]), (0, 910));
        assert!(burst[1] <= 600, "{burst:?}");
    }
}
