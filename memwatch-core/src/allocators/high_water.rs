//! The most that a device's tensors had within a window of time: what a program needs, however briefly.

use serde::{Deserialize, Serialize};

/// The most in the open window, and in the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HighWater {
    now_bytes: u64,
    open_bytes: u64,
    closed_bytes: Option<u64>,
}

impl HighWater {
    /// The tensors have so much now, and had so much before.
    pub(super) fn observe(&mut self, before_bytes: u64, now_bytes: u64) {
        self.open_bytes = self.open_bytes.max(before_bytes).max(now_bytes);
        self.now_bytes = now_bytes;
    }

    /// A window ends, and the next begins with what there is.
    pub(super) fn close(&mut self) {
        self.closed_bytes = Some(self.open_bytes);
        self.open_bytes = self.now_bytes;
    }

    /// The most in the window that was closed last; `None` before one was.
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
