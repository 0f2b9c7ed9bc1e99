//! Memory over time of real PyTorch: the target programs of a timeline open it and find PyTorch's
//! own numbers in it.

use std::path::PathBuf;
use std::process::Command;

use memwatch_tests::readers::python_reader;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator};
use serde_json::Value;

const STEPS: usize = 3;

/// A recording of a training, and what its program reported at the end.
struct TimelineRecording {
    gpu: SimulatedGpu,
    file: PathBuf,
    statistics: Value,
}

impl TimelineRecording {
    fn training() -> Self {
        let steps = STEPS.to_string();
        let words = ["transformer.py", "--steps", &steps, "--layers", "2", "--dim", "128"];
        let gpu = SimulatedGpu::new(PrologueShape::Cmp);
        let job = gpu.torch_command("2.15", TorchAllocator::Native, &words);
        let file = gpu.directory().join("job.mwr");
        let outcome = CommandOutcome::of(gpu.memwatch_run(&["-o", &file.display().to_string()], &job));
        outcome.assert_ended_with(0, &["job.mwr is written"]);
        let last = outcome.stdout.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let statistics = last.expect("the job says what it has")["devices"][0]["memory_stats"].clone();
        Self { gpu, file, statistics }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.gpu.memwatch(words);
        command.arg("--in").arg(&self.file);
        command
    }

    /// Writes the timeline to a file of this name.
    fn written(&self, name: &str) -> PathBuf {
        let output = self.gpu.directory().join(name);
        let mut command = self.command(&["timeline", "-z", "1M"]);
        command.arg("-o").arg(&output);
        CommandOutcome::of(command).assert_ended_with(0, &["is written"]);
        output
    }
}

/// Returns what Perfetto's own messages, pandas and TensorBoard have parsed. Ignores the test if they
/// are not installed.
fn read(files: &[PathBuf]) -> Value {
    let mut reader = python_reader("read_timelines.py");
    reader.args(files);
    let outcome = CommandOutcome::of(reader);
    outcome.assert_ended_with(0, &[]);
    serde_json::from_str(&outcome.stdout).expect("it prints JSON")
}

#[test]
fn tensorboard_shows_the_peaks_that_pytorch_has_counted() {
    let job = TimelineRecording::training();
    let asked = job.gpu.directory().join("asked.tfevents");
    let mut command = job.command(&["export"]);
    command.arg("-o").arg(&asked);
    CommandOutcome::of(command).assert_ended_with(0, &["asked.tfevents is written"]);
    let written = job.written("job.tfevents");
    assert_eq!(std::fs::read(&asked).expect("a file"), std::fs::read(&written).expect("a file"));
    let seen = read(&[written]);
    let shown = seen["job.tfevents"].as_object().expect("scalars");
    let highest = |end: &str| {
        let (_, own) =
            shown.iter().find(|(tag, _)| tag.ends_with(end)).unwrap_or_else(|| panic!("no {end}: {shown:?}"));
        let steps = own["steps"].as_array().expect("steps");
        assert!(steps.is_sorted_by_key(Value::as_i64) && steps.len() > 1, "{steps:?}");
        own["numbers"].as_array().expect("numbers").iter().filter_map(Value::as_f64).fold(0.0, f64::max)
    };
    let peak = |key: &str| job.statistics[key].as_f64().expect("a number") / f64::from(1 << 20);
    let (allocated, reserved) = (peak("allocated_bytes.all.peak"), peak("reserved_bytes.all.peak"));
    for (end, peak) in
        [("allocated by PyTorch, peak since the point before, MiB", allocated), ("reserved by PyTorch, MiB", reserved)]
    {
        let seen = highest(&format!("/GPU 0 {end}"));
        // A float has 24 significant bits.
        assert!((seen - peak).abs() <= peak / f64::from(1 << 23), "{end}: {seen} of {peak}");
    }
    let names: Vec<&String> = shown.keys().collect();
    assert!(names.iter().any(|name| name.ends_with("/GPU 0 used (NVML), MiB")), "{names:?}");
}

fn highest(values: &Value) -> Option<u64> {
    values.as_array()?.iter().filter_map(Value::as_u64).max()
}

