//! Table of the sections of `memwatch report`: what each needs of the pipeline, and what it finds.

use memwatch_core::Pipeline;
use memwatch_core::features::churn::view::ChurnView;
use memwatch_core::features::forecast::view::ForecastsView;
use memwatch_core::features::leak::view::LeaksView;
use memwatch_core::features::profile::view::ProfileView;
use memwatch_core::snapshot::Snapshot;

use crate::commands::fragment;
use crate::commands::fragment::words::FragmentFindings;
use crate::commands::oom::words::Failed;
use crate::commands::report::args::ReportArgs;
use crate::commands::report::profile;
use crate::frameworks::watch::TensorLevel;
use crate::watch::recorded::LARGE_BYTES;

/// A section.
pub(crate) struct Section {
    /// Name on the command line and in the report.
    pub(crate) name: &'static str,
    /// How much of PyTorch has to be traced for it.
    pub(crate) level: TensorLevel,
    /// Turns on what it needs in the pipeline.
    pub(crate) watch: fn(&mut Pipeline, &ReportArgs),
    /// Returns the findings for the processes in the snapshot.
    pub(crate) find: fn(&Pipeline, &ReportArgs, &Snapshot) -> Finding,
}

/// Findings of a section.
pub(crate) enum Finding {
    /// Lines, modules and phases. They are in the snapshot.
    Where,
    /// Failed allocations, and what the kernel driver refused.
    Ooms(Failed),
    /// Memory that keeps growing.
    Leaks(Vec<LeaksView>),
    /// Forecasts of when memory runs out.
    Forecasts(Box<ForecastsView>),
    /// Fragmentation.
    Fragments(Box<FragmentFindings>),
    /// Memory over time.
    Profile(Box<ProfileView>),
    /// Allocation churn.
    Churn(Box<ChurnView>),
}

const MODULES: TensorLevel = TensorLevel::Modules;

/// All sections, in the order of the report.
const SECTIONS: &[Section] = &[
    Section {
        name: "where",
        level: MODULES,
        watch: |pipeline, _| pipeline.state.list_tensors_from(LARGE_BYTES),
        find: |_, _, _| Finding::Where,
    },
    Section { name: "oom", level: MODULES, watch: |pipeline, _| pipeline.watch_ooms(), find: ooms },
    Section { name: "leak", level: MODULES, watch: |pipeline, _| pipeline.watch_leaks(), find: leaks },
    Section { name: "forecast", level: MODULES, watch: |pipeline, _| pipeline.watch_forecasts(&[]), find: forecasts },
    Section { name: "fragment", level: MODULES, watch: |pipeline, _| fragment::prepare(pipeline), find: fragments },
    Section {
        name: "profile",
        level: TensorLevel::Blocks,
        watch: |pipeline, args| pipeline.watch_samples(profile::interval_ns(args)),
        find: over_time,
    },
    Section {
        name: "churn",
        level: MODULES,
        watch: |pipeline, args| pipeline.watch_churn(args.temporary),
        find: churn,
    },
];

/// Returns the sections that the arguments select.
pub(crate) fn selected(args: &ReportArgs) -> impl Iterator<Item = &'static Section> {
    SECTIONS.iter().filter(|section| args.wants(section.name))
}

fn ooms(pipeline: &Pipeline, args: &ReportArgs, snapshot: &Snapshot) -> Finding {
    let mut failed = Failed::of(pipeline);
    failed.keep(snapshot, &args.looks.targets.selected);
    Finding::Ooms(failed)
}

#[expect(clippy::cast_precision_loss, reason = "a threshold needs no sixteen digits")]
fn leaks(pipeline: &Pipeline, args: &ReportArgs, snapshot: &Snapshot) -> Finding {
    let mut leaks = pipeline.leaks(args.threshold as f64);
    leaks.retain(|leaks| snapshot.process(leaks.tgid, leaks.observed_since_ns).is_some());
    Finding::Leaks(leaks)
}

fn forecasts(pipeline: &Pipeline, _args: &ReportArgs, snapshot: &Snapshot) -> Finding {
    let mut forecasts = pipeline.forecasts();
    forecasts.processes.retain(|one| snapshot.processes.iter().any(|process| process.tgid == one.tgid));
    Finding::Forecasts(Box::new(forecasts))
}

fn fragments(pipeline: &Pipeline, _args: &ReportArgs, snapshot: &Snapshot) -> Finding {
    Finding::Fragments(Box::new(fragment::found(snapshot, pipeline, None, false)))
}

fn over_time(pipeline: &Pipeline, args: &ReportArgs, snapshot: &Snapshot) -> Finding {
    let mut view = pipeline.profile().unwrap_or_default();
    let targets = args.looks().targets;
    // Without a selection, processes that ended long ago belong to the profile, too.
    if !targets.are_all() {
        profile::choose(&mut view, &targets, snapshot);
    }
    Finding::Profile(Box::new(view))
}

fn churn(pipeline: &Pipeline, _args: &ReportArgs, snapshot: &Snapshot) -> Finding {
    let mut churn = pipeline.churn().unwrap_or_default();
    churn.temporaries.retain(|one| snapshot.processes.iter().any(|process| process.tgid == one.tgid));
    Finding::Churn(Box::new(churn))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::report::args::SECTION_NAMES;

    #[test]
    fn every_section_can_be_selected_by_its_name() {
        let names: Vec<&str> = SECTIONS.iter().map(|section| section.name).collect();
        assert_eq!(names, SECTION_NAMES);
    }
}
