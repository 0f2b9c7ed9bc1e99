//! Runs a session of limited length, or replays a recording, for reports about a period. Handles
//! its processes, the detectors and the progress line.

use std::path::PathBuf;
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::snapshot::Snapshot;
use tokio::time::Instant;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::TensorRequest;
use crate::options::{CommonArgs, Looks};
use crate::watch::one_shot::TakenAt;
use crate::watch::past::{Needs, RecordedPeriod};
use crate::watch::recorded;
use crate::watch::replay::ReplayedRecording;
use crate::watch::session::Session;
use crate::watch::signals::TerminationSignals;
use crate::watch::subject::{Filter, filtered, found_any, session_options};

/// Result of a session or a recording.
pub(crate) struct Observation<T> {
    /// Final snapshot of the selected processes.
    pub(crate) snapshot: Snapshot,
    /// Result of the detector.
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

/// Enables a detector, feeds the pipeline from the session or the recording, and queries the
/// detector.
///
/// # Errors
/// The processes cannot be watched, the recording cannot be read, or a GPU does not exist.
pub(crate) async fn look<T>(
    looks: &Looks,
    (request, prepare): (TensorRequest, impl FnOnce(&mut Pipeline)),
    report: impl FnOnce(&Pipeline, &Snapshot) -> T,
    common: &CommonArgs,
) -> Result<Observation<T>, ExitFailure> {
    let targets = &looks.targets;
    let filter = Filter::new(targets);
    let past = RecordedPeriod::named(&looks.past, Needs::Calls, common).await?;
    let (snapshot, reported, taken_at, replay) = if let Some(recording) = past {
        let replay = recorded::play_all(&recording, prepare)?;
        let snapshot = filtered(recorded::chosen(&replay, &recording.path, &targets.selected)?, &filter)?;
        let reported = report(&replay.pipeline, &snapshot);
        let taken_at = TakenAt::of(&replay);
        (snapshot, reported, taken_at, Some((recording.path, replay)))
    } else {
        // PyTorch is traced only in selected processes, since tracing would cost all others as well.
        let request = if targets.selected.is_everybody() { TensorRequest::default() } else { request };
        let mut session = Session::open(&session_options(targets, request, common))?;
        prepare(session.pipeline_mut());
        let mut signals = TerminationSignals::listen()?;
        watch(&mut session, &mut signals, looks.duration).await;
        let snapshot = filtered(session.snapshot(), &filter)?;
        let reported = report(session.pipeline(), &snapshot);
        (snapshot, reported, TakenAt::here(), None)
    };
    let exit = found_any(&snapshot, &filter);
    let everybody = targets.are_all();
    Ok(Observation { snapshot, reported, taken_at, everybody, exit, replay })
}

/// Runs until the time is over, a signal arrives or no process is left. Shows a progress line on a
/// terminal.
async fn watch(session: &mut Session, signals: &mut TerminationSignals, length: Option<Duration>) {
    recorded::follow(session, signals, length.map(|length| Instant::now() + length)).await;
}
