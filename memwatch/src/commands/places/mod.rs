//! `memwatch sites`, `stages` and `layers`: who holds the memory of a PyTorch process.

pub(crate) mod args;
pub(crate) mod text;

use crate::exit::{Exit, Failure};
use crate::frameworks::pytorch::{TensorLevel, TensorRequest};
use crate::options::Common;
use crate::render::json;
use crate::render::output::style;
use crate::render::places::{Places as Which, Wanted};
use crate::watch::one_shot::TakenAt;
use crate::watch::one_shot::finish;
use crate::watch::one_shot::open;
use crate::watch::one_shot::recorded_snapshot;
use crate::watch::one_shot::watch_until;
use crate::watch::past::{Needs, Recording};
use crate::watch::signals::Signals;
use args::Places;
use std::io;
use tokio::time::Instant;

/// One of the lists, after a while of watching; with `reports_only` by what comes and goes, and no more; with `native` also stacks.
///
/// # Errors
/// When the processes cannot be watched, or there is no PyTorch in them.
pub(crate) async fn places(
    args: &Places,
    (which, reports_only, native): (Which, bool, bool),
    common: &Common,
) -> Result<Exit, Failure> {
    let tgids = &args.subject.tgids;
    let past = Recording::named(&args.subject.past, Needs::Tensors, common).await?;
    let (snapshot, taken_at) = if let Some(recording) = past {
        recorded_snapshot(&recording, tgids, |pipeline| pipeline.list_tensors_from(args.min_size))?
    } else {
        let level = if which == Which::Sites { TensorLevel::Sites } else { TensorLevel::Layers };
        let mut session = open(tgids, TensorRequest { level, reports_only }, common)?;
        session.list_tensors_from(args.min_size);
        let mut signals = Signals::listen()?;
        let deadline = Instant::now() + args.duration;
        let (snapshot, _) = watch_until(&mut session, &mut signals, deadline, None, &mut false).await;
        (snapshot, TakenAt::here())
    };
    let mut out = io::stdout().lock();
    let wanted = Wanted { which, top: args.top, native };
    let written = if common.json {
        json::places::write(&mut out, (which, args.top), &snapshot, taken_at.origin())
    } else {
        text::write(&mut out, &snapshot, wanted, &taken_at.clock, &style(common, false))
    };
    drop(out);
    finish(written, &snapshot, tgids)
}
