//! `memwatch stats`, `sites`, `stages`, `layers` and `snapshot`: one report on the tensors of PyTorch processes, by an own watch.

use std::io;
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::snapshot::{MemoryHistory, Snapshot, TensorsView};
use memwatch_core::words::Tgid;
use tokio::time::Instant;

use crate::args::{Common, Pickle, Places, Stats, Targets};
use crate::exit::{Exit, Failure};
use crate::output::{host_name, style};
use crate::output_file;
use crate::past::{Needs, Recording};
use crate::recorded;
use crate::run::{Signals, session_options};
use crate::session::Session;
use crate::sinks::json::{self, Origin};
use crate::sinks::pickle;
use crate::sinks::places::{Places as Which, Wanted};
use crate::sinks::table;
use crate::sinks::wall_clock::WallClock;
use crate::sources::clock;
use crate::sources::replay::Replay;
use crate::sources::torch::{TensorLevel, TensorWish};

/// How long the libraries of a process are looked for, and its allocators' own numbers waited for.
const PATIENCE: Duration = Duration::from_secs(5);
/// So many lines of an allocator's trace are kept at most: the viewer is slow with more.
const LONGEST_HISTORY: usize = 500_000;
/// How often it is looked whether enough is known, or nobody is left.
const LOOK: Duration = Duration::from_millis(50);

/// What PyTorch's `memory_stats()` has: as soon as the allocators' own numbers are there, or again and again.
///
/// # Errors
/// When the processes cannot be watched, or there is no PyTorch in them.
pub(crate) async fn stats(args: &Stats, common: &Common) -> Result<Exit, Failure> {
    let tgids = &args.subject.tgids;
    if let Some(recording) = Recording::named(&args.subject.past, Needs::Tensors, common).await? {
        let (snapshot, scene) = recorded_scene(&recording, tgids, |_| {})?;
        return finish(write_stats(&snapshot, &scene, common), &snapshot, tgids);
    }
    let mut session = open(tgids, all_of(TensorLevel::Blocks), common)?;
    let mut signals = Signals::listen()?;
    let Some(interval) = args.interval else {
        let (snapshot, _) =
            watch_until(&mut session, &mut signals, Instant::now() + PATIENCE, Some(is_counted), &mut true).await;
        return finish(write_stats(&snapshot, &Scene::here(), common), &snapshot, tgids);
    };
    let mut is_told = false;
    loop {
        let until = Instant::now() + interval;
        let (snapshot, why) = watch_until(&mut session, &mut signals, until, None, &mut is_told).await;
        let written = write_stats(&snapshot, &Scene::here(), common);
        if why != Enough::Time || written.is_err() {
            return finish(written, &snapshot, tgids);
        }
        if args.reset_peaks {
            session.reset_peaks_after(&snapshot);
        }
    }
}

/// Whether it is known of every allocator of PyTorch where its numbers begin.
fn is_counted(snapshot: &Snapshot) -> bool {
    let mut tensors = snapshot.processes.iter().filter_map(|process| process.tensors.as_ref()).peekable();
    let is_counted = |tensors: &TensorsView| {
        !tensors.allocators.is_empty() && tensors.allocators.iter().all(|one| one.counted_from != "unknown")
    };
    tensors.peek().is_some() && tensors.all(|tensors| is_counted(tensors))
}

fn write_stats(snapshot: &Snapshot, scene: &Scene, common: &Common) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if common.json {
        json::stats::write(&mut out, snapshot, scene.origin())
    } else {
        table::stats::write(&mut out, snapshot, &scene.clock, &style(common, false))
    }
}

/// Where and in whose time a snapshot was taken.
pub(crate) struct Scene {
    host: String,
    pub(crate) clock: WallClock,
}

