//! `cargo xtask bench recording`: measures the size of a recording of a training, the overhead of
//! making it, and the speed of reading it.

use super::DOCUMENT;
use super::report::RECORDING;
use super::training::{Training, least};
use super::watcher::Watcher;
use crate::args::TaskArgs;
use crate::binary;
use crate::document;
use crate::gpusim::Prologue;
use crate::integration;
use crate::repo::{BuildProfile, Repo};
use crate::run::line;
use crate::setup;
use crate::table::MarkdownTable;
use anyhow::{Context as _, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Steps of a recording: a little more than ten million tensor events of the small model.
const STEPS: u64 = 15_600;
/// Number of times that each recording is read; the shortest counts.
const READINGS: usize = 3;
/// Time in which PyTorch's libraries are found and probed.
const PROBED: Duration = Duration::from_secs(2);

/// Tracing options, and options that bound the file.
type RecordingSetup = (&'static str, &'static [&'static str]);

const NONE: &[&str] = &[];
const NEWEST: &[&str] = &["--max-size=16M", "--keep=newest"];

/// Steps of the training without a recorder.
const UNRECORDED_STEPS: u64 = 1_000;

/// A recording, and the time to read it.
struct RecordingMeasurement {
    request: RecordingSetup,
    step_ns: f64,
    tensor_events: f64,
    inputs: f64,
    bytes: f64,
    lost: u64,
    /// CPU seconds of the recorder while the training ran.
    recorder_seconds: f64,
    /// Seconds of each `memwatch report`, shortest first.
    reading_seconds: Vec<f64>,
    /// Seconds of each `memwatch simulate` with the usual settings, shortest first.
    simulating_seconds: Vec<f64>,
}

/// Builds everything, measures, prints the table and writes it into docs/project/overhead.md.
pub(super) fn task(repo: &Repo, mut args: TaskArgs) -> Result<()> {
    let steps = args.count("--steps")?.unwrap_or(STEPS);
    args.finish()?;
    if !setup::is_root() {
        bail!("uprobes need root: sudo --preserve-env=PATH,HOME cargo xtask bench recording");
    }
    let memwatch = binary::build(repo, BuildProfile::Release)?;
    let driver = integration::build_simulator(repo, Prologue::Cmp)?;
    let mut training = Training::start(repo, &driver, &[])?;
    let file = driver.join(format!("bench-{}.mwr", std::process::id()));
    let unrecorded = training.ask(&format!("run {UNRECORDED_STEPS}"))?;
    let requests = [("blocks", NONE), ("lines", NONE), ("modules", NONE), ("modules", NEWEST)];
    let measured = requests.map(|request| record(&mut training, (&memwatch, &driver), (request, steps), &file));
    // Remaining files are below target/.
    drop(std::fs::remove_file(&file));
    let measured: Vec<RecordingMeasurement> = measured.into_iter().collect::<Result<_>>()?;
    let text = text(&measured, (steps, least(&step_ns(&unrecorded))))?;
    println!("{text}");
    document::update(&repo.path(DOCUMENT), &RECORDING, &text)
}

fn record(
    training: &mut Training,
    (memwatch, driver): (&Path, &Path),
    (request, steps): (RecordingSetup, u64),
    file: &Path,
) -> Result<RecordingMeasurement> {
    let mut command = Command::new(memwatch);
    command.args([
        "record",
        "--force",
        "--pid",
        &training.tgid().to_string(),
        &format!("--tensors={}", request.0),
        "-o",
    ]);
    command.arg(file).args(request.1).arg("--nvml-lib").arg(driver.join("lib/libnvidia-ml.so.1"));
    command.env("GPUSIM_LEDGER", training.ledger());
    let watcher = Watcher::silent(&mut command)?;
    std::thread::sleep(PROBED);
    let before = watcher.processor_time()?;
    let answer = training.ask(&format!("run {steps}"))?;
    let recorder_seconds = watcher.processor_time()?.saturating_sub(before).as_secs_f64();
    watcher.detach()?;
    let (reading_seconds, report) =
        read(Command::new(memwatch).args(["report", "--only", "where,churn", "--json"]).arg(file))?;
    let (simulating_seconds, _) = read(Command::new(memwatch).args(["simulate", "--json", "--in"]).arg(file))?;
    let of_recording = |field: &str| report["data"]["recording"][field].as_f64().with_context(|| format!("no {field}"));
    let losses = report["losses"].as_object().into_iter().flatten().filter_map(|(_, count)| count.as_u64());
    let step_ns = step_ns(&answer);
    Ok(RecordingMeasurement {
        request,
        step_ns: least(&step_ns),
        tensor_events: answer["events_per_step"].as_f64().unwrap_or_default()
            * f64::from(u32::try_from(step_ns.len())?),
        inputs: of_recording("inputs")?,
        bytes: of_recording("bytes")?,
        lost: losses.sum(),
        recorder_seconds,
        reading_seconds,
        simulating_seconds,
    })
}

/// Returns the duration of each step.
fn step_ns(answer: &Value) -> Vec<f64> {
    answer["step_ns"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect()
}

/// Runs a command several times; returns the durations, shortest first, and the report.
fn read(command: &mut Command) -> Result<(Vec<f64>, Value)> {
    let mut seconds = Vec::new();
    let mut report = Value::Null;
    for _ in 0..READINGS {
        let begin = Instant::now();
        let output = command.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("cannot start {}", line(command)))?;
        seconds.push(begin.elapsed().as_secs_f64());
        report = serde_json::from_slice(&output.stdout).with_context(|| format!("no report: {}", line(command)))?;
    }
    seconds.sort_by(f64::total_cmp);
    Ok((seconds, report))
}

fn text(measured: &[RecordingMeasurement], (steps, unrecorded_ns): (u64, f64)) -> Result<String> {
    let mut text = format!(
        "{}.\n{steps} steps of the small model, which takes {:.2} ms a step at the least while nobody records; readings are of a file in the page cache.\n\n",
        document::machine()?,
        unrecorded_ns / 1e6
    );
    let mut table = MarkdownTable::new(&[
        "recorded with",
        "tensor events",
        "inputs",
        "MiB",
        "bytes per tensor event",
        "lost",
        "shortest step, ms",
        "recorder, us per tensor event",
        "seconds to the report",
        "million inputs per second",
        "seconds to simulate",
    ]);
    for one in measured {
        let (level, bound) = one.request;
        let shortest = |seconds: &[f64]| seconds.first().copied().unwrap_or(f64::NAN);
        let seconds = shortest(&one.reading_seconds);
        let options: Vec<String> =
            [format!("--tensors={level}")].into_iter().chain(bound.iter().map(|word| (*word).to_owned())).collect();
        table.row(vec![
            options.join(" "),
            format!("{:.0}", one.tensor_events),
            format!("{:.0}", one.inputs),
            format!("{:.1}", one.bytes / f64::from(1 << 20)),
            if bound.is_empty() { format!("{:.1}", one.bytes / one.tensor_events) } else { String::new() },
            one.lost.to_string(),
            format!("{:.2}", one.step_ns / 1e6),
            format!("{:.2}", one.recorder_seconds * 1e6 / one.tensor_events),
            format!("{seconds:.2}"),
            // A file that keeps the newest inputs records how many there were, not how many are
            // left.
            if bound.is_empty() { format!("{:.1}", one.inputs / seconds / 1e6) } else { String::new() },
            format!("{:.2}", shortest(&one.simulating_seconds)),
        ]);
    }
    text.push_str(&table.text());
    Ok(text)
}
