//! `memwatch run -- CMD`: traces a program from its first allocation, and prints a summary.

pub(crate) mod args;

use crate::exit::{Exit, ExitFailure};
use crate::export::mem_trace::MemTrace;
use crate::options::{CommonArgs, TargetArgs};
use crate::output_file;
use crate::render::causes;
use crate::render::contradictions;
use crate::render::json::{self, ReportOrigin};
use crate::render::output::host_name;
use crate::render::summary;
use crate::render::tui::WARNED_BYTES_PER_MINUTE;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;
use crate::watch::command::{RunningCommand, hold};
use crate::watch::evidence::streamed::{Streamed, keep};
use crate::watch::recorded;
use crate::watch::session::{Session, holdings};
use crate::watch::signals::TerminationSignals;
use crate::watch::subject::Filter;
use crate::watch::subject::filtered;
use crate::watch::subject::session_options;
use args::RunArgs;
use memwatch_core::Pipeline;
use memwatch_core::features::causes::Cause;
use memwatch_core::features::checks::{self, ReportContradiction};
use memwatch_core::recording::Stopped;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::state::tensors::TensorLog;
use memwatch_core::words::Tgid;
use std::path::PathBuf;
use std::time::Duration;
use tokio::signal::unix::SignalKind;

/// Interval for writing the log of the command's modules and phases.
const LOG_RHYTHM: Duration = Duration::from_millis(500);

/// Writes new entries of the logs of modules and phases.
pub(crate) fn write_logs(trace: Option<&mut MemTrace>, logs: &[TensorLog]) -> Result<(), ExitFailure> {
    let Some(trace) = trace else { return Ok(()) };
    let clock = WallClock::utc(clock::boottime_to_unix_ns());
    let written = logs.iter().try_for_each(|log| trace.write(log, &clock));
    written.map_err(|error| ExitFailure::new(Exit::Error, format_args!("the log cannot be written: {error}")))
}

/// Traces a command from its first allocation, and prints a summary. Returns the command's own exit
/// code.
pub(crate) async fn run_command(run: &RunArgs, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let mut options = session_options(&TargetArgs::default(), run.tensors.request(true), common);
    options.expects_command = true;
    options.logs_tensors = run.tensors.log.is_some();
    options.libraries.extend(libraries_on_search_path());
    let failed = |failure: ExitFailure| ExitFailure { exit: Exit::Command(125), ..failure };
    if run.output.as_deref().is_some_and(output_file::is_stdout) {
        let why = "the recording cannot go to standard output, which is the program's";
        return Err(failed(ExitFailure::new(Exit::Error, why).advise("Name a file: -o FILE")));
    }
    options.recorder =
        run.output.as_deref().map(|path| recorded::recorder(path, &run.recorder, false)).transpose().map_err(failed)?;
    options.holdings_every = options.recorder.as_ref().map(|_| holdings::IN_RECORDING);
    let mut session = match Session::open(&options) {
        Ok(session) => session,
        // The agent sends all of it, at the end.
        Err(refused) if run.recorder.max_size.is_some() || run.tensors.log.is_some() => return Err(failed(refused)),
        Err(refused) => return Box::pin(watched_by_agent(run, refused, common)).await,
    };
    session.pipeline_mut().watch_leaks();
    session.pipeline_mut().watch_ooms();
    // Before the command exists: a signal that arrives while the command starts must reach it,
    // rather than end memwatch only.
    let mut signals = TerminationSignals::listen().map_err(failed)?;
    let held = hold(&run.program).map_err(failed)?;
    if let Err(error) = session.adopt(held.tgid, &run.program) {
        held.abandon();
        return Err(failed(ExitFailure::from_load(error)));
    }
    let mut command = held.release();
    let mut trace = run.tensors.log.as_deref().map(MemTrace::new);
    let exit = follow(&mut session, &mut command, &mut signals, trace.as_mut()).await?;
    session.tick();
    write_logs(trace.as_mut(), &session.take_tensor_logs())?;
    let causes = session.pipeline().causes();
    let contradictions = contradictions_of(session.pipeline(), &causes);
    let (snapshot, boottime_to_unix_ns, recorded) = session.end_recording(Stopped::NobodyLeft);
    report((&causes, &contradictions), snapshot, boottime_to_unix_ns, (run, common))?;
    // The exit code is the command's own, even if the recording failed.
    if let Some(Err(failure)) = recorded.as_ref().map(recorded::reported) {
        failure.report();
    }
    Ok(exit)
}

