//! `memwatch simulate`: predicts the memory under other settings of PyTorch's allocator, in a
//! session or from a recording.

pub(crate) mod args;
pub(crate) mod json;
pub(crate) mod text;
pub(crate) mod words;

use std::io;

use tokio::time::Instant;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::output::style;
use crate::watch::one_shot::{TakenAt, finish, open_named};
use crate::watch::past::{Needs, RecordedPeriod};
use crate::watch::recorded;
use crate::watch::signals::TerminationSignals;
use args::Simulate;

/// Traces the processes or reads the recording, and compares the settings.
///
/// # Errors
/// The processes cannot be traced, the recording cannot be read, they do not use PyTorch, or the
/// report cannot be written.
pub(crate) async fn run(args: &Simulate, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let selected = &args.subject.selected;
    let past = RecordedPeriod::named(&args.subject.past, Needs::Tensors, common).await?;
    let (snapshot, mut simulations, taken_at) = if let Some(recording) = past {
        // On a smaller card the context reduces the available memory from the first allocation on,
        // long before a reading shows its size.
        let contexts = args.capacity.map(|_| recorded::contexts(&recording)).transpose()?;
        let replay = recorded::play_all(&recording, |pipeline| {
            pipeline.state.know_contexts(contexts.unwrap_or_default());
            pipeline.simulate(args.plans(), args.capacity);
        })?;
        (recorded::chosen(&replay, &recording.path, selected)?, replay.pipeline.simulations(), TakenAt::of(&replay))
    } else {
        let mut session = open_named(selected, TensorRequest::of(TensorLevel::Blocks), common).await?;
        session.pipeline_mut().simulate(args.plans(), args.capacity);
        let mut signals = TerminationSignals::listen()?;
        let deadline = args.duration.map(|duration| Instant::now() + duration);
        recorded::follow(&mut session, &mut signals, deadline).await;
        let snapshot = session.snapshot();
        (snapshot, session.pipeline().simulations(), TakenAt::here())
    };
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