#[test]
fn perfetto_and_pandas_find_the_peaks_and_steps_that_pytorch_has_counted() {
    let job = TimelineRecording::training();
    let mut command = job.command(&["export", "-f", "parquet"]);
    let sites = job.gpu.directory().join("sites.parquet");
    command.arg("-o").arg(&sites);
    CommandOutcome::of(command).assert_ended_with(0, &["sites.parquet is written"]);
    let seen = read(&[job.written("job.pftrace"), job.written("job.parquet"), sites]);
    let trace = &seen["job.pftrace"];
    assert_eq!(trace["unknown"], 0, "every field is one of Perfetto's");
    let tracks: Vec<&Value> = trace["tracks"].as_object().expect("tracks").values().collect();
    let named = |end: &str| {
        let own = tracks.iter().find(|track| track["name"].as_str().is_some_and(|name| name.ends_with(end)));
        *own.unwrap_or_else(|| panic!("no {end} in {tracks:#?}"))
    };
    let peak = |key: &str| job.statistics[key].as_u64();
    for (measure, key) in [("allocated", "allocated_bytes.all.peak"), ("reserved", "reserved_bytes.all.peak")] {
        let counter = named(&format!("tensors {measure}"));
        assert_eq!((highest(&counter["values"]), &counter["is_bytes"]), (peak(key), &true.into()), "{key}");
        assert!(!trace["tracks"][counter["parent"].to_string()]["pid"].is_null(), "a process has it: {counter}");
    }
    let steps = named("training steps");
    assert_eq!((steps["slices"].as_array().map(Vec::len), &steps["open"]), (Some(STEPS), &0.into()));
    let phases = named("phases, by allocations")["slices"].as_array().expect("slices").clone();
    assert!(["forward", "backward", "optimizer"].iter().all(|phase| phases.contains(&(*phase).into())), "{phases:?}");
    let looks = &seen["job.parquet"];
    assert_eq!(looks["types"]["time"], "datetime64[ns, UTC]");
    let rows = looks["rows"].as_array().expect("rows");
    let allocated = rows.iter().filter(|row| row["measure"] == "allocated");
    assert_eq!(allocated.filter_map(|row| row["most_bytes"].as_u64()).max(), peak("allocated_bytes.all.peak"));
    let sites = seen["sites.parquet"]["rows"].as_array().expect("rows");
    let total: u64 = sites.iter().filter_map(|row| row["total_bytes"].as_u64()).sum();
    assert_eq!(Some(total), peak("allocated_bytes.all.allocated"));
}

#[test]
fn large_allocations_have_their_line_and_pictures_their_lines() {
    let job = TimelineRecording::training();
    let outcome = CommandOutcome::of(job.command(&["timeline", "--json", "-z", "1M", "--points", "50"]));
    outcome.assert_ended_with(0, &[]);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    assert_eq!(report["schema"], "memwatch.timeline/3");
    let events = report["data"]["events"].as_array().expect("events");
    let large = events.iter().find(|event| event["kind"] == "large" && event["attributed_to"]["phase"] == "forward");
    let large = large.unwrap_or_else(|| panic!("{events:#?}"));
    assert!(
        large["attributed_to"]["call_site"]["name"].as_str().is_some_and(|name| name.contains("transformer.py:")),
        "{large}"
    );
    let kinds: Vec<&str> = events.iter().filter_map(|event| event["kind"].as_str()).collect();
    assert!(["start", "peak", "exit"].iter().all(|kind| kinds.contains(kind)), "{kinds:?}");
    let tracks = report["data"]["tracks"].as_array().expect("tracks");
    assert!(tracks.iter().all(|track| track["points"].as_array().is_some_and(|points| points.len() <= 50)));
    let allocated = tracks.iter().find(|track| track["measure"] == "allocated").expect("PyTorch is watched");
    let points = allocated["points"].as_array().expect("points");
    let most = points.iter().filter_map(|point| point["most_bytes"].as_u64()).max();
    assert_eq!(most, job.statistics["allocated_bytes.all.peak"].as_u64());
    let picture = std::fs::read_to_string(job.written("job.svg")).expect("text");
    assert!(picture.contains("allocated by PyTorch") && picture.contains("prefers-color-scheme"), "{picture}");
    let page = std::fs::read_to_string(job.written("job.html")).expect("text");
    assert!(page.contains("<h2>What happened</h2>") && !page.contains("src="), "{page}");
    CommandOutcome::of(job.command(&["timeline", "-o", "job.png"])).assert_ended_with(2, &["-f svg"]);
    CommandOutcome::of(job.command(&["timeline", "-f", "svg"])).assert_ended_with(2, &["-o FILE"]);
}
