//! Functions for commands on recordings: `record`, `report`, and reading with `--in`.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::path::Path;
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::recording::{Ending, FORMAT, FORMAT_WITH_KEYFRAMES, Front, Stopped};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::{Framework, GpuUuid, Tgid};
use tokio::time::{Instant, interval};

use crate::exit::{Exit, ExitFailure};
use crate::options::{RecorderArgs, Selected};
use crate::output_file;
use crate::render::format::duration;
use crate::render::output::host_name;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;
use crate::watch::history::HistoryPart;
use crate::watch::progress::Progress;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::recording::{AtLimit, Recorded, RecorderOptions};
use crate::watch::replay::{RecordedStates, ReplayRequest, ReplayedPart, ReplayedRecording};
use crate::watch::selection::Selection;
use crate::watch::session::Session;
use crate::watch::signals::{TerminationSignals, at};

/// Size in bytes from which a report lists blocks one by one.
pub(crate) const LARGE_BYTES: u64 = 100 << 20;
/// Sampling interval for growth and for peaks of several processes.
pub(crate) const RHYTHM: Duration = Duration::from_secs(1);

/// Returns recording options, including the file's header.
///
/// # Errors
/// The size limit is too small to keep the newest data, or the output cannot hold a recording.
pub(crate) fn recorder(path: &Path, args: &RecorderArgs, everybody: bool) -> Result<RecorderOptions, ExitFailure> {
    let keeps_newest = args.keeps_newest().map_err(|sentence| ExitFailure::new(Exit::Error, sentence))?;
    if output_file::is_terminal(path) {
        return Err(ExitFailure::binary_on_terminal());
    }
    if keeps_newest && output_file::is_stdout(path) {
        let why = "--keep newest rewrites its file, so it cannot write to standard output";
        return Err(ExitFailure::new(Exit::Error, why).advise("Name a file: -o FILE"));
    }
    let front = front(keeps_newest, everybody);
    let (path, force, limit_bytes) = (path.to_owned(), args.force, args.max_size);
    let at_limit = if keeps_newest { AtLimit::DropOldest } else { AtLimit::End };
    Ok(RecorderOptions { path, force, limit_bytes, at_limit, mode: None, waits: true, front })
}

/// Returns the header of a recording made by this program.
pub(crate) fn front(keeps_newest: bool, everybody: bool) -> Front {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    Front {
        format: if keeps_newest { FORMAT_WITH_KEYFRAMES } else { FORMAT },
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host_name(),
        everybody,
        command: words.collect(),
        ..Front::default()
    }
}

/// Runs the session until there is a reason to stop. Prints once that PyTorch is traced.
pub(crate) async fn follow(
    session: &mut Session,
    signals: &mut TerminationSignals,
    deadline: Option<Instant>,
) -> Stopped {
    let mut is_reported = false;
    let each = |session: &mut Session| {
        report_of_tensors(session, &mut is_reported);
        Ok::<(), Infallible>(())
    };
    match follow_each(session, signals, deadline, each).await {
        Ok(stopped) => stopped,
        Err(never) => match never {},
    }
}

/// Does the same as [`follow`], and calls `each` at every tick.
///
/// # Errors
/// The error of `each`, which ends the session.
pub(crate) async fn follow_each<E>(
    session: &mut Session,
    signals: &mut TerminationSignals,
    deadline: Option<Instant>,
    mut each: impl FnMut(&mut Session) -> Result<(), E>,
) -> Result<Stopped, E> {
    let mut rhythm = interval(RHYTHM);
    let mut progress = Progress::new(deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())));
    loop {
        tokio::select! {
            () = session.advance() => {}
            _ = rhythm.tick() => {
                session.tick();
                each(session)?;
                progress.show(session);
                if !session.is_anybody_left() {
                    return Ok(Stopped::NobodyLeft);
                }
                // The outcome of the recording is printed at the end.
                if session.has_recording_ended() {
                    return Ok(Stopped::Limit);
                }
            }
            () = at(deadline) => return Ok(Stopped::Asked),
            _ = signals.any() => return Ok(Stopped::Asked),
        }
    }
}

