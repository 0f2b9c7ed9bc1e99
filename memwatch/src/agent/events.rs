//! Events of the machine: a line in the agent's log for each out-of-memory failure, and a command or
//! a post for these and for changes of forecasts.
//!
//! A failure is an event once its outcome is known, about ten seconds after it at most. Each user has a
//! share, so that one program that fails again and again hides no other's failure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use memwatch_core::features::forecast::view::ForecastChangeView;
use memwatch_core::features::oom::view::OomView;
use memwatch_core::snapshot::{ProcessView, Snapshot};
use memwatch_core::words::Tgid;

use crate::agent::args::EventArgs;
use crate::render::wall_clock::WallClock;
use crate::watch::alert::{AlertActions, Alerts};
use crate::watch::session::Session;
use crate::watch::taken_at::TakenAt;

/// Events of one user at once, and the time in which one more is allowed.
const AT_ONCE: u32 = 6;
const EACH: Duration = Duration::from_secs(10);

/// How events are written; the lines of JSON end with a newline.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventForms {
    /// A failure as a line of a log.
    pub(crate) line: fn(&OomView, &WallClock) -> String,
    /// A failure as JSON.
    pub(crate) failure: fn(&OomView, &TakenAt) -> Vec<u8>,
    /// A change of a forecast as JSON, with the present state.
    pub(crate) change: fn(&ForecastChangeView, &Snapshot, &TakenAt) -> Vec<u8>,
}

/// The agent's events.
pub(crate) struct AgentEvents {
    forms: EventForms,
    alerts: Alerts,
    /// Failures that were reported, as long as the log has them.
    reported: BTreeSet<(Tgid, u64)>,
    shares: BTreeMap<Option<u32>, EventShare>,
    /// Number of events that were left out.
    left_out: u64,
}

/// What one user has used of its share.
#[derive(Clone, Copy, Debug)]
struct EventShare {
    /// Events in the last time.
    used: u32,
    since: Instant,
    /// Events that were left out since the last one that was not.
    left_out: u64,
}

impl AgentEvents {
    /// Begins. Failures that an earlier agent has reported are not reported again.
    pub(crate) fn begin(args: &EventArgs, forms: EventForms, session: &mut Session) -> Self {
        let EventArgs { on_event, on_event_timeout, event_webhook } = args.clone();
        let options = ["--on-event", "--event-webhook"];
        let alerts = AlertActions { exec: on_event, exec_timeout: on_event_timeout, webhook: event_webhook, options };
        let alerts = Alerts::new(alerts);
        session.pipeline_mut().watch_ooms();
        if alerts.is_wanted() {
            session.pipeline_mut().watch_forecasts(&[]);
            session.pipeline_mut().take_forecast_changes();
        }
        let known = session.pipeline().ooms().0.filter(|oom| is_known(oom));
        let reported = known.map(|oom| (oom.tgid, oom.time_ns)).collect();
        Self { forms, alerts, reported, shares: BTreeMap::new(), left_out: 0 }
    }

    /// Reports what has happened since the last call.
    pub(crate) fn tend(&mut self, session: &mut Session) {
        self.tend_forecasts(session);
        let all = || session.pipeline().ooms().0;
        let is_new = |oom: &&OomView| is_known(oom) && !self.reported.contains(&(oom.tgid, oom.time_ns));
        let new: Vec<OomView> = all().filter(is_new).cloned().collect();
        if new.is_empty() {
            return;
        }
        let kept: BTreeSet<_> = all().map(|oom| (oom.tgid, oom.time_ns)).collect();
        self.reported.retain(|one| kept.contains(one));
        for failure in new {
            self.reported.insert((failure.tgid, failure.time_ns));
            self.report(&failure);
        }
        self.shares.retain(|_, share| share.since.elapsed() < EACH * AT_ONCE || share.left_out > 0);
    }

    /// Returns the number of events that were left out.
    pub(crate) const fn left_out(&self) -> u64 {
        self.left_out
    }

    fn tend_forecasts(&mut self, session: &mut Session) {
        if !self.alerts.is_wanted() {
            return;
        }
        for change in session.pipeline_mut().take_forecast_changes() {
            self.alerts.raise(&(self.forms.change)(&change, &session.snapshot(), &TakenAt::here()));
        }
    }

    fn report(&mut self, failure: &OomView) {
        let process = failure.snapshot.processes.iter().rfind(|process| process.tgid == failure.tgid);
        let share = self.shares.entry(process.and_then(|process| process.uid)).or_insert_with(EventShare::full);
        let Some(left_out) = share.take(Instant::now()) else {
            self.left_out += 1;
            return;
        };
        let taken_at = TakenAt::here();
        let line = (self.forms.line)(failure, &taken_at.clock);
        eprintln!("memwatch: {line}{}", and_more(left_out, process));
        if self.alerts.is_wanted() {
            self.alerts.raise(&(self.forms.failure)(failure, &taken_at));
        }
    }
}

/// Whether it is known how the process continued, which the log decides after a while.
const fn is_known(oom: &OomView) -> bool {
    oom.is_survived || oom.ended_ns.is_some() || oom.exited_ns.is_some()
}

fn and_more(left_out: u64, process: Option<&ProcessView>) -> String {
    let user = process.and_then(|process| process.user.as_deref()).unwrap_or("unknown");
    match left_out {
        0 => String::new(),
        1 => format!("; 1 failure of user {user} before it was left out"),
        more => format!("; {more} failures of user {user} before it were left out"),
    }
}

impl EventShare {
    fn full() -> Self {
        Self { used: 0, since: Instant::now(), left_out: 0 }
    }

    /// Takes one event of the share. Returns how many were left out before it; `None` if it is to be
    /// left out, too.
    fn take(&mut self, now: Instant) -> Option<u64> {
        let regained = now.saturating_duration_since(self.since).as_secs() / EACH.as_secs();
        if regained > 0 {
            self.used = self.used.saturating_sub(u32::try_from(regained).unwrap_or(u32::MAX));
            self.since = now;
        }
        if self.used >= AT_ONCE {
            self.left_out += 1;
            return None;
        }
        self.used += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_whose_share_is_used_gets_one_event_in_ten_seconds_and_the_number_left_out() {
        let mut share = EventShare::full();
        let begun = share.since;
        let at = |seconds| begun + Duration::from_secs(seconds);
        let first: Vec<_> = (0..10).map(|_| share.take(at(1))).collect();
        assert_eq!(first, [Some(0), Some(0), Some(0), Some(0), Some(0), Some(0), None, None, None, None]);
        assert_eq!([share.take(at(10)), share.take(at(11)), share.take(at(12))], [Some(4), None, None]);
        assert_eq!(share.take(at(20)), Some(2));
        assert_eq!((0..7).filter_map(|_| share.take(at(120))).count(), 6);
    }
}