impl Scene {
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
fn recorded_scene(
    recording: &Recording,
    tgids: &[Tgid],
    prepare: impl FnOnce(&mut Pipeline),
) -> Result<(Snapshot, Scene), Failure> {
    let replay = recorded::play(recording, prepare)?;
    let snapshot = recorded::chosen(&replay, &recording.path, tgids)?;
    Ok((snapshot, Scene::of(&replay)))
}

/// One of the lists, after a while of watching; with `reports_only` by what comes and goes, and no more; with `native` also stacks.
///
/// # Errors
/// When the processes cannot be watched, or there is no PyTorch in them.
pub(crate) async fn places(
    args: &Places,
    (which, reports_only, native): (Which, bool, bool),
    common: &Common,
) -> Result<Exit, Failure> {
    let tgids = &args.subject.tgids;
    let past = Recording::named(&args.subject.past, Needs::Tensors, common).await?;
    let (snapshot, scene) = if let Some(recording) = past {
        recorded_scene(&recording, tgids, |pipeline| pipeline.list_tensors_from(args.min_size))?
    } else {
        let level = if which == Which::Sites { TensorLevel::Sites } else { TensorLevel::Layers };
        let mut session = open(tgids, TensorWish { level, reports_only }, common)?;
        session.list_tensors_from(args.min_size);
        let mut signals = Signals::listen()?;
        let deadline = Instant::now() + args.duration;
        let (snapshot, _) = watch_until(&mut session, &mut signals, deadline, None, &mut false).await;
        (snapshot, Scene::here())
    };
    let mut out = io::stdout().lock();
    let wanted = Wanted { which, top: args.top, native };
    let written = if common.json {
        json::places::write(&mut out, (which, args.top), &snapshot, scene.origin())
    } else {
        table::places::write(&mut out, &snapshot, wanted, &scene.clock, &style(common, false))
    };
    drop(out);
    finish(written, &snapshot, tgids)
}

/// PyTorch's memory snapshot, after a while of watching.
///
/// # Errors
/// When the process cannot be watched, there is no PyTorch in it, or the file cannot be written.
pub(crate) async fn snapshot(args: &Pickle, common: &Common) -> Result<Exit, Failure> {
    if output_file::is_terminal(&args.output) {
        return Err(Failure::binary_on_terminal());
    }
    let failed = |error: io::Error| Failure::cannot_make(&args.output, &error);
    output_file::check_free(&args.output, args.force).map_err(failed)?;
    let past = Recording::named(&args.past, Needs::Tensors, common).await?;
    let (snapshot, history, boottime_to_unix_ns) = match (&past, args.tgid) {
        (Some(recording), tgid) => recorded_history(recording, tgid, args.native)?,
        (None, tgid) => watched_history(args, tgid.unwrap_or_default(), common).await?,
    };
    let Some(history) = history.filter(|history| !history.devices.is_empty()) else {
        return Err(without_torch(args.tgid.as_slice()));
    };
    let clock = WallClock::utc(boottime_to_unix_ns);
    let mut file = output_file::create(&args.output, args.force).map_err(failed)?;
    pickle::write(&mut file, &history, snapshot.time_ns, &clock).map_err(failed)?;
    eprintln!("memwatch: {} is written; drop it onto pytorch.org/memory_viz", output_file::name(&args.output));
    finish(Ok(()), &snapshot, args.tgid.as_slice())
}

/// A snapshot, what the allocators of one process have done until then, and what to add to its times to get nanoseconds since 1970.
type History = (Snapshot, Option<MemoryHistory>, i128);

async fn watched_history(args: &Pickle, tgid: Tgid, common: &Common) -> Result<History, Failure> {
    let mut session = open(&[tgid], all_of(TensorLevel::Layers), common)?;
    session.keep_history(tgid, LONGEST_HISTORY);
    let mut signals = Signals::listen()?;
    let (snapshot, _) = watch_until(&mut session, &mut signals, Instant::now() + args.duration, None, &mut false).await;
    Ok((snapshot, session.history(tgid, args.native), clock::boottime_to_unix_ns()))
}

/// # Errors
/// Also when no process is named, and there is not one with PyTorch.
fn recorded_history(recording: &Recording, tgid: Option<Tgid>, with_native: bool) -> Result<History, Failure> {
    let tgid = match tgid {
        Some(tgid) => tgid,
        None => only_with_torch(recording)?,
    };
    let replay = recorded::play_all(recording, |pipeline| pipeline.keep_history(tgid, LONGEST_HISTORY))?;
    let snapshot = recorded::chosen(&replay, &recording.path, &[tgid])?;
    Ok((snapshot, replay.pipeline.history(tgid, with_native), replay.boottime_to_unix_ns))
}

/// The process of a recording that has PyTorch.
fn only_with_torch(recording: &Recording) -> Result<Tgid, Failure> {
    let path = &recording.path;
    let snapshot = recorded::chosen(&recorded::play(recording, |_| {})?, path, &[])?;
    let with_torch = snapshot.processes.iter().filter(|process| process.tensors.is_some());
    match &with_torch.map(|process| process.tgid).collect::<Vec<_>>()[..] {
        [tgid] => Ok(*tgid),
        [] => Err(Failure::new(Exit::NoTarget, format_args!("there is no PyTorch process in {}", path.display()))),
        several => {
            let all: Vec<String> = several.iter().map(|tgid| tgid.0.to_string()).collect();
            let sentence = format!("{} has {} PyTorch processes", path.display(), all.len());
            Err(Failure::new(Exit::NoTarget, sentence).advise(format!("Name one with --pid: {}.", all.join(", "))))
        }
    }
}

const fn all_of(level: TensorLevel) -> TensorWish {
    TensorWish { level, reports_only: false }
}

/// A watch on these processes alone.
///
/// # Errors
/// When they cannot be watched.
pub(crate) fn open(tgids: &[Tgid], tensors: TensorWish, common: &Common) -> Result<Session, Failure> {
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

/// Watches until enough is known, time is up, a signal comes, or nobody is left; and says what was seen by then. That PyTorch is seen is told once.
pub(crate) async fn watch_until(
    session: &mut Session,
    signals: &mut Signals,
    deadline: Instant,
    is_enough: Option<fn(&Snapshot) -> bool>,
    is_told: &mut bool,
) -> (Snapshot, Enough) {
    let mut look = tokio::time::interval(LOOK);
    loop {
        tokio::select! {
            () = session.advance() => {}
            _ = look.tick() => {
                if !*is_told && session.sees_tensors() {
                    *is_told = true;
                    eprintln!("memwatch: PyTorch is watched from now on; Ctrl-C shows what was seen by then");
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

fn without_torch(tgids: &[Tgid]) -> Failure {
    let named: Vec<String> = tgids.iter().map(|tgid| tgid.0.to_string()).collect();
    let whose = if named.is_empty() { "any process".to_owned() } else { format!("process {}", named.join(", ")) };
    Failure::new(Exit::NoTarget, format_args!("nothing of PyTorch's allocator was seen in {whose}")).advise(
        "Its tensors are seen once it has loaded libc10_cuda.so; what the driver gave it says: memwatch ps --pid PID",
    )
}
