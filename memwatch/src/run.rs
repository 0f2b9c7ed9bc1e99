//! What was asked for: the only file that knows all rooms.

use std::path::PathBuf;
use std::time::Duration;

use memwatch_core::TensorLog;
use memwatch_core::recording::Stopped;
use memwatch_core::snapshot::Snapshot;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use crate::agent::client::Seen;
use crate::args::{Args, Command, Common, Layers, Pace, Ps, Rows, Run, Sites, Targets};
use crate::command::{Running, hold};
use crate::exit::{Exit, Failure};
use crate::output::{Output, host_name};
use crate::past::{Needs, Recording};
use crate::session::{Session, SessionOptions};
use crate::sinks::filter::GpuFilter;
use crate::sinks::json::{self, Origin, Report};
use crate::sinks::mem_trace::MemTrace;
use crate::sinks::places::Places;
use crate::sinks::selection::Selection;
use crate::sinks::summary;
use crate::sinks::tui::Flow;
use crate::sinks::wall_clock::WallClock;
use crate::source::{Rhythm, Source};
use crate::sources::clock;
use crate::sources::torch::TensorWish;
use crate::{export, recorded, tensor_report};

/// How long one report waits for NVML.
const NVML_PATIENCE: Duration = Duration::from_secs(3);

/// How often the log of a command's modules and stages is written.
const LOG_RHYTHM: Duration = Duration::from_millis(500);

const DEFAULT_RING_BYTES: u32 = 16 << 20;

/// The kernel maps a ring twice in a row, and both count as resident: 16 MB, of which half is there. 55,000 records fit, 2.7 million a
/// second; the agent makes snapshots only when it is asked, so it is away for less long than a screen.
const AGENT_RING_BYTES: u32 = 8 << 20;

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
            Some(Command::Stats(stats)) => tensor_report::stats(stats, common).await,
            Some(Command::Snapshot(pickle)) => tensor_report::snapshot(pickle, common).await,
            Some(Command::Export(args)) => export::run(&args.held, args.written(), common).await,
            Some(Command::Flamegraph(args)) => export::run(&args.held, args.written(), common).await,
            Some(Command::Sites(Sites { places, native })) => {
                tensor_report::places(places, (Places::Sites, true, *native), common).await
            }
            Some(Command::Stages(places)) => tensor_report::places(places, (Places::Stages, true, false), common).await,
            Some(Command::Layers(Layers { places, fragmentation })) => {
                tensor_report::places(places, (Places::Layers, !fragmentation, false), common).await
            }
            Some(Command::Diff(diff)) => crate::diff::run(diff, common).await,
            Some(Command::Leak(leak)) => crate::leak::run(leak, common).await,
            Some(Command::Oom(oom)) => crate::oom::run(oom, common).await,
            Some(Command::Fragment(fragment)) => crate::fragment::run(fragment, common).await,
            Some(Command::Simulate(simulate)) => crate::simulate::run(simulate, common).await,
            Some(Command::Timeline(args)) => crate::timeline::run(args, common).await,
            Some(Command::Monitor(args)) => crate::monitor::run(args, common).await,
            Some(Command::Profile(args)) => crate::profile::run(args, common).await,
            Some(Command::Record(record)) => recorded::record(record, common).await,
            Some(Command::ResetPeaks(whose)) => crate::reset_peaks::run(whose, common).await,
            Some(Command::Report(report)) => recorded::report(report, common).await,
            Some(Command::Ps(Ps { targets, rows, past })) => {
                match Recording::named(past, Needs::Calls, common).await? {
                    Some(recording) => report_recorded(&recording, targets, *rows, common),
                    None => report_once(targets, *rows, common).await,
                }
            }
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
        sockets: common.sockets.places(),
        color: crate::output::use_color(common),
        verbose: common.verbose > 0,
    })
}

/// A watch on every process of the machine, for as long as it runs.
pub(crate) fn everybody(common: &Common) -> SessionOptions {
    let ring_bytes = common.ring_bytes.unwrap_or(AGENT_RING_BYTES);
    SessionOptions { ring_bytes, ..session_options(&Targets::default(), TensorWish::default(), common) }
}

