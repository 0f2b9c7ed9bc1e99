//! Commands on recordings: `record`, which makes one, `report`, and what `--in` reads.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::recording::{Ending, FORMAT, FORMAT_WITH_KEYFRAMES, Front, Stopped};
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::{Framework, GpuUuid, Tgid};
use tokio::time::{Instant, interval};

use crate::client::protocol::HistoryFiles;
use crate::exit::{Exit, Failure};
use crate::options::{Selected, TapeArgs};
use crate::output_file;
use crate::render::output::host_name;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;
use crate::watch::past::Recording;
use crate::watch::progress::Progress;
use crate::watch::recording::{Recorded, TapeOptions};
use crate::watch::replay::{Replay, ReplayRequest, has_some_of};
use crate::watch::selection::Selection;
use crate::watch::session::Session;
use crate::watch::signals::{Signals, at};

/// Blocks of this size in bytes and above stand one by one in a report.
pub(crate) const LARGE_BYTES: u64 = 100 << 20;
/// What grows, and peaks of several processes together, are distinguished from such moments.
pub(crate) const RHYTHM: Duration = Duration::from_secs(1);

/// What to record into, and what stands at its front.
///
/// # Errors
/// When there is too little room to keep the newest.
pub(crate) fn tape(path: &Path, args: &TapeArgs, everybody: bool) -> Result<TapeOptions, Failure> {
    let keeps_newest = args.keeps_newest().map_err(|sentence| Failure::new(Exit::Error, sentence))?;
    if output_file::is_terminal(path) {
        return Err(Failure::binary_on_terminal());
    }
    if keeps_newest && output_file::is_stdout(path) {
        let why = "--keep newest writes its file again and again, which standard output cannot take";
        return Err(Failure::new(Exit::Error, why).advise("Name a file: -o FILE"));
    }
    let front = front(keeps_newest, everybody);
    let (path, force, limit_bytes) = (path.to_owned(), args.force, args.max_size);
    Ok(TapeOptions { path, force, limit_bytes, keeps_newest, mode: None, waits: true, front })
}

/// What stands at the front of a recording that this program makes.
pub(crate) fn front(keeps_newest: bool, everybody: bool) -> Front {
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    Front {
        format: if keeps_newest { FORMAT_WITH_KEYFRAMES } else { FORMAT },
        version: env!("CARGO_PKG_VERSION").to_owned(),
        host: host_name(),
        everybody,
        command: words.collect(),
    }
}

/// Watches until there is a reason to stop. That PyTorch is seen is reported once.
pub(crate) async fn follow(session: &mut Session, signals: &mut Signals, deadline: Option<Instant>) -> Stopped {
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

/// The same, with something to do at each look.
///
/// # Errors
/// What that answers; nothing is watched any more then.
pub(crate) async fn follow_each<E>(
    session: &mut Session,
    signals: &mut Signals,
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
                // What became of it is reported at the end.
                if session.has_recording_ended() {
                    return Ok(Stopped::Limit);
                }
            }
            () = at(deadline) => return Ok(Stopped::Asked),
            _ = signals.any() => return Ok(Stopped::Asked),
        }
    }
}

/// Reports once that frameworks are traced; a terminal has a line that shows more.
pub(crate) fn report_of_tensors(session: &Session, is_reported: &mut bool) {
    if *is_reported {
        return;
    }
    let seen = session.seen_frameworks();
    *is_reported = !seen.is_empty();
    if *is_reported && !io::stderr().is_terminal() {
        let verb = if seen.len() == 1 { "is" } else { "are" };
        let titles: Vec<&str> = seen.into_iter().map(Framework::title).collect();
        eprintln!(
            "memwatch: {} {verb} traced from now on; Ctrl-C ends the watch and prints the report",
            titles.join(" and ")
        );
    }
}

/// Says what became of a recording.
///
/// # Errors
/// When it could not be written to its end.
pub(crate) fn reported(recorded: &Recorded) -> Result<Exit, Failure> {
    match &recorded.end {
        Ok(stopped) => eprintln!("memwatch: {}", recorded.sentence(*stopped)),
        Err(why) => {
            let path = output_file::name(&recorded.path);
            let failure = Failure::new(Exit::Error, format_args!("{path}: {why}"));
            if output_file::is_stdout(&recorded.path) {
                return Err(failure.advise("The recording ends there."));
            }
            return Err(failure.advise(format!("The recording ends there; what is in it says: memwatch report {path}")));
        }
    }
    Ok(Exit::Ok)
}

