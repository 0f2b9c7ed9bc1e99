//! Requests that the kernel driver refused, kept until the result of their call is known: it
//! failed, or it succeeded nevertheless.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::view::SurvivedView;
use crate::decode::Call;
use crate::snapshot::RefusedView;
use crate::words::{Tgid, Tid};

/// Maximum number of open requests, and of requests without a resulting failure.
const KEPT: usize = 32;

/// Refused requests of all processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct RefusedRequests {
    /// Requests whose call has not returned, oldest first.
    open: VecDeque<SurvivedView>,
    survived: VecDeque<SurvivedView>,
    forgotten: u64,
}

impl RefusedRequests {
    /// Adds a refused request. Without a traced call its result will never be known.
    pub(super) fn open(&mut self, tgid: Tgid, refused: RefusedView) {
        let is_in_call = refused.inside.is_some();
        let one = SurvivedView { tgid, refused, status: None };
        if !is_in_call {
            return self.survive(one);
        }
        if self.open.len() == KEPT
            && let Some(oldest) = self.open.pop_front()
        {
            self.survive(oldest);
        }
        self.open.push_back(one);
    }

    /// Removes and returns the requests made within a call that has returned.
    pub(super) fn take_of_call(&mut self, call: &Call) -> Vec<RefusedView> {
        self.take(|one| {
            let inside = one.refused.inside.map(|inside| inside.entered_ns);
            (one.tgid, one.refused.tid, inside) == (call.tgid, call.tid, Some(call.entered_ns))
        })
    }

    /// Removes and returns the requests of a thread that reports a failure itself.
    pub(super) fn take_of_thread(&mut self, tgid: Tgid, thread: Tid) -> Vec<RefusedView> {
        self.take(|one| (one.tgid, one.refused.tid) == (tgid, thread))
    }

    fn take(&mut self, is_one: impl Fn(&SurvivedView) -> bool) -> Vec<RefusedView> {
        // Nearly every call of every program passes through here.
        if self.open.is_empty() {
            return Vec::new();
        }
        let (taken, left): (Vec<_>, Vec<_>) = self.open.drain(..).partition(is_one);
        self.open = left.into();
        taken.into_iter().map(|one| one.refused).collect()
    }

    /// Records requests that did not lead to a failure.
    pub(super) fn list(&mut self, tgid: Tgid, refused: Vec<RefusedView>, status: Option<i32>) {
        for refused in refused {
            self.survive(SurvivedView { tgid, refused, status });
        }
    }

    /// Closes requests before this time (`CLOCK_BOOTTIME`, in nanoseconds), of which nothing
    /// further will be reported.
    pub(super) fn settle(&mut self, before_ns: u64) {
        while let Some(one) = self.open.pop_front_if(|one| one.refused.time_ns < before_ns) {
            self.survive(one);
        }
    }

    fn survive(&mut self, one: SurvivedView) {
        if self.survived.len() == KEPT {
            self.survived.pop_front();
            self.forgotten += 1;
        }
        self.survived.push_back(one);
    }

    /// Takes over what was refused since `since_ns` from the list of a later moment.
    pub(super) fn take_over(&mut self, later: Self, since_ns: u64) {
        self.open = later.open.into_iter().filter(|one| one.refused.time_ns >= since_ns).collect();
        for one in later.survived.into_iter().filter(|one| one.refused.time_ns >= since_ns) {
            match self.survived.iter_mut().find(|own| own.tgid == one.tgid && own.refused == one.refused) {
                Some(own) => *own = one,
                None => self.survive(one),
            }
        }
    }

    /// Returns the requests without a resulting failure, as far as is known, oldest first.
    pub(super) fn survived(&self) -> impl Iterator<Item = SurvivedView> {
        self.survived.iter().chain(&self.open).cloned()
    }

    /// Returns the number of dropped requests.
    pub(super) const fn forgotten(&self) -> u64 {
        self.forgotten
    }
}
