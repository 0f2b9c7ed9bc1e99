//! `memwatch stats`, `where` and `snapshot`: one report on the tensors of PyTorch processes, from a
//! separate session.

use std::io;
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::input::Input;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;
use tokio::time::Instant;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::TensorRequest;
use crate::options::{CommonArgs, Selected, TargetArgs};
use crate::sources::procfs::ProcReader;
use crate::watch::evidence::Evidence;
use crate::watch::progress::Progress;
use crate::watch::recorded;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::selection::Selection;
use crate::watch::session::Session;
use crate::watch::session::holdings::LONGEST_READING;
use crate::watch::signals::TerminationSignals;
use crate::watch::subject::{Filter, filtered, found_any, session_options};
use crate::watch::taken_at::TakenAt;

/// Time limit for finding the libraries of a process and for reading its allocators' own numbers.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// Interval for checking whether the report has all its data or no process is left.
const LOOK: Duration = Duration::from_millis(50);

/// Returns the state at the end of a recording.
pub(crate) fn recorded_snapshot(
    recording: &RecordedPeriod,
    selected: &Selected,
) -> Result<(Snapshot, TakenAt), ExitFailure> {
    let replay = recorded::play(recording, |_| {})?;
    let snapshot = recorded::chosen(&replay, recording, selected)?;
    Ok((snapshot, TakenAt::of(&replay)))
}

/// Opens a session for these processes only. Processes selected by owner are looked up first.
///
/// # Errors
/// The processes cannot be watched, or none exists.
pub(crate) async fn open_named(
    selected: &Selected,
    tensors: TensorRequest,
    common: &CommonArgs,
) -> Result<Session, ExitFailure> {
    open(&tgids_of(selected, common).await?, tensors, common)
}

/// Returns the ids of the selected processes that are running.
///
/// # Errors
/// The machine cannot be watched, or no such process exists.
pub(crate) async fn tgids_of(selected: &Selected, common: &CommonArgs) -> Result<Vec<Tgid>, ExitFailure> {
    if selected.choice.is_empty() {
        return Ok(selected.tgids.clone());
    }
    let targets = TargetArgs::of(selected);
    let filter = Filter::new(&targets);
    let mut source =
        Evidence::present(&session_options(&targets, TensorRequest::default(), common), &targets, common).await?;
    let seen = source.settled(Instant::now() + TIMEOUT).await?;
    let mut snapshot = filtered(seen.snapshot, &filter)?;
    snapshot.processes.retain(|process| process.ended_ns.is_none() && process.tgid.0 != std::process::id());
    found_any(&snapshot, &filter)?;
    Ok(snapshot.processes.iter().map(|process| process.tgid).collect())
}

/// Returns process ids for commands that only read. The ids come from `/proc`, except that
/// containers and pods need the names from container runtimes.
///
/// # Errors
/// As [`tgids_of`].
pub(crate) async fn tgids_to_read(selected: &Selected, common: &CommonArgs) -> Result<Vec<Tgid>, ExitFailure> {
    let Selected { tgids, choice } = selected;
    if choice.is_empty() || !choice.containers.is_empty() || !choice.pods.is_empty() {
        return tgids_of(selected, common).await;
    }
    let mut processes = ProcReader::new("/proc");
    let mut pipeline = Pipeline::new(false);
    let others = processes.all().filter(|tgid| *tgid != std::process::id());
    for facts in others.filter_map(|tgid| processes.facts(tgid, false)) {
        pipeline.step(Input::Process(facts));
    }
    let (mut snapshot, selection) = (pipeline.snapshot(), Selection::new(choice, tgids));
    selection.apply(&mut snapshot);
    if snapshot.processes.is_empty() {
        return Err(ExitFailure::new(Exit::NoTarget, format_args!("there is no process of {}", selection.describe())));
    }
    Ok(snapshot.processes.iter().map(|process| process.tgid).collect())
}

/// Opens a session for these processes only.
///
/// # Errors
/// The processes cannot be watched.
pub(crate) fn open(tgids: &[Tgid], tensors: TensorRequest, common: &CommonArgs) -> Result<Session, ExitFailure> {
    let targets = TargetArgs::of(&Selected::of(tgids));
    Session::open(&session_options(&targets, tensors, common))
}

/// Why [`watch_until`] returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enough {
    /// The report has all its data.
    Known,
    /// The time is over.
    Time,
    /// A signal arrived, or no process is left.
    Over,
}

/// Runs the session until enough data is collected, the time is over, a signal arrives, or no
/// process is left. Returns the final state. Prints once that PyTorch is traced.
pub(crate) async fn watch_until(
    session: &mut Session,
    signals: &mut TerminationSignals,
    deadline: Instant,
    is_enough: Option<fn(&Snapshot) -> bool>,
    is_reported: &mut bool,
) -> (Snapshot, Enough) {
    let mut look = tokio::time::interval(LOOK);
    let mut progress = Progress::new(Some(deadline.saturating_duration_since(Instant::now())));
    loop {
        tokio::select! {
            () = session.advance() => {}
            _ = look.tick() => {
                recorded::report_of_tensors(session, is_reported);
                progress.show(session);
                let why = if !session.is_anybody_left() {
                    Enough::Over
                } else if is_over(session, deadline) {
                    Enough::Time
                } else if is_enough.is_some_and(|is_enough| is_enough(&session.snapshot())) {
                    Enough::Known
                } else {
                    continue;
                };
                return (session.snapshot(), why);
            }
            _ = signals.any() => return (session.snapshot(), Enough::Over),
        }
    }
}

/// Whether the time is over. A running reading of earlier memory extends it by up to
/// [`LONGEST_READING`].
fn is_over(session: &Session, deadline: Instant) -> bool {
    let now = Instant::now();
    now >= deadline && (!session.is_reading_holdings() || now >= deadline + LONGEST_READING)
}

pub(crate) fn finish(written: io::Result<()>, snapshot: &Snapshot, selected: &Selected) -> Result<Exit, ExitFailure> {
    match written {
        // The reader of the pipe has exited.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::Ok),
        written => written.map_err(|error| anyhow::Error::from(error).context("the report cannot be written"))?,
    }
    if snapshot.processes.iter().any(|process| process.tensors.is_some()) {
        return Ok(Exit::Ok);
    }
    Err(without_torch(selected))
}

pub(crate) fn without_torch(selected: &Selected) -> ExitFailure {
    let named = Selection::new(&selected.choice, &selected.tgids).describe();
    let whose = if named.is_empty() { "any process".to_owned() } else { named };
    ExitFailure::new(Exit::NoTarget, format_args!("no PyTorch allocator found in {whose}")).advise(
        "PyTorch is traced once the process has loaded libc10_cuda.so. For its driver allocations: memwatch ps PID",
    )
}
