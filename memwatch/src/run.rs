//! What was asked for: the only file that knows all rooms.

use std::path::PathBuf;
use std::time::Duration;

use memwatch_core::snapshot::Snapshot;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::args::{Args, Command, Common, Pace, Ps, Rows, Run, Targets};
use crate::command::{Running, hold};
use crate::exit::{Exit, Failure};
use crate::output::{Output, host_name};
use crate::session::{Session, SessionOptions, has_reading};
use crate::sinks::filter::GpuFilter;
use crate::sinks::json::{self, Origin, Report};
use crate::sinks::selection::Selection;
use crate::sinks::summary;
use crate::sinks::wall_clock::WallClock;
use crate::sources::clock;

/// How long one report waits for NVML.
const NVML_PATIENCE: Duration = Duration::from_secs(3);

const DEFAULT_RING_BYTES: u32 = 16 << 20;

/// Does what the command line asks for.
pub(crate) fn run(args: &Args) -> Result<Exit, Failure> {
    let common = &args.common;
    if let Some(Command::Doctor) = args.command {
        return Ok(doctor(common));
    }
    if let Some(Command::Agent(agent)) = &args.command {
        return crate::agent::run(agent, common);
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(anyhow::Error::from)?;
    runtime.block_on(async {
        match &args.command {
            Some(Command::Run(run)) => run_command(run, common).await,
            Some(Command::Ps(Ps { targets, rows })) => report_once(targets, *rows, common).await,
            None if args.once => report_once(&args.targets, Rows::Process, common).await,
            _ => watch(args).await,
        }
    })
}

fn doctor(common: &Common) -> Exit {
    crate::doctor::run(&crate::doctor::DoctorOptions {
        json: common.json,
        nvml_library: common.nvml_lib.clone(),
        libraries: common.libcuda.clone(),
        color: crate::output::use_color(common),
        verbose: common.verbose > 0,
    })
}

/// A watch on every process of the machine.
pub(crate) fn everybody(common: &Common) -> SessionOptions {
    session_options(&Targets::default(), common)
}

fn session_options(targets: &Targets, common: &Common) -> SessionOptions {
    SessionOptions {
        targets: targets.tgids.iter().map(|tgid| tgid.0).collect(),
        expects_command: false,
        libraries: common.libcuda.clone(),
        nvml_library: common.nvml_lib.clone(),
        sockets: common.sockets.places(),
        ring_bytes: common.ring_bytes.unwrap_or(DEFAULT_RING_BYTES),
        classic_uprobes: common.classic_uprobes,
        polls_libraries: common.poll_libraries,
        diagnostics: common.verbose > 1,
    }
}

/// Why a watch came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// By a signal or a key.
    Asked,
    /// `--duration` is over.
    TimeUp,
    /// No target is left.
    NobodyLeft,
    /// Nobody reads what is written.
    OutputClosed,
}

/// The live view: `memwatch`, `memwatch --pid …`.
async fn watch(args: &Args) -> Result<Exit, Failure> {
    let options = session_options(&args.targets, &args.common);
    let mut session = Session::open(&options)?;
    let filter = Filter::new(&args.targets);
    for tgid in session.targets_without_library() {
        eprintln!("memwatch: {}; waiting for its first CUDA call", without_library(tgid));
    }
    let mut output = Output::watch(&args.common, options.targets.len() == 1)?;
    let stop = drive(&mut session, &mut output, &filter, args.pace).await?;
    drop(output);
    if stop == Stop::OutputClosed {
        return Ok(Exit::Ok);
    }
    if let [tgid, ..] = session.targets_without_library()[..] {
        return Err(Failure::new(Exit::NoTarget, format_args!("{} in all this time", without_library(tgid))));
    }
    if stop == Stop::NobodyLeft && !args.common.json {
        let snapshot = session.snapshot();
        print!("{}", summary::render(&snapshot, &WallClock::local(clock::boottime_to_unix_ns())));
    }
    Ok(Exit::Ok)
}

fn without_library(tgid: u32) -> String {
    let comm = std::fs::read(format!("/proc/{tgid}/comm")).unwrap_or_default();
    let comm = String::from_utf8_lossy(&comm);
    format!("process {tgid} ({}) has not loaded libcuda.so", comm.trim().escape_debug())
}

/// The loop of a watch: records, readings, libraries, keys, signals and time, until one of them ends it.
async fn drive(session: &mut Session, output: &mut Output, filter: &Filter, pace: Pace) -> Result<Stop, Failure> {
    let mut ticks = interval(pace.interval);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let deadline = pace.duration.map(|duration| Instant::now() + duration);
    let mut keys = output.keys();
    let mut signals = Signals::listen()?;
    loop {
        tokio::select! {
            () = session.advance() => {}
            Some(event) = keys.recv() => {
                if !output.key(event) {
                    return Ok(Stop::Asked);
                }
            }
            _ = signals.any() => {
                show(session, output, filter)?;
                return Ok(Stop::Asked);
            }
            () = at(deadline) => {
                show(session, output, filter)?;
                return Ok(Stop::TimeUp);
            }
            _ = ticks.tick() => {
                if !show(session, output, filter)? {
                    return Ok(Stop::OutputClosed);
                }
                if !session.is_anybody_left() {
                    return Ok(Stop::NobodyLeft);
                }
            }
        }
    }
}

