//! Channel through which the task that owns the session provides snapshots to all other tasks.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use memwatch_core::Pipeline;
use memwatch_core::features::checks::{self, ContradictionCounts, ContradictionKind};
use memwatch_core::snapshot::{ProcessView, Snapshot, Viewer};
use memwatch_core::words::Tgid;
use tokio::sync::{mpsc, oneshot};

use super::events::EventSubscription;
use super::flight_recorder::FlightRecorderState;
use super::history::HistoryState;
use super::metrics::own_use::OwnUse;
use super::metrics::{MetricsInput, PushState};
use super::trail::Trail;
use crate::client::protocol::{HistoryFiles, OutlookMessage};
use crate::render::tui::WARNED_BYTES_PER_MINUTE;
use crate::sources::clock;
use crate::watch::session::Session;

/// A snapshot younger than this is reused, so that many readers cost no more than one.
pub(crate) const FRESH: Duration = Duration::from_millis(100);

/// Maximum age of an outlook, whose windows are seconds long.
const OUTLOOK: Duration = Duration::from_secs(1);

/// Capacity of the request queue.
const WAITING: usize = 64;

/// A snapshot, with the offset to wall-clock time and the state of the agent.
#[derive(Debug)]
pub(crate) struct Published {
    /// Snapshot of the machine.
    pub(crate) snapshot: Snapshot,
    /// Offset from its `CLOCK_BOOTTIME` values to nanoseconds since 1970.
    pub(crate) boottime_to_unix_ns: i128,
    /// State of the agent.
    pub(crate) agent: AgentState,
}

impl Published {
    /// Returns the input of the metrics: the snapshot, the driver's version and the agent's
    /// resource use.
    pub(crate) fn facts<'a>(&'a self, driver_version: &'a str) -> MetricsInput<'a> {
        MetricsInput {
            snapshot: &self.snapshot,
            boottime_to_unix_ns: self.boottime_to_unix_ns,
            collect_ns: Some(self.agent.last_snapshot_ns),
            driver_version,
            history: self.agent.history,
            survives: Some(self.agent.survives),
            events_left_out: Some(self.agent.events_left_out),
            flight_recorder: self.agent.flight_recorder,
            pushes: self.agent.pushes,
            contradictions: Some(self.agent.contradictions),
            own: OwnUse::read(),
        }
    }
}

/// State of the agent. Attached probes are in the snapshot's coverage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentState {
    /// Start of the session: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) started_ns: u64,
    /// Number of clients connected to the socket.
    pub(crate) clients: u64,
    /// Number of clients admitted since the start, including the connected ones.
    pub(crate) clients_total: u64,
    /// Number of clients refused: too many clients, another version, or a protocol error.
    pub(crate) clients_refused_total: u64,
    /// Number of clients dropped because they did not read or send in time.
    pub(crate) clients_dropped_total: u64,
    /// State of the history, if enabled.
    pub(crate) history: Option<HistoryState>,
    /// Whether the session can be resumed after the agent is killed.
    pub(crate) survives: bool,
    /// Number of events that exceeded their user's share.
    pub(crate) events_left_out: u64,
    /// Counters of the flight recorder, if enabled.
    pub(crate) flight_recorder: Option<FlightRecorderState>,
    /// State of the OTLP push, if enabled.
    pub(crate) pushes: Option<PushState>,
    /// Number of snapshots made since the start.
    pub(crate) snapshots_total: u64,
    /// Time it took to make the last snapshot, nanoseconds.
    pub(crate) last_snapshot_ns: u64,
    /// Number of contradictions found in reports, by kind, in the order of
    /// [`ContradictionKind::ALL`].
    pub(crate) contradictions: [u64; ContradictionKind::ALL.len()],
}

/// Handle to request snapshots; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotSource {
    requests: mpsc::Sender<PublisherRequest>,
}

/// Request to the task that owns the session.
#[derive(Debug)]
pub(crate) enum PublisherRequest {
    /// Request a snapshot.
    Latest(oneshot::Sender<Arc<Published>>),
    /// Request the paths of the history, if enabled.
    History(oneshot::Sender<Option<HistoryFiles>>),
    /// Reset the peaks of a process, if this viewer may see it. The answer is whether they were
    /// reset.
    ResetPeaks(Tgid, Viewer, oneshot::Sender<bool>),
    /// Request growth and forecast.
    Outlook(oneshot::Sender<Arc<OutlookMessage>>),
    /// Request the kept events that this viewer may see, and all that follow.
    Events(Viewer, oneshot::Sender<EventSubscription>),
    /// Request the GPU memory over time.
    Trail(oneshot::Sender<Trail>),
}

/// Receiver of requests, for the task that owns the session.
pub(crate) type PublisherRequests = mpsc::Receiver<PublisherRequest>;

impl SnapshotSource {
    /// Creates a source and the receiver of its requests.
    pub(crate) fn new() -> (Self, PublisherRequests) {
        let (requests, receiver) = mpsc::channel(WAITING);
        (Self { requests }, receiver)
    }

