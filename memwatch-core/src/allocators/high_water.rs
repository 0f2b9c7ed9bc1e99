//! Tracks the peak of a device's tensor bytes per time window: what a program needs, however
//! briefly.

use serde::{Deserialize, Serialize};

/// Peaks of the open window and of the last closed one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HighWater {
    now_bytes: u64,
    open_bytes: u64,
    closed_bytes: Option<u64>,
}

impl HighWater {
    /// Records the bytes before and after a change.
    pub(super) fn observe(&mut self, before_bytes: u64, now_bytes: u64) {
        self.open_bytes = self.open_bytes.max(before_bytes).max(now_bytes);
        self.now_bytes = now_bytes;
    }

    /// Closes the window and opens the next one with the current bytes.
    pub(super) fn close(&mut self) {
        self.closed_bytes = Some(self.open_bytes);
        self.open_bytes = self.now_bytes;
    }

    /// Returns the peak of the last closed window; `None` before the first.
    pub(super) const fn of_closed(&self) -> Option<u64> {
        self.closed_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::HighWater;

    #[test]
    fn the_high_water_mark_of_a_window_is_the_most_there_was_in_it() {
        let mut high_water = HighWater::default();
        assert_eq!(high_water.of_closed(), None);
        high_water.observe(0, 10);
        high_water.observe(10, 90);
        high_water.observe(90, 30);
        high_water.close();
        assert_eq!(high_water.of_closed(), Some(90));
        high_water.close();
        assert_eq!(high_water.of_closed(), Some(30), "nothing happened in the second");
        high_water.observe(30, 20);
        high_water.close();
        assert_eq!(high_water.of_closed(), Some(30), "it began with that");
    }
}
