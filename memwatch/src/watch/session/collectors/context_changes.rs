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
use memwatch_core::state::{ContextUse, State};
use memwatch_core::words::Tgid;

use super::Collector;
use crate::render::sentences::level;
use crate::watch::session::SessionOptions;
use crate::watch::session::input_sink::InputSink;
use crate::watch::session::parts::SessionParts;

/// Interval at which calls are counted per process.
const EVERY: Duration = Duration::from_secs(1);
/// Calls per second up to which the cost is negligible on any machine and is not computed.
const FEW: u64 = 1_000;

/// Processes whose context switches are probed, and their counts.
pub(super) struct ContextChangeProbes {
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

impl ContextChangeProbes {
    /// Creates the collector. `state` is what a previous memwatch left, which may have had fewer
    /// probes, while all are in place after this start.
    pub(super) fn new(options: &SessionOptions, state: &State) -> Self {
        let sees = |tgid: &Tgid| state.context_use(*tgid).is_some_and(|contexts| contexts.sees_changes);
        Self {
            budget: options.tensors.budget.unwrap_or_default(),
            speaks: !options.is_screen,
            counted: Instant::now(),
            counts: BTreeMap::new(),
            unseen: state.watched().filter(|tgid| !sees(tgid)).map(|tgid| tgid.0).collect(),
            leave: None,
        }
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

impl ContextChangeProbes {
    /// Reports for which processes the calls are seen, where that has changed.
    fn report(&mut self, parts: &mut SessionParts) {
        let without = parts.libraries.without_changes();
        let sink = &mut parts.sink;
        for &tgid in without.union(&self.unseen) {
            let seen = !without.contains(&tgid);
            let is_news = |contexts: ContextUse| contexts.sees_changes != seen;
            if sink.state().context_use(Tgid(tgid)).is_some_and(is_news) {
                sink.step(Input::ContextChanges(Tgid(tgid), seen));
            }
        }
        self.unseen = without;
    }

    /// Removes the probes from processes in which they exceed the budget.
    fn spare(&mut self, parts: &mut SessionParts) {
        let SessionParts { kernel, libraries, sink, tensors, .. } = parts;
        let counts = sink.state().context_changes().map(|(tgid, changes)| (tgid.0, changes));
        for (tgid, rate) in self.rates(Instant::now(), counts) {
            let call_ns = tensors.prices.call_ns(kernel);
            let price_ns = rate.saturating_mul(call_ns);
            if self.budget.allows(price_ns) || !libraries.take_changes_out(kernel, tgid, needs_changes(sink)) {
                continue;
            }
            self.leave = Some(Instant::now() + EVERY);
            if self.speaks {
                eprintln!("memwatch: {}", level::changes_spared((tgid, rate), (price_ns, self.budget)));
            }
        }
    }
}

impl Collector for ContextChangeProbes {
    fn due(&self, _parts: &SessionParts, now: Instant) -> Option<Instant> {
        self.leave.filter(|leave| *leave > now)
    }

    /// Removes probes that exceed the budget, and attaches them again where a process needs them.
    fn collect(&mut self, parts: &mut SessionParts) {
        parts.libraries.put_changes_in(&mut parts.kernel, needs_changes(&parts.sink));
        if self.counted.elapsed() >= EVERY {
            self.spare(parts);
        }
        self.report(parts);
    }
}

/// Whether a process may have several contexts, so that its calls matter.
fn needs_changes(sink: &InputSink) -> impl Fn(u32) -> bool {
    move |tgid| sink.state().context_use(Tgid(tgid)).is_some_and(|contexts| contexts.may_be_several)
}

#[cfg(test)]
mod tests {
    use memwatch_core::Pipeline;

    use super::*;

    #[test]
    fn a_rate_is_of_the_calls_since_the_last_count_and_few_calls_are_none() {
        let mut changes = ContextChangeProbes::new(&SessionOptions::default(), &Pipeline::new(false).state);
        let begun = changes.counted;
        let mut rates =
            |seconds: u32, counts: &[(u32, u64)]| changes.rates(begun + seconds * EVERY, counts.iter().copied());
        assert_eq!(rates(1, &[(7, 50_000), (8, 900), (9, 0)]), [(7, 50_000)]);
        assert_eq!(rates(3, &[(7, 50_000), (8, 40_900), (10, 4_000)]), [(8, 20_000), (10, 2_000)]);
        // The process has called exec; its count starts from 0.
        assert_eq!(rates(4, &[(8, 5_000)]), []);
    }
}
