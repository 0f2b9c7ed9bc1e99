//! `memwatch export` and `memwatch flamegraph`: exports the Python stacks that hold the memory of
//! PyTorch processes.

pub(crate) mod args;

use std::io::{self, Write as _};

use memwatch_core::Pipeline;
use memwatch_core::snapshot::Snapshot;

use crate::agent::metrics::own_use::OwnUse;
use crate::agent::metrics::{Metrics, MetricsInput};
use crate::exit::{Exit, ExitFailure};
use crate::export::{CallPathProfile, ProfileFormat, ProfileWeight, leaking};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::output_file;
use crate::render::format::signed_bytes;
use crate::render::output::unless_closed;
use crate::render::places::all_ended;
use crate::render::wall_clock::WallClock;
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::period::{Observation, PeriodQuestion};
use crate::watch::one_shot::finish;
use crate::watch::taken_at::TakenAt;
use args::{ExportArgs, ExportKind, ExportSource, Flamegraph};

/// Maximum number of pairs of process and GPU with series of their own in a metrics file.
const OWN_SERIES: usize = 1000;
/// Allocations and frees with their call sites and phases, so that a backward pass is attributed to
/// the lines it belongs to.
const REQUEST: TensorRequest = TensorRequest::of_reports(TensorLevel::Modules);

/// Runs `memwatch export`.
///
/// # Errors
/// The processes cannot be traced, do not use PyTorch, or the file cannot be written.
pub(crate) async fn export(args: &ExportArgs, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    write_held(&args.held, args.written(), common).await
}

/// Runs `memwatch flamegraph`.
///
/// # Errors
/// Those of [`export`].
pub(crate) async fn flamegraph(args: &Flamegraph, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    write_held(&args.held, args.written(), common).await
}

/// Writes the file in this format.
///
/// # Errors
/// The processes cannot be traced, do not use PyTorch, or the file cannot be written.
async fn write_held(
    held: &ExportSource,
    written: Result<ExportKind, String>,
    common: &CommonArgs,
) -> Result<Exit, ExitFailure> {
    let format = match written.map_err(|sentence| ExitFailure::new(Exit::Error, sentence))? {
        ExportKind::Profile(format) => format,
        ExportKind::Snapshot => return crate::commands::snapshot::snapshot(&held.pickle(), common).await,
        ExportKind::TensorBoard => return crate::commands::timeline::run(&held.timeline(), common).await,
        ExportKind::Metrics => return metrics(held, common).await,
    };
    check_absent(held)?;
    let selected = &held.subject.selected;
    let watch = |pipeline: &mut Pipeline| {
        if held.weight == Some(ProfileWeight::Leak) {
            pipeline.watch_leaks();
        }
    };
    let question = PeriodQuestion::about(&held.subject, Needs::Tensors, REQUEST).on(&held.gpus);
    let question = question.during(Some(held.duration)).with_earlier_memory();
    let weighed = |pipeline: &Pipeline, snapshot: &Snapshot, taken_at: &TakenAt| {
        weighed((held, format), snapshot, pipeline, &WallClock::utc(taken_at.clock.boottime_to_unix_ns))
    };
    let seen = question.observe(watch, weighed, common).await?;
    let Observation { snapshot, reported: (weight, profile), .. } = seen;
    if profile.parts.is_empty() {
        return finish(Ok(()), &snapshot, selected);
    }
    let bytes = profile.write(format, weight).map_err(|error| {
        ExitFailure::new(Exit::Error, error).advise("Count something else: --weight inuse, peak, alloc or count.")
    })?;
    write(held, &bytes)?;
    report_written(held, (format, weight), &profile);
    finish(Ok(()), &snapshot, selected)
}

/// Checks the output file before the session starts.
fn check_absent(held: &ExportSource) -> Result<(), ExitFailure> {
    output_file::check_free(&held.output, held.force).map_err(|error| ExitFailure::cannot_make(&held.output, &error))
}

