//! The live view: `memwatch`, `memwatch --pid`.

use crate::client::TimedSnapshot;
use crate::client::protocol::OutlookMessage;
use crate::commands::run::write_logs;
use crate::exit::{Exit, ExitFailure};
use crate::export::mem_trace::MemTrace;
use crate::options::{CommonArgs, IntervalArgs, TargetArgs, TensorArgs};
use crate::render::output::ReportOutput;
use crate::render::summary;
use crate::render::tui::{Outlooks, ProcessObjects, ScreenFlow, WARNED_BYTES_PER_MINUTE};
use crate::render::wall_clock::WallClock;
use crate::watch::evidence::{Evidence, Rhythm};
use crate::watch::session::holdings;
use crate::watch::signals::TerminationSignals;
use crate::watch::signals::at;
use crate::watch::subject::Filter;
use crate::watch::subject::filtered;
use crate::watch::subject::session_options;
use memwatch_core::Pipeline;
use memwatch_core::features::holdings::view::HoldingGrouping;
use memwatch_core::features::holdings::{KnownHoldings, known_holdings};
use tokio::time::Instant;

/// Maximum number of names shown per process.
const NAMES: usize = 1000;

/// Reason for the end of a live view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// A signal or a key.
    Asked,
    /// The deadline of `--duration`.
    TimeUp,
    /// The exit of the last target.
    NobodyLeft,
    /// The reader of the output closed it.
    OutputClosed,
}

/// Runs the live view: `memwatch`, `memwatch --pid …`.
pub(crate) async fn watch(
    (targets, requested, pace): (&TargetArgs, &TensorArgs, IntervalArgs),
    common: &CommonArgs,
) -> Result<Exit, ExitFailure> {
    let tensors = requested.request(!targets.selected.is_everybody());
    let mut options = session_options(targets, tensors, common);
    options.logs_tensors = requested.log.is_some();
    options.is_screen = ReportOutput::is_screen(common);
    options.holdings_every = options.is_screen.then_some(holdings::ON_SCREEN);
    let mut source = if requested.is_asked_for() && common.agent.is_none() {
        Evidence::own(&options)?
    } else {
        Evidence::present(&options, targets, common).await?
    };
    source.persist();
    let filter = Filter::new(targets);
    for idle in source.idle_targets() {
        eprintln!("memwatch: {idle}; waiting for its first CUDA call");
    }
    let mut output = ReportOutput::watch(common, options.targets.len() == 1)?;
    match &mut source {
        Evidence::Live(session) if options.is_screen => session.pipeline_mut().watch_forecasts(&[]),
        Evidence::Agent(agent) if options.is_screen => agent.want_outlook(),
        Evidence::Live(_) | Evidence::Agent(_) | Evidence::Recording(_) => {}
    }
    let mut trace = requested.log.as_deref().map(MemTrace::new);
    let stop = drive(&mut source, &mut output, (&filter, trace.as_mut()), pace).await?;
    drop(output);
    if stop == Stop::OutputClosed {
        return Ok(Exit::Ok);
    }
    if let [idle, ..] = &source.idle_targets()[..] {
        return Err(ExitFailure::new(Exit::NoTarget, format_args!("{idle} in all this time")));
    }
    let has_summary = stop == Stop::NobodyLeft && !common.json;
    if let Some(seen) = if has_summary { source.last_word().await } else { None } {
        print!("{}", summary::render(&seen.snapshot, &WallClock::local(seen.boottime_to_unix_ns), None));
    }
    Ok(Exit::Ok)
}

/// Main loop of the live view: handles snapshots, keys, signals and timers until one of them ends
/// it.
async fn drive(
    source: &mut Evidence,
    output: &mut ReportOutput,
    (filter, mut trace): (&Filter, Option<&mut MemTrace>),
    pace: IntervalArgs,
) -> Result<Stop, ExitFailure> {
    let mut rhythm = Rhythm::new(pace.interval);
    let deadline = pace.duration.map(|duration| Instant::now() + duration);
    let mut keys = output.keys();
    let mut signals = TerminationSignals::listen()?;
    let stop = loop {
        tokio::select! {
            seen = source.next(&mut rhythm) => {
                // Checked before records are read again, so that the last report includes the
                // exits.
                let is_anybody_left = source.is_anybody_left();
                write_logs(trace.as_deref_mut(), &source.take_tensor_logs())?;
                output.expect(outlooks(source));
                if !show(seen?, output, filter)? {
                    return Ok(Stop::OutputClosed);
                }
                if !is_anybody_left {
                    return Ok(Stop::NobodyLeft);
                }
            }
            Some(event) = keys.recv() => {
                match output.key(event) {
                    ScreenFlow::Continue => {}
                    ScreenFlow::Quit => return Ok(Stop::Asked),
                    ScreenFlow::ResetPeaks(tgid) => source.reset_peaks(tgid).await,
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

/// Returns leaks, forecasts and live objects, if the pipeline runs in this process.
fn outlooks(source: &Evidence) -> Outlooks {
    match source {
        Evidence::Live(session) => {
            let pipeline = session.pipeline();
            let leaks = pipeline.leaks(WARNED_BYTES_PER_MINUTE);
            Outlooks { leaks, forecasts: pipeline.forecasts(), holdings: held(pipeline) }
        }
        Evidence::Agent(agent) => {
            let OutlookMessage { leaks, forecasts } = agent.outlook();
            Outlooks { leaks, forecasts, holdings: Vec::new() }
        }
        Evidence::Recording(_) => Outlooks::default(),
    }
}

/// Returns the live objects of processes by name.
fn held(pipeline: &Pipeline) -> Vec<ProcessObjects> {
    let known = known_holdings(&pipeline.state, HoldingGrouping::Name, NAMES).into_iter();
    known
        .map(|KnownHoldings { tgid, observed_since_ns, view, .. }| ProcessObjects { tgid, observed_since_ns, view })
        .collect()
}

pub(crate) fn show(seen: TimedSnapshot, output: &mut ReportOutput, filter: &Filter) -> Result<bool, ExitFailure> {
    let boottime_to_unix_ns = seen.boottime_to_unix_ns;
    output.show(&filtered(seen.snapshot, filter)?, boottime_to_unix_ns)
}
