//! `memwatch oom`: forecasts when memory runs out and explains failed allocations, in a session or
//! in a recording.

pub(crate) mod args;
mod follow;
pub(crate) mod forecast;
pub(crate) mod forecast_json;
pub(crate) mod forecast_text;
pub(crate) mod json;
mod names;
pub(crate) mod text;
pub(crate) mod words;

use std::io;
use std::time::Duration;

use memwatch_core::Pipeline;
use memwatch_core::features::checks;
use memwatch_core::features::forecast::view::{ForecastChangeView, ForecastsView};
use memwatch_core::snapshot::Snapshot;
use tokio::time::Instant;

use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::contradictions;
use crate::render::output::{style, unless_closed};
use crate::watch::alert::{AlertActions, Alerts};
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::streamed::Streamed;
use crate::watch::kv_caches::KvCaches;
use crate::watch::one_shot::{open_named, tgids_of};
use crate::watch::recorded;
use crate::watch::recorded_period::RecordedPeriod;
use crate::watch::session::{Session, SessionOptions};
use crate::watch::signals::TerminationSignals;
use crate::watch::subject::everybody;
use crate::watch::taken_at::TakenAt;
use args::{Oom, OomFound};
use follow::{Receivers, show};
use words::{Failed, OomReport};

/// Forecast levels that `--fail-on` treats as failures.
const WARNING: [&str; 3] = ["medium", "high", "critical"];

/// Interval for reading PyTorch's counters on a whole machine.
const COUNTERS: Duration = Duration::from_secs(5);

/// Content of the report.
struct Collected {
    snapshot: Snapshot,
    forecasts: ForecastsView,
    changes: Vec<ForecastChangeView>,
    failed: Failed,
    taken_at: TakenAt,
    is_recorded: bool,
}

/// Traces the processes or reads the recording; reports forecasts, and explains each failure.
///
/// # Errors
/// The processes cannot be traced, the recording cannot be read, or the report cannot be written.
pub(crate) async fn run(args: &Oom, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let mut reported = match RecordedPeriod::named(&args.subject.past, Needs::Calls, common).await? {
        Some(recording) => replay(&recording, args, common)?,
        None => Box::pin(watch(args, common)).await?,
    };
    reported.failed.keep(&reported.snapshot, &args.subject.selected);
    if !reported.is_recorded {
        // Requests that wait for the KV cache are no failed allocation, and no event reports them.
        reported.failed.causes.extend(KvCaches::read(&reported.snapshot).causes());
    }
    let Collected { snapshot, forecasts, changes, failed, taken_at, .. } = &reported;
    contradictions::report(&checks::of_failures(&failed.ooms, &failed.causes, snapshot));
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        let report = OomReport { failed, forecasts, changes };
        json::write(&mut out, &report, snapshot, taken_at.origin())
    } else {
        // Changes that were printed live are not repeated.
        let earlier: &[ForecastChangeView] = if args.follow { &[] } else { changes };
        let style = style(common, false);
        let report = OomReport { failed, forecasts, changes: earlier };
        text::write(&mut out, &report, snapshot, &taken_at.clock, &style)
    })?;
    let wants = |what| args.fail_on.contains(&what);
    let is_warning = |change: &ForecastChangeView| {
        change.threshold_percent.is_some() || WARNING.contains(&&*change.gpu.outlook.level)
    };
    let is_found = (!failed.ooms.is_empty() && (args.fail_on_oom || wants(OomFound::Oom)))
        || (wants(OomFound::Forecast) && changes.iter().any(is_warning));
    Ok(if is_found { Exit::Found } else { Exit::Ok })
}

/// Reads a recording, and reports each change of a forecast.
///
/// # Errors
/// The recording cannot be read, or has none of the processes.
fn replay(recording: &RecordedPeriod, args: &Oom, common: &CommonArgs) -> Result<Collected, ExitFailure> {
    let mut replay = recorded::play_all(recording, |pipeline| prepare(pipeline, args))?;
    let snapshot = recorded::chosen(&replay, recording, &args.subject.selected)?;
    let (changes, taken_at) = (replay.pipeline.take_forecast_changes(), TakenAt::of(&replay));
    let is_recorded = !recording.is_of_now();
    let pipeline = &replay.pipeline;
    if args.follow {
        for change in &changes {
            show(change, &snapshot, &taken_at, common)?;
        }
    }
    let forecasts = pipeline.forecasts();
    Ok(Collected { snapshot, forecasts, changes, failed: Failed::of(pipeline), taken_at, is_recorded })
}

fn prepare(pipeline: &mut Pipeline, args: &Oom) {
    pipeline.watch_ooms();
    pipeline.watch_leaks();
    pipeline.watch_forecasts(&args.thresholds);
}

/// Traces until the deadline, a signal or the exit of the last process, and reports each change as
/// it comes.
async fn watch(args: &Oom, common: &CommonArgs) -> Result<Collected, ExitFailure> {
    let mut session = match open(args, common).await {
        Ok(session) => session,
        // The agent sends a recording, and alerts are of the moment.
        Err(refused) if args.follow || args.exec.is_some() || args.webhook.is_some() => return Err(refused),
        Err(refused) => {
            let tgids =
                if args.is_of_machine() { Vec::new() } else { tgids_of(&args.subject.selected, common).await? };
            let (tensors, duration) = (TensorRequest::of(TensorLevel::Modules), args.duration);
            let recording = Streamed { tgids: &tgids, tensors, duration }.instead(refused, common).await?;
            return replay(&recording, args, common);
        }
    };
    prepare(session.pipeline_mut(), args);
    let mut signals = TerminationSignals::listen()?;
    let deadline = args.duration.map(|duration| Instant::now() + duration);
    let Oom { exec, exec_timeout, webhook, .. } = args.clone();
    let alerts = Alerts::new(AlertActions { exec, exec_timeout, webhook, options: ["--exec", "--webhook"] });
    let mut receivers = Receivers::new(args.follow, alerts, common);
    let (mut changes, mut forecasts) = (Vec::new(), ForecastsView::default());
    let mut is_reported = false;
    let each = |session: &mut Session| {
        recorded::report_of_tensors(session, &mut is_reported);
        changes.extend(receivers.take(session)?);
        if session.is_anybody_left() {
            forecasts = session.pipeline().forecasts();
        }
        Ok::<(), ExitFailure>(())
    };
    recorded::follow_each(&mut session, &mut signals, deadline, each).await?;
    let snapshot = session.snapshot();
    changes.extend(receivers.take(&mut session)?);
    receivers.alerts.finish().await;
    if session.is_anybody_left() {
        forecasts = session.pipeline().forecasts();
    }
    let failed = Failed::of(session.pipeline());
    Ok(Collected { snapshot, forecasts, changes, failed, taken_at: TakenAt::here(), is_recorded: false })
}

/// Opens a session for the named processes, or for the whole machine. The latter reads PyTorch's
/// own counters instead of attaching probes to it.
async fn open(args: &Oom, common: &CommonArgs) -> Result<Session, ExitFailure> {
    if args.is_of_machine() {
        return Session::open(&SessionOptions { counters_every: Some(COUNTERS), ..everybody(common) });
    }
    // All allocator events: the report includes PyTorch's free memory.
    open_named(&args.subject.selected, TensorRequest::of(TensorLevel::Modules), common).await
}
