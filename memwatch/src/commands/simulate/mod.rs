//! `memwatch simulate`: predicts the memory under other settings of PyTorch's allocator, in a
//! session or from a recording.

pub(crate) mod args;
pub(crate) mod json;
pub(crate) mod text;
pub(crate) mod words;

use std::io;

use memwatch_core::Pipeline;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::output::style;
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::period::{Observation, PeriodQuestion};
use crate::watch::one_shot::finish;
use args::Simulate;

/// Traces the processes or reads the recording, and compares the settings.
///
/// # Errors
/// The processes cannot be traced, the recording cannot be read, they do not use PyTorch, or the
/// report cannot be written.
pub(crate) async fn run(args: &Simulate, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let selected = &args.subject.selected;
    let question = PeriodQuestion::about(&args.subject, Needs::Tensors, TensorRequest::of(TensorLevel::Blocks));
    // On a smaller card the context reduces the available memory from the first allocation on, long
    // before a reading shows its size.
    let question = question.during(args.duration).of_all_events().with_contexts(args.capacity.is_some());
    let prepare = |pipeline: &mut Pipeline| pipeline.simulate(args.plans(), args.capacity);
    let seen = question.observe(prepare, |pipeline, _, _| pipeline.simulations(), common).await?;
    let Observation { snapshot, reported: mut simulations, taken_at, .. } = seen;
    simulations.retain(|view| snapshot.process(view.tgid, view.observed_since_ns).is_some());
    let mut out = io::stdout().lock();
    let written = if common.json {
        json::write(&mut out, (&simulations, args.capacity), &snapshot, taken_at.origin())
    } else {
        text::write(&mut out, (&simulations, args.capacity), &snapshot, &taken_at.clock, &style(common, false))
    };
    drop(out);
    finish(written, &snapshot, selected)
}
