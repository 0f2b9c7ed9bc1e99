//! How the one task that owns the watch gives snapshots to everybody else.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use memwatch_core::Pipeline;
use memwatch_core::features::checks::{self, ContradictionCounts, ContradictionKind};
use memwatch_core::snapshot::{ProcessView, Snapshot, Viewer};
use memwatch_core::words::Tgid;
use tokio::sync::{mpsc, oneshot};

use super::history::HistoryState;
use super::metrics::own_use::OwnUse;
use super::metrics::{Facts, PushState};
use super::trail::Trail;
use crate::client::protocol::{HistoryFiles, OutlookMessage};
use crate::render::tui::WARNED_BYTES_PER_MINUTE;
use crate::sources::clock;
use crate::watch::session::Session;

/// A snapshot younger than this answers the next question, too: any number of readers makes no more work than one.
pub(crate) const FRESH: Duration = Duration::from_millis(100);

/// How old an outlook may be: what it is made of are windows of seconds.
const OUTLOOK: Duration = Duration::from_secs(1);

/// So many questions wait for the loop before the next one has to wait to be asked.
const WAITING: usize = 64;

/// Everything known at one moment, and what turns its times into dates.
#[derive(Debug)]
pub(crate) struct Published {
    /// What the watch knows, of everybody.
    pub(crate) snapshot: Snapshot,
    /// What to add to its `CLOCK_BOOTTIME` values to get nanoseconds since 1970.
    pub(crate) boottime_to_unix_ns: i128,
    /// The agent itself.
    pub(crate) agent: AgentState,
}

impl Published {
    /// What metrics are made of, with the driver's version and what the agent takes by now.
    pub(crate) fn facts<'a>(&'a self, driver_version: &'a str) -> Facts<'a> {
        Facts {
            snapshot: &self.snapshot,
            boottime_to_unix_ns: self.boottime_to_unix_ns,
            collect_ns: Some(self.agent.last_snapshot_ns),
            driver_version,
            history: self.agent.history,
            survives: Some(self.agent.survives),
            pushes: self.agent.pushes,
            contradictions: Some(self.agent.contradictions),
            own: OwnUse::read(),
        }
    }
}

/// What the agent says of itself. What is attached where stands in the snapshot's coverage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AgentState {
    /// When it began to watch: `CLOCK_BOOTTIME`, nanoseconds.
    pub(crate) started_ns: u64,
    /// Clients at its socket now.
    pub(crate) clients: u64,
    /// Clients that it has answered since its start, `clients` included.
    pub(crate) clients_total: u64,
    /// Clients that it has turned away: too many, of another version, or not speaking the protocol.
    pub(crate) clients_refused_total: u64,
    /// Clients that it has dropped because they did not read or ask in time.
    pub(crate) clients_dropped_total: u64,
    /// Its history, if it keeps one.
    pub(crate) history: Option<HistoryState>,
    /// Its watch goes on when it is killed.
    pub(crate) survives: bool,
    /// What it pushes by OTLP, if it does.
    pub(crate) pushes: Option<PushState>,
    /// Snapshots made since its start.
    pub(crate) snapshots_total: u64,
    /// How long the last snapshot took to make, in nanoseconds.
    pub(crate) last_snapshot_ns: u64,
    /// How often its reports have contradicted themselves, by kind, in the order of [`ContradictionKind::ALL`].
    pub(crate) contradictions: [u64; ContradictionKind::ALL.len()],
}

/// Where snapshots come from; may be cloned freely.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotSource {
    requests: mpsc::Sender<Question>,
}

/// What the task that owns the watch is asked.
#[derive(Debug)]
pub(crate) enum Question {
    /// A snapshot.
    Latest(oneshot::Sender<Arc<Published>>),
    /// Where its history is, if it keeps one.
    History(oneshot::Sender<Option<HistoryFiles>>),
    /// The peaks of a process begin again, if this viewer gets to see it; whether they did.
    ResetPeaks(Tgid, Viewer, oneshot::Sender<bool>),
    /// What grows, and whether memory runs out.
    Outlook(oneshot::Sender<Arc<OutlookMessage>>),
    /// The memory of GPUs until now.
    Trail(oneshot::Sender<Trail>),
}

