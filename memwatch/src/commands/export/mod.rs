//! `memwatch export` and `memwatch flamegraph`: exports the Python stacks that hold the memory of
//! PyTorch processes.

pub(crate) mod args;

use std::io::{self, Write as _};

use memwatch_core::Pipeline;
use memwatch_core::snapshot::Snapshot;
use tokio::time::Instant;

use crate::agent::metrics::own_use::OwnUse;
use crate::agent::metrics::{Facts, Metrics};
use crate::exit::{Exit, Failure};
use crate::export::{Format, Profile, Weight, leaking};
use crate::frameworks::pytorch::{TensorLevel, TensorRequest};
use crate::options::Common;
use crate::output_file;
use crate::render::format::signed_bytes;
use crate::render::output::unless_closed;
use crate::render::places::all_ended;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;
use crate::watch::filter::{GpuFilter, UnknownGpu};
use crate::watch::one_shot::{finish, open_named, watch_until};
use crate::watch::past::{Needs, Recording};
use crate::watch::recorded;
use crate::watch::signals::Signals;
use args::{Export, Flamegraph, Held, Written};

/// Maximum number of pairs of process and GPU with series of their own in a metrics file.
const OWN_SERIES: usize = 1000;
/// Allocations and frees with their call sites and phases, so that a backward pass is attributed to
/// the lines it belongs to.
const REQUEST: TensorRequest = TensorRequest::of_reports(TensorLevel::Layers);

/// Runs `memwatch export`.
///
/// # Errors
/// The processes cannot be traced, do not use PyTorch, or the file cannot be written.
pub(crate) async fn export(args: &Export, common: &Common) -> Result<Exit, Failure> {
    write_held(&args.held, args.written(), common).await
}

/// Runs `memwatch flamegraph`.
///
/// # Errors
/// Those of [`export`].
pub(crate) async fn flamegraph(args: &Flamegraph, common: &Common) -> Result<Exit, Failure> {
    write_held(&args.held, args.written(), common).await
}

/// Writes the file in this format.
///
/// # Errors
/// The processes cannot be traced, do not use PyTorch, or the file cannot be written.
async fn write_held(held: &Held, written: Result<Written, String>, common: &Common) -> Result<Exit, Failure> {
    let format = match written.map_err(|sentence| Failure::new(Exit::Error, sentence))? {
        Written::Profile(format) => format,
        Written::Snapshot => return crate::commands::snapshot::snapshot(&held.pickle(), common).await,
        Written::TensorBoard => return crate::commands::timeline::run(&held.timeline(), common).await,
        Written::Metrics => return metrics(held, common).await,
    };
    check_absent(held)?;
    let selected = &held.subject.selected;
    let gpus = GpuFilter::new(&held.gpus);
    let watch = |pipeline: &mut Pipeline| {
        if held.weight == Some(Weight::Leak) {
            pipeline.watch_leaks();
        }
    };
    let unknown = |error: UnknownGpu| Failure::new(Exit::NoTarget, error);
    let past = Recording::named(&held.subject.past, Needs::Tensors, common).await?;
    let (snapshot, (weight, profile)) = if let Some(recording) = past {
        let replay = recorded::play(&recording, watch)?;
        let mut snapshot = recorded::chosen(&replay, &recording.path, selected)?;
        gpus.apply(&mut snapshot).map_err(unknown)?;
        let clock = WallClock::utc(replay.boottime_to_unix_ns);
        let weighed = weighed((held, format), &snapshot, &replay.pipeline, &clock);
        (snapshot, weighed)
    } else {
        let mut session = open_named(selected, REQUEST, common).await?;
        watch(session.pipeline_mut());
        let mut signals = Signals::listen()?;
        let deadline = Instant::now() + held.duration;
        let (mut snapshot, _) = watch_until(&mut session, &mut signals, deadline, None, &mut false).await;
        gpus.apply(&mut snapshot).map_err(unknown)?;
        let clock = WallClock::utc(clock::boottime_to_unix_ns());
        let weighed = weighed((held, format), &snapshot, session.pipeline(), &clock);
        (snapshot, weighed)
    };
    if profile.parts.is_empty() {
        return finish(Ok(()), &snapshot, selected);
    }
    let bytes = profile.write(format, weight).map_err(|error| {
        Failure::new(Exit::Error, error).advise("Count something else: --weight inuse, peak, alloc or count.")
    })?;
    write(held, &bytes)?;
    report_written(held, (format, weight), &profile);
    finish(Ok(()), &snapshot, selected)
}

