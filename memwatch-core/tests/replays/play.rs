//! The runs, and what memwatch would have reported of each run at every moment.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use memwatch_core::Pipeline;
use memwatch_core::features::checks::{self, ReportContradiction};
use memwatch_core::features::forecast::view::{EndView, GrowthView};
use memwatch_core::features::leak::view::LeakView;
use memwatch_core::input::Input;
use memwatch_core::recording::{RecordingPart, RecordingReader};

/// Growth in bytes a minute from which a line counts as a leak.
const LEAK_BYTES_PER_MINUTE: f64 = 1_048_576.0;
/// Levels that would alert an operator.
const WARNING: [&str; 3] = ["medium", "high", "critical"];

/// Expected warnings of forecasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Warned {
    /// No warning.
    Never,
    /// A warning before the memory runs out.
    Before,
    /// A warning is accepted while the memory grows, since nothing distinguishes this growth from a
    /// leak, but not after it has stopped.
    WhileItGrows,
}

/// A run: a row of `runs.tsv`.
#[derive(Clone, Debug)]
pub(crate) struct ReplayRun {
    pub(crate) name: String,
    /// Course of the memory: a function of tests/workloads/courses.py.
    pub(crate) course: String,
    /// Functions whose lines grow at the end, with the verdict.
    pub(crate) growing: BTreeMap<String, String>,
    pub(crate) runs_out: bool,
    pub(crate) warned: Warned,
    /// Whether the run is used only to check forecasts, not to calibrate them.
    pub(crate) is_check: bool,
    file: PathBuf,
}

/// A forecast for a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Given {
    pub(crate) time_ns: u64,
    pub(crate) end: EndView,
    pub(crate) growth: GrowthView,
}

/// Results of a run.
#[derive(Clone, Debug)]
pub(crate) struct Played {
    pub(crate) run: ReplayRun,
    pub(crate) given: Vec<Given>,
    pub(crate) failures_ns: Vec<u64>,
    pub(crate) end_ns: u64,
    /// Functions whose lines grow at the end, with the verdict.
    pub(crate) growing: BTreeMap<String, String>,
    pub(crate) quiet_lines: usize,
    /// Commands of processes with a finding: on a line at the end, or in a forecast before the
    /// memory ran out.
    pub(crate) growing_commands: BTreeSet<String>,
    /// Seconds between the first warning and the exhaustion of memory, or the end.
    pub(crate) warned_seconds: Option<f64>,
    pub(crate) is_warned_at_end: bool,
    /// Contradictions within the run's reports.
    pub(crate) contradictions: Vec<ReportContradiction>,
}

/// Reads the rows of the table.
pub(crate) fn runs(folder: &Path) -> Vec<ReplayRun> {
    let text = std::fs::read_to_string(folder.join("runs.tsv")).expect("the table is in the tree");
    let rows = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    rows.map(|row| {
        let [name, _, words, growing, runs_out, warned, used_for] = row.split('\t').collect::<Vec<_>>()[..] else {
            panic!("seven columns in {row:?}");
        };
        let pairs = growing.split(',').filter_map(|pair| pair.split_once(':'));
        ReplayRun {
            name: name.to_owned(),
            course: words.split(' ').find(|word| !word.contains('=')).unwrap_or_default().to_owned(),
            growing: pairs.map(|(function, verdict)| (function.to_owned(), verdict.to_owned())).collect(),
            runs_out: runs_out == "yes",
            warned: match warned {
                "no" => Warned::Never,
                "yes" => Warned::Before,
                "passing" => Warned::WhileItGrows,
                other => panic!("{other:?} in {row:?}"),
            },
            is_check: match used_for {
                "table" => false,
                "check" => true,
                other => panic!("{other:?} in {row:?}"),
            },
            file: folder.join(name).with_extension("mwr"),
        }
    })
    .collect()
}

/// Plays all runs, as many at a time as there are processors.
pub(crate) fn all(runs: &[ReplayRun]) -> Vec<Played> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let (next, played) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((place, run)) =
                    Some(next.fetch_add(1, Relaxed)).and_then(|place| Some((place, runs.get(place)?)))
                {
                    let one = play(run);
                    played.lock().expect("nobody panics holding it").insert(place, one);
                }
            });
        }
    });
    played.into_inner().expect("nobody panics holding it").into_values().collect()
}