/// The questions, for the task that owns the watch.
pub(crate) type Requests = mpsc::Receiver<Question>;

impl SnapshotSource {
    /// A source, and where its questions arrive.
    pub(crate) fn new() -> (Self, Requests) {
        let (requests, receiver) = mpsc::channel(WAITING);
        (Self { requests }, receiver)
    }

    /// A snapshot no older than 100 ms; `None` when the agent is about to end.
    pub(crate) async fn latest(&self) -> Option<Arc<Published>> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Question::Latest(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Where the agent's history is, if it keeps one; `None` without when the agent is about to end.
    pub(crate) async fn history(&self) -> Option<Option<HistoryFiles>> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Question::History(reply)).await.ok()?;
        answer.await.ok()
    }

    /// What grows, and whether memory runs out, of a second ago at most; `None` when the agent is about to end.
    pub(crate) async fn outlook(&self) -> Option<Arc<OutlookMessage>> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Question::Outlook(reply)).await.ok()?;
        answer.await.ok()
    }

    /// The memory of GPUs since the agent began; `None` when it is about to end.
    pub(crate) async fn trail(&self) -> Option<Trail> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Question::Trail(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Resets a process's peaks; false where the viewer does not get to see such a process, `None` when the agent is about to end.
    pub(crate) async fn reset_peaks(&self, tgid: Tgid, viewer: Viewer) -> Option<bool> {
        let (reply, answer) = oneshot::channel();
        self.requests.send(Question::ResetPeaks(tgid, viewer, reply)).await.ok()?;
        answer.await.ok()
    }
}

/// Makes snapshots, and keeps the last one for as long as it is fresh.
#[derive(Debug, Default)]
pub(crate) struct Publisher {
    last: Option<(Instant, Arc<Published>)>,
    outlook: Option<(Instant, Arc<OutlookMessage>)>,
    trail: Trail,
    /// What the trail goes on from, once it was read.
    earlier: Option<Receiver<Trail>>,
    snapshots_total: u64,
    contradictions: ContradictionCounts,
}

impl Publisher {
    /// With a trail that goes on from another, which comes some time.
    pub(crate) fn after(earlier: Option<Receiver<Trail>>) -> Self {
        Self { earlier, ..Self::default() }
    }

    /// What a question is answered with.
    pub(crate) fn fresh(&mut self, session: &mut Session, agent: AgentState) -> Arc<Published> {
        match &self.last {
            Some((made, published)) if made.elapsed() < FRESH => Arc::clone(published),
            _ => self.renew(session, agent),
        }
    }

    /// What grows, and whether memory runs out: looked for once a second, however many ask.
    ///
    /// Of a watch that keeps no history it is looked for from the first question on: it takes 14 KB of each process.
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

    /// Resets a process's peaks; false where this viewer sees no such process.
    ///
    /// A snapshot that is still fresh goes on to show the old ones: resets make no more work than questions.
    pub(crate) fn reset_peaks(session: &mut Session, now: &Published, (tgid, viewer): (Tgid, Viewer)) -> bool {
        let is_meant = |process: &&ProcessView| process.tgid == tgid && process.ended_ns.is_none();
        let is_shown = now.snapshot.processes.iter().find(is_meant).is_some_and(|process| process.is_shown_to(viewer));
        if is_shown {
            session.reset_peaks(Some(tgid));
        }
        is_shown
    }

    /// The memory of GPUs until now.
    pub(crate) fn trail(&self) -> Trail {
        self.trail.clone()
    }

    /// Keeps no snapshot that answers nobody any more, and notes what GPUs have.
    pub(crate) fn tend(&mut self, pipeline: &Pipeline) {
        if let Some(earlier) = self.earlier.as_ref().and_then(|earlier| earlier.try_recv().ok()) {
            self.trail.follow(earlier);
            self.earlier = None;
        }
        self.trail.note_used(clock::boottime_ns(), pipeline.used());
        self.last.take_if(|(made, _)| made.elapsed() >= FRESH);
        self.outlook.take_if(|(made, _)| made.elapsed() >= OUTLOOK);
    }

    /// Makes a snapshot now.
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
