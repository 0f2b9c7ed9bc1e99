//! `memwatch stats`: shows the `memory_stats()` of PyTorch and JAX from outside the process.

pub(crate) mod args;
pub(crate) mod read_only;
mod reset_peaks;
pub(crate) mod text;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::json;
use crate::render::output::style;
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::streamed::{STREAMED, Streamed};
use crate::watch::one_shot::Enough;
use crate::watch::one_shot::TIMEOUT;
use crate::watch::one_shot::finish;
use crate::watch::one_shot::open_named;
use crate::watch::one_shot::recorded_snapshot;
use crate::watch::one_shot::tgids_of;
use crate::watch::one_shot::watch_until;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::signals::TerminationSignals;
use crate::watch::taken_at::TakenAt;
use args::Stats;
use memwatch_core::snapshot::{Snapshot, TensorsView};
use std::io;
use tokio::time::Instant;

/// Prints PyTorch's `memory_stats()`: as soon as the allocators' own numbers are known, or
/// periodically.
///
/// # Errors
/// The processes cannot be traced, or do not use PyTorch.
pub(crate) async fn stats(args: &Stats, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let selected = &args.subject.selected;
    if let Some(recording) = RecordedPeriod::named(&args.subject.past, Needs::Calls, common).await? {
        let (snapshot, taken_at) = recorded_snapshot(&recording, selected)?;
        return finish(write_stats(&snapshot, &taken_at, common), &snapshot, selected);
    }
    if args.reset_peaks && args.interval.is_none() {
        return reset_peaks::reset(selected, common).await;
    }
    if args.interval.is_none()
        && args.duration.is_none()
        && let Some(snapshot) = read_only::snapshot(selected, common).await.filter(is_counted)
    {
        return finish(write_stats(&snapshot, &TakenAt::here(), common), &snapshot, selected);
    }
    let tensors = TensorRequest::of(TensorLevel::Blocks);
    let mut session = match open_named(selected, tensors, common).await {
        Ok(session) => session,
        Err(refused) if args.interval.is_some() => return Err(refused),
        Err(refused) => {
            let tgids = tgids_of(selected, common).await?;
            let duration = Some(args.duration.unwrap_or(STREAMED));
            let recording = Streamed { tgids: &tgids, tensors, duration }.instead(refused, common).await?;
            let (snapshot, taken_at) = recorded_snapshot(&recording, selected)?;
            let written = write_stats(&snapshot, &taken_at, common);
            return resting(&snapshot).map_or_else(|| finish(written, &snapshot, selected), Err);
        }
    };
    let mut signals = TerminationSignals::listen()?;
    let Some(interval) = args.interval else {
        let enough: Option<fn(&Snapshot) -> bool> = if args.duration.is_some() { None } else { Some(is_counted) };
        let until = Instant::now() + args.duration.unwrap_or(TIMEOUT);
        let (snapshot, _) = watch_until(&mut session, &mut signals, until, enough, &mut true).await;
        let written = write_stats(&snapshot, &TakenAt::here(), common);
        return resting(&snapshot).map_or_else(|| finish(written, &snapshot, selected), Err);
    };
    let mut is_reported = false;
    let end = args.duration.map(|duration| Instant::now() + duration);
    loop {
        let until = Instant::now() + interval;
        let (snapshot, why) = watch_until(&mut session, &mut signals, until, None, &mut is_reported).await;
        let written = write_stats(&snapshot, &TakenAt::here(), common);
        let is_over = end.is_some_and(|end| Instant::now() >= end);
        if why != Enough::Time || is_over || written.is_err() {
            return finish(written, &snapshot, selected);
        }
        if args.reset_peaks {
            session.reset_peaks_after(&snapshot);
        }
    }
}

/// Returns an error if PyTorch is loaded but nothing is known of its allocator, since an empty list
/// needs a reason.
fn resting(snapshot: &Snapshot) -> Option<ExitFailure> {
    let mut tensors = snapshot.processes.iter().filter_map(|process| process.tensors.as_ref()).peekable();
    if tensors.peek().is_none() || tensors.any(|tensors| has_any(tensors)) {
        return None;
    }
    let mut refused =
        snapshot.processes.iter().filter_map(|process| process.tensors.as_ref()?.allocator_state_refused.as_ref());
    if let Some(why) = refused.next() {
        let failure = ExitFailure::new(Exit::Unsupported, format!("no counters of PyTorch: {why}"));
        return Some(failure.advise("What it has of the driver: memwatch ps"));
    }
    let why = "PyTorch is loaded, but made no allocation while memwatch watched: its counters are read at its next one";
    Some(ExitFailure::new(Exit::NoTarget, why).advise("Watch longer: memwatch stats PID --duration 1m"))
}

/// Whether an allocator is known, or buffers or pools are traced.
fn has_any(tensors: &TensorsView) -> bool {
    let has_own_view = tensors.buffers.is_some() || tensors.pools.is_some();
    has_own_view || !tensors.allocators.is_empty() || !tensors.arenas.is_empty()
}

/// Whether the starting point of the numbers is known for every PyTorch allocator, or why it has
/// none.
fn is_counted(snapshot: &Snapshot) -> bool {
    let mut tensors = snapshot.processes.iter().filter_map(|process| process.tensors.as_ref()).peekable();
    let is_counted = |tensors: &TensorsView| {
        let is_any = has_any(tensors) || tensors.allocator_state_refused.is_some();
        let is_named = tensors.arenas.iter().all(|arena| arena.name.is_some());
        is_any && is_named && tensors.allocators.iter().all(|one| one.counted_from != "unknown")
    };
    tensors.peek().is_some() && tensors.all(|tensors| is_counted(tensors))
}

fn write_stats(snapshot: &Snapshot, taken_at: &TakenAt, common: &CommonArgs) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if common.json {
        json::stats::write(&mut out, snapshot, taken_at.origin())
    } else {
        text::write(&mut out, snapshot, &taken_at.clock, &style(common, false))
    }
}