/// Prints once that frameworks are traced, unless a terminal shows the progress line.
pub(crate) fn report_of_tensors(session: &Session, is_reported: &mut bool) {
    if *is_reported {
        return;
    }
    let seen = session.seen_frameworks();
    *is_reported = !seen.is_empty();
    if *is_reported && !io::stderr().is_terminal() {
        let titles: Vec<&str> = seen.into_iter().map(Framework::title).collect();
        eprintln!("memwatch: tracing {}; press Ctrl-C to stop and print the report", titles.join(" and "));
    }
}

/// Prints the outcome of a recording.
///
/// # Errors
/// The recording could not be written completely.
pub(crate) fn reported(recorded: &Recorded) -> Result<Exit, ExitFailure> {
    match &recorded.end {
        Ok(stopped) => eprintln!("memwatch: {}", recorded.sentence(*stopped)),
        Err(why) => {
            let path = output_file::name(&recorded.path);
            let failure = ExitFailure::new(Exit::Error, format_args!("{path}: {why}"));
            if output_file::is_stdout(&recorded.path) {
                return Err(failure.advise("The recording is incomplete."));
            }
            return Err(failure.advise(format!("The recording is incomplete. To read it: memwatch report {path}")));
        }
    }
    Ok(Exit::Ok)
}

/// Replays a recording, and prints a warning if it is incomplete.
///
/// # Errors
/// The file is no recording, or cannot be read.
pub(crate) fn play(
    recording: &RecordedPeriod,
    prepare: impl FnOnce(&mut Pipeline),
) -> Result<ReplayedRecording, ExitFailure> {
    played(recording, false, prepare, |_| {})
}

/// Replays a recording from the first event of the selected period, for reports that derive from
/// events and not from the state at one moment.
///
/// # Errors
/// As [`play`].
pub(crate) fn play_all(
    recording: &RecordedPeriod,
    prepare: impl FnOnce(&mut Pipeline),
) -> Result<ReplayedRecording, ExitFailure> {
    played(recording, true, prepare, |_| {})
}

