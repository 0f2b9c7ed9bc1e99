//! `memwatch stats`, `sites`, `stages`, `layers` and `snapshot`: one report on the tensors of PyTorch processes, by an own watch.

use std::fs::File;
use std::io;
use std::time::Duration;

use memwatch_core::snapshot::{Snapshot, TensorsView};
use memwatch_core::words::Tgid;
use tokio::time::Instant;

use crate::args::{Common, Pickle, Places, Stats, Targets, Whose};
use crate::exit::{Exit, Failure};
use crate::output::{host_name, style};
use crate::run::{Signals, session_options};
use crate::session::Session;
use crate::sinks::json::{self, Origin};
use crate::sinks::pickle;
use crate::sinks::places::Places as Which;
use crate::sinks::table;
use crate::sinks::wall_clock::WallClock;
use crate::sources::clock;
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
    let mut session = open(&args.whose, all_of(TensorLevel::Blocks), common)?;
    let mut signals = Signals::listen()?;
    let Some(interval) = args.interval else {
        let (snapshot, _) =
            watch_until(&mut session, &mut signals, Instant::now() + PATIENCE, Some(is_counted), &mut true).await;
        return finish(write_stats(&snapshot, common), &snapshot, &args.whose.tgids);
    };
    let mut is_told = false;
    loop {
        let until = Instant::now() + interval;
        let (snapshot, why) = watch_until(&mut session, &mut signals, until, None, &mut is_told).await;
        let written = write_stats(&snapshot, common);
        if why != Enough::Time || written.is_err() {
            return finish(written, &snapshot, &args.whose.tgids);
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

fn write_stats(snapshot: &Snapshot, common: &Common) -> io::Result<()> {
    let clock = WallClock::local(clock::boottime_to_unix_ns());
    let mut out = io::stdout().lock();
    if common.json {
        json::stats::write(&mut out, snapshot, Origin { host: &host_name(), clock: &clock })
    } else {
        table::stats::write(&mut out, snapshot, &clock, &style(common, false))
    }
}

/// One of the lists, after a while of watching; with `reports_only` by what comes and goes, and no more.
///
/// # Errors
/// When the processes cannot be watched, or there is no PyTorch in them.
pub(crate) async fn places(
    args: &Places,
    (which, reports_only): (Which, bool),
    common: &Common,
) -> Result<Exit, Failure> {
    let level = if which == Which::Sites { TensorLevel::Sites } else { TensorLevel::Layers };
    let mut session = open(&args.whose, TensorWish { level, reports_only }, common)?;
    session.list_tensors_from(args.min_size);
    let mut signals = Signals::listen()?;
    let (snapshot, _) = watch_until(&mut session, &mut signals, Instant::now() + args.duration, None, &mut false).await;
    let clock = WallClock::local(clock::boottime_to_unix_ns());
    let mut out = io::stdout().lock();
    let wanted = (which, args.top);
    let written = if common.json {
        json::places::write(&mut out, wanted, &snapshot, Origin { host: &host_name(), clock: &clock })
    } else {
        table::places::write(&mut out, &snapshot, wanted, &clock, &style(common, false))
    };
    drop(out);
    finish(written, &snapshot, &args.whose.tgids)
}

/// PyTorch's memory snapshot, after a while of watching.
///
/// # Errors
/// When the process cannot be watched, there is no PyTorch in it, or the file cannot be written.
pub(crate) async fn snapshot(args: &Pickle, common: &Common) -> Result<Exit, Failure> {
    let failed = |error: io::Error| Failure::new(Exit::Error, format_args!("{}: {error}", args.output.display()));
    if !args.force && args.output.exists() {
        let there = Failure::new(Exit::Error, format_args!("{} is there already", args.output.display()));
        return Err(there.advise("Give another name with -o, or --force to replace it."));
    }
    let whose = Whose { tgids: vec![args.tgid] };
    let mut session = open(&whose, all_of(TensorLevel::Layers), common)?;
    session.keep_history(args.tgid, LONGEST_HISTORY);
    let mut signals = Signals::listen()?;
    let (snapshot, _) = watch_until(&mut session, &mut signals, Instant::now() + args.duration, None, &mut false).await;
    let history = session.history(args.tgid).filter(|history| !history.devices.is_empty());
    let Some(history) = history else { return Err(without_torch(&whose.tgids)) };
    let clock = WallClock::utc(clock::boottime_to_unix_ns());
    let file = if args.force { File::create(&args.output) } else { File::create_new(&args.output) };
    let mut file = file.map_err(failed)?;
    pickle::write(&mut file, &history, snapshot.time_ns, &clock).map_err(failed)?;
    eprintln!("memwatch: {} is written; drop it onto pytorch.org/memory_viz", args.output.display());
    finish(Ok(()), &snapshot, &whose.tgids)
}

const fn all_of(level: TensorLevel) -> TensorWish {
    TensorWish { level, reports_only: false }
}

fn open(whose: &Whose, tensors: TensorWish, common: &Common) -> Result<Session, Failure> {
    let targets = Targets { tgids: whose.tgids.clone(), ..Targets::default() };
    Session::open(&session_options(&targets, tensors, common))
}

/// Why a watch has an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Enough {
    /// What was waited for is known.
    Known,
    /// Time is up.
    Time,
    /// A signal came, or nobody is left.
    Over,
}

/// Watches until enough is known, time is up, a signal comes, or nobody is left; and says what was seen by then. That PyTorch is seen is told once.
async fn watch_until(
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

fn finish(written: io::Result<()>, snapshot: &Snapshot, tgids: &[Tgid]) -> Result<Exit, Failure> {
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
    Failure::new(
        Exit::NoTarget,
        format_args!("nothing of PyTorch's allocator was seen in process {}", named.join(", ")),
    )
    .advise(
        "Its tensors are seen once it has loaded libc10_cuda.so; what the driver gave it says: memwatch ps --pid PID",
    )
}