/// Plays one run and forecasts at every tick.
pub(crate) fn play(run: &ReplayRun) -> Played {
    let file = File::open(&run.file).unwrap_or_else(|error| panic!("{}: {error}", run.file.display()));
    let mut reader = RecordingReader::open(BufReader::new(file)).expect("it is a recording");
    let mut pipeline = Pipeline::new(true);
    pipeline.watch_forecasts(&[]);
    pipeline.watch_ooms();
    let mut ticks = Vec::new();
    while let Some(part) = reader.next_part().expect("it can be read") {
        let RecordingPart::Chunk(chunk) = part else { panic!("{} has no beginning", run.name) };
        let played = chunk.for_each(|input| {
            let time_ns = if let Input::Tick { time_ns } = input { Some(time_ns) } else { None };
            pipeline.step(input);
            if let Some(time_ns) = time_ns {
                ticks.push((time_ns, pipeline.forecasts()));
            }
        });
        assert!(played.is_ok(), "{} is damaged", run.name);
    }
    let failures_ns: Vec<u64> = pipeline.ooms().0.map(|failure| failure.time_ns).collect();
    let first_failure_ns = failures_ns.first().copied();
    ticks.retain(|(time_ns, _)| first_failure_ns.is_none_or(|failure_ns| *time_ns <= failure_ns));
    let end_ns = first_failure_ns.unwrap_or_else(|| ticks.last().map_or(0, |(time_ns, _)| *time_ns));
    let is_warning = |view: &memwatch_core::features::forecast::view::ForecastsView| {
        view.gpus.iter().any(|gpu| WARNING.contains(&&*gpu.outlook.level))
    };
    let first = ticks.iter().find(|(_, view)| is_warning(view)).map(|(time_ns, _)| *time_ns);
    let given = ticks.iter().flat_map(|(time_ns, view)| {
        let ends = view.gpus.iter().filter_map(|gpu| Some((gpu.outlook.end?, gpu.outlook.growth?)));
        ends.map(|(end, growth)| Given { time_ns: *time_ns, end, growth })
    });
    let (growing, quiet_lines) = verdicts(&pipeline);
    let by_line =
        pipeline.leaks(LEAK_BYTES_PER_MINUTE).into_iter().filter(|leaks| leaks.findings.iter().any(is_growing));
    let in_forecast = ticks.last().into_iter().flat_map(|(_, view)| &view.processes);
    let by_forecast = in_forecast.filter(|process| process.outlook.growth.is_some_and(|growth| growth.grows));
    Played {
        run: run.clone(),
        given: given.collect(),
        end_ns,
        warned_seconds: first.map(|first| seconds(first, end_ns)),
        is_warned_at_end: ticks.last().is_some_and(|(_, view)| is_warning(view)),
        failures_ns,
        growing,
        quiet_lines,
        contradictions: contradictions(&mut pipeline),
        growing_commands: by_line
            .map(|leaks| leaks.command)
            .chain(by_forecast.map(|process| process.command.clone()))
            .collect(),
    }
}

fn contradictions(pipeline: &mut Pipeline) -> Vec<ReportContradiction> {
    let snapshot = pipeline.snapshot();
    let failures: Vec<_> = pipeline.ooms().0.cloned().collect();
    let leaks = pipeline.leaks(LEAK_BYTES_PER_MINUTE);
    let of_leaks = leaks.iter().flat_map(checks::of_leaks);
    let all = of_leaks.chain(checks::of_snapshot(&snapshot));
    all.chain(checks::of_failures(&failures, &pipeline.causes(), &snapshot)).collect()
}

fn is_growing(finding: &LeakView) -> bool {
    finding.verdict.grows()
}

fn verdicts(pipeline: &Pipeline) -> (BTreeMap<String, String>, usize) {
    let all = pipeline.leaks(LEAK_BYTES_PER_MINUTE);
    let findings: Vec<_> = all.iter().flat_map(|leaks| &leaks.findings).collect();
    let (growing, quiet): (Vec<_>, Vec<_>) = findings.into_iter().partition(|finding| is_growing(finding));
    let named = growing.iter().map(|finding| {
        let function = finding.function.clone().unwrap_or_else(|| finding.level.clone().into_owned());
        (function, finding.verdict.word().to_owned())
    });
    (named.collect(), quiet.len())
}

#[expect(clippy::cast_precision_loss, reason = "seconds need no sixteen digits")]
pub(crate) fn seconds(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns as f64 - from_ns as f64) / 1e9
}
