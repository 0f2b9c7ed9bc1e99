//! Recent history of live bytes, for comparison with a device reading that took time and arrives
//! later.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::words::CallSpan;

/// Number of changes kept. A process with more changes between two readings leaves no interval
/// without a change anyway.
const CHANGES_KEPT: usize = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct LiveBytesChange {
    span: CallSpan,
    before_bytes: u64,
}

/// Last changes of a count of live bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recent {
    changes: VecDeque<LiveBytesChange>,
    /// Return time of the newest change that was dropped.
    forgotten_ns: Option<u64>,
}

impl Recent {
    /// Records a call during `span` that changes the count, which is `before_bytes` until then.
    pub fn note(&mut self, span: CallSpan, before_bytes: u64) {
        if self.changes.len() == CHANGES_KEPT {
            self.forgotten_ns = self.forgotten_ns.max(self.changes.pop_front().map(|change| change.span.returned_ns));
        }
        self.changes.push_back(LiveBytesChange { span, before_bytes });
    }

    /// Returns the count throughout an interval, given its present value `now_bytes`; `None` if a
    /// call changed it during the interval, or the interval is too old.
    pub fn held_over(&self, begin_ns: u64, end_ns: u64, now_bytes: u64) -> Option<u64> {
        if self.forgotten_ns.is_some_and(|forgotten_ns| forgotten_ns >= begin_ns) {
            return None;
        }
        let mut later = self.changes.iter().filter(|change| change.span.returned_ns >= begin_ns).peekable();
        let held_bytes = later.peek().map_or(now_bytes, |first| first.before_bytes);
        later.all(|change| change.span.entered_ns > end_ns).then_some(held_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::{CHANGES_KEPT, Recent};
    use crate::words::CallSpan;

    fn span(entered_ns: u64, returned_ns: u64) -> CallSpan {
        CallSpan { entered_ns, returned_ns }
    }

    #[test]
    fn recent_held_bytes_are_those_between_the_surrounding_changes() {
        let mut recent = Recent::default();
        recent.note(span(10, 20), 0);
        recent.note(span(50, 60), 700);
        assert_eq!(recent.held_over(30, 40, 900), Some(700));
        assert_eq!(recent.held_over(1, 5, 900), Some(0));
        assert_eq!(recent.held_over(61, 70, 900), Some(900));
    }

    #[test]
    fn recent_reading_that_overlaps_a_call_is_unknown() {
        let mut recent = Recent::default();
        recent.note(span(50, 60), 0);
        for (begin_ns, end_ns) in [(40, 50), (55, 56), (60, 70), (40, 70)] {
            assert_eq!(recent.held_over(begin_ns, end_ns, 700), None, "{begin_ns} to {end_ns}");
        }
    }

    #[test]
    fn recent_reading_before_the_kept_changes_is_unknown() {
        let mut recent = Recent::default();
        for time_ns in 1..=u64::try_from(CHANGES_KEPT).expect("small") + 1 {
            recent.note(span(10 * time_ns, 10 * time_ns + 1), time_ns);
        }
        assert_eq!(recent.held_over(5, 6, 0), None, "before the first change, which is forgotten");
        assert_eq!(recent.held_over(11, 12, 0), None, "the forgotten change returned in this very moment");
        assert_eq!(recent.held_over(12, 15, 0), Some(2));
    }
}
