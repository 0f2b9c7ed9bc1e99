//! `memwatch where`: shows which lines, modules or phases of a PyTorch process hold its memory.

pub(crate) mod args;
mod frames;
pub(crate) mod text;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::json;
use crate::render::output::style;
use crate::render::places::{AttributionList as Which, AttributionQuery, FrameDetail};
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::period::{Observation, PeriodQuestion};
use crate::watch::one_shot::finish;
use args::{AttributionArgs, Where, WhereRowKind};
use std::io;

/// Runs `memwatch where`.
///
/// # Errors
/// The processes cannot be traced, or do not use PyTorch.
pub(crate) async fn run(args: &Where, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let Where { places, by, frames, native, fragmentation } = args;
    match by {
        WhereRowKind::Line => {
            let frames = if *native { FrameDetail::Native } else { frames.shown() };
            self::places(places, (Which::Sites, true, frames), common).await
        }
        WhereRowKind::Module => {
            self::places(places, (Which::Modules, !fragmentation, FrameDetail::Lines), common).await
        }
        WhereRowKind::Phase => self::places(places, (Which::Phases, true, FrameDetail::Lines), common).await,
    }
}

/// Traces for a while and prints one list. With `reports_only`, traces allocations and frees only.
///
/// # Errors
/// The processes cannot be traced, or do not use PyTorch.
async fn places(
    args: &AttributionArgs,
    (which, reports_only, frames): (Which, bool, FrameDetail),
    common: &CommonArgs,
) -> Result<Exit, ExitFailure> {
    let selected = &args.subject.selected;
    let level = if which == Which::Sites { TensorLevel::Lines } else { TensorLevel::Modules };
    let tensors = args.price.limit(TensorRequest { level, reports_only, stacks: args.stacks, budget: None });
    let question = PeriodQuestion::about(&args.subject, Needs::Tensors, tensors).listing_from(args.min_size);
    let question = question.during(Some(args.duration)).with_earlier_memory();
    let Observation { snapshot, taken_at, .. } = question.observe(|_| {}, |_, _, _| {}, common).await?;
    let mut out = io::stdout().lock();
    let wanted = AttributionQuery { which, top: args.top, frames };
    let written = if common.json {
        json::places::write(&mut out, (which, args.top), &snapshot, taken_at.origin())
    } else {
        text::write(&mut out, &snapshot, wanted, &taken_at.clock, &style(common, false))
    };
    drop(out);
    finish(written, &snapshot, selected)
}
