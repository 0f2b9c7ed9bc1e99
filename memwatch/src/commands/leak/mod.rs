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
use tokio::time::Instant;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::contradictions;
use crate::render::output::{style, unless_closed};
use crate::watch::one_shot::{TakenAt, open_named};
use crate::watch::past::{Needs, RecordedPeriod};
use crate::watch::recorded;
use crate::watch::signals::TerminationSignals;
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
    let selected = &args.subject.selected;
    let threshold = args.threshold as f64;
    let past = RecordedPeriod::named(&args.subject.past, Needs::Calls, common).await?;
    let (snapshot, mut leaks, taken_at) = if let Some(recording) = past {
        let replay = recorded::play(&recording, Pipeline::watch_leaks)?;
        (recorded::chosen(&replay, &recording.path, selected)?, replay.pipeline.leaks(threshold), TakenAt::of(&replay))
    } else {
        // Steps are needed: a window that ends within a step sees memory that does not stay.
        let request = TensorRequest::of_reports(TensorLevel::Modules);
        let mut session = open_named(selected, args.price.limit(request), common).await?;
        session.pipeline_mut().watch_leaks();
        let mut signals = TerminationSignals::listen()?;
        recorded::follow(&mut session, &mut signals, Some(Instant::now() + args.duration)).await;
        session.read_holdings(&mut signals).await;
        let snapshot = session.snapshot();
        (snapshot, session.pipeline().leaks(threshold), TakenAt::here())
    };
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
