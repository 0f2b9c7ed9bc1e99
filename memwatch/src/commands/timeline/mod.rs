//! `memwatch timeline`: writes memory over time with events, as a table, JSON, a picture, a page or
//! a trace.

pub(crate) mod args;
pub(crate) mod json;
pub(crate) mod text;

use std::io::{self, Write as _};
use std::path::Path;

use memwatch_core::Pipeline;
use memwatch_core::features::timeline::view::TimelineView;
use memwatch_core::snapshot::Snapshot;
use memwatch_core::words::GpuUuid;

use crate::exit::{Exit, ExitFailure};
use crate::export::plot::Plot;
use crate::export::{columns as parquet, csv, perfetto, tensorboard};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::{CommonArgs, TargetArgs};
use crate::output_file;
use crate::render::output::{style, unless_closed};
use crate::render::wall_clock::WallClock;
use crate::watch::evidence::period::{Observation, PeriodQuestion};
use crate::watch::taken_at::TakenAt;
use args::{Timeline, TimelineFormat};

/// Allocations and frees with their owners, so that an event has a call site, a phase and a module.
const REQUEST: TensorRequest = TensorRequest::of_reports(TensorLevel::Modules);

/// Traces the processes or reads the recording, and writes the timeline.
///
/// # Errors
/// The processes cannot be traced, the recording cannot be read, or the report cannot be written.
pub(crate) async fn run(args: &Timeline, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let format = args.written().map_err(|sentence| ExitFailure::new(Exit::Error, sentence))?;
    let format = format.or(common.json.then_some(TimelineFormat::Json));
    if let Some(path) = args.output.as_deref() {
        check_free(path, args.force)?;
    }
    let interval_ns = u64::try_from(args.interval.as_nanos()).unwrap_or(u64::MAX);
    let prepare = |pipeline: &mut Pipeline| pipeline.watch_timeline(interval_ns, args.min_size);
    let question = PeriodQuestion::about_targets(&args.looks, REQUEST);
    let seen = question.observe(prepare, |pipeline, _, _| pipeline.timeline(), common).await?;
    let Observation { snapshot, reported, taken_at, everybody, exit, .. } = seen;
    let mut timeline = reported.unwrap_or_default();
    if !everybody {
        choose(&mut timeline, &args.looks.targets, &snapshot);
    }
    let bytes = if let Some(format) = format {
        rendered(format, (&timeline, args.points), &snapshot, &taken_at)?
    } else {
        let (mut text, reported) = (Vec::new(), (&timeline, args.top));
        let written = text::write(&mut text, reported, &snapshot, &taken_at.clock, &style(common, false));
        written.map_err(anyhow::Error::from)?;
        text
    };
    write_to(args.output.as_deref(), args.force, &bytes)?;
    exit
}

/// Checks the output file before the session starts.
///
/// # Errors
/// The file exists and must not be replaced.
pub(crate) fn check_free(path: &Path, force: bool) -> Result<(), ExitFailure> {
    output_file::check_free(path, force).map_err(|error| ExitFailure::cannot_make(path, &error))
}

/// Renders a picture, a page, a trace or a report.
///
/// # Errors
/// There is nothing to draw.
pub(crate) fn rendered(
    format: TimelineFormat,
    (timeline, points): (&TimelineView, usize),
    snapshot: &Snapshot,
    taken_at: &TakenAt,
) -> Result<Vec<u8>, ExitFailure> {
    let utc = WallClock::utc(taken_at.clock.boottime_to_unix_ns);
    let failed = |error: io::Error| ExitFailure::from(anyhow::Error::from(error));
    let plot = || {
        let plot = Plot::new(timeline, snapshot, &taken_at.clock);
        if plot.is_empty() {
            let nothing = "there is nothing to draw: no GPU, and no process with GPU memory";
            return Err(ExitFailure::new(Exit::NoTarget, nothing));
        }
        Ok(plot)
    };
    match format {
        TimelineFormat::Svg => Ok(plot()?.svg().into_bytes()),
        TimelineFormat::Html => plot()?.html().map_err(failed),
        TimelineFormat::Csv => Ok(csv::timeline(timeline, &utc).into_bytes()),
        TimelineFormat::Parquet => parquet::timeline(timeline, &utc).map_err(failed),
        TimelineFormat::Perfetto => Ok(perfetto::write(timeline, snapshot, &utc)),
        TimelineFormat::TensorBoard => Ok(tensorboard::write(timeline, snapshot, &utc)),
        TimelineFormat::Json => {
            let mut text = Vec::new();
            json::write(&mut text, (timeline, points), snapshot, taken_at.origin()).map_err(failed)?;
            Ok(text)
        }
    }
}

/// Writes to a file and prints its name, or writes to standard output.
///
/// # Errors
/// The output cannot be written.
pub(crate) fn write_to(path: Option<&Path>, force: bool, bytes: &[u8]) -> Result<(), ExitFailure> {
    let Some(path) = path.filter(|path| !output_file::is_stdout(path)) else {
        let mut out = io::stdout().lock();
        return unless_closed(out.write_all(bytes).and_then(|()| out.flush()));
    };
    let written = output_file::create(path, force).and_then(|mut file| file.write_all(bytes));
    written.map_err(|error| ExitFailure::cannot_make(path, &error))?;
    eprintln!("memwatch: {} is written", path.display());
    Ok(())
}

/// Keeps only the processes in the snapshot, and the GPUs in it if some were named.
pub(crate) fn choose(timeline: &mut TimelineView, targets: &TargetArgs, snapshot: &Snapshot) {
    let has_gpu = |uuid: Option<&_>| {
        let is_there = |uuid: &GpuUuid| snapshot.gpus.iter().any(|gpu| gpu.uuid == *uuid);
        targets.gpus.is_empty() || uuid.is_none_or(is_there)
    };
    let processes = || snapshot.processes.iter();
    timeline.tracks.retain(|track| {
        let is_shown = |since_ns| {
            processes().any(|process| Some(process.tgid) == track.tgid && process.observed_since_ns == since_ns)
        };
        has_gpu(track.uuid.as_ref()) && track.observed_since_ns.is_none_or(is_shown)
    });
    let has = |tgid| processes().any(|process| process.tgid == tgid);
    timeline.events.retain(|event| has_gpu(event.uuid.as_ref()) && event.tgid.is_none_or(has));
    timeline.spans.retain(|span| has(span.tgid));
}
