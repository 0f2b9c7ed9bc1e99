//! The most that a device's tensors had within a window of time: what a program needs, however briefly.

use serde::{Deserialize, Serialize};

/// The most in the open window, and in the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Crest {
    now_bytes: u64,
    open_bytes: u64,
    closed_bytes: Option<u64>,
}

impl Crest {
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
    use super::Crest;

    #[test]
    fn the_crest_of_a_window_is_the_most_there_was_in_it() {
        let mut crest = Crest::default();
        assert_eq!(crest.of_closed(), None);
        crest.observe(0, 10);
        crest.observe(10, 90);
        crest.observe(90, 30);
        crest.close();
        assert_eq!(crest.of_closed(), Some(90));
        crest.close();
        assert_eq!(crest.of_closed(), Some(30), "nothing happened in the second");
        crest.observe(30, 20);
        crest.close();
        assert_eq!(crest.of_closed(), Some(30), "it began with that");
    }
}