    /// Returns a snapshot no older than 100 ms; `None` while the agent stops.
    pub(crate) async fn latest(&self) -> Option<Arc<Published>> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(PublisherRequest::Latest(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Returns the paths of the history, or `Some(None)` if there is no history; `None` while the
    /// agent stops.
    pub(crate) async fn history(&self) -> Option<Option<HistoryFiles>> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(PublisherRequest::History(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Returns growth and forecast, at most a second old; `None` while the agent stops.
    pub(crate) async fn outlook(&self) -> Option<Arc<OutlookMessage>> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(PublisherRequest::Outlook(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Returns the kept events that this viewer may see, and all that follow; `None` while the agent
    /// stops.
    pub(crate) async fn events(&self, viewer: Viewer) -> Option<EventSubscription> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(PublisherRequest::Events(viewer, reply)).await.ok()?;
        answer.await.ok()
    }

    /// Returns the GPU memory since the agent's start; `None` while the agent stops.
    pub(crate) async fn trail(&self) -> Option<Trail> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(PublisherRequest::Trail(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Resets a process's peaks. Returns false if the viewer may see no such process, and `None`
    /// while the agent stops.
    pub(crate) async fn reset_peaks(&self, tgid: Tgid, viewer: Viewer) -> Option<bool> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(PublisherRequest::ResetPeaks(tgid, viewer, reply)).await.ok()?;
        answer.await.ok()
    }
}

/// Makes snapshots, and caches the last one while it is fresh.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    last: Option<(Instant, Arc<Published>)>,
    outlook: Option<(Instant, Arc<OutlookMessage>)>,
    trail: Trail,
    /// Receiver of the GPU memory of the previous history, until it was received.
    earlier: Option<Receiver<Trail>>,
    snapshots_total: u64,
    contradictions: ContradictionCounts,
}

impl Publisher {
    /// Creates a publisher with a receiver of the previous history's GPU memory.
    pub(crate) fn after(earlier: Option<Receiver<Trail>>) -> Self {
        Self { earlier, ..Self::default() }
    }

    /// Returns a fresh snapshot, and makes one if necessary.
    pub(crate) fn fresh(&mut self, session: &mut Session, agent: AgentState) -> Arc<Published> {
        match &self.last {
            Some((made, published)) if made.elapsed() < FRESH => Arc::clone(published),
            _ => self.renew(session, agent),
        }
    }

    /// Returns growth and forecast, computed at most once a second.
    ///
    /// Without a history the detectors run only from the first request on, since they need 14 KB
    /// per process.
    pub(crate) fn outlook(&mut self, session: &mut Session) -> Arc<OutlookMessage> {
        if let Some((made, outlook)) = &self.outlook
            && made.elapsed() < OUTLOOK
        {
            return Arc::clone(outlook);
        }
        let pipeline = session.pipeline_mut();
        pipeline.watch_forecasts(&[]);
        let leaks = pipeline.leaks(WARNED_BYTES_PER_MINUTE);
        let found: Vec<_> = leaks.iter().flat_map(checks::of_leaks).collect();
        self.contradictions.note(&checks::OF_LEAKS, &found);
        let outlook = Arc::new(OutlookMessage { leaks, forecasts: pipeline.forecasts() });
        self.outlook = Some((Instant::now(), Arc::clone(&outlook)));
        outlook
    }

    /// Resets a process's peaks. Returns false if this viewer may see no such process.
    ///
    /// A cached snapshot keeps the old peaks until it expires, so that resets cost no more than
    /// other requests.
    pub(crate) fn reset_peaks(session: &mut Session, now: &Published, (tgid, viewer): (Tgid, Viewer)) -> bool {
        let is_meant = |process: &&ProcessView| process.tgid == tgid && process.ended_ns.is_none();
        let is_shown = now.snapshot.processes.iter().find(is_meant).is_some_and(|process| process.is_shown_to(viewer));
        if is_shown {
            session.reset_peaks(Some(tgid));
        }
        is_shown
    }

    /// Returns the GPU memory over time.
    pub(crate) fn trail(&self) -> Trail {
        self.trail.clone()
    }

    /// Drops cached results that have expired, and samples the GPU memory.
    pub(crate) fn tend(&mut self, pipeline: &Pipeline) {
        if let Some(earlier) = self.earlier.as_ref().and_then(|earlier| earlier.try_recv().ok()) {
            self.trail.follow(earlier);
            self.earlier = None;
        }
        self.trail.note_used(clock::boottime_ns(), pipeline.state.used());
        self.last.take_if(|(made, _)| made.elapsed() >= FRESH);
        self.outlook.take_if(|(made, _)| made.elapsed() >= OUTLOOK);
    }

    /// Makes a new snapshot.
    fn renew(&mut self, session: &mut Session, agent: AgentState) -> Arc<Published> {
        let begin_ns = clock::boottime_ns();
        let snapshot = Snapshot { from_agent: true, ..session.snapshot() };
        self.trail.note(&snapshot);
        self.contradictions.note(&checks::OF_SNAPSHOT, &checks::of_snapshot(&snapshot));
        self.snapshots_total += 1;
        let agent = AgentState {
            started_ns: snapshot.attached_ns,
            snapshots_total: self.snapshots_total,
            last_snapshot_ns: clock::boottime_ns().saturating_sub(begin_ns),
            contradictions: self.contradictions.totals(),
            ..agent
        };
        let boottime_to_unix_ns = clock::boottime_to_unix_ns();
        let published = Arc::new(Published { snapshot, boottime_to_unix_ns, agent });
        self.last = Some((Instant::now(), Arc::clone(&published)));
        published
    }
}
