//! Groups failed driver calls by failure: PyTorch frees its cache and retries the same request,
//! which counts as one failure.

use memwatch_core::snapshot::FailureView;

/// Maximum time between a failure and its retry, in nanoseconds.
const RETRY_NS: u64 = 1_000_000_000;

/// One failure, represented by its last attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Attempts<'a> {
    /// Last attempt.
    pub(crate) last: &'a FailureView,
    /// Number of attempts, at least 1.
    pub(crate) number: u64,
}

impl Attempts<'_> {
    /// Returns ` (2 attempts)`, or an empty string for a single attempt.
    pub(crate) fn suffix(self) -> String {
        if self.number > 1 { format!(" ({} attempts)", self.number) } else { String::new() }
    }
}

/// Groups failures, oldest first. The same request on the same GPU within a second is a retry.
pub(crate) fn attempts(failures: &[FailureView]) -> Vec<Attempts<'_>> {
    let mut all: Vec<Attempts<'_>> = Vec::new();
    for failure in failures {
        match all.last_mut().filter(|one| is_retry(one.last, failure)) {
            Some(one) => *one = Attempts { last: failure, number: one.number + 1 },
            None => all.push(Attempts { last: failure, number: 1 }),
        }
    }
    all
}

fn is_retry(first: &FailureView, then: &FailureView) -> bool {
    let key = |one: &FailureView| (one.status, one.requested_bytes, one.uuid.clone(), one.symbol.clone());
    key(first) == key(then) && then.time_ns.saturating_sub(first.time_ns) < RETRY_NS
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::fixture;

    #[test]
    fn a_request_that_is_tried_again_at_once_is_one_failure() {
        let first = fixture::busy_node().processes[0].failures[0].clone();
        let again = FailureView { time_ns: first.time_ns + 10_000_000, ..first.clone() };
        let other = FailureView { requested_bytes: 7, ..again.clone() };
        let later = FailureView { time_ns: other.time_ns + RETRY_NS, ..other.clone() };
        let all = [first, again, other, later];
        let found = attempts(&all);
        assert_eq!(found.iter().map(|one| one.number).collect::<Vec<_>>(), [2, 1, 1]);
        assert_eq!((found[0].suffix(), found[1].suffix()), (" (2 attempts)".to_owned(), String::new()));
    }
}
