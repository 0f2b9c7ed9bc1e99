//! `memwatch stats`: what PyTorch's `memory_stats()` has, from outside.

pub(crate) mod args;
pub(crate) mod text;

use crate::exit::{Exit, Failure};
use crate::frameworks::pytorch::TensorLevel;
use crate::options::Common;
use crate::render::json;
use crate::render::output::style;
use crate::watch::one_shot::Enough;
use crate::watch::one_shot::TIMEOUT;
use crate::watch::one_shot::TakenAt;
use crate::watch::one_shot::all_of;
use crate::watch::one_shot::finish;
use crate::watch::one_shot::open;
use crate::watch::one_shot::recorded_snapshot;
use crate::watch::one_shot::watch_until;
use crate::watch::past::{Needs, Recording};
use crate::watch::signals::Signals;
use args::Stats;
use memwatch_core::snapshot::{Snapshot, TensorsView};
use std::io;
use tokio::time::Instant;

/// What PyTorch's `memory_stats()` has: as soon as the allocators' own numbers are there, or again and again.
///
/// # Errors
/// When the processes cannot be watched, or there is no PyTorch in them.
pub(crate) async fn stats(args: &Stats, common: &Common) -> Result<Exit, Failure> {
    let tgids = &args.subject.tgids;
    if let Some(recording) = Recording::named(&args.subject.past, Needs::Tensors, common).await? {
        let (snapshot, taken_at) = recorded_snapshot(&recording, tgids, |_| {})?;
        return finish(write_stats(&snapshot, &taken_at, common), &snapshot, tgids);
    }
    let mut session = open(tgids, all_of(TensorLevel::Blocks), common)?;
    let mut signals = Signals::listen()?;
    let Some(interval) = args.interval else {
        let (snapshot, _) =
            watch_until(&mut session, &mut signals, Instant::now() + TIMEOUT, Some(is_counted), &mut true).await;
        return finish(write_stats(&snapshot, &TakenAt::here(), common), &snapshot, tgids);
    };
    let mut is_reported = false;
    loop {
        let until = Instant::now() + interval;
        let (snapshot, why) = watch_until(&mut session, &mut signals, until, None, &mut is_reported).await;
        let written = write_stats(&snapshot, &TakenAt::here(), common);
        if why != Enough::Time || written.is_err() {
            return finish(written, &snapshot, tgids);
        }
        if args.reset_peaks {
            session.reset_peaks_after(&snapshot);
        }
    }
}

/// Whether it is known of every allocator of PyTorch where its numbers begin.
fn is_counted(snapshot: &Snapshot) -> bool {
    let mut tensors = snapshot.processes.iter().filter_map(|process| process.tensors.as_ref()).peekable();
    let is_counted = |tensors: &TensorsView| {
        !tensors.allocators.is_empty() && tensors.allocators.iter().all(|one| one.counted_from != "unknown")
    };
    tensors.peek().is_some() && tensors.all(|tensors| is_counted(tensors))
}

fn write_stats(snapshot: &Snapshot, taken_at: &TakenAt, common: &Common) -> io::Result<()> {
    let mut out = io::stdout().lock();
    if common.json {
        json::stats::write(&mut out, snapshot, taken_at.origin())
    } else {
        text::write(&mut out, snapshot, &taken_at.clock, &style(common, false))
    }
}
