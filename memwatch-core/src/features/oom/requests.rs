//! Memory that the kernel driver refused, until it is known what came of it: the call that asked for it failed, or succeeded all the same.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use super::view::SurvivedView;
use crate::decode::Call;
use crate::snapshot::RefusedView;
use crate::words::{Tgid, Tid};

/// How many are remembered of which nothing is known yet, and how many behind which there is no failure.
const KEPT: usize = 32;

/// Refused requests of all processes.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Requests {
    /// Oldest first. Their call is not over.
    open: VecDeque<SurvivedView>,
    survived: VecDeque<SurvivedView>,
    forgotten: u64,
}

impl Requests {
    /// One was refused. Without a call that is watched nothing will be seen of what comes of it.
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

    /// The ones that a call which has returned had made.
    pub(super) fn take_of_call(&mut self, call: &Call) -> Vec<RefusedView> {
        self.take(|one| {
            let inside = one.refused.inside.map(|inside| inside.entered_ns);
            (one.tgid, one.refused.tid, inside) == (call.tgid, call.tid, Some(call.entered_ns))
        })
    }

    /// The ones that a thread made which now reports a failure of its own.
    pub(super) fn take_of_thread(&mut self, tgid: Tgid, thread: Tid) -> Vec<RefusedView> {
        self.take(|one| (one.tgid, one.refused.tid) == (tgid, thread))
    }

    fn take(&mut self, is_one: impl Fn(&SurvivedView) -> bool) -> Vec<RefusedView> {
        // Nearly every call of every program comes here.
        if self.open.is_empty() {
            return Vec::new();
        }
        let (taken, left): (Vec<_>, Vec<_>) = self.open.drain(..).partition(is_one);
        self.open = left.into();
        taken.into_iter().map(|one| one.refused).collect()
    }

    /// There is no failure behind these.
    pub(super) fn list(&mut self, tgid: Tgid, refused: Vec<RefusedView>, status: Option<i32>) {
        for refused in refused {
            self.survive(SurvivedView { tgid, refused, status });
        }
    }

    /// Of the ones before this time (`CLOCK_BOOTTIME`, nanoseconds) nothing more is reported.
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

    /// The ones behind which there is no failure, as far as is known; oldest first.
    pub(super) fn survived(&self) -> impl Iterator<Item = SurvivedView> {
        self.survived.iter().chain(&self.open).cloned()
    }

    /// How many older ones are forgotten.
    pub(super) const fn forgotten(&self) -> u64 {
        self.forgotten
    }
}
