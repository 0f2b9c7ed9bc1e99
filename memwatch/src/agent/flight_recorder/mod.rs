//! The flight recorder: reads the live objects of PyTorch programs by name, seldom, so that a failure
//! that nobody prepared for has its names.
//!
//! A worker, a memwatch of its own with bounded memory, reads one process and answers with sums. What
//! decides when is in [`schedule`].

mod credit;
mod reading;
mod schedule;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use memwatch_core::input::Input;
use memwatch_core::words::Tgid;

pub(in crate::agent) use self::reading::{NamesAnswer, NamesOrder};
use self::reading::{Refusal, RunningReading};
use self::schedule::{Due, NamesSchedule, PlannedReading};
use super::args::FlightRecorderMode;
use super::watches::Watches;
use crate::watch::session::Session;

/// Counters of the flight recorder since the agent's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FlightRecorderState {
    /// Number of readings with a result.
    pub(crate) readings: u64,
    /// Number of readings without one.
    pub(crate) failed: u64,
    /// Number of failures after which nothing was read, because their process or user has had its
    /// share.
    pub(crate) left_out: u64,
    /// Processor time of all readings, in nanoseconds.
    pub(crate) processor_ns: u64,
}

/// The flight recorder of an agent.
pub(super) struct FlightRecorder {
    /// Options of the agent that its workers need, too.
    options: Vec<OsString>,
    watches: Arc<Watches>,
    schedule: NamesSchedule,
    /// The reading that is due by time or by a new peak, and the one after a failure.
    running: [Option<RunningReading>; 2],
    /// Threads of readings that are over, as long as their worker has not ended, with the login user.
    ending: Vec<(Option<u32>, JoinHandle<()>)>,
    /// Failures that were seen.
    seen: BTreeSet<(Tgid, u64)>,
    state: FlightRecorderState,
}

impl FlightRecorder {
    /// Begins, if it is wanted. Failures of an earlier agent get no reading.
    pub(super) fn begin(mode: FlightRecorderMode, watches: &Arc<Watches>, session: &Session) -> Option<Self> {
        let is_wanted = mode == FlightRecorderMode::Names;
        is_wanted.then(|| Self {
            options: watches.worker_options(),
            watches: Arc::clone(watches),
            schedule: NamesSchedule::new(Instant::now()),
            running: [None, None],
            ending: Vec::new(),
            seen: failures(session),
            state: FlightRecorderState::default(),
        })
    }

    /// Returns the counters.
    pub(super) const fn state(&self) -> FlightRecorderState {
        self.state
    }

    /// Takes finished readings, and begins those that are due.
    pub(super) fn tend(&mut self, session: &mut Session) {
        for at in 0..self.running.len() {
            if let Some((running, answer)) = RunningReading::take_finished(&mut self.running[at]) {
                self.take(&running.planned, answer, session);
                let user = running.planned.user;
                self.ending.extend(running.into_thread().map(|thread| (user, thread)));
            }
        }
        self.schedule.update(session.pipeline().state.allocated_by_pytorch(), Instant::now());
        self.advance();
    }

    /// Begins a reading of a process after its allocation has failed.
    pub(super) fn notice(&mut self, session: &Session) {
        let all = failures(session);
        if all == self.seen {
            return;
        }
        for failed in all.difference(&self.seen).filter_map(|(tgid, _)| session.pipeline().state.allocated_by(*tgid)) {
            self.schedule.note_failure(failed, Instant::now());
        }
        self.seen = all;
        self.advance();
    }

    fn advance(&mut self) {
        self.ending.retain(|(_, thread)| !thread.is_finished());
        self.schedule.set_stuck(self.ending.iter().map(|(user, _)| *user).collect());
        for (at, due) in [Due::InTime, Due::AfterFailure].into_iter().enumerate() {
            if self.running[at].is_some() {
                continue;
            }
            let cannot_wait = due == Due::AfterFailure && self.schedule.has_failed();
            let Some(place) = self.watches.place(cannot_wait) else { continue };
            let next = self.schedule.next(due, Instant::now());
            self.state.left_out = self.schedule.left_out();
            if let Some(planned) = next {
                self.running[at] = Some(RunningReading::begin(planned, self.options.clone(), place));
            }
        }
    }

    fn take(&mut self, planned: &PlannedReading, answer: Result<NamesAnswer, Refusal>, session: &mut Session) {
        match answer {
            Ok(NamesAnswer { names, processor_ns }) => {
                self.state.processor_ns = self.state.processor_ns.saturating_add(processor_ns);
                self.schedule.note_read(planned, processor_ns, Instant::now());
                if let Some(names) = names {
                    self.state.readings += 1;
                    session.learn(Input::HeldNames(names));
                }
            }
            Err((why, most_ns)) => {
                log::info!("process {tgid}: its live objects were not read: {why}", tgid = planned.tgid.0);
                self.state.failed += 1;
                self.schedule.note_refused(planned, most_ns, Instant::now());
            }
        }
    }
}

fn failures(session: &Session) -> BTreeSet<(Tgid, u64)> {
    session.pipeline().ooms().0.map(|oom| (oom.tgid, oom.time_ns)).collect()
}
