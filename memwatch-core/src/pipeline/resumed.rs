//! Continues an analysis at a later state, where the inputs between are missing: the recorder was
//! restarted, or only states are kept of that time.

use std::collections::BTreeSet;

use crate::pipeline::Pipeline;
use crate::state::State;
use crate::state::event::{Detector as _, Event};
use crate::words::Tgid;

impl Pipeline {
    /// Continues with the state of a later moment. Detectors that are turned on stay and see that
    /// state. Failures since `since_ns` (`CLOCK_BOOTTIME`, nanoseconds) are taken from its log.
    ///
    /// Peaks are then those that the later state knows, not those of a window.
    pub fn resume(&mut self, later: Self, since_ns: u64) {
        let Self { state, detectors } = later;
        self.end_missing(&state);
        let before = std::mem::replace(&mut self.state, state);
        let known_ns = before.now_ns;
        self.state.follow(before);
        if let (Some(profile), Some(later)) = (&mut self.detectors.profile, &detectors.ooms) {
            profile.learn_failures(later, known_ns.max(since_ns), &self.state);
        }
        if let (Some(log), Some(later)) = (&mut self.detectors.ooms, detectors.ooms) {
            log.take_over(*later, since_ns);
        }
        let Self { state, detectors } = self;
        let time_ns = state.now_ns;
        detectors.on(&Event::Time(time_ns), state);
        for tgid in state.watched() {
            detectors.on(&Event::Resynced { tgid, time_ns }, state);
        }
        detectors.on(&Event::Reading, state);
        detectors.on(&Event::Tick, state);
    }

    /// Ends the series of processes that the later state does not know. Whether they exited is not
    /// known.
    fn end_missing(&mut self, later: &State) {
        let Self { state, detectors } = self;
        let Some(profile) = &mut detectors.profile else { return };
        let is_later = |tgid: Tgid, since_ns: u64| {
            later.processes.get(&tgid).is_some_and(|process| process.observed_since_ns == since_ns)
        };
        let missing = state.processes.values().filter(|process| !is_later(process.tgid, process.observed_since_ns));
        for process in missing {
            profile.leave(process, state.now_ns, None);
        }
    }
}

impl State {
    /// Takes over from the state before what this one cannot know: settings, and processes that have
    /// ended.
    fn follow(&mut self, before: Self) {
        self.keep_ended = before.keep_ended;
        self.logs_tensors = before.logs_tensors;
        self.least_listed_bytes = before.least_listed_bytes;
        self.keeps_history = before.keeps_history;
        if !self.keep_ended {
            return;
        }
        let known: BTreeSet<(Tgid, u64)> =
            self.ended.iter().map(|process| (process.tgid, process.observed_since_ns)).collect();
        let later = std::mem::replace(&mut self.ended, before.ended);
        self.ended.retain(|process| !known.contains(&(process.tgid, process.observed_since_ns)));
        later.iter().for_each(|process| self.ended.push(process.clone()));
    }
}
