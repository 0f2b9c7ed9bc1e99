//! Events of the machine: a line in the agent's log for each out-of-memory failure, a command or a
//! post for every event, and the last events for clients.
//!
//! A failure is an event once its outcome is known, about ten seconds after it at most. Each user has a
//! share, so that one program that fails again and again hides no other's failure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use memwatch_core::features::oom::view::OomView;
use memwatch_core::snapshot::{ProcessView, Viewer};
use tokio::sync::broadcast;

use crate::agent::args::EventArgs;
use crate::client::protocol::events::EventMessage;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;
use crate::sources::login_users::login_user;
use crate::watch::alert::{AlertActions, Alerts};
use crate::watch::events::bounded::{BoundedEvents, EventBounds};
use crate::watch::events::{EventWatch, MachineEvent, failed};
use crate::watch::session::Session;
use crate::watch::taken_at::TakenAt;

/// Events of one user at once, and the time in which one more is allowed.
const AT_ONCE: u32 = 6;
const EACH: Duration = Duration::from_secs(10);

/// Events that are kept for clients.
const KEPT: EventBounds = EventBounds { all: 256, per_owner: 32, bytes: 8 << 20 };

/// Events that wait for one client. A client that has more to read is dropped.
const WAITING: usize = 32;

/// How events are written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EventForms {
    /// A failure as a line of a log.
    pub(crate) line: fn(&OomView, &WallClock) -> String,
    /// An event as JSON (`memwatch.event/1`), in a line that ends with a newline.
    pub(crate) json: fn(&MachineEvent, &TakenAt) -> Vec<u8>,
}

/// An event in the form in which each viewer may see it.
#[derive(Debug)]
pub(crate) struct AgentEvent {
    /// Time in nanoseconds since 1970.
    pub(crate) unix_ns: i64,
    forms: BTreeMap<Viewer, EventMessage>,
}

/// The kept events that a viewer may see, and the later ones of all users.
#[derive(Debug)]
pub(crate) struct EventSubscription {
    /// Time since which events are kept, nanoseconds since 1970.
    pub(crate) kept_since_unix_ns: i64,
    /// Number of events that are not kept, of those that the viewer may see.
    pub(crate) left_out: u64,
    /// Kept events, oldest first.
    pub(crate) kept: Vec<Arc<AgentEvent>>,
    /// Later events.
    pub(crate) later: broadcast::Receiver<Arc<AgentEvent>>,
}

/// The agent's events.
pub(crate) struct AgentEvents {
    forms: EventForms,
    alerts: Alerts,
    watch: EventWatch,
    kept_since_unix_ns: i64,
    kept: BoundedEvents<Arc<AgentEvent>>,
    later: broadcast::Sender<Arc<AgentEvent>>,
    shares: BTreeMap<Option<u32>, EventShare>,
    /// Number of events that exceeded their user's share.
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

impl AgentEvent {
    fn of(event: &MachineEvent, forms: EventForms, taken_at: &TakenAt) -> Self {
        let users: BTreeSet<u32> = event.subjects().iter().filter_map(|process| process.uid).collect();
        let viewers = users.into_iter().map(Viewer::User).chain([Viewer::Everything]);
        let form = |viewer| {
            let seen = event.observed_by(viewer)?;
            let subjects = seen.subjects().into_iter().map(ProcessView::identity).collect();
            let json = String::from_utf8_lossy(&(forms.json)(&seen, taken_at)).trim_end().to_owned();
            Some((viewer, EventMessage { subjects, json }))
        };
        Self { unix_ns: taken_at.clock.unix_ns(event.time_ns()), forms: viewers.filter_map(form).collect() }
    }

    /// Returns an invented event that these viewers see.
    #[cfg(test)]
    pub(super) fn invented(unix_ns: i64, json: &str, viewers: &[Viewer]) -> Arc<Self> {
        let form = EventMessage { subjects: Vec::new(), json: json.to_owned() };
        Arc::new(Self { unix_ns, forms: viewers.iter().map(|viewer| (*viewer, form.clone())).collect() })
    }

    /// Returns the event as the viewer may see it; `None` if it is about no process of the viewer's.
    pub(crate) fn seen_by(&self, viewer: Viewer) -> Option<&EventMessage> {
        self.forms.get(&viewer)
    }

    /// Returns its approximate size in memory.
    fn bytes(&self) -> usize {
        let words = |process: &ProcessView| size_of::<ProcessView>() + process.command.len();
        self.forms.values().map(|form| form.json.len() + form.subjects.iter().map(words).sum::<usize>()).sum()
    }
}

impl AgentEvents {
    /// Begins. Failures that an earlier agent has reported are kept for clients and not reported again.
    pub(crate) fn begin(args: &EventArgs, forms: EventForms, session: &mut Session) -> Self {
        let EventArgs { on_event, on_event_timeout, event_webhook } = args.clone();
        let options = ["--on-event", "--event-webhook"];
        let alerts = AlertActions { exec: on_event, exec_timeout: on_event_timeout, webhook: event_webhook, options };
        let alerts = Alerts::new(alerts);
        let pipeline = session.pipeline_mut();
        EventWatch::prepare(pipeline);
        if alerts.is_wanted() {
            EventWatch::prepare_forecasts(pipeline);
        }
        let taken_at = TakenAt::here();
        let (kept, watch) = (BoundedEvents::new(KEPT), EventWatch::default());
        let (kept_since_unix_ns, later) =
            (taken_at.clock.unix_ns(clock::boottime_ns()), broadcast::Sender::new(WAITING));
        let (shares, left_out) = (BTreeMap::new(), 0);
        let mut events = Self { forms, alerts, watch, kept_since_unix_ns, kept, later, shares, left_out };
        for event in events.watch.take(pipeline) {
            events.keep(&event, &taken_at);
        }
        events
    }