/// A watch on these processes, which may be none yet.
pub(crate) fn session_options(targets: &Targets, tensors: TensorWish, common: &Common) -> SessionOptions {
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
        tensors,
        tensors_by_default: false,
        is_screen: false,
        logs_tensors: false,
        tape: None,
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
    let tensors = args.tensors.wish(!args.targets.tgids.is_empty());
    let mut options = session_options(&args.targets, tensors, &args.common);
    options.logs_tensors = args.tensors.log.is_some();
    options.tensors_by_default = args.tensors.is_default();
    options.is_screen = Output::is_screen(&args.common);
    let mut source = if args.tensors.is_asked_for() && args.common.agent.is_none() {
        Source::own(&options)?
    } else {
        Source::open(&options, &args.targets, &args.common).await?
    };
    source.persist();
    let filter = Filter::new(&args.targets);
    for idle in source.idle_targets() {
        eprintln!("memwatch: {idle}; waiting for its first CUDA call");
    }
    let mut output = Output::watch(&args.common, options.targets.len() == 1)?;
    let mut trace = args.tensors.log.as_deref().map(MemTrace::new);
    let stop = drive(&mut source, &mut output, (&filter, trace.as_mut()), args.pace).await?;
    drop(output);
    if stop == Stop::OutputClosed {
        return Ok(Exit::Ok);
    }
    if let [idle, ..] = &source.idle_targets()[..] {
        return Err(Failure::new(Exit::NoTarget, format_args!("{idle} in all this time")));
    }
    let has_summary = stop == Stop::NobodyLeft && !args.common.json;
    if let Some(seen) = if has_summary { source.last_word().await } else { None } {
        print!("{}", summary::render(&seen.snapshot, &WallClock::local(seen.boottime_to_unix_ns)));
    }
    Ok(Exit::Ok)
}

/// The loop of a watch: snapshots, keys, signals and time, until one of them ends it.
async fn drive(
    source: &mut Source,
    output: &mut Output,
    (filter, mut trace): (&Filter, Option<&mut MemTrace>),
    pace: Pace,
) -> Result<Stop, Failure> {
    let mut rhythm = Rhythm::new(pace.interval);
    let deadline = pace.duration.map(|duration| Instant::now() + duration);
    let mut keys = output.keys();
    let mut signals = Signals::listen()?;
    let stop = loop {
        tokio::select! {
            seen = source.next(&mut rhythm) => {
                write_logs(trace.as_deref_mut(), &source.take_tensor_logs())?;
                if !show(seen?, output, filter)? {
                    return Ok(Stop::OutputClosed);
                }
                if !source.is_anybody_left() {
                    return Ok(Stop::NobodyLeft);
                }
            }
            Some(event) = keys.recv() => {
                match output.key(event) {
                    Flow::Continue => {}
                    Flow::Quit => return Ok(Stop::Asked),
                    Flow::ResetPeaks(tgid) => source.reset_peaks(tgid).await,
                }
            }
            _ = signals.any() => break Stop::Asked,
            () = at(deadline) => break Stop::TimeUp,
        }
    };
    write_logs(trace, &source.take_tensor_logs())?;
    if let Some(seen) = source.last_word().await {
        show(seen, output, filter)?;
    }
    Ok(stop)
}

/// Writes what the logs of modules and stages have new.
fn write_logs(trace: Option<&mut MemTrace>, logs: &[TensorLog]) -> Result<(), Failure> {
    let Some(trace) = trace else { return Ok(()) };
    let clock = WallClock::utc(clock::boottime_to_unix_ns());
    let written = logs.iter().try_for_each(|log| trace.write(log, &clock));
    written.map_err(|error| Failure::new(Exit::Error, format_args!("the log cannot be written: {error}")))
}

fn show(seen: Seen, output: &mut Output, filter: &Filter) -> Result<bool, Failure> {
    let boottime_to_unix_ns = seen.boottime_to_unix_ns;
    output.show(&filtered(seen.snapshot, filter)?, boottime_to_unix_ns)
}

/// What of a snapshot is shown.
pub(crate) struct Filter {
    gpus: GpuFilter,
    selection: Selection,
}

impl Filter {
    /// The source shows the processes that are named by number, and their children, and no others.
    pub(crate) fn new(targets: &Targets) -> Self {
        let named: &[_] = if targets.choice.no_children { &targets.tgids } else { &[] };
        Self { gpus: GpuFilter::new(&targets.gpus), selection: Selection::new(&targets.choice, named) }
    }
}

/// Leaves of a snapshot what is to be shown.
///
/// # Errors
/// When a GPU that was named is not there.
pub(crate) fn filtered(mut snapshot: Snapshot, filter: &Filter) -> Result<Snapshot, Failure> {
    filter.gpus.apply(&mut snapshot).map_err(|error| Failure::new(Exit::NoTarget, error))?;
    filter.selection.apply(&mut snapshot);
    Ok(snapshot)
}

