//! `memwatch leak`: reports what keeps growing, in a session or in a recording.

pub(crate) mod args;
pub(crate) mod json;
mod read_only;
pub(crate) mod text;
pub(crate) mod words;

use std::io;

use memwatch_core::Pipeline;
use memwatch_core::features::checks;
use memwatch_core::features::leak::view::LeaksView;
use memwatch_core::snapshot::Snapshot;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::contradictions;
use crate::render::output::{style, unless_closed};
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::period::{Observation, PeriodQuestion};
use crate::watch::taken_at::TakenAt;
use args::Leak;

/// Traces the processes or reads the recording, and reports what grows.
///
/// # Errors
/// The processes cannot be traced, the recording cannot be read, or the report cannot be written.
#[expect(clippy::cast_precision_loss, reason = "a threshold needs no sixteen digits")]
pub(crate) async fn run(args: &Leak, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    if args.read_only {
        return read_only::run(args, common).await;
    }
    let threshold = args.threshold as f64;
    // Steps are needed: a window that ends within a step sees memory that does not stay.
    let tensors = args.price.limit(TensorRequest::of_reports(TensorLevel::Modules));
    let question = PeriodQuestion::about(&args.subject, Needs::Calls, tensors);
    let question = question.during(Some(args.duration)).with_names();
    let leaks = |pipeline: &Pipeline, _: &Snapshot, _: &TakenAt| pipeline.leaks(threshold);
    let seen = question.observe(Pipeline::watch_leaks, leaks, common).await?;
    let Observation { snapshot, reported: mut leaks, taken_at, .. } = seen;
    leaks.retain(|leaks| snapshot.process(leaks.tgid, leaks.observed_since_ns).is_some());
    print((&leaks, &snapshot), &taken_at, (args, common))
}

/// Writes the report and returns the exit code.
fn print(
    (leaks, snapshot): (&[LeaksView], &Snapshot),
    taken_at: &TakenAt,
    (args, common): (&Leak, &CommonArgs),
) -> Result<Exit, ExitFailure> {
    let found = leaks.iter().flat_map(checks::of_leaks).chain(checks::of_snapshot(snapshot));
    contradictions::report(&found.collect::<Vec<_>>());
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        json::write(&mut out, leaks, snapshot, taken_at.origin())
    } else {
        text::write(&mut out, (leaks, args.top), snapshot, &taken_at.clock, &style(common, false))
    })?;
    Ok(exit_of(leaks, args))
}

/// Returns the exit code of a finding that `--fail-on` names.
fn exit_of(leaks: &[LeaksView], args: &Leak) -> Exit {
    let mut verdicts = leaks.iter().flat_map(|leaks| &leaks.findings).map(|finding| finding.verdict);
    let is_found = args.fail_on.is_some_and(|what| verdicts.any(|verdict| what.is_of(verdict)));
    if is_found { Exit::Found } else { Exit::Ok }
}
