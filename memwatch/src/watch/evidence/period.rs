//! Questions about a period: detectors see what a session traces, or what a recording has.

use std::path::PathBuf;
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::snapshot::Snapshot;
use tokio::time::Instant;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::TensorRequest;
use crate::options::{CommonArgs, Looks, Past, ReportSubject, Selected, TargetArgs};
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::streamed::Streamed;
use crate::watch::filter::GpuFilter;
use crate::watch::one_shot::{open_named, tgids_of, watch_until};
use crate::watch::recorded;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::replay::ReplayedRecording;
use crate::watch::session::Session;
use crate::watch::signals::TerminationSignals;
use crate::watch::subject::{Filter, filtered, found_any, session_options};
use crate::watch::taken_at::TakenAt;

/// A question about a period.
pub(crate) struct PeriodQuestion<'a> {
    subject: PeriodSubject<'a>,
    past: &'a Past,
    /// Names of the GPUs that processes are shown on; empty for all.
    gpus: &'a [String],
    needs: Needs,
    tensors: TensorRequest,
    duration: Option<Duration>,
    end: SessionEnd,
    replayed: ReplayedEvents,
    least_listed_bytes: Option<u64>,
    needs_contexts: bool,
}

/// Whom a question is about.
enum PeriodSubject<'a> {
    /// These processes, of which a session traces nothing else.
    Processes(&'a Selected),
    /// These processes and GPUs, or the whole machine. A session may start before the processes do.
    Targets(&'a TargetArgs),
}

/// What a session waits for when its time is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SessionEnd {
    /// Nothing.
    Deadline,
    /// A last reading of the names of live objects.
    Names,
    /// A running reading of the memory from before the attach.
    EarlierMemory,
}

/// Events of a recording that the detectors see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReplayedEvents {
    /// Those that the state at the end of the period needs: a replay may start at a later keyframe.
    ForState,
    /// All of the period.
    All,
}

/// Answer to a question about a period.
pub(crate) struct Observation<T> {
    /// Final snapshot of the selected processes.
    pub(crate) snapshot: Snapshot,
    /// Result of the detectors.
    pub(crate) reported: T,
    /// Source and clock of the observation.
    pub(crate) taken_at: TakenAt,
    /// Whether all processes were selected.
    pub(crate) everybody: bool,
    /// Whether the selected processes were found.
    pub(crate) exit: Result<Exit, ExitFailure>,
    /// The recording and its path; `None` for a session.
    pub(crate) replay: Option<(PathBuf, ReplayedRecording)>,
}

impl<'a> PeriodQuestion<'a> {
    /// Asks about these processes, whose tensors are traced as `tensors` says.
    pub(crate) const fn about(subject: &'a ReportSubject, needs: Needs, tensors: TensorRequest) -> Self {
        let ReportSubject { selected, past } = subject;
        Self {
            subject: PeriodSubject::Processes(selected),
            past,
            gpus: &[],
            needs,
            tensors,
            duration: None,
            end: SessionEnd::Deadline,
            replayed: ReplayedEvents::ForState,
            least_listed_bytes: None,
            needs_contexts: false,
        }
    }

    /// Asks about processes and GPUs, or about the whole machine. Tensors are traced as `tensors`
    /// says, and only in selected processes, since tracing would cost all others as well.
    pub(crate) fn about_targets(looks: &'a Looks, tensors: TensorRequest) -> Self {
        let Looks { targets, past, duration } = looks;
        Self {
            subject: PeriodSubject::Targets(targets),
            past,
            gpus: &[],
            needs: Needs::Calls,
            tensors: if targets.selected.is_everybody() { TensorRequest::default() } else { tensors },
            duration: *duration,
            end: SessionEnd::Deadline,
            replayed: ReplayedEvents::All,
            least_listed_bytes: None,
            needs_contexts: false,
        }
    }

    /// Limits a session to this time; without a limit it lasts until a signal or until no process is
    /// left.
    pub(crate) const fn during(self, duration: Option<Duration>) -> Self {
        Self { duration, ..self }
    }

    /// Shows only what is on these GPUs; all if none is named.
    pub(crate) const fn on(self, gpus: &'a [String]) -> Self {
        Self { gpus, ..self }
    }

    /// Has the detectors see all events of a recorded period, for reports that derive from events and
    /// not from the state at one moment.
    pub(crate) const fn of_all_events(self) -> Self {
        Self { replayed: ReplayedEvents::All, ..self }
    }

    /// Reads the names of live objects once more at the end of a session.
    pub(crate) const fn with_names(self) -> Self {
        Self { end: SessionEnd::Names, ..self }
    }

    /// Waits at the end of a session for a running reading of the memory from before the attach.
    pub(crate) const fn with_earlier_memory(self) -> Self {
        Self { end: SessionEnd::EarlierMemory, ..self }
    }

    /// Lists blocks of at least this size in bytes one by one.
    pub(crate) const fn listing_from(self, least_bytes: u64) -> Self {
        Self { least_listed_bytes: Some(least_bytes), ..self }
    }

    /// Makes the size of contexts known before the first event of a recording. It takes a second
    /// replay.
    pub(crate) const fn with_contexts(self, needs_contexts: bool) -> Self {
        Self { needs_contexts, ..self }
    }

