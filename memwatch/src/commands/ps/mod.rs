//! `memwatch ps`: prints one report.

pub(crate) mod args;
mod csv;
mod driver_view;

use crate::exit::{Exit, ExitFailure};
use crate::options::CommonArgs;
use crate::render::output::{ReportOutput, unless_closed};
use crate::watch::evidence::Evidence;
use crate::watch::subject::{Filter, filtered, found_any};
use args::{Ps, PsFormat};
use memwatch_core::snapshot::Snapshot;
use std::io::{self, Write as _};
use std::time::Duration;
use tokio::time::Instant;

/// Maximum time that one report waits for NVML.
const NVML_TIMEOUT: Duration = Duration::from_secs(3);

/// Prints a report of a recording's end, or of now: as soon as NVML has answered once after the attach
/// and the runtimes have been queried for names.
///
/// A user without permission to trace gets NVML's values.
///
/// # Errors
/// The machine cannot be traced, the recording cannot be read, or none of the named processes
/// exists.
pub(crate) async fn run(args: &Ps, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let targets = &args.targets;
    let mut evidence = match Evidence::of_moment(&args.past, targets, common).await {
        Ok(evidence) => evidence,
        Err(failure)
            if failure.exit == Exit::NotPermitted
                && !args.past.is_meant()
                && targets.selected.is_everybody()
                && !common.json =>
        {
            return driver_view::report(args, common, failure);
        }
        Err(failure) => return Err(failure),
    };
    let seen = evidence.settled(Instant::now() + NVML_TIMEOUT).await?;
    let is_empty = seen.snapshot.gpus.is_empty() && seen.snapshot.processes.is_empty();
    if is_empty && !evidence.is_recorded() && !common.json && driver_view::is_without_driver(common) {
        return Err(driver_view::without_gpu());
    }
    let filter = Filter::new(targets);
    let snapshot = filtered(seen.snapshot, &filter)?;
    let host = evidence.taken_at().origin().host.to_owned();
    show((&snapshot, seen.boottime_to_unix_ns), args, common, host)?;
    match &evidence.idle_targets()[..] {
        [idle, ..] => Err(ExitFailure::new(Exit::NoTarget, idle)),
        [] => found_any(&snapshot, &filter),
    }
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