/// Has the agent watch a command from its start, and prints a summary. Returns the command's own exit
/// code.
async fn watched_by_agent(run: &RunArgs, refused: ExitFailure, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let failed = |failure: ExitFailure| ExitFailure { exit: Exit::Command(125), ..failure };
    let mut signals = TerminationSignals::listen().map_err(failed)?;
    let held = hold(&run.program).map_err(failed)?;
    let request = Streamed { tgids: &[Tgid(held.tgid)], tensors: run.tensors.request(true), duration: None };
    let begun = request.begin(Some(&run.program), refused, common).await;
    let created = run.output.as_deref().filter(|_| begun.is_ok()).map(|path| {
        output_file::create(path, run.recorder.force).map_err(|error| ExitFailure::cannot_make(path, &error))
    });
    let (mut watch, file) = match begun.and_then(|watch| Ok((watch, created.transpose()?))) {
        Ok(begun) => begun,
        Err(failure) => {
            held.abandon();
            return Err(failed(failure));
        }
    };
    let mut command = held.release();
    let (mut exit, mut is_watched) = (None, true);
    while exit.is_none() || is_watched {
        tokio::select! {
            is_over = watch.next(), if is_watched => match is_over {
                Ok(is_over) => is_watched = !is_over,
                // The command goes on.
                Err(failure) => {
                    failure.report();
                    is_watched = false;
                }
            },
            kind = signals.any() => {
                if kind == SignalKind::terminate() {
                    command.signal(libc::SIGTERM);
                }
            }
            ended = command.wait(), if exit.is_none() => exit = Some(ended?),
        }
    }
    let recording = watch.recording();
    let replay = recorded::play_all(&recording, |pipeline| {
        pipeline.watch_leaks();
        pipeline.watch_ooms();
    });
    match replay.map_err(failed) {
        Ok(replay) => {
            let causes = replay.pipeline.causes();
            let contradictions = contradictions_of(&replay.pipeline, &causes);
            report((&causes, &contradictions), replay.snapshot(), replay.boottime_to_unix_ns, (run, common))?;
        }
        Err(failure) => failure.report(),
    }
    // The exit code is the command's own, even if the recording cannot be written.
    if let Some((path, file)) = run.output.as_deref().zip(file)
        && let Err(failure) = keep(&recording, &file, path)
    {
        failure.report();
    }
    Ok(exit.unwrap_or(Exit::Command(125)))
}

/// Traces until the command exits. Ctrl-C reaches the command directly; SIGTERM is forwarded.
async fn follow(
    session: &mut Session,
    command: &mut RunningCommand,
    signals: &mut TerminationSignals,
    mut trace: Option<&mut MemTrace>,
) -> Result<Exit, ExitFailure> {
    let mut rhythm = tokio::time::interval(LOG_RHYTHM);
    let mut ticks = tokio::time::interval(recorded::RHYTHM);
    loop {
        tokio::select! {
            // Puts the time into the recording: a replay knows no other times.
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

/// Returns the contradictions in the final reports.
fn contradictions_of(pipeline: &Pipeline, causes: &[Cause]) -> Vec<ReportContradiction> {
    let snapshot = pipeline.snapshot();
    let failures: Vec<_> = pipeline.ooms().0.cloned().collect();
    let leaks = pipeline.leaks(WARNED_BYTES_PER_MINUTE);
    let of_leaks = leaks.iter().flat_map(checks::of_leaks);
    let all = of_leaks.chain(checks::of_snapshot(&snapshot));
    all.chain(checks::of_failures(&failures, causes, &snapshot)).collect()
}

/// Prints causes, contradictions and the summary.
fn report(
    (causes, contradictions): (&[Cause], &[ReportContradiction]),
    snapshot: Snapshot,
    boottime_to_unix_ns: i128,
    (run, common): (&RunArgs, &CommonArgs),
) -> Result<(), ExitFailure> {
    if !common.json {
        for line in causes::lines(causes) {
            eprintln!("{}", line.text);
        }
    }
    contradictions::report(contradictions);
    summarise(snapshot, causes, boottime_to_unix_ns, (run, common))
}

fn summarise(
    snapshot: Snapshot,
    causes: &[Cause],
    boottime_to_unix_ns: i128,
    (run, common): (&RunArgs, &CommonArgs),
) -> Result<(), ExitFailure> {
    let filter = Filter::new(&TargetArgs { gpus: run.gpus.clone(), ..TargetArgs::default() });
    let snapshot = filtered(snapshot, &filter)?;
    if common.json {
        let (host, clock) = (host_name(), WallClock::local(boottime_to_unix_ns));
        let origin = ReportOrigin { host: &host, clock: &clock };
        json::write_run(&mut std::io::stderr().lock(), causes, &snapshot, origin).map_err(anyhow::Error::from)?;
    } else {
        eprint!("{}", summary::render(&snapshot, &WallClock::local(boottime_to_unix_ns), run.output.as_deref()));
    }
    Ok(())
}

/// Returns the driver libraries that the command would find before the system's: they are probed
/// before it starts.
fn libraries_on_search_path() -> Vec<PathBuf> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let files = std::env::split_paths(&path).map(|directory| directory.join("libcuda.so.1"));
    files.filter(|file| file.is_file()).collect()
}
