//! `memwatch oom`: why allocations failed, in a watch or in a recording.

use std::io;

use memwatch_core::Pipeline;
use memwatch_core::snapshot::{OomView, Snapshot};
use tokio::time::Instant;

use crate::args::{Common, Oom};
use crate::exit::{Exit, Failure};
use crate::output::{style, unless_closed};
use crate::recorded;
use crate::run::Signals;
use crate::sinks::{json, table};
use crate::sources::torch::{TensorLevel, TensorWish};
use crate::tensor_report::{Scene, open};

/// Watches, or reads the recording, and explains each failure.
///
/// # Errors
/// When the processes cannot be watched, the recording cannot be read, or the report cannot be written.
pub(crate) async fn run(args: &Oom, common: &Common) -> Result<Exit, Failure> {
    let tgids = &args.subject.tgids;
    let (snapshot, (ooms, forgotten), scene) = if let Some(path) = &args.subject.recording {
        let replay = recorded::play(path, args.subject.until, Pipeline::watch_ooms)?;
        (recorded::chosen(&replay, path, tgids)?, told(&replay.pipeline), Scene::of(&replay))
    } else {
        // All that PyTorch's allocator does: what lies free in it is told then.
        let mut session = open(tgids, TensorWish { level: TensorLevel::Layers, reports_only: false }, common)?;
        session.watch_ooms();
        let mut signals = Signals::listen()?;
        let deadline = args.duration.map(|duration| Instant::now() + duration);
        recorded::follow(&mut session, &mut signals, deadline).await;
        let snapshot = session.snapshot();
        (snapshot, session.ooms(), Scene::here())
    };
    let shown: Vec<&OomView> = ooms.iter().filter(|oom| is_of(&snapshot, oom)).collect();
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        json::oom::write(&mut out, (&shown, forgotten), &snapshot, scene.origin())
    } else {
        table::oom::write(&mut out, (&shown, forgotten), &snapshot, &scene.clock, &style(common, false))
    })?;
    Ok(if args.fail_on_oom && !shown.is_empty() { Exit::Found } else { Exit::Ok })
}

/// What the pipeline has kept.
pub(crate) fn told(pipeline: &Pipeline) -> (Vec<OomView>, u64) {
    let (ooms, forgotten) = pipeline.ooms();
    (ooms.cloned().collect(), forgotten)
}

fn is_of(snapshot: &Snapshot, oom: &OomView) -> bool {
    snapshot.processes.iter().any(|process| process.tgid == oom.tgid)
}
