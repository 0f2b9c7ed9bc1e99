//! A share that is used up and comes back at an even rate.

use std::time::{Duration, Instant};

/// What is left of a share, in units of its user's choice, such as seconds of a processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Credit {
    left: f64,
    most: f64,
    per_second: f64,
    since: Instant,
}

impl Credit {
    /// Creates a full share, which comes back at this rate.
    pub(super) const fn full(most: f64, per_second: f64, now: Instant) -> Self {
        Self { left: most, most, per_second, since: now }
    }

    /// Whether at least `amount` is left.
    pub(super) fn has(&mut self, amount: f64, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.since);
        self.left = (self.left + passed.as_secs_f64() * self.per_second).min(self.most);
        self.since = self.since.max(now);
        self.left >= amount
    }

    /// Takes an amount, which may be more than is left: what something costs is known afterwards.
    pub(super) fn take(&mut self, amount: f64) {
        self.left -= amount;
    }

    /// Takes an amount if it is left. Returns whether it was.
    pub(super) fn try_take(&mut self, amount: f64, now: Instant) -> bool {
        let has = self.has(amount, now);
        if has {
            self.take(amount);
        }
        has
    }

    /// Returns how long an amount takes to come back.
    pub(super) fn time_for(amount: f64, per_second: f64) -> Duration {
        Duration::try_from_secs_f64(amount / per_second).unwrap_or(Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn share_is_used_up_and_comes_back_up_to_its_size() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let mut credit = Credit::full(2.0, 0.1, begun);
        assert_eq!([0, 0, 0, 9, 10].map(|second| credit.try_take(1.0, at(second))), [true, true, false, false, true]);
        credit.take(3.0);
        assert!(!credit.has(0.1, at(40)), "a cost beyond the share is paid back first");
        assert!(credit.has(2.0, at(1000)) && !credit.has(2.1, at(1000)));
    }
}
