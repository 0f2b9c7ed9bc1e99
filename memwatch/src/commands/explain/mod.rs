//! `memwatch explain`: explains all used memory of a process by its requests to the kernel driver.

pub(crate) mod args;
pub(crate) mod json;
mod text;
mod words;

use std::io;
use std::time::Duration;

use memwatch_core::kernel_driver::trust::LedgerTrust;
use memwatch_core::snapshot::{ProcessView, Snapshot};
use tokio::time::{Instant, timeout_at};

use crate::commands::places::args::WhereRowKind;
use crate::commands::{holdings, places};
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::TensorRequest;
use crate::options::{CommonArgs, TargetArgs};
use crate::render::output::{style, unless_closed};
use crate::sources::procfs::ProcReader;
use crate::watch::kv_caches::KvCaches;
use crate::watch::one_shot::{TIMEOUT, TakenAt, recorded_snapshot};
use crate::watch::past::{Needs, RecordedPeriod};
use crate::watch::source::{ReportSource, Rhythm};
use crate::watch::subject::{Filter, filtered, found_any, session_options};
use args::{Explain, ExplainRowKind};

/// Interval for polling whether the data is complete.
const LOOK: Duration = Duration::from_millis(200);

/// Explains used memory.
///
/// # Errors
/// The processes cannot be traced, or none exists.
pub(crate) async fn run(args: &Explain, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let rows_of_code = match args.by {
        ExplainRowKind::Part => return by_part(args, common).await,
        ExplainRowKind::Name => return holdings::run(&args.by_name(), common).await,
        ExplainRowKind::Line => WhereRowKind::Line,
        ExplainRowKind::Module => WhereRowKind::Module,
        ExplainRowKind::Phase => WhereRowKind::Phase,
    };
    places::run(&args.by_code(rows_of_code), common).await
}

async fn by_part(args: &Explain, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let selected = &args.subject.selected;
    if let Some(recording) = RecordedPeriod::named(&args.subject.past, Needs::Calls, common).await? {
        let (snapshot, taken_at) = recorded_snapshot(&recording, selected, |_| {})?;
        return write((&snapshot, &KvCaches::default()), &taken_at, common).map(|()| Exit::Ok);
    }
    let targets = TargetArgs::of(selected);
    let options = session_options(&targets, TensorRequest::default(), common);
    let mut source = ReportSource::open(&options, &targets, common).await?;
    let deadline = Instant::now() + args.duration.unwrap_or(TIMEOUT);
    let mut seen = source.settled(deadline).await?;
    let mut rhythm = Rhythm::new(LOOK);
    while args.duration.is_some() || !is_judged(&seen.snapshot) {
        match timeout_at(deadline, source.next(&mut rhythm)).await {
            Ok(next) => seen = next?,
            Err(_) => break,
        }
    }
    let filter = Filter::new(&targets);
    let mut snapshot = filtered(seen.snapshot, &filter)?;
    learn_resident(&mut snapshot);
    write((&snapshot, &KvCaches::read(&snapshot)), &TakenAt::here(), common)?;
    match &source.idle_targets()[..] {
        [idle, ..] => Err(ExitFailure::new(Exit::NoTarget, idle)),
        [] => found_any(&snapshot, &filter),
    }
}

/// Adds the resident memory of the whole process, for comparison with the explained host memory.
fn learn_resident(snapshot: &mut Snapshot) {
    let proc = ProcReader::new("/proc");
    for process in &mut snapshot.processes {
        let (tgid, start_ns) = (process.tgid.0, process.start_ns.filter(|_| process.ended_ns.is_none()));
        if let Some(explained) = &mut process.explained {
            explained.host.resident_bytes = start_ns.and_then(|start_ns| proc.resident_bytes(tgid, start_ns));
        }
    }
}

/// Whether it is decided, for every process that NVML charges, if its explanation is trusted.
fn is_judged(snapshot: &Snapshot) -> bool {
    let is_judged = |process: &ProcessView| {
        let Some(explained) = &process.explained else { return process.gpus.is_empty() };
        explained.gpus.iter().all(|own| own.trust != LedgerTrust::Settling)
    };
    snapshot.processes.iter().any(|process| process.explained.is_some()) && snapshot.processes.iter().all(is_judged)
}

fn write(report: (&Snapshot, &KvCaches), taken_at: &TakenAt, common: &CommonArgs) -> Result<(), ExitFailure> {
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        json::write(&mut out, report, taken_at.origin())
    } else {
        text::write(&mut out, report, &taken_at.clock, &style(common, false))
    })
}
