//! Refused requests for memory on one device, and their outcomes: a retry succeeded, or the program
//! ran out of memory.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::words::{OUT_OF_MEMORY, Tid};

/// `CUDA_ERROR_UNKNOWN` (cuda.h), the largest status. A libcuda that is not NVIDIA's may return any
/// number.
const UNKNOWN: i32 = 999;
/// Nanoseconds from its last refusal after which a request that was not granted has failed. An
/// allocator retries at once.
pub const RETRY_NS: u64 = 1_000_000_000;
/// Limit of requests without an outcome, per device.
const OPEN_LIMIT: usize = 64;

/// Allocations that the driver refused on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refusals {
    /// Number of refused calls by `CUresult`.
    pub by_status: BTreeMap<i32, u64>,
    /// Time of the last out-of-memory failure: `CLOCK_BOOTTIME`, nanoseconds.
    pub last_oom_ns: Option<u64>,
    /// Requests refused for lack of memory, without a successful retry. Several refusals of one
    /// request count once.
    failed: u64,
    /// Requests refused, and granted when the same thread retried.
    retried: u64,
    /// Counters of a framework's allocator.
    framework: Option<FrameworkCounters>,
    /// Requests without an outcome, oldest first.
    open: VecDeque<OpenRequest>,
}

/// A refused request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenRequest {
    pub(super) tid: Tid,
    pub(super) bytes: u64,
    /// Time of the last refusal: `CLOCK_BOOTTIME`, nanoseconds.
    pub(super) time_ns: u64,
}

/// Counters of a framework's allocator, before the attach and since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct FrameworkCounters {
    earlier_ooms: u64,
    earlier_retries: u64,
    ooms: u64,
    retries: u64,
}

/// A reading of the counters of a framework's allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameworkReading {
    /// Out-of-memory errors returned to the program.
    pub ooms: u64,
    /// Requests retried after the cache was emptied.
    pub retries: u64,
    /// Time of the reading: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Whether the recorder attached before the allocator started.
    pub from_start: bool,
}

impl Refusals {
    /// Returns how often memory ran out. Calls also show failures that the allocator does not count
    /// (other libraries); its counters also show failures without a call (a limit set by the
    /// process). A failure seen in both is the same one.
    pub fn ooms(&self) -> u64 {
        self.failed.max(self.framework.map_or(0, |counters| counters.ooms))
    }

    /// Returns how often a retry was granted after a refusal.
    pub fn retries(&self) -> u64 {
        self.framework.map_or(self.retried, |counters| counters.retries.max(self.retried))
    }

    pub(super) fn count(&mut self, status: i32, request: OpenRequest) {
        let known = if (1..UNKNOWN).contains(&status) { status } else { UNKNOWN };
        *self.by_status.entry(known).or_insert(0) += 1;
        if status != OUT_OF_MEMORY {
            return;
        }
        if let Some(same) = self.open.iter_mut().find(|open| (open.tid, open.bytes) == (request.tid, request.bytes)) {
            same.time_ns = request.time_ns;
            return;
        }
        if self.open.len() == OPEN_LIMIT
            && let Some(oldest) = self.open.pop_front()
        {
            self.fail(oldest);
        }
        self.open.push_back(request);
    }

    /// Counts a granted request. Returns true if it had been refused before.
    pub(super) fn grant(&mut self, tid: Tid, bytes: u64) -> bool {
        let before = self.open.len();
        self.open.retain(|open| (open.tid, open.bytes) != (tid, bytes));
        let is_retry = self.open.len() < before;
        self.retried += u64::from(is_retry);
        is_retry
    }

    /// Counts requests as failed if their last refusal is older than [`RETRY_NS`].
    pub(super) fn settle(&mut self, now_ns: u64) {
        let is_over = |open: &OpenRequest| open.time_ns.saturating_add(RETRY_NS) < now_ns;
        let (failed, open): (Vec<_>, Vec<_>) = self.open.drain(..).partition(is_over);
        self.open = open.into();
        for request in failed {
            self.fail(request);
        }
    }

    fn fail(&mut self, request: OpenRequest) {
        self.failed += 1;
        self.last_oom_ns = self.last_oom_ns.max(Some(request.time_ns));
    }

