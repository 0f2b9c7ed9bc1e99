//! `memwatch monitor`: runs all detectors in a session or on a recording, and writes one report.

pub(crate) mod args;
pub(crate) mod json;
pub(crate) mod text;

use std::io;

use memwatch_core::Pipeline;
use memwatch_core::features::churn::view::ChurnView;
use memwatch_core::features::forecast::view::ForecastsView;
use memwatch_core::features::leak::view::LeaksView;
use memwatch_core::features::profile::view::ProfileView;
use memwatch_core::snapshot::Snapshot;

use crate::commands::fragment::words::FragmentFindings;
use crate::commands::oom::words::Failed;
use crate::commands::{fragment, profile};
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::pytorch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::output::{style, unless_closed};
use crate::watch::looks::{Observation, look};
use args::Monitor;

/// All events of PyTorch's allocator, with call sites, phases and modules: the most that a detector
/// needs.
const REQUEST: TensorRequest = TensorRequest::of(TensorLevel::Modules);

/// A detector.
pub(crate) struct Detector {
    /// Name on the command line and in the report.
    pub(crate) name: &'static str,
    /// Turns the detector on in the pipeline.
    watch: fn(&mut Pipeline, &Monitor),
    /// Returns the findings for the processes in the snapshot.
    report: fn(&Pipeline, &Monitor, &Snapshot) -> DetectorFinding,
}

/// Findings of a detector: a section of the report.
pub(crate) enum DetectorFinding {
    /// Forecasts of when memory runs out.
    Forecasts(Box<ForecastsView>),
    /// Memory that keeps growing.
    Leaks(Vec<LeaksView>),
    /// Failed allocations, and what the kernel driver refused.
    Ooms(Failed),
    /// Memory over time.
    Profile(Box<ProfileView>),
    /// Fragmentation.
    Fragments(Box<FragmentFindings>),
    /// Allocation churn.
    Churn(Box<ChurnView>),
}

/// All detectors, in the order of the report.
pub(crate) const DETECTORS: &[Detector] = &[
    Detector { name: "forecast", watch: |pipeline, _| pipeline.watch_forecasts(&[]), report: forecasts },
    Detector { name: "oom", watch: |pipeline, _| pipeline.watch_ooms(), report: ooms },
    Detector { name: "leak", watch: |pipeline, _| pipeline.watch_leaks(), report: leaks },
    Detector { name: "profile", watch: |pipeline, args| pipeline.watch_samples(interval_ns(args)), report: held },
    Detector { name: "fragment", watch: |pipeline, _| fragment::prepare(pipeline), report: fragments },
    Detector { name: "churn", watch: |pipeline, _| pipeline.watch_churn(TEMPORARY), report: churn },
];

/// Temporary is what is freed before this number of further allocations, as in `memwatch report`.
const TEMPORARY: u64 = 10;

/// Traces the processes or reads the recording, and reports the findings of each detector.
///
/// # Errors
/// The processes cannot be traced, the recording cannot be read, or the report cannot be written.
pub(crate) async fn run(args: &Monitor, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let prepare = |pipeline: &mut Pipeline| args.detectors().for_each(|detector| (detector.watch)(pipeline, args));
    let report = |pipeline: &Pipeline, snapshot: &Snapshot| {
        let reported = args.detectors().map(|detector| (detector.name, (detector.report)(pipeline, args, snapshot)));
        reported.collect::<Vec<_>>()
    };
    let Observation { snapshot, reported, taken_at, exit, .. } =
        look(&args.looks, (REQUEST, prepare), report, common).await?;
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        json::write(&mut out, &reported, &snapshot, taken_at.origin())
    } else {
        text::write(&mut out, (&reported, args.top), &snapshot, &taken_at.clock, &style(common, false))
    })?;
    exit
}

fn interval_ns(args: &Monitor) -> u64 {
    u64::try_from(args.interval.as_nanos()).unwrap_or(u64::MAX)
}

fn forecasts(pipeline: &Pipeline, _args: &Monitor, snapshot: &Snapshot) -> DetectorFinding {
    let mut forecasts = pipeline.forecasts();
    forecasts.processes.retain(|one| snapshot.processes.iter().any(|process| process.tgid == one.tgid));
    DetectorFinding::Forecasts(Box::new(forecasts))
}

fn fragments(pipeline: &Pipeline, _args: &Monitor, snapshot: &Snapshot) -> DetectorFinding {
    DetectorFinding::Fragments(Box::new(fragment::found(snapshot, pipeline, None, false)))
}

fn ooms(pipeline: &Pipeline, _args: &Monitor, snapshot: &Snapshot) -> DetectorFinding {
    let mut failed = Failed::of(pipeline);
    failed.keep(snapshot);
    DetectorFinding::Ooms(failed)
}

#[expect(clippy::cast_precision_loss, reason = "a threshold needs no sixteen digits")]
fn leaks(pipeline: &Pipeline, args: &Monitor, snapshot: &Snapshot) -> DetectorFinding {
    let mut leaks = pipeline.leaks(args.threshold as f64);
    leaks.retain(|leaks| snapshot.process(leaks.tgid, leaks.observed_since_ns).is_some());
    DetectorFinding::Leaks(leaks)
}

fn held(pipeline: &Pipeline, args: &Monitor, snapshot: &Snapshot) -> DetectorFinding {
    let mut held = pipeline.profile().unwrap_or_default();
    profile::choose(&mut held, &args.looks.targets, snapshot);
    DetectorFinding::Profile(Box::new(held))
}

fn churn(pipeline: &Pipeline, _args: &Monitor, snapshot: &Snapshot) -> DetectorFinding {
    let mut churn = pipeline.churn().unwrap_or_default();
    churn.temporaries.retain(|one| snapshot.processes.iter().any(|process| process.tgid == one.tgid));
    DetectorFinding::Churn(Box::new(churn))
}
