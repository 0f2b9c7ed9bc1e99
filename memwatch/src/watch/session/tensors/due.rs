//! Determines when work on PyTorch processes is due that no record announces. Until then a session
//! may sleep.

use std::time::{Duration, Instant};

use memwatch_core::words::Tgid;

use super::super::input_sink::InputSink;
use super::{AGAIN, BETWEEN_STATISTICS, Python, TensorProcess, TensorTracing};
use crate::frameworks::watch::TensorLevel;

impl TensorTracing {
    /// Returns when work is due that no record announces.
    pub(crate) fn due(&self, sink: &InputSink, now: Instant) -> Option<Instant> {
        if !self.is_wanted() {
            return None;
        }
        let is_left = !self.replaced.is_empty() || !self.corrected.is_empty() || self.prices.has_choices();
        let left = is_left.then_some(now);
        let every = self.holdings_every;
        let processes = self.processes.iter().filter_map(|(tgid, process)| {
            let plan = self.prices.windows(&process.governor, &process.rate);
            let windows = process.windows.due(process.governor.present() == TensorLevel::Read, plan, now);
            let may_rise = process.governor.present() < self.torch.level();
            let arenas = self.torch.arenas_of(*tgid).filter_map(|(framework, _)| {
                let is_wanted = !sink.state().wanted_arenas(Tgid(*tgid), framework).is_empty();
                process.arenas.get(&framework).map_or(Some(now), |arenas| arenas.due(is_wanted, now))
            });
            process.due(*tgid, (every, now), may_rise, sink).into_iter().chain(windows).chain(arenas).min()
        });
        [left, self.named.due(), self.torch.due(now), processes.min()].into_iter().flatten().min()
    }
}

impl TensorProcess {
    /// Returns when work on this process is due that no record announces. `every`: the interval at
    /// which live objects are read, if requested.
    fn due(
        &self,
        tgid: u32,
        (every, now): (Option<Duration>, Instant),
        may_rise: bool,
        sink: &InputSink,
    ) -> Option<Instant> {
        let is_older = !sink.state().is_from_start(Tgid(tgid));
        let holdings = self.holdings.due((is_older, every), now);
        if self.governor.present() == TensorLevel::Read {
            let standing = self.allocator_state.standing_due(now).filter(|_| self.numbers.are_known());
            return [Some(self.numbers.due(now)), standing, holdings].into_iter().flatten().min();
        }
        let python = match self.python {
            Python::Idle(looked) => Some(looked + AGAIN),
            Python::Without | Python::Found { .. } => None,
        };
        let wants_statistics = sink.state().wants_statistics(Tgid(tgid));
        let statistics = wants_statistics.then(|| self.asked.map_or(now, |asked| asked + BETWEEN_STATISTICS));
        let drifts = !sink.state().drifting_allocators(Tgid(tgid)).is_empty();
        let resting = self.resting.as_ref().filter(|_| drifts).map(|resting| resting.due(now));
        let allocator_state = self.allocator_state.due(tgid, sink, now);
        let trial = self.governor.is_trying().then(|| self.numbers.due_traced(now));
        [python, statistics, resting, holdings, allocator_state, trial, self.rate.due(may_rise)]
            .into_iter()
            .flatten()
            .min()
    }
}