/// Plays a recording, and says where it has no proper end.
///
/// # Errors
/// When it is none, or cannot be read.
pub(crate) fn play(recording: &Recording, prepare: impl FnOnce(&mut Pipeline)) -> Result<Replay, Failure> {
    played(recording, false, prepare)
}

/// The same, from the first event on that is there and meant: for what is not known at any moment, but follows from what happened.
///
/// # Errors
/// As of [`play`].
pub(crate) fn play_all(recording: &Recording, prepare: impl FnOnce(&mut Pipeline)) -> Result<Replay, Failure> {
    played(recording, true, prepare)
}

/// What the driver takes for a context, by GPU, as far as the recording shows it.
///
/// # Errors
/// As of [`play`].
pub(crate) fn contexts(recording: &Recording) -> Result<BTreeMap<GpuUuid, u64>, Failure> {
    Ok(silently(recording, false, |_| {})?.pipeline.contexts().clone())
}

fn silently(recording: &Recording, all_events: bool, prepare: impl FnOnce(&mut Pipeline)) -> Result<Replay, Failure> {
    let Recording { path, window, history } = recording;
    let now_unix_ns = history.as_ref().map(|_| clock::boottime_to_unix_ns() + i128::from(clock::boottime_ns()));
    let request = ReplayRequest { window: *window, all_events, now_unix_ns };
    let earlier = history.as_ref().and_then(|kept| earlier_of(kept, request));
    let path = earlier.as_ref().unwrap_or(path);
    let replay = Replay::play(path, request, prepare);
    replay.map_err(|error| unreadable(error, path))
}

/// The history of the agent's watch before a restart in which a moment lies that is older than its history now.
fn earlier_of(kept: &HistoryFiles, request: ReplayRequest) -> Option<PathBuf> {
    let is_asked_for_end = request.window.until.is_some();
    if !is_asked_for_end || has_some_of(&kept.file, request) {
        return None;
    }
    let found = kept.previous.iter().chain(&kept.older).find(|file| has_some_of(file, request))?;
    eprintln!("memwatch: that was before the agent's last start: {}", found.display());
    Some(found.clone())
}

/// A recording is its owner's alone, and most are root's.
fn unreadable(error: anyhow::Error, path: &Path) -> Failure {
    let is_denied = |cause: &io::Error| cause.kind() == io::ErrorKind::PermissionDenied;
    let denied = error.chain().filter_map(|cause| cause.downcast_ref()).any(is_denied);
    let failure = Failure::from(error.context(path.display().to_string()));
    if !denied {
        return failure;
    }
    let advice = format!("Read it with sudo, or make it yours: sudo chown $USER {}", path.display());
    Failure { exit: Exit::NotPermitted, ..failure }.advise(advice)
}

fn played(recording: &Recording, all_events: bool, prepare: impl FnOnce(&mut Pipeline)) -> Result<Replay, Failure> {
    let replay = silently(recording, all_events, prepare)?;
    let Recording { path, history, .. } = recording;
    let name = path.display();
    if let Some(begins_ns) = replay.begins_late_ns {
        let clock = WallClock::local(replay.boottime_to_unix_ns);
        recording.report_late(&clock.moment(begins_ns, replay.now_ns()));
    }
    match replay.ending {
        None | Some(Ending::Whole(_)) => {}
        // It is being written.
        Some(Ending::Cut) if history.is_some() => {}
        Some(Ending::Cut) => {
            eprintln!("memwatch: {name} has no end: its recorder was killed, or still records; this is what it has");
        }
        Some(Ending::Damaged { byte }) => {
            eprintln!("memwatch: {name} is damaged from byte {byte} on; this is what stands before");
        }
    }
    Ok(replay)
}

/// What stood at the end of a recording, of these processes and their children; of all, where none is named. Who had ended before it was
/// looked for anything is left out.
///
/// # Errors
/// When none of them is in it.
pub(crate) fn chosen(replay: &Replay, path: &Path, selected: &Selected) -> Result<Snapshot, Failure> {
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
        let sentence = match (&tgids[..], choice.is_empty()) {
            (tgids, true) => {
                let wanted: Vec<String> = tgids.iter().map(|tgid| tgid.0.to_string()).collect();
                format!("process {} is not in {}", wanted.join(", "), path.display())
            }
            (tgids, false) => {
                format!("no process of {} is in {}", Selection::new(choice, tgids).describe(), path.display())
            }
        };
        return Err(Failure::new(Exit::NoTarget, sentence).advise(match &all[..] {
            [] => "There is none in it.".to_owned(),
            all => format!("There is {}.", all.join(", ")),
        }));
    }
    Ok(snapshot)
}
