//! `memwatch profile`: reports memory of GPUs and processes over time, in a session or from a
//! recording.

pub(crate) mod args;
pub(crate) mod json;
pub(crate) mod text;

use std::collections::BTreeSet;
use std::io;

use memwatch_core::Pipeline;
use memwatch_core::features::profile::view::ProfileView;
use memwatch_core::snapshot::Snapshot;

use crate::commands::timeline::{self, check_free, rendered, write_to};
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::pytorch::{TensorLevel, TensorRequest};
use crate::options::{CommonArgs, TargetArgs};
use crate::render::output::{style, unless_closed};
use crate::watch::looks::{Observation, look};
use args::ProfileArgs;

/// Allocations and frees, each of which reports the totals.
const REQUEST: TensorRequest = TensorRequest::of_reports(TensorLevel::Blocks);

/// Traces the processes or reads the recording, and writes the profile.
///
/// # Errors
/// The processes cannot be traced, the recording cannot be read, or the report cannot be written.
pub(crate) async fn run(args: &ProfileArgs, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let interval_ns = u64::try_from(args.interval.as_nanos()).unwrap_or(u64::MAX);
    let drawn = args.drawn().map_err(|sentence| ExitFailure::new(Exit::Error, sentence))?;
    if let Some(path) = &args.plot {
        check_free(path, args.force)?;
    }
    let prepare = |pipeline: &mut Pipeline| pipeline.watch_samples(interval_ns);
    let report = |pipeline: &Pipeline, _: &Snapshot| (pipeline.profile(), drawn.and_then(|_| pipeline.timeline()));
    let Observation { snapshot, reported, taken_at, everybody, exit } =
        look(&args.looks, (REQUEST, prepare), report, common).await?;
    let (mut profile, mut timeline) = (reported.0.unwrap_or_default(), reported.1.unwrap_or_default());
    let targets = &args.looks.targets;
    if !everybody {
        choose(&mut profile, targets, &snapshot);
        timeline::choose(&mut timeline, targets, &snapshot);
    }
    if let Some(format) = drawn {
        let picture = rendered(format, (&timeline, usize::MAX), &snapshot, &taken_at)?;
        write_to(args.plot.as_deref(), args.force, &picture)?;
    }
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        json::write(&mut out, &profile, &snapshot, taken_at.origin())
    } else {
        text::write(&mut out, &profile, &snapshot, &taken_at.clock, &style(common, false))
    })?;
    exit
}

/// Keeps only the processes in the snapshot, and the GPUs in it if some were named.
pub(crate) fn choose(profile: &mut ProfileView, targets: &TargetArgs, snapshot: &Snapshot) {
    let gpus: BTreeSet<_> = snapshot.gpus.iter().map(|gpu| &gpu.uuid).collect();
    let lives: BTreeSet<_> =
        snapshot.processes.iter().map(|process| (process.tgid, process.observed_since_ns)).collect();
    profile.processes.retain(|process| lives.contains(&(process.tgid, process.observed_since_ns)));
    if targets.gpus.is_empty() {
        return;
    }
    profile.gpus.retain(|gpu| gpus.contains(&gpu.uuid));
    for process in &mut profile.processes {
        process.gpus.retain(|gpu| gpu.uuid.as_ref().is_none_or(|uuid| gpus.contains(uuid)));
    }
}