    /// Enables detectors, feeds the pipeline from a session or from the recording, and queries the
    /// detectors.
    ///
    /// # Errors
    /// The processes cannot be watched, the recording cannot be read, or a GPU does not exist.
    pub(crate) async fn observe<T>(
        self,
        prepare: impl FnOnce(&mut Pipeline),
        report: impl FnOnce(&Pipeline, &Snapshot, &TakenAt) -> T,
        common: &CommonArgs,
    ) -> Result<Observation<T>, ExitFailure> {
        match RecordedPeriod::named(self.past, self.needs, common).await? {
            Some(recording) => self.replay(recording, prepare, report),
            None => match self.open(common).await {
                Ok(session) => self.watch(session, prepare, report).await,
                Err(refused) => self.replay(self.streamed(refused, common).await?, prepare, report),
            },
        }
    }

    fn replay<T>(
        &self,
        recording: RecordedPeriod,
        prepare: impl FnOnce(&mut Pipeline),
        report: impl FnOnce(&Pipeline, &Snapshot, &TakenAt) -> T,
    ) -> Result<Observation<T>, ExitFailure> {
        let contexts = self.needs_contexts.then(|| recorded::contexts(&recording)).transpose()?;
        let prepare = |pipeline: &mut Pipeline| {
            if let Some(contexts) = contexts {
                pipeline.state.know_contexts(contexts);
            }
            if let Some(least_bytes) = self.least_listed_bytes {
                pipeline.state.list_tensors_from(least_bytes);
            }
            prepare(pipeline);
        };
        let replay = match self.replayed {
            ReplayedEvents::ForState => recorded::play(&recording, prepare)?,
            ReplayedEvents::All => recorded::play_all(&recording, prepare)?,
        };
        let snapshot = recorded::chosen(&replay, &recording, self.selected())?;
        let (snapshot, exit) = self.filtered(snapshot)?;
        let taken_at = TakenAt::of(&replay);
        let reported = report(&replay.pipeline, &snapshot, &taken_at);
        let is_of_now = recording.is_of_now();
        let (everybody, replay) = (self.are_all(), (!is_of_now).then_some((recording.path, replay)));
        Ok(Observation { snapshot, reported, taken_at, everybody, exit, replay })
    }

    async fn open(&self, common: &CommonArgs) -> Result<Session, ExitFailure> {
        match self.subject {
            PeriodSubject::Processes(selected) => open_named(selected, self.tensors, common).await,
            PeriodSubject::Targets(targets) => Session::open(&session_options(targets, self.tensors, common)),
        }
    }

    /// Has the agent watch the processes instead.
    async fn streamed(&self, refused: ExitFailure, common: &CommonArgs) -> Result<RecordedPeriod, ExitFailure> {
        let tgids = if self.are_all() { Vec::new() } else { tgids_of(self.selected(), common).await? };
        let (tensors, duration) = (self.tensors, self.duration);
        Streamed { tgids: &tgids, tensors, duration }.instead(refused, common).await
    }

    async fn watch<T>(
        &self,
        mut session: Session,
        prepare: impl FnOnce(&mut Pipeline),
        report: impl FnOnce(&Pipeline, &Snapshot, &TakenAt) -> T,
    ) -> Result<Observation<T>, ExitFailure> {
        if let Some(least_bytes) = self.least_listed_bytes {
            session.list_tensors_from(least_bytes);
        }
        prepare(session.pipeline_mut());
        let mut signals = TerminationSignals::listen()?;
        let snapshot = self.end_of(&mut session, &mut signals).await;
        let (snapshot, exit) = self.filtered(snapshot)?;
        let taken_at = TakenAt::here();
        let reported = report(session.pipeline(), &snapshot, &taken_at);
        let everybody = self.are_all();
        Ok(Observation { snapshot, reported, taken_at, everybody, exit, replay: None })
    }

    /// Runs the session until the time is over, a signal arrives or no process is left; returns its
    /// final state. Shows a progress line on a terminal.
    async fn end_of(&self, session: &mut Session, signals: &mut TerminationSignals) -> Snapshot {
        let deadline = self.duration.map(|duration| Instant::now() + duration);
        match (self.end, deadline) {
            (SessionEnd::EarlierMemory, Some(deadline)) => {
                return watch_until(session, signals, deadline, None, &mut false).await.0;
            }
            (SessionEnd::Names, _) => {
                recorded::follow(session, signals, deadline).await;
                session.read_holdings(signals).await;
            }
            (SessionEnd::Deadline | SessionEnd::EarlierMemory, _) => {
                recorded::follow(session, signals, deadline).await;
            }
        }
        session.snapshot()
    }

    const fn selected(&self) -> &'a Selected {
        match self.subject {
            PeriodSubject::Processes(selected) => selected,
            PeriodSubject::Targets(targets) => &targets.selected,
        }
    }

    fn are_all(&self) -> bool {
        match self.subject {
            PeriodSubject::Processes(selected) => selected.is_everybody(),
            PeriodSubject::Targets(targets) => targets.are_all(),
        }
    }

    /// Reduces the snapshot to the named targets, and says whether any was found. A session and a
    /// recording that were opened for processes contain no others.
    fn filtered(&self, mut snapshot: Snapshot) -> Result<(Snapshot, Result<Exit, ExitFailure>), ExitFailure> {
        match self.subject {
            PeriodSubject::Processes(_) => {
                let shown = GpuFilter::new(self.gpus).apply(&mut snapshot);
                shown.map_err(|unknown| ExitFailure::new(Exit::NoTarget, unknown))?;
                Ok((snapshot, Ok(Exit::Ok)))
            }
            PeriodSubject::Targets(targets) => {
                let filter = Filter::new(targets);
                let snapshot = filtered(snapshot, &filter)?;
                let exit = found_any(&snapshot, &filter);
                Ok((snapshot, exit))
            }
        }
    }
}
