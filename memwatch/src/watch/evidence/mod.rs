//! Where the facts of a report come from: a session of this program, the agent of this machine, or a
//! recording. [`Evidence`] gives the state at one moment, [`period`] answers questions about a period.

pub(crate) mod agent;
pub(crate) mod past;
pub(crate) mod period;
pub(crate) mod streamed;

use std::time::Duration;

use memwatch_core::state::State;
use memwatch_core::state::tensors::TensorLog;
use memwatch_core::words::Tgid;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, timeout, timeout_at};

use crate::client::{NoAgent, TimedSnapshot};
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::TensorRequest;
use crate::options::{CommonArgs, Past, Selected, TargetArgs};
use crate::sources::clock;
use crate::watch::recorded;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::replay::ReplayedRecording;
use crate::watch::session::{Session, SessionOptions, has_reading};
use crate::watch::subject::session_options;
use crate::watch::taken_at::TakenAt;
use agent::{AgentWatch, agent_to_ask};
use past::Needs;

/// Time limit for the last snapshot after a session ends.
const LAST_WORD: Duration = Duration::from_secs(2);
/// Interval between two requests to an agent that has no device reading yet.
const AGENT_PAUSE: Duration = Duration::from_millis(100);

/// Source of snapshots.
pub(crate) enum Evidence {
    /// A session of this program.
    Live(Box<Session>),
    /// The agent.
    Agent(Box<AgentWatch>),
    /// The end of a recording.
    Recording(Box<RecordedEnd>),
}

/// State of the selected processes at the end of a recorded period.
pub(crate) struct RecordedEnd {
    seen: TimedSnapshot,
    replay: ReplayedRecording,
}

impl Evidence {
    /// Reads the recording or the history that the command line names. Without one, asks the agent or
    /// opens a session, as [`Self::present`] does.
    ///
    /// # Errors
    /// The recording cannot be read or has none of the processes, or those of [`Self::present`].
    pub(crate) async fn of_moment(past: &Past, targets: &TargetArgs, common: &CommonArgs) -> Result<Self, ExitFailure> {
        match RecordedPeriod::named(past, Needs::Calls, common).await? {
            Some(recording) => Self::recorded(&recording, &targets.selected),
            None => Self::present(&session_options(targets, TensorRequest::default(), common), targets, common).await,
        }
    }

    /// Reads the end of a recorded period.
    ///
    /// # Errors
    /// The recording cannot be read, or has none of the processes.
    fn recorded(recording: &RecordedPeriod, selected: &Selected) -> Result<Self, ExitFailure> {
        let replay = recorded::play(recording, |_| {})?;
        let snapshot = recorded::chosen(&replay, recording, selected)?;
        let seen = TimedSnapshot { snapshot, boottime_to_unix_ns: replay.boottime_to_unix_ns, contradictions: 0 };
        Ok(Self::Recording(Box::new(RecordedEnd { seen, replay })))
    }

    /// Connects to the agent if one runs and no option needs a session of this program; otherwise
    /// opens a session.
    ///
    /// # Errors
    /// Neither is possible, or a target does not exist or may not be seen by this user.
    pub(crate) async fn present(
        options: &SessionOptions,
        targets: &TargetArgs,
        common: &CommonArgs,
    ) -> Result<Self, ExitFailure> {
        let Some(path) = agent_to_ask(common) else { return Self::own(options) };
        match AgentWatch::meet(path, targets).await? {
            Ok(agent) => Ok(Self::Agent(Box::new(agent))),
            Err(NoAgent::Absent) if common.agent.is_none() => Self::own(options),
            Err(NoAgent::Absent) => {
                Err(ExitFailure::new(Exit::Error, format_args!("no agent listens on {}", path.display()))
                    .advise("Start one there: sudo memwatch agent --socket PATH; or remove --agent."))
            }
            Err(why) => {
                eprintln!("memwatch: the agent on {} cannot be used: {why}", path.display());
                Self::own(options)
            }
        }
    }

    /// Opens a session of this program, whether an agent runs or not.
    ///
    /// # Errors
    /// The session cannot be opened, or a target does not exist.
    pub(crate) fn own(options: &SessionOptions) -> Result<Self, ExitFailure> {
        Ok(Self::Live(Box::new(Session::open(options)?)))
    }

    /// Returns the next snapshot, at the next tick. Cancel safe: if the future is dropped while it
    /// waits, the next call continues.
    ///
    /// # Errors
    /// The agent is gone.
    pub(crate) async fn next(&mut self, rhythm: &mut Rhythm) -> Result<TimedSnapshot, ExitFailure> {
        match self {
            Self::Live(session) => loop {
                tokio::select! {
                    () = session.advance() => {}
                    () = rhythm.tick() => return Ok(seen(session)),
                }
            },
            Self::Agent(agent) => {
                rhythm.wait().await;
                let seen = agent.snapshot().await?;
                rhythm.done();
                Ok(seen)
            }
            Self::Recording(end) => {
                rhythm.tick().await;
                Ok(end.seen.clone())
            }
        }
    }

