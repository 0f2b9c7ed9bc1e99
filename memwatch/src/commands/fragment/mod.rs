//! `memwatch fragment`: reports the fragmentation of PyTorch's allocators and of driver memory, in
//! a session or at the end of a recording.

pub(crate) mod args;
pub(crate) mod json;
pub(crate) mod map;
pub(crate) mod text;
pub(crate) mod words;

use std::io::{self, Write as _};
use std::path::Path;

use memwatch_core::Pipeline;
use memwatch_core::features::fragments::view::FragmentsView;
use memwatch_core::features::simulate::model::PolicyPlan;
use memwatch_core::snapshot::Snapshot;

use crate::commands::simulate;
use crate::commands::simulate::args::Simulate;
use crate::exit::{Exit, ExitFailure};
use crate::frameworks::watch::TensorRequest;
use crate::options::CommonArgs;
use crate::output_file;
use crate::render::output::{style, unless_closed};
use crate::watch::evidence::past::Needs;
use crate::watch::evidence::period::{Observation, PeriodQuestion};
use crate::watch::one_shot::finish;
use crate::watch::taken_at::TakenAt;
use args::Fragment;
use map as layout;
use map::Picture;
use words::{FragmentFindings, FragmentReport};

/// Traces the processes or reads the recording, and reports the fragmentation.
///
/// # Errors
/// The processes cannot be traced, the recording cannot be read, it has no PyTorch, or the picture
/// cannot be written.
pub(crate) async fn run(args: &Fragment, common: &CommonArgs) -> Result<Exit, ExitFailure> {
    if !args.what_if.is_empty() {
        return simulate::run(&Simulate::of(args.subject.clone(), args.duration, &args.what_if), common).await;
    }
    let selected = &args.subject.selected;
    let picture = args.output.as_deref().map(|path| form(path, args.force)).transpose()?;
    let question = PeriodQuestion::about(&args.subject, Needs::Calls, TensorRequest::of(args.level));
    let question = question.during(Some(args.duration)).of_all_events();
    let found =
        |pipeline: &Pipeline, snapshot: &Snapshot, _: &TakenAt| found(snapshot, pipeline, args.request, args.worst);
    let Observation { snapshot, reported: found, taken_at, .. } = question.observe(prepare, found, common).await?;
    if let (Some(path), true) = (&args.output, found.allocators.is_empty()) {
        eprintln!(
            "memwatch: {} is not written: it shows the segments of PyTorch's allocator, and there are none",
            path.display()
        );
    } else if let (Some(path), Some(picture)) = (&args.output, picture) {
        let bytes = layout::write(&found.allocators, &snapshot, picture);
        let written = output_file::create(path, args.force).and_then(|mut file| file.write_all(bytes.as_bytes()));
        written.map_err(|error| ExitFailure::cannot_make(path, &error))?;
        eprintln!("memwatch: {} is written; a browser shows it", path.display());
    }
    let mut out = io::stdout().lock();
    let written = if common.json {
        json::write(&mut out, &found, &snapshot, taken_at.origin())
    } else {
        text::write(&mut out, (&found, args.top), &snapshot, &taken_at.clock, &style(common, false))
    };
    drop(out);
    if found.drivers.is_empty() {
        return finish(written, &snapshot, selected);
    }
    unless_closed(written)?;
    Ok(Exit::Ok)
}

/// Turns on the fragmentation detector and the simulation of other settings.
pub(crate) fn prepare(pipeline: &mut Pipeline) {
    pipeline.watch_fragments();
    pipeline.simulate(PolicyPlan::usual(), None);
}

/// Returns the fragmentation of the processes in the snapshot; each PyTorch allocator comes with
/// its simulation.
pub(crate) fn found(
    snapshot: &Snapshot,
    pipeline: &Pipeline,
    wanted_bytes: Option<u64>,
    at_worst: bool,
) -> FragmentFindings {
    let simulations = pipeline.simulations();
    let reported = |view: FragmentsView| {
        let key = (view.tgid, view.observed_since_ns, view.device);
        let own = simulations.iter().find(|one| (one.tgid, one.observed_since_ns, one.device) == key);
        FragmentReport { simulation: own.cloned(), view }
    };
    let mut allocators = pipeline.fragments(wanted_bytes, at_worst);
    allocators.retain(|view| snapshot.process(view.tgid, view.observed_since_ns).is_some());
    let mut drivers = pipeline.driver_fragments(wanted_bytes, at_worst);
    drivers.retain(|view| snapshot.process(view.tgid, view.observed_since_ns).is_some());
    FragmentFindings { allocators: allocators.into_iter().map(reported).collect(), drivers }
}

/// Returns the format of the picture, by the extension of its file.
fn form(path: &Path, force: bool) -> Result<Picture, ExitFailure> {
    output_file::check_free(path, force).map_err(|error| ExitFailure::cannot_make(path, &error))?;
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(Picture::Svg),
        Some("html" | "htm") => Ok(Picture::Html),
        _ => Err(ExitFailure::new(Exit::Error, format_args!("{} ends neither in .svg nor in .html", path.display()))
            .advise("These two are drawn: -o map.svg, -o map.html.")),
    }
}
