//! `memwatch ps`: one report.

pub(crate) mod args;

use crate::exit::{Exit, Failure};
use crate::frameworks::pytorch::TensorWish;
use crate::options::{Common, Rows, Targets};
use crate::render::output::{Output, host_name};
use crate::watch::past::{Needs, Recording};
use crate::watch::recorded;
use crate::watch::source::Source;
use crate::watch::subject::Filter;
use crate::watch::subject::filtered;
use crate::watch::subject::found_any;
use crate::watch::subject::session_options;
use args::Ps;
use std::time::Duration;
use tokio::time::Instant;

/// How long one report waits for NVML.
const NVML_PATIENCE: Duration = Duration::from_secs(3);

/// `memwatch ps`.
///
/// # Errors
/// When the machine cannot be watched, the recording cannot be read, or no process is there of those that are named.
pub(crate) async fn run(args: &Ps, common: &Common) -> Result<Exit, Failure> {
    match Recording::named(&args.past, Needs::Calls, common).await? {
        Some(recording) => report_recorded(&recording, &args.targets, args.rows, common),
        None => report_once(&args.targets, args.rows, common).await,
    }
}

/// `memwatch ps`: one report, as soon as NVML has answered once since the attach, and runtimes have been asked for names.
async fn report_once(targets: &Targets, rows: Rows, common: &Common) -> Result<Exit, Failure> {
    let mut source = Source::open(&session_options(targets, TensorWish::default(), common), targets, common).await?;
    let seen = source.settled(Instant::now() + NVML_PATIENCE).await?;
    let filter = Filter::new(targets);
    let snapshot = filtered(seen.snapshot, &filter)?;
    Output::once(common, rows.by(), host_name()).show(&snapshot, seen.boottime_to_unix_ns)?;
    match &source.idle_targets()[..] {
        [idle, ..] => Err(Failure::new(Exit::NoTarget, idle)),
        [] => found_any(&snapshot, &filter),
    }
}

/// `memwatch ps --in FILE`: the report on what stood at the end of a recording.
fn report_recorded(
    recording: &Recording,
    targets: &Targets,
    rows: Rows,
    common: &Common,
) -> Result<Exit, Failure> {
    let replay = recorded::play(recording, |_| {})?;
    let filter = Filter::new(targets);
    let snapshot = filtered(recorded::chosen(&replay, &recording.path, &targets.whom)?, &filter)?;
    Output::once(common, rows.by(), replay.front.host).show(&snapshot, replay.boottime_to_unix_ns)?;
    found_any(&snapshot, &filter)
}
