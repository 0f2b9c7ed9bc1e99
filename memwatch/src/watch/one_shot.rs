//! `memwatch stats`, `sites`, `stages`, `layers` and `snapshot`: one report on the tensors of PyTorch processes, by an own watch.

use std::io;
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::Tgid;
use tokio::time::Instant;

use crate::exit::{Exit, Failure};
use crate::frameworks::pytorch::{TensorLevel, TensorRequest};
use crate::options::{Common, Targets};
use crate::render::json::Origin;
use crate::render::output::host_name;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;
use crate::watch::past::Recording;
use crate::watch::recorded;
use crate::watch::replay::Replay;
use crate::watch::session::Session;
use crate::watch::signals::Signals;
use crate::watch::subject::session_options;

/// How long the libraries of a process are looked for, and its allocators' own numbers waited for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(5);
/// How often it is looked whether enough is known, or nobody is left.
const LOOK: Duration = Duration::from_millis(50);

/// Where and in whose time a snapshot was taken.
pub(crate) struct TakenAt {
    host: String,
    pub(crate) clock: WallClock,
}

impl TakenAt {
    /// That of a recording.
    pub(crate) fn of(replay: &Replay) -> Self {
        Self { clock: WallClock::local(replay.boottime_to_unix_ns), host: replay.front.host.clone() }
    }

    /// This machine, now.
    pub(crate) fn here() -> Self {
        Self { host: host_name(), clock: WallClock::local(clock::boottime_to_unix_ns()) }
    }

    /// For reports in JSON.
    pub(crate) fn origin(&self) -> Origin<'_> {
        Origin { host: &self.host, clock: &self.clock }
    }
}

/// What stood at the end of a recording.
pub(crate) fn recorded_snapshot(
    recording: &Recording,
    tgids: &[Tgid],
    prepare: impl FnOnce(&mut Pipeline),
) -> Result<(Snapshot, TakenAt), Failure> {
    let replay = recorded::play(recording, prepare)?;
    let snapshot = recorded::chosen(&replay, &recording.path, tgids)?;
    Ok((snapshot, TakenAt::of(&replay)))
}

pub(crate) const fn all_of(level: TensorLevel) -> TensorRequest {
    TensorRequest { level, reports_only: false }
}

/// A watch on these processes alone.
///
/// # Errors
/// When they cannot be watched.
pub(crate) fn open(tgids: &[Tgid], tensors: TensorRequest, common: &Common) -> Result<Session, Failure> {
    let targets = Targets { tgids: tgids.to_vec(), ..Targets::default() };
    Session::open(&session_options(&targets, tensors, common))
}

/// Why a watch has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enough {
    /// What was waited for is known.
    Known,
    /// Time is up.
    Time,
    /// A signal came, or nobody is left.
    Over,
}

/// Watches until enough is known, time is up, a signal comes, or nobody is left; and says what was observed by then. That PyTorch is seen is reported once.
pub(crate) async fn watch_until(
    session: &mut Session,
    signals: &mut Signals,
    deadline: Instant,
    is_enough: Option<fn(&Snapshot) -> bool>,
    is_reported: &mut bool,
) -> (Snapshot, Enough) {
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = session.advance() => {}
            _ = look.tick() => {
                if !*is_reported && session.sees_tensors() {
                    *is_reported = true;
                    eprintln!("memwatch: PyTorch is watched from now on; Ctrl-C shows what was observed by then");
                }
                let why = if !session.is_anybody_left() {
                    Enough::Over
                } else if Instant::now() >= deadline {
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

pub(crate) fn finish(written: io::Result<()>, snapshot: &Snapshot, tgids: &[Tgid]) -> Result<Exit, Failure> {
    match written {
        // Nobody reads any more.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(Exit::Ok),
        written => written.map_err(|error| anyhow::Error::from(error).context("the report cannot be written"))?,
    }
    if snapshot.processes.iter().any(|process| process.tensors.is_some()) {
        return Ok(Exit::Ok);
    }
    Err(without_torch(tgids))
}

pub(crate) fn without_torch(tgids: &[Tgid]) -> Failure {
    let named: Vec<String> = tgids.iter().map(|tgid| tgid.0.to_string()).collect();
    let whose = if named.is_empty() { "any process".to_owned() } else { format!("process {}", named.join(", ")) };
    Failure::new(Exit::NoTarget, format_args!("nothing of PyTorch's allocator was seen in {whose}")).advise(
        "Its tensors are seen once it has loaded libc10_cuda.so; what the driver gave it says: memwatch ps --pid PID",
    )
}
