//! Tracks the minimum bytes of each call site per time window: what remains when a step's temporary
//! memory is gone.

use serde::{Deserialize, Serialize};

/// Minimum live bytes of a call site in the open window and in the one before. Call sites that do
/// not change cost nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Floor {
    /// Window of the last change.
    window: u64,
    /// Minimum in the window of the last change.
    least_bytes: u64,
    /// Minimum in the window before that.
    before_bytes: u64,
}

impl Floor {
    /// Records a change of the live bytes in this window.
    pub(super) fn change(&mut self, window: u64, from_bytes: u64, to_bytes: u64) {
        if self.window < window {
            self.before_bytes = if self.window + 1 == window { self.least_bytes } else { from_bytes };
            self.window = window;
            self.least_bytes = from_bytes;
        }
        self.least_bytes = self.least_bytes.min(to_bytes);
    }

    /// Adds bytes that existed all the time, or removes them if `by_bytes` is negative.
    fn shift(&mut self, window: u64, live_bytes: u64, by_bytes: i64) {
        self.change(window, live_bytes, live_bytes);
        self.least_bytes = self.least_bytes.saturating_add_signed(by_bytes);
        self.before_bytes = self.before_bytes.saturating_add_signed(by_bytes);
    }

    /// Returns the minimum in the window before the open one, given the current live bytes.
    pub(super) fn of_closed(&self, open: u64, live_bytes: u64) -> u64 {
        match open.checked_sub(self.window) {
            None | Some(0) => self.before_bytes,
            Some(1) => self.least_bytes,
            Some(_) => live_bytes,
        }
    }
}

/// Minimums of all call sites of a device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Floors {
    /// Number of closed windows.
    window: u64,
    of: Vec<Floor>,
}

impl Floors {
    /// Closes the open window and opens the next one.
    pub(super) const fn close(&mut self) {
        self.window += 1;
    }

    /// Applies [`Floor::change`] to the call site of this number.
    pub(super) fn change(&mut self, place: usize, from_bytes: u64, to_bytes: u64) {
        super::at(&mut self.of, place).change(self.window, from_bytes, to_bytes);
    }

    /// Applies [`Floor::shift`] to the call site of this number.
    pub(super) fn shift(&mut self, place: usize, live_bytes: u64, by_bytes: i64) {
        super::at(&mut self.of, place).shift(self.window, live_bytes, by_bytes);
    }

    /// Returns [`Floor::of_closed`] of the call site of this number.
    pub(super) fn of_closed(&self, place: usize, live_bytes: u64) -> u64 {
        self.of.get(place).map_or(live_bytes, |floor| floor.of_closed(self.window, live_bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::Floor;

    #[test]
    fn the_floor_of_a_window_is_the_least_there_was_in_it() {
        let mut floor = Floor::default();
        floor.change(0, 0, 10);
        assert_eq!(floor.of_closed(1, 10), 0, "it began with nothing");
        floor.change(1, 10, 4);
        floor.change(1, 4, 30);
        assert_eq!((floor.of_closed(1, 30), floor.of_closed(2, 30)), (0, 4));
        assert_eq!(floor.of_closed(3, 30), 30, "nothing changed in window 2");
        floor.change(5, 30, 50);
        assert_eq!((floor.of_closed(5, 50), floor.of_closed(6, 50)), (30, 30));
        floor.change(6, 50, 70);
        assert_eq!((floor.of_closed(6, 70), floor.of_closed(7, 70)), (30, 50));
    }
}