/// Does the same as [`play_all`], and calls `each` after each part of the period: for reports of what
/// the pipeline keeps only for a while.
///
/// # Errors
/// As [`play`].
pub(crate) fn play_parts(
    recording: &RecordedPeriod,
    prepare: impl FnOnce(&mut Pipeline),
    each: impl FnMut(ReplayedPart<'_>),
) -> Result<ReplayedRecording, ExitFailure> {
    played(recording, true, prepare, each)
}

/// Returns the memory of a context by GPU, as far as the recording shows it.
///
/// # Errors
/// As [`play`].
pub(crate) fn contexts(recording: &RecordedPeriod) -> Result<BTreeMap<GpuUuid, u64>, ExitFailure> {
    Ok(silently(recording, false, |_| {}, |_| {})?.pipeline.state.contexts().clone())
}

fn silently(
    recording: &RecordedPeriod,
    all_events: bool,
    prepare: impl FnOnce(&mut Pipeline),
    each: impl FnMut(ReplayedPart<'_>),
) -> Result<ReplayedRecording, ExitFailure> {
    let RecordedPeriod { path, window, history, streamed } = recording;
    let now_unix_ns = history.as_ref().map(|_| clock::boottime_to_unix_ns() + i128::from(clock::boottime_ns()));
    let request = ReplayRequest { window: *window, all_events, now_unix_ns };
    let files = match history {
        Some(kept) if streamed.is_none() => HistoryPart::of(kept, request).map(|part| {
            part.notes.iter().for_each(|note| eprintln!("memwatch: {note}"));
            part.files
        }),
        _ => request.open(path).map(|file| vec![file]),
    };
    let replay = files.and_then(|files| ReplayedRecording::play_files(files, request, prepare, each));
    replay.map_err(|error| unreadable(error, &recording.name()))
}

/// Adds advice if permission is missing: a recording is readable by its owner only, which is
/// usually root.
fn unreadable(error: anyhow::Error, name: &str) -> ExitFailure {
    let is_denied = |cause: &io::Error| cause.kind() == io::ErrorKind::PermissionDenied;
    let denied = error.chain().filter_map(|cause| cause.downcast_ref()).any(is_denied);
    let failure = ExitFailure::from(error.context(name.to_owned()));
    if !denied {
        return failure;
    }
    let advice = format!("Read it with sudo, or make it yours: sudo chown $USER {name}");
    ExitFailure { exit: Exit::NotPermitted, ..failure }.advise(advice)
}

fn played(
    recording: &RecordedPeriod,
    all_events: bool,
    prepare: impl FnOnce(&mut Pipeline),
    each: impl FnMut(ReplayedPart<'_>),
) -> Result<ReplayedRecording, ExitFailure> {
    let replay = silently(recording, all_events, prepare, each)?;
    let RecordedPeriod { history, streamed, .. } = recording;
    let name = recording.name();
    if let Some(begins_ns) = replay.begins_late_ns {
        let clock = WallClock::local(replay.boottime_to_unix_ns);
        recording.report_late(&clock.moment(begins_ns, replay.now_ns()));
    }
    if let Some(states) = replay.states {
        report_states(states, &replay);
    }
    match replay.ending {
        None | Some(Ending::Whole(_)) => {}
        // The history is still being written.
        Some(Ending::Cut) if history.is_some() || streamed.is_some() => {}
        Some(Ending::Cut) => {
            eprintln!(
                "memwatch: {name} is incomplete: its recorder was killed or is still running. Reading what it has"
            );
        }
        Some(Ending::Damaged { byte }) => {
            eprintln!("memwatch: {name} is damaged from byte {byte} on. Reading what precedes");
        }
    }
    Ok(replay)
}

/// Says of which time only states are recorded, and what is missing therefore.
fn report_states(states: RecordedStates, replay: &ReplayedRecording) {
    let clock = WallClock::local(replay.boottime_to_unix_ns);
    let [first, last] = [states.first_ns, states.last_ns].map(|time_ns| clock.moment(time_ns, replay.now_ns()));
    let apart = duration(states.apart_ns);
    if states.first_ns == states.last_ns {
        return eprintln!("memwatch: of that time the history has a state every {apart}: this is the one of {last}");
    }
    eprintln!(
        "memwatch: from {first} to {last} the history has a state every {apart}: what came and went in between is \
         missing, and peaks are those since the agent began to watch"
    );
}

/// Returns the state at the end of a recording, for these processes and their children or for all
/// processes. Processes that had exited before the detector started are omitted.
///
/// # Errors
/// None of the processes is in the recording.
pub(crate) fn chosen(
    replay: &ReplayedRecording,
    recording: &RecordedPeriod,
    selected: &Selected,
) -> Result<Snapshot, ExitFailure> {
    let Selected { tgids, choice } = selected;
    let mut snapshot = replay.snapshot();
    snapshot.processes.retain(|process| process.ended_ns.is_none_or(|ended_ns| Some(ended_ns) > replay.since_ns));
    if selected.is_everybody() {
        return Ok(snapshot);
    }
    let all: Vec<String> = snapshot.processes.iter().map(|process| process.tgid.0.to_string()).collect();
    snapshot.processes.retain(|process| {
        let line = process.ancestors.iter().map(|ancestor| ancestor.tgid);
        tgids.is_empty() || line.chain([process.tgid]).any(|tgid| tgids.contains(&tgid))
    });
    let named: &[Tgid] = if choice.no_children { tgids } else { &[] };
    Selection::new(choice, named).apply(&mut snapshot);
    if snapshot.processes.is_empty() {
        let name = recording.name();
        let sentence = match (&tgids[..], choice.is_empty()) {
            (tgids, true) => {
                let wanted: Vec<String> = tgids.iter().map(|tgid| tgid.0.to_string()).collect();
                format!("process {} is not in {name}", wanted.join(", "))
            }
            (tgids, false) => format!("no process of {} is in {name}", Selection::new(choice, tgids).describe()),
        };
        return Err(ExitFailure::new(Exit::NoTarget, sentence).advise(match &all[..] {
            [] => "The recording contains no process.".to_owned(),
            all => format!("The recording contains PID {}.", all.join(", ")),
        }));
    }
    Ok(snapshot)
}