fn show(session: &mut Session, output: &mut Output, filter: &Filter) -> Result<bool, Failure> {
    let snapshot = filtered(session, filter)?;
    output.show(&snapshot)
}

/// What of a snapshot is shown.
struct Filter {
    gpus: GpuFilter,
    selection: Selection,
}

impl Filter {
    /// The session watches the processes that are named by number, and their children, and no others.
    fn new(targets: &Targets) -> Self {
        let named: &[_] = if targets.choice.no_children { &targets.tgids } else { &[] };
        Self { gpus: GpuFilter::new(&targets.gpus), selection: Selection::new(&targets.choice, named) }
    }
}

fn filtered(session: &mut Session, filter: &Filter) -> Result<Snapshot, Failure> {
    let mut snapshot = session.snapshot();
    filter.gpus.apply(&mut snapshot).map_err(|error| Failure::new(Exit::NoTarget, error))?;
    filter.selection.apply(&mut snapshot);
    Ok(snapshot)
}

async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// `memwatch ps`: one report, as soon as NVML has answered once since the attach, and runtimes have been asked for names.
async fn report_once(targets: &Targets, rows: Rows, common: &Common) -> Result<Exit, Failure> {
    let mut session = Session::open(&session_options(targets, common))?;
    let deadline = Instant::now() + NVML_PATIENCE;
    let mut snapshot = session.snapshot();
    while !has_reading(&snapshot) || !session.has_asked_for_names() {
        tokio::select! {
            () = session.advance() => {}
            () = sleep_until(deadline) => break,
        }
        snapshot = session.snapshot();
    }
    let filter = Filter::new(targets);
    let snapshot = filtered(&mut session, &filter)?;
    Output::once(common, rows.by()).show(&snapshot)?;
    match session.targets_without_library()[..] {
        [tgid, ..] => Err(Failure::new(Exit::NoTarget, without_library(tgid))),
        [] if snapshot.processes.is_empty() && !filter.selection.is_everybody() => {
            let wanted = filter.selection.describe();
            Err(Failure::new(Exit::NoTarget, format_args!("no process with GPU memory is of {wanted}")))
        }
        [] => Ok(Exit::Ok),
    }
}

/// `memwatch run -- CMD`: from the first allocation to a summary, with the command's own exit code.
async fn run_command(run: &Run, common: &Common) -> Result<Exit, Failure> {
    let mut options = session_options(&Targets::default(), common);
    options.expects_command = true;
    options.libraries.extend(libraries_on_search_path());
    let failed = |failure: Failure| Failure { exit: Exit::Command(125), ..failure };
    let mut session = Session::open(&options).map_err(failed)?;
    // Before the command exists: a signal that arrives while it starts must reach it, not end memwatch alone.
    let mut signals = Signals::listen().map_err(failed)?;
    let held = hold(&run.program).map_err(failed)?;
    session.adopt(held.tgid, &run.program).map_err(|error| failed(Failure::from_load(error)))?;
    let mut command = held.release();
    let exit = follow(&mut session, &mut command, &mut signals).await?;
    summarise(&mut session, run, common)?;
    Ok(exit)
}

/// Watches until the command ends. Ctrl-C reaches the command by itself; SIGTERM is passed on.
async fn follow(session: &mut Session, command: &mut Running, signals: &mut Signals) -> Result<Exit, Failure> {
    loop {
        tokio::select! {
            () = session.advance() => {}
            kind = signals.any() => {
                if kind == SignalKind::terminate() {
                    command.signal(libc::SIGTERM);
                }
            }
            exit = command.wait() => return exit,
        }
    }
}

fn summarise(session: &mut Session, run: &Run, common: &Common) -> Result<(), Failure> {
    let filter = Filter::new(&Targets { gpus: run.gpus.clone(), ..Targets::default() });
    let snapshot = filtered(session, &filter)?;
    let boottime_to_unix_ns = clock::boottime_to_unix_ns();
    if common.json {
        let (host, clock) = (host_name(), WallClock::local(boottime_to_unix_ns));
        let origin = Origin { host: &host, clock: &clock };
        json::write(&mut std::io::stderr().lock(), Report::Run, &snapshot, origin).map_err(anyhow::Error::from)?;
    } else {
        eprint!("{}", summary::render(&snapshot, &WallClock::local(boottime_to_unix_ns)));
    }
    Ok(())
}

/// The driver libraries that a program started from here would find before the system's: they get their probes before it starts.
fn libraries_on_search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let files = std::env::split_paths(&path).map(|directory| directory.join("libcuda.so.1"));
    files.filter(|file| file.is_file()).collect()
}

/// SIGINT, SIGTERM and SIGHUP.
struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::from(anyhow::Error::from(error)));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    async fn any(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        }
    }
}