    /// Returns a current snapshot at the end of a session. If the agent does not answer, returns
    /// its previous snapshot.
    pub(crate) async fn last_word(&mut self) -> Option<TimedSnapshot> {
        match self {
            Self::Live(session) => Some(seen(session)),
            Self::Agent(agent) => {
                let fresh = timeout(LAST_WORD, agent.snapshot()).await;
                fresh.ok().and_then(Result::ok).or_else(|| agent.last.clone())
            }
            Self::Recording(end) => Some(end.seen.clone()),
        }
    }

    /// Returns the first snapshot that has container names and a device reading, or the snapshot at
    /// the deadline.
    ///
    /// # Errors
    /// The agent is gone.
    pub(crate) async fn settled(&mut self, deadline: Instant) -> Result<TimedSnapshot, ExitFailure> {
        loop {
            let (found, has_asked) = match self {
                Self::Live(session) => (seen(session), session.has_asked_for_names()),
                Self::Agent(agent) => (agent.snapshot().await?, true),
                Self::Recording(end) => return Ok(end.seen.clone()),
            };
            if (has_asked && has_reading(&found.snapshot)) || Instant::now() >= deadline {
                return Ok(found);
            }
            let wait = async {
                match self {
                    Self::Live(session) => session.advance().await,
                    Self::Agent(_) | Self::Recording(_) => sleep(AGENT_PAUSE).await,
                }
            };
            // At the deadline the state is checked once more.
            let _ = timeout_at(deadline, wait).await;
        }
    }

    /// Resets the peaks of this process or of all shown processes. With an agent, resets the
    /// agent's peaks.
    pub(crate) async fn reset_peaks(&mut self, tgid: Option<Tgid>) {
        match self {
            Self::Live(session) => session.reset_peaks(tgid),
            Self::Agent(agent) => {
                let shown = agent.family_tgids();
                for tgid in shown.into_iter().filter(|shown| tgid.is_none_or(|tgid| tgid == *shown)) {
                    if let Err(failure) = agent.reset_peaks(tgid).await {
                        log::warn!("peaks of process {}: {:#}", tgid.0, failure.error);
                        return;
                    }
                }
            }
            Self::Recording(_) => {}
        }
    }

    /// Returns new lines of the logs of modules and phases, which only a session has.
    pub(crate) fn take_tensor_logs(&mut self) -> Vec<TensorLog> {
        match self {
            Self::Live(session) => session.take_tensor_logs(),
            Self::Agent(_) | Self::Recording(_) => Vec::new(),
        }
    }

    /// Makes the source wait for an agent that goes away, instead of failing.
    pub(crate) fn persist(&mut self) {
        if let Self::Agent(agent) = self {
            agent.client.persist();
        }
    }

    /// Whether any target, or child of one, is alive. Always true in a machine-wide session, and never
    /// in a recording.
    pub(crate) fn is_anybody_left(&self) -> bool {
        match self {
            Self::Live(session) => session.is_anybody_left(),
            Self::Agent(agent) => agent.family.is_anybody_left(),
            Self::Recording(_) => false,
        }
    }

    /// Returns source and clock of the snapshots.
    pub(crate) fn taken_at(&self) -> TakenAt {
        match self {
            Self::Live(_) | Self::Agent(_) => TakenAt::here(),
            Self::Recording(end) => TakenAt::of(&end.replay),
        }
    }

    /// Whether this is the state of the past, which no later snapshot changes.
    pub(crate) const fn is_recorded(&self) -> bool {
        matches!(self, Self::Recording(_))
    }

    /// Returns the state at the end of a recording; `None` of the present.
    pub(crate) const fn recorded_state(&self) -> Option<&State> {
        match self {
            Self::Recording(end) => Some(&end.replay.pipeline.state),
            Self::Live(_) | Self::Agent(_) => None,
        }
    }

    /// Returns a sentence for each target that has not used a GPU yet.
    pub(crate) fn idle_targets(&self) -> Vec<String> {
        match self {
            Self::Live(session) => {
                let idle = session.targets_without_library().into_iter();
                idle.map(|tgid| format!("process {tgid} ({}) has not loaded libcuda.so", agent::comm(tgid))).collect()
            }
            Self::Agent(agent) => {
                let idle = agent.family.unseen();
                idle.map(|tgid| format!("process {tgid} ({}) has not used a GPU", agent::comm(tgid))).collect()
            }
            Self::Recording(_) => Vec::new(),
        }
    }
}

fn seen(session: &mut Session) -> TimedSnapshot {
    let (snapshot, boottime_to_unix_ns) = (session.snapshot(), clock::boottime_to_unix_ns());
    TimedSnapshot { snapshot, boottime_to_unix_ns, contradictions: 0 }
}

/// Interval of a view. A tick stays pending until its work is done.
pub(crate) struct Rhythm {
    ticks: Interval,
    has_come: bool,
}

impl Rhythm {
    /// Creates the interval. The first tick is due at once.
    pub(crate) fn new(every: Duration) -> Self {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { ticks, has_come: false }
    }

    async fn tick(&mut self) {
        self.ticks.tick().await;
    }

    async fn wait(&mut self) {
        if !self.has_come {
            self.ticks.tick().await;
            self.has_come = true;
        }
    }

    fn done(&mut self) {
        self.has_come = false;
    }
}