/// Checks the output file before the session starts.
fn check_absent(held: &Held) -> Result<(), Failure> {
    output_file::check_free(&held.output, held.force).map_err(|error| Failure::cannot_make(&held.output, &error))
}

/// Writes the agent's metrics at one time, from a session or a recording.
async fn metrics(held: &Held, common: &Common) -> Result<Exit, Failure> {
    let selected = &held.subject.selected;
    check_absent(held)?;
    let past = Recording::named(&held.subject.past, Needs::Calls, common).await?;
    let (mut snapshot, boottime_to_unix_ns) = if let Some(recording) = past {
        let replay = recorded::play(&recording, |_| {})?;
        (recorded::chosen(&replay, &recording.path, selected)?, replay.boottime_to_unix_ns)
    } else {
        let mut session = open_named(selected, TensorRequest::default(), common).await?;
        let mut signals = Signals::listen()?;
        recorded::follow(&mut session, &mut signals, Some(Instant::now() + held.duration)).await;
        (session.snapshot(), clock::boottime_to_unix_ns())
    };
    GpuFilter::new(&held.gpus).apply(&mut snapshot).map_err(|error| Failure::new(Exit::NoTarget, error))?;
    let (own, collect_ns, history) = (OwnUse::default(), None, None);
    let facts = Facts {
        snapshot: &snapshot,
        boottime_to_unix_ns,
        collect_ns,
        driver_version: "",
        history,
        survives: None,
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
    (held, format): (&Held, Format),
    snapshot: &Snapshot,
    pipeline: &Pipeline,
    clock: &WallClock,
) -> (Weight, Profile) {
    let of_its_peak = (held.subject.past.window.since.is_some() || all_ended(snapshot)) && format != Format::Pprof;
    let weight = held.weight.unwrap_or(if of_its_peak { Weight::Peak } else { Weight::InUse });
    (weight, profile(snapshot, pipeline, weight, clock))
}

/// Returns all stacks, or those of growing lines.
fn profile(snapshot: &Snapshot, pipeline: &Pipeline, weight: Weight, clock: &WallClock) -> Profile {
    if weight != Weight::Leak {
        return Profile::new(snapshot, |process| pipeline.call_paths(process), clock);
    }
    // Includes any growth, without a threshold: this is for inspection, not an alarm.
    let leaks = pipeline.leaks(0.0);
    Profile::new(snapshot, |process| leaking(pipeline.call_paths(process), process, &leaks), clock)
}

fn write(held: &Held, bytes: &[u8]) -> Result<(), Failure> {
    if held.is_for_stdout() {
        let mut out = io::stdout().lock();
        return unless_closed(out.write_all(bytes).and_then(|()| out.flush()));
    }
    let written = output_file::create(&held.output, held.force).and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| Failure::cannot_make(&held.output, &error))
}

/// Prints what was written, which program opens it, and what is missing in it.
fn report_written(held: &Held, (format, weight): (Format, Weight), profile: &Profile) {
    let path = held.output.display();
    if !held.is_for_stdout() {
        let stacks: usize = profile.parts.iter().map(|part| part.samples.len()).sum();
        let amount = weight.amount(profile.total(weight));
        eprintln!("memwatch: {path} is written: {amount}, {stacks} stacks; {}", opened_by(format));
    }
    if profile.total(weight) == 0 {
        let other = if weight == Weight::Peak { "alloc" } else { "peak" };
        eprintln!("memwatch: there was nothing {}; try --weight {other}", weight.name());
    }
    for part in profile.parts.iter().filter(|part| part.unplaced_bytes != 0) {
        eprintln!("memwatch: {} are in no stack: events were lost", signed_bytes(part.unplaced_bytes));
    }
}

const fn opened_by(format: Format) -> &'static str {
    match format {
        Format::Folded => "speedscope.app and flamegraph.pl read it",
        Format::Speedscope => "drop it onto speedscope.app",
        Format::Pprof => "go tool pprof -http=: FILE shows it",
        Format::Csv => "any spreadsheet opens it",
        Format::Parquet => "pandas.read_parquet opens it, and so do DuckDB and Polars",
        Format::Svg | Format::Html => "open it in a browser",
    }
}
