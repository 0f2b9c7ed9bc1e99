//! A watch of some length, or a recording, for reports on what happened in it: its processes, what is looked for, and its progress.

use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::snapshot::Snapshot;
use tokio::time::Instant;

use crate::exit::{Exit, Failure};
use crate::frameworks::pytorch::TensorRequest;
use crate::options::{Common, Looks};
use crate::watch::one_shot::TakenAt;
use crate::watch::past::{Needs, Recording};
use crate::watch::recorded;
use crate::watch::session::Session;
use crate::watch::signals::Signals;
use crate::watch::subject::{Filter, filtered, found_any, session_options};

/// What was seen.
pub(crate) struct Observation<T> {
    /// As it is at the end, of those who were chosen.
    pub(crate) snapshot: Snapshot,
    /// What the pipeline was asked for.
    pub(crate) reported: T,
    /// Where, and in whose time.
    pub(crate) taken_at: TakenAt,
    /// Everybody was to be seen.
    pub(crate) everybody: bool,
    /// Whether those who were meant were there.
    pub(crate) exit: Result<Exit, Failure>,
}

/// Has a pipeline look for something, shows it all that happens, and asks it.
///
/// # Errors
/// When the processes cannot be watched, the recording cannot be read, or a GPU is not there.
pub(crate) async fn look<T>(
    looks: &Looks,
    (request, prepare): (TensorRequest, impl FnOnce(&mut Pipeline)),
    report: impl FnOnce(&Pipeline, &Snapshot) -> T,
    common: &Common,
) -> Result<Observation<T>, Failure> {
    let targets = &looks.targets;
    let filter = Filter::new(targets);
    let past = Recording::named(&looks.past, Needs::Calls, common).await?;
    let (snapshot, reported, taken_at) = if let Some(recording) = past {
        let replay = recorded::play_all(&recording, prepare)?;
        let snapshot = filtered(recorded::chosen(&replay, &recording.path, &targets.selected)?, &filter)?;
        let reported = report(&replay.pipeline, &snapshot);
        (snapshot, reported, TakenAt::of(&replay))
    } else {
        // PyTorch is traced in processes that were named: all others would pay for it, too.
        let request = if targets.selected.is_everybody() { TensorRequest::default() } else { request };
        let mut session = Session::open(&session_options(targets, request, common))?;
        prepare(session.pipeline_mut());
        let mut signals = Signals::listen()?;
        watch(&mut session, &mut signals, looks.duration).await;
        let snapshot = filtered(session.snapshot(), &filter)?;
        let reported = report(session.pipeline(), &snapshot);
        (snapshot, reported, TakenAt::here())
    };
    let exit = found_any(&snapshot, &filter);
    let everybody = targets.selected.is_everybody() && targets.gpus.is_empty();
    Ok(Observation { snapshot, reported, taken_at, everybody, exit })
}

/// Until the time is over, a signal comes or nobody is left; on a terminal with a line that shows how far it is.
async fn watch(session: &mut Session, signals: &mut Signals, length: Option<Duration>) {
    recorded::follow(session, signals, length.map(|length| Instant::now() + length)).await;
}