/// Writes the agent's metrics at one time, from a session or a recording.
async fn metrics(held: &ExportSource, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    check_absent(held)?;
    let question = PeriodQuestion::about(&held.subject, Needs::Calls, TensorRequest::default()).on(&held.gpus);
    let seen = question.during(Some(held.duration)).observe(|_| {}, |_, _, _| {}, common).await?;
    let Observation { snapshot, taken_at, .. } = seen;
    let (own, collect_ns, history) = (OwnUse::default(), None, None);
    let facts = MetricsInput {
        snapshot: &snapshot,
        boottime_to_unix_ns: taken_at.clock.boottime_to_unix_ns,
        collect_ns,
        driver_version: "",
        history,
        survives: None,
        events_left_out: None,
        flight_recorder: None,
        pushes: None,
        contradictions: None,
        own,
    };
    write(held, Metrics::new(OWN_SERIES).text_of_its_time(&facts).as_bytes())?;
    if !held.is_for_stdout() {
        let path = held.output.display();
        eprintln!("memwatch: {path} is written; promtool tsdb create-blocks-from openmetrics {path} takes it in");
    }
    Ok(Exit::Ok)
}

/// Returns the weight and the profile. Without an explicit weight, a program that has exited is
/// shown at its peak.
fn weighed(
    (held, format): (&ExportSource, ProfileFormat),
    snapshot: &Snapshot,
    pipeline: &Pipeline,
    clock: &WallClock,
) -> (ProfileWeight, CallPathProfile) {
    let of_its_peak =
        (held.subject.past.window.since.is_some() || all_ended(snapshot)) && format != ProfileFormat::Pprof;
    let weight = held.weight.unwrap_or(if of_its_peak { ProfileWeight::Peak } else { ProfileWeight::InUse });
    (weight, profile(snapshot, pipeline, weight, clock))
}

/// Returns all stacks, or those of growing lines.
fn profile(snapshot: &Snapshot, pipeline: &Pipeline, weight: ProfileWeight, clock: &WallClock) -> CallPathProfile {
    if weight != ProfileWeight::Leak {
        return CallPathProfile::new(snapshot, |process| pipeline.state.call_paths(process), clock);
    }
    // Includes any growth, without a threshold: this is for inspection, not an alarm.
    let leaks = pipeline.leaks(0.0);
    CallPathProfile::new(snapshot, |process| leaking(pipeline.state.call_paths(process), process, &leaks), clock)
}

fn write(held: &ExportSource, bytes: &[u8]) -> Result<(), ExitFailure> {
    if held.is_for_stdout() {
        let mut out = io::stdout().lock();
        return unless_closed(out.write_all(bytes).and_then(|()| out.flush()));
    }
    let written = output_file::create(&held.output, held.force).and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| ExitFailure::cannot_make(&held.output, &error))
}

/// Prints what was written, which program opens it, and what is missing in it.
fn report_written(held: &ExportSource, (format, weight): (ProfileFormat, ProfileWeight), profile: &CallPathProfile) {
    let path = held.output.display();
    if !held.is_for_stdout() {
        let stacks: usize = profile.parts.iter().map(|part| part.samples.len()).sum();
        let amount = weight.amount(profile.total(weight));
        eprintln!("memwatch: {path} is written: {amount}, {stacks} stacks; {}", opened_by(format));
    }
    if profile.total(weight) == 0 {
        let other = if weight == ProfileWeight::Peak { "alloc" } else { "peak" };
        eprintln!("memwatch: there was nothing {}; try --weight {other}", weight.name());
    }
    for part in profile.parts.iter().filter(|part| part.unplaced_bytes != 0) {
        eprintln!("memwatch: {} are in no stack: events were lost", signed_bytes(part.unplaced_bytes));
    }
}

const fn opened_by(format: ProfileFormat) -> &'static str {
    match format {
        ProfileFormat::Folded => "speedscope.app and flamegraph.pl read it",
        ProfileFormat::Speedscope => "drop it onto speedscope.app",
        ProfileFormat::Pprof => "go tool pprof -http=: FILE shows it",
        ProfileFormat::Csv => "any spreadsheet opens it",
        ProfileFormat::Parquet => "pandas.read_parquet opens it, and so do DuckDB and Polars",
        ProfileFormat::Svg | ProfileFormat::Html => "open it in a browser",
    }
}
