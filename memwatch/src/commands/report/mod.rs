//! `memwatch report`: everything about processes or a recording in one report, with a section for
//! each question.

pub(crate) mod args;
pub(crate) mod churn_json;
pub(crate) mod churn_text;
pub(crate) mod json;
mod profile;
pub(crate) mod profile_json;
pub(crate) mod profile_text;
pub(crate) mod sections;
pub(crate) mod text;

use std::io;

use memwatch_core::Pipeline;
use memwatch_core::features::timeline::view::TimelineView;
use memwatch_core::snapshot::Snapshot;

use crate::commands::timeline::{self, check_free, rendered, write_to};
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::{TensorLevel, TensorRequest};
use crate::options::CommonArgs;
use crate::render::output::{style, unless_closed};
use crate::watch::evidence::period::{Observation, PeriodQuestion};
use crate::watch::taken_at::TakenAt;
use args::ReportArgs;
use sections::{Finding, selected};

/// What a report consists of.
struct Findings {
    /// Findings of each section, with its name.
    sections: Vec<(&'static str, Finding)>,
    /// Memory over time, for the plot.
    timeline: Option<TimelineView>,
}

/// Traces the processes or reads the recording, and writes each section.
///
/// # Errors
/// The processes cannot be traced, the recording cannot be read, or the report cannot be written.
pub(crate) async fn run(args: &ReportArgs, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    let drawn = args.drawn().map_err(|sentence| ExitFailure::new(Exit::Error, sentence))?;
    if let Some(path) = &args.plot {
        check_free(path, args.force)?;
    }
    let looks = args.looks();
    let prepare = |pipeline: &mut Pipeline| {
        selected(args).for_each(|section| (section.watch)(pipeline, args));
        if drawn.is_some() {
            pipeline.watch_samples(profile::interval_ns(args));
        }
    };
    let report = |pipeline: &Pipeline, snapshot: &Snapshot, _: &TakenAt| Findings {
        sections: selected(args).map(|section| (section.name, (section.find)(pipeline, args, snapshot))).collect(),
        timeline: drawn.and_then(|_| pipeline.timeline()),
    };
    let observation = PeriodQuestion::about_targets(&looks, request(args)).observe(prepare, report, common).await?;
    let Observation { snapshot, reported: Findings { sections, timeline }, taken_at, everybody, exit, replay } =
        observation;
    if let Some(format) = drawn {
        let mut timeline = timeline.unwrap_or_default();
        if !everybody {
            timeline::choose(&mut timeline, &looks.targets, &snapshot);
        }
        let picture = rendered(format, (&timeline, usize::MAX), &snapshot, &taken_at)?;
        write_to(args.plot.as_deref(), args.force, &picture)?;
    }
    let facts = replay.as_ref().map(|(path, replay)| replay.facts(path));
    let mut out = io::stdout().lock();
    unless_closed(if common.json {
        json::write(&mut out, (facts.as_ref(), &sections), &snapshot, taken_at.origin())
    } else {
        let style = style(common, false);
        text::write(&mut out, (facts.as_ref(), &sections), (&snapshot, args.top), &taken_at.clock, &style)
    })?;
    exit
}

/// Returns what is traced of PyTorch: as much as the section that needs most.
fn request(args: &ReportArgs) -> TensorRequest {
    match selected(args).map(|section| section.level).max() {
        Some(TensorLevel::Modules) => TensorRequest::of(TensorLevel::Modules),
        // The profile needs only the totals that each allocation and free reports.
        _ => TensorRequest::of_reports(TensorLevel::Blocks),
    }
}
