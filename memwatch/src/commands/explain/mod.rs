//! `memwatch explain`: explains all used memory of a process, by role or by its requests to the
//! kernel driver.

pub(crate) mod args;
mod balance;
pub(crate) mod json;
mod text;
mod words;

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use memwatch_core::features::checks;
use memwatch_core::kernel_driver::trust::LedgerTrust;
use memwatch_core::snapshot::{ExplainedUse, ProcessView, Snapshot};
use tokio::time::{Instant, timeout_at};

use crate::commands::places::args::WhereRowKind;
use crate::commands::{holdings, places};
use crate::exit::{Exit, ExitFailure};
use crate::options::{CommonArgs, TargetArgs};
use crate::render::contradictions;
use crate::render::output::{style, unless_closed};
use crate::sources::procfs::ProcReader;
use crate::watch::evidence::{Evidence, Rhythm};
use crate::watch::kv_caches::KvCaches;
use crate::watch::one_shot::TIMEOUT;
use crate::watch::subject::{Filter, filtered, found_any};
use crate::watch::taken_at::TakenAt;
use args::{Explain, ExplainRowKind};
use balance::{Balances, ProcessBalance};

/// What `memwatch explain` shows.
#[derive(Clone, Copy)]
struct ExplainShown<'a> {
    snapshot: &'a Snapshot,
    /// Balance sheets; `None` with `--by part`.
    balances: Option<&'a Balances>,
    kv_caches: &'a KvCaches,
}

impl<'a> ExplainShown<'a> {
    /// Returns the balance sheets of a process; `None` if it has none.
    fn balance_of(self, process: &ProcessView) -> Option<&'a ProcessBalance> {
        let own = self.balances?.get(&(process.tgid, process.observed_since_ns))?;
        (!own.sheets.is_empty()).then_some(own)
    }
}

/// Interval for polling whether the data is complete.
const LOOK: Duration = Duration::from_millis(200);

/// Explains used memory.
///
/// # Errors
/// The processes cannot be traced, or none exists.
pub(crate) async fn run(args: &Explain, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let rows_of_code = match args.by {
        ExplainRowKind::Role | ExplainRowKind::Part => return of_all_used(args, common).await,
        ExplainRowKind::Name => return holdings::run(&args.by_name(), common).await,
        ExplainRowKind::Line => WhereRowKind::Line,
        ExplainRowKind::Module => WhereRowKind::Module,
        ExplainRowKind::Phase => WhereRowKind::Phase,
    };
    places::run(&args.by_code(rows_of_code), common).await
}

async fn of_all_used(args: &Explain, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let selected = &args.subject.selected;
    let targets = TargetArgs::of(selected);
    let mut evidence = Evidence::of_moment(&args.subject.past, &targets, common).await?;
    let deadline = Instant::now() + args.duration.unwrap_or(TIMEOUT);
    let mut seen = evidence.settled(deadline).await?;
    let mut rhythm = Rhythm::new(LOOK);
    while !evidence.is_recorded() && (args.duration.is_some() || !is_judged(&seen.snapshot, args.by)) {
        match timeout_at(deadline, evidence.next(&mut rhythm)).await {
            Ok(next) => seen = next?,
            Err(_) => break,
        }
    }
    let filter = Filter::new(&targets);
    let mut snapshot = filtered(seen.snapshot, &filter)?;
    if !evidence.is_recorded() {
        learn_resident(&mut snapshot);
    }
    let balances = match (args.by, evidence.recorded_state()) {
        (ExplainRowKind::Role, Some(state)) => Some(balance::of_recording(&snapshot, state)),
        (ExplainRowKind::Role, None) => Some(balance::of_running(&snapshot, common).await),
        _ => None,
    };
    let sheets = balances.iter().flat_map(BTreeMap::values).flat_map(|own| &own.sheets);
    contradictions::report(&sheets.filter_map(checks::of_balance).collect::<Vec<_>>());
    let kv_caches = if evidence.is_recorded() { KvCaches::of(&snapshot) } else { KvCaches::read(&snapshot) };
    let shown = ExplainShown { snapshot: &snapshot, balances: balances.as_ref(), kv_caches: &kv_caches };
    write(shown, &evidence.taken_at(), common)?;
    match &evidence.idle_targets()[..] {
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

/// Whether it is decided, for every process that NVML charges, if its explanation is trusted. A
/// balance sheet waits for no process that started before the watch, whose remainder is one row, and
/// otherwise until NVML's number and the parts are of one moment.
fn is_judged(snapshot: &Snapshot, by: ExplainRowKind) -> bool {
    let is_sheet = by == ExplainRowKind::Role;
    let is_decided = |own: &ExplainedUse| match own.trust {
        LedgerTrust::Settling => false,
        LedgerTrust::Trusted => !is_sheet || own.since_reading_bytes() == Some(0),
        LedgerTrust::Unknown | LedgerTrust::Refused(_) => true,
    };
    let is_judged = |process: &ProcessView| match &process.explained {
        _ if is_sheet && !process.from_start => true,
        Some(explained) => explained.gpus.iter().all(is_decided),
        None => process.gpus.is_empty(),
    };
    let has_any = |process: &ProcessView| process.explained.is_some() || (is_sheet && !process.from_start);
    snapshot.processes.iter().any(has_any) && snapshot.processes.iter().all(is_judged)
}

fn write(shown: ExplainShown<'_>, taken_at: &TakenAt, common: &CommonArgs) -> Result<(), ExitFailure> {
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        json::write(&mut out, shown, taken_at.origin())
    } else {
        text::write(&mut out, shown, &taken_at.clock, &style(common, false))
    })
}