    /// Reports what has happened since the last call.
    pub(crate) fn tend(&mut self, session: &mut Session) {
        for event in self.watch.take(session.pipeline_mut()) {
            self.report(&event);
        }
        self.shares.retain(|_, share| share.since.elapsed() < EACH * AT_ONCE || share.left_out > 0);
    }

    /// Returns the number of events that were left out.
    pub(crate) const fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Returns the kept events that a viewer may see, and the later ones. Forecasts are made from the
    /// first request on, if nothing else has turned them on.
    pub(crate) fn subscribe(&mut self, viewer: Viewer, session: &mut Session) -> EventSubscription {
        EventWatch::prepare_forecasts(session.pipeline_mut());
        let mut kept: Vec<_> = self.kept.iter().filter(|event| event.seen_by(viewer).is_some()).cloned().collect();
        kept.sort_by_key(|event| event.unix_ns);
        EventSubscription {
            kept_since_unix_ns: self.kept_since_unix_ns,
            left_out: self.kept.left_out(owner_of(viewer)),
            kept,
            later: self.later.subscribe(),
        }
    }

    fn report(&mut self, event: &MachineEvent) {
        let taken_at = TakenAt::here();
        // The forecast of a GPU changes rarely.
        if !matches!(event, MachineEvent::Forecast(_)) {
            let share = self.shares.entry(owner(event)).or_insert_with(EventShare::full);
            let Some(left_out) = share.take(Instant::now()) else {
                self.left_out += 1;
                self.kept.note_left_out(owner(event));
                return;
            };
            if let MachineEvent::OutOfMemory(failure) = event {
                let line = (self.forms.line)(failure, &taken_at.clock);
                eprintln!("memwatch: {line}{}", and_more(left_out, failed(failure)));
            } else {
                share.left_out = left_out;
            }
        }
        let kept = self.keep(event, &taken_at);
        if let (true, Some(form)) = (self.alerts.is_wanted(), kept.seen_by(Viewer::Everything)) {
            self.alerts.raise(format!("{}\n", form.json).as_bytes());
        }
    }

    fn keep(&mut self, event: &MachineEvent, taken_at: &TakenAt) -> Arc<AgentEvent> {
        let kept = Arc::new(AgentEvent::of(event, self.forms, taken_at));
        self.kept.push(owner(event), kept.bytes(), Arc::clone(&kept));
        // Without a client that follows there is no receiver.
        let _ = self.later.send(Arc::clone(&kept));
        kept
    }
}

/// Returns the login user of an event: all subordinate ids of a user have one share.
fn owner(event: &MachineEvent) -> Option<u32> {
    event.owner().map(login_user)
}

/// Returns the viewer as the owner of events.
fn owner_of(viewer: Viewer) -> Viewer {
    match viewer {
        Viewer::Everything => viewer,
        Viewer::User(uid) => Viewer::User(login_user(uid)),
    }
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
    use crate::watch::events::fixture::{SERVER, TRAINER, forecast, out_of_memory};

    const FORMS: EventForms = EventForms {
        line: |_, _| String::new(),
        json: |event, _| format!("{} of {}\n", event.kind(), event.subjects().len()).into_bytes(),
    };

    #[test]
    fn agent_event_has_a_form_for_each_user_that_may_see_it() {
        let taken_at = TakenAt::at("node", 5);
        let seen = |event: &MachineEvent, viewer| {
            let event = AgentEvent::of(event, FORMS, &taken_at);
            assert!(event.bytes() > 0);
            event.seen_by(viewer).map(|form| (form.subjects.len(), form.json.clone()))
        };
        let form = |subjects, json: &str| Some((subjects, json.to_owned()));
        for (viewer, failure, change) in [
            (Viewer::Everything, form(1, "out_of_memory of 1"), form(2, "forecast of 2")),
            (Viewer::User(TRAINER), form(1, "out_of_memory of 1"), form(1, "forecast of 1")),
            (Viewer::User(SERVER), None, form(1, "forecast of 1")),
            (Viewer::User(5), None, None),
        ] {
            assert_eq!((seen(&out_of_memory(), viewer), seen(&forecast(), viewer)), (failure, change), "{viewer:?}");
        }
        let failure = out_of_memory();
        assert_eq!(
            AgentEvent::of(&failure, FORMS, &taken_at).unix_ns,
            i64::try_from(failure.time_ns() + 5).expect("it fits")
        );
    }

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
