//! Probes on context switch calls (`cuCtxSetCurrent` and the like), for programs with so many of
//! these calls that the probes would slow them.
//!
//! TensorFlow makes two such calls per eager operator. In a process with a single context nothing
//! depends on them, so the probes are removed as long as every process that maps the library has a
//! single context.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memwatch_core::attribution::price::{Budget, per_second};
use memwatch_core::input::Input;
use memwatch_core::state::ContextUse;
use memwatch_core::words::Tgid;

use super::{Session, SessionOptions};
use crate::render::sentences::level;

/// Interval at which calls are counted per process.
const EVERY: Duration = Duration::from_secs(1);
/// Calls per second up to which the cost is negligible on any machine and is not computed.
const FEW: u64 = 1_000;

/// Processes whose context switches are probed, and their counts.
pub(super) struct Changes {
    budget: Budget,
    speaks: bool,
    counted: Instant,
    /// Number of calls of each process since the session watches it.
    counts: BTreeMap<u32, u64>,
    /// Processes whose calls are not probed.
    unseen: BTreeSet<u32>,
    /// Time by which removed probes are out of the kernel.
    leave: Option<Instant>,
}

impl Changes {
    /// Creates the state from the options.
    pub(super) fn new(options: &SessionOptions) -> Self {
        Self {
            budget: options.tensors.budget.unwrap_or_default(),
            speaks: !options.is_screen,
            counted: Instant::now(),
            counts: BTreeMap::new(),
            unseen: BTreeSet::new(),
            leave: None,
        }
    }

    /// Returns when work is due that no record announces.
    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        self.leave.filter(|leave| *leave > now)
    }

    /// Returns the calls per second of each process with a high rate, computed from the counts at
    /// `now`.
    fn rates(&mut self, now: Instant, counts: impl Iterator<Item = (u32, u64)>) -> Vec<(u32, u64)> {
        let elapsed_ns = u64::try_from(now.duration_since(self.counted).as_nanos()).unwrap_or(u64::MAX);
        self.counted = now;
        let before = std::mem::take(&mut self.counts);
        let mut rates = Vec::new();
        for (tgid, count) in counts.filter(|(_, count)| *count > 0) {
            let rate = per_second(count.saturating_sub(before.get(&tgid).copied().unwrap_or(0)), elapsed_ns);
            rates.extend((rate > FEW).then_some((tgid, rate)));
            self.counts.insert(tgid, count);
        }
        rates
    }
}

impl Session {
    /// Resumes after a restart handover: the previous memwatch may have had fewer probes, while all
    /// are in place after this start.
    pub(super) fn remember_changes(&mut self) {
        let sees = |tgid: &Tgid| self.sink.state().context_use(*tgid).is_some_and(|contexts| contexts.sees_changes);
        self.changes.unseen = self.sink.state().watched().filter(|tgid| !sees(tgid)).map(|tgid| tgid.0).collect();
    }

    /// Removes probes that exceed the budget, and attaches them again where a process needs them.
    pub(super) fn tend_changes(&mut self) {
        let Self { kernel, libraries, sink, .. } = self;
        let needs = |tgid| sink.state().context_use(Tgid(tgid)).is_some_and(|contexts| contexts.may_be_several);
        libraries.put_changes_in(kernel, needs);
        if self.changes.counted.elapsed() >= EVERY {
            self.spare_changes();
        }
        let without = self.libraries.without_changes();
        let sink = &mut self.sink;
        for &tgid in without.union(&self.changes.unseen) {
            let seen = !without.contains(&tgid);
            let is_news = |contexts: ContextUse| contexts.sees_changes != seen;
            if sink.state().context_use(Tgid(tgid)).is_some_and(is_news) {
                sink.step(Input::ContextChanges(Tgid(tgid), seen));
            }
        }
        self.changes.unseen = without;
    }

    fn spare_changes(&mut self) {
        let counts = self.sink.state().context_changes().map(|(tgid, changes)| (tgid.0, changes));
        for (tgid, rate) in self.changes.rates(Instant::now(), counts) {
            let call_ns = self.tensors.prices.call_ns(&mut self.kernel);
            let price_ns = rate.saturating_mul(call_ns);
            if self.changes.budget.allows(price_ns) {
                continue;
            }
            let sink = &self.sink;
            let needs = |tgid| sink.state().context_use(Tgid(tgid)).is_some_and(|contexts| contexts.may_be_several);
            if !self.libraries.take_changes_out(&mut self.kernel, tgid, needs) {
                continue;
            }
            self.changes.leave = Some(Instant::now() + EVERY);
            if self.changes.speaks {
                eprintln!("memwatch: {}", level::changes_spared((tgid, rate), (price_ns, self.changes.budget)));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_of_the_calls_since_the_last_count_and_few_calls_are_none() {
        let mut changes = Changes::new(&SessionOptions::default());
        let begun = changes.counted;
        let mut rates =
            |seconds: u32, counts: &[(u32, u64)]| changes.rates(begun + seconds * EVERY, counts.iter().copied());
        assert_eq!(rates(1, &[(7, 50_000), (8, 900), (9, 0)]), [(7, 50_000)]);
        assert_eq!(rates(3, &[(7, 50_000), (8, 40_900), (10, 4_000)]), [(8, 20_000), (10, 2_000)]);
        // The process has called exec; its count starts from 0.
        assert_eq!(rates(4, &[(8, 5_000)]), []);
    }
}