/// Waits for a moment that may never come.
pub(crate) async fn at(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// `memwatch ps`: one report, as soon as NVML has answered once since the attach, and runtimes have been asked for names.
async fn report_once(targets: &Targets, rows: Rows, common: &Common) -> Result<Exit, Failure> {
    let mut source = Source::open(&session_options(targets, TensorWish::default(), common), targets, common).await?;
    let seen = source.settled(Instant::now() + NVML_PATIENCE).await?;
    let filter = Filter::new(targets);
    let snapshot = filtered(seen.snapshot, &filter)?;
    Output::once(common, rows.by(), host_name()).show(&snapshot, seen.boottime_to_unix_ns)?;
    match &source.idle_targets()[..] {
        [idle, ..] => Err(Failure::new(Exit::NoTarget, idle)),
        [] => found_any(&snapshot, &filter),
    }
}

/// `memwatch ps --in FILE`: the report on what stood at the end of a recording.
fn report_recorded(recording: &Recording, targets: &Targets, rows: Rows, common: &Common) -> Result<Exit, Failure> {
    let replay = recorded::play(recording, |_| {})?;
    let filter = Filter::new(targets);
    let snapshot = filtered(recorded::chosen(&replay, &recording.path, &targets.tgids)?, &filter)?;
    Output::once(common, rows.by(), replay.front.host).show(&snapshot, replay.boottime_to_unix_ns)?;
    found_any(&snapshot, &filter)
}

/// # Errors
/// When some were named and none is there.
pub(crate) fn found_any(snapshot: &Snapshot, filter: &Filter) -> Result<Exit, Failure> {
    if !snapshot.processes.is_empty() || filter.selection.is_everybody() {
        return Ok(Exit::Ok);
    }
    let wanted = filter.selection.describe();
    Err(Failure::new(Exit::NoTarget, format_args!("no process with GPU memory is of {wanted}")))
}

/// `memwatch run -- CMD`: from the first allocation to a summary, with the command's own exit code.
async fn run_command(run: &Run, common: &Common) -> Result<Exit, Failure> {
    let mut options = session_options(&Targets::default(), run.tensors.wish(true), common);
    options.expects_command = true;
    options.logs_tensors = run.tensors.log.is_some();
    options.tensors_by_default = run.tensors.is_default();
    options.libraries.extend(libraries_on_search_path());
    let failed = |failure: Failure| Failure { exit: Exit::Command(125), ..failure };
    options.tape =
        run.output.as_deref().map(|path| recorded::tape(path, &run.tape, false)).transpose().map_err(failed)?;
    let mut session = Session::open(&options).map_err(failed)?;
    // Before the command exists: a signal that arrives while it starts must reach it, not end memwatch alone.
    let mut signals = Signals::listen().map_err(failed)?;
    let held = hold(&run.program).map_err(failed)?;
    session.adopt(held.tgid, &run.program).map_err(|error| failed(Failure::from_load(error)))?;
    let mut command = held.release();
    let mut trace = run.tensors.log.as_deref().map(MemTrace::new);
    let exit = follow(&mut session, &mut command, &mut signals, trace.as_mut()).await?;
    session.tick();
    write_logs(trace.as_mut(), &session.take_tensor_logs())?;
    let (snapshot, boottime_to_unix_ns, recorded) = session.end_recording(Stopped::NobodyLeft);
    summarise(snapshot, boottime_to_unix_ns, run, common)?;
    // The command's exit code is its own, whatever became of the recording.
    if let Some(Err(failure)) = recorded.as_ref().map(recorded::told) {
        failure.tell();
    }
    Ok(exit)
}

/// Watches until the command ends. Ctrl-C reaches the command by itself; SIGTERM is passed on.
async fn follow(
    session: &mut Session,
    command: &mut Running,
    signals: &mut Signals,
    mut trace: Option<&mut MemTrace>,
) -> Result<Exit, Failure> {
    let mut rhythm = tokio::time::interval(LOG_RHYTHM);
    let mut ticks = tokio::time::interval(recorded::RHYTHM);
    loop {
        tokio::select! {
            // A recording is read at the moments that it knows of.
            _ = ticks.tick() => session.tick(),
            _ = rhythm.tick(), if trace.is_some() => write_logs(trace.as_deref_mut(), &session.take_tensor_logs())?,
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

fn summarise(snapshot: Snapshot, boottime_to_unix_ns: i128, run: &Run, common: &Common) -> Result<(), Failure> {
    let filter = Filter::new(&Targets { gpus: run.gpus.clone(), ..Targets::default() });
    let snapshot = filtered(snapshot, &filter)?;
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
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
}

impl Signals {
    /// From now on they end nothing by themselves.
    ///
    /// # Errors
    /// When the system refuses.
    pub(crate) fn listen() -> Result<Self, Failure> {
        let listen = |kind| signal(kind).map_err(|error| Failure::from(anyhow::Error::from(error)));
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// The next one.
    pub(crate) async fn any(&mut self) -> SignalKind {
        tokio::select! {
            _ = self.interrupt.recv() => SignalKind::interrupt(),
            _ = self.terminate.recv() => SignalKind::terminate(),
            _ = self.hangup.recv() => SignalKind::hangup(),
        }
    }
}
