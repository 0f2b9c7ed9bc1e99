//! `memwatch ps`: prints one report.

pub(crate) mod args;
mod csv;
mod driver_view;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::TensorRequest;
use crate::options::CommonArgs;
use crate::render::output::{ReportOutput, host_name, unless_closed};
use crate::watch::past::{Needs, RecordedPeriod};
use crate::watch::recorded;
use crate::watch::source::ReportSource;
use crate::watch::subject::{Filter, filtered, found_any, session_options};
use args::{Ps, PsFormat};
use memwatch_core::snapshot::Snapshot;
use std::io::{self, Write as _};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time that one report waits for NVML.
const NVML_TIMEOUT: Duration = Duration::from_secs(3);

/// Runs `memwatch ps`.
///
/// # Errors
/// The machine cannot be traced, the recording cannot be read, or none of the named processes
/// exists.
pub(crate) async fn run(args: &Ps, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    match RecordedPeriod::named(&args.past, Needs::Calls, common).await? {
        Some(recording) => report_recorded(&recording, args, common),
        None => report_once(args, common).await,
    }
}

/// Prints a report as soon as NVML has answered once after the attach and the runtimes have been
/// queried for names.
///
/// A user without permission to trace gets NVML's values.
async fn report_once(args: &Ps, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let targets = &args.targets;
    let opened = ReportSource::open(&session_options(targets, TensorRequest::default(), common), targets, common).await;
    let mut source = match opened {
        Ok(source) => source,
        Err(failure) if failure.exit == Exit::NotPermitted && targets.selected.is_everybody() && !common.json => {
            return driver_view::report(args, common, failure);
        }
        Err(failure) => return Err(failure),
    };
    let seen = source.settled(Instant::now() + NVML_TIMEOUT).await?;
    let is_empty = seen.snapshot.gpus.is_empty() && seen.snapshot.processes.is_empty();
    if is_empty && !common.json && driver_view::is_without_driver(common) {
        return Err(driver_view::without_gpu());
    }
    let filter = Filter::new(targets);
    let snapshot = filtered(seen.snapshot, &filter)?;
    show((&snapshot, seen.boottime_to_unix_ns), args, common, host_name())?;
    match &source.idle_targets()[..] {
        [idle, ..] => Err(ExitFailure::new(Exit::NoTarget, idle)),
        [] => found_any(&snapshot, &filter),
    }
}

/// Runs `memwatch ps --in FILE`: reports the end of a recording.
fn report_recorded(recording: &RecordedPeriod, args: &Ps, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let targets = &args.targets;
    let replay = recorded::play(recording, |_| {})?;
    let filter = Filter::new(targets);
    let snapshot = filtered(recorded::chosen(&replay, &recording.path, &targets.selected)?, &filter)?;
    show((&snapshot, replay.boottime_to_unix_ns), args, common, replay.front.host)?;
    found_any(&snapshot, &filter)
}

fn show(
    (snapshot, offset): (&Snapshot, i128),
    args: &Ps,
    common: &CommonArgs,
    host: String,
) -> Result<(), ExitFailure> {
    if args.format == PsFormat::Csv && !common.json {
        return unless_closed(io::stdout().lock().write_all(csv::write(snapshot, &args.shown()).as_bytes()));
    }
    ReportOutput::once(common, (args.rows.by(), args.shown()), host).show(snapshot, offset).map(drop)
}