    pub(super) fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Records a reading of a framework's counters.
    pub(super) fn read(&mut self, reading: FrameworkReading) {
        let FrameworkReading { ooms, retries, time_ns, from_start } = reading;
        let (before, is_first) = (self.ooms(), self.framework.is_none());
        let counters = self.framework.get_or_insert_default();
        if is_first && !from_start {
            (counters.earlier_ooms, counters.earlier_retries) = (ooms, retries);
        }
        counters.ooms = counters.ooms.max(ooms.saturating_sub(counters.earlier_ooms));
        counters.retries = counters.retries.max(retries.saturating_sub(counters.earlier_retries));
        if self.ooms() > before {
            // The failure happened at the refusal of the request, if there was one.
            let refused_ns = self.open.back().map(|open| open.time_ns);
            self.last_oom_ns = self.last_oom_ns.max(refused_ns.or(Some(time_ns)));
        }
    }

    /// Adds the refusals of another device.
    pub fn add(&mut self, other: &Self) {
        for (status, count) in &other.by_status {
            *self.by_status.entry(*status).or_insert(0) += count;
        }
        self.last_oom_ns = self.last_oom_ns.max(other.last_oom_ns);
        // Outcomes are added up: failures that one device has from calls and the other from
        // counters differ.
        let (ooms, retries) = (self.ooms() + other.ooms(), self.retries() + other.retries());
        self.framework = None;
        (self.failed, self.retried) = (ooms, retries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND_NS: u64 = 1_000_000_000;

    fn request(tid: u32, bytes: u64, time_ns: u64) -> OpenRequest {
        OpenRequest { tid: Tid(tid), bytes, time_ns }
    }

    fn outcome(refusals: &Refusals) -> (u64, u64) {
        (refusals.ooms(), refusals.retries())
    }

    #[test]
    fn refusal_granted_on_retry_counts_as_a_retry_not_a_failure() {
        let mut refusals = Refusals::default();
        refusals.count(2, request(7, 70, 1));
        assert!(!refusals.grant(Tid(8), 70) && !refusals.grant(Tid(7), 69) && refusals.grant(Tid(7), 70));
        refusals.settle(9 * SECOND_NS);
        assert_eq!((outcome(&refusals), refusals.last_oom_ns, refusals.by_status[&2]), ((0, 1), None, 1));
    }

    #[test]
    fn a_request_that_is_refused_three_times_fails_once() {
        let mut refusals = Refusals::default();
        (1..=3).for_each(|time_ns| refusals.count(2, request(7, 70, time_ns)));
        refusals.settle(SECOND_NS);
        assert_eq!(outcome(&refusals), (0, 0), "it may be granted yet");
        refusals.settle(2 * SECOND_NS);
        assert_eq!((outcome(&refusals), refusals.last_oom_ns), ((1, 0), Some(3)));
    }

    #[test]
    fn framework_failure_count_adds_unseen_failures_without_double_counting() {
        let reading = |ooms, retries, time_ns| FrameworkReading { ooms, retries, time_ns, from_start: false };
        let mut refusals = Refusals::default();
        refusals.read(reading(4, 1, 1));
        assert_eq!((outcome(&refusals), refusals.last_oom_ns), ((0, 0), None), "these were before the watch");
        refusals.count(2, request(7, 70, 2));
        refusals.read(reading(5, 2, 3));
        refusals.settle(9 * SECOND_NS);
        assert_eq!((outcome(&refusals), refusals.last_oom_ns), ((1, 1), Some(2)));
        refusals.read(reading(6, 2, 10 * SECOND_NS));
        assert_eq!((outcome(&refusals), refusals.last_oom_ns), ((2, 1), Some(10 * SECOND_NS)));
        let mut sum = Refusals::default();
        sum.add(&refusals);
        sum.add(&refusals);
        assert_eq!(outcome(&sum), (4, 2));
    }

    #[test]
    fn requests_without_an_outcome_are_bounded_and_each_is_counted() {
        let mut refusals = Refusals::default();
        (1..=200).for_each(|bytes| refusals.count(2, request(7, bytes, bytes)));
        assert_eq!(refusals.open.len(), OPEN_LIMIT);
        refusals.settle(u64::MAX);
        assert_eq!((outcome(&refusals), refusals.has_open()), ((200, 0), false));
    }
}
