//! Exported profiles of real PyTorch: the programs that they are for open them, and find in them what PyTorch itself has counted.

use std::path::{Path, PathBuf};
use std::process::Command;

use memwatch_tests::places::PlacesWatch;
use memwatch_tests::statistics::held_job;
use memwatch_tests::{Allocator, Gpu, Outcome, Shape};
use serde_json::Value;

/// Weights that are no 0 after the end of a program, with PyTorch's own name of the same number.
const WEIGHTS: [(&str, &str); 3] = [
    ("peak", "allocated_bytes.all.peak"),
    ("alloc", "allocated_bytes.all.allocated"),
    ("count", "allocation.all.allocated"),
];

/// A recording, and what its program said of itself at the end.
struct Recorded {
    gpu: Gpu,
    file: PathBuf,
    statistics: Value,
}

impl Recorded {
    /// `memwatch run -o` of a training; `None` where PyTorch is not installed.
    fn training() -> Option<Self> {
        let gpu = Gpu::new(Shape::Cmp)?;
        let words = ["transformer.py", "--steps", "2", "--layers", "2", "--dim", "128"];
        let job = gpu.torch_command("2.15", Allocator::Native, &words)?;
        let file = gpu.directory().join("job.mwr");
        let path = file.display().to_string();
        let outcome = Outcome::of(gpu.memwatch_run(&["-o", &path], &job));
        outcome.assert_ended_with(0, &["job.mwr is written"]);
        let last = outcome.stdout.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let statistics = last.expect("the job says what it has")["devices"][0]["memory_stats"].clone();
        Some(Self { gpu, file, statistics })
    }

    /// A command on the recording that writes a file of this name.
    fn command(&self, words: &[&str], name: &str) -> (Command, PathBuf) {
        let output = self.gpu.directory().join(name);
        let mut command = self.gpu.memwatch(words);
        command.arg("--in").arg(&self.file).arg("-o").arg(&output);
        (command, output)
    }

    fn export(&self, weight: &str, name: &str) -> PathBuf {
        let (command, output) = self.command(&["export", "--weight", weight], name);
        Outcome::of(command).assert_ended_with(0, &["is written"]);
        output
    }

    /// What PyTorch says.
    fn said(&self, key: &str) -> u64 {
        self.statistics[key].as_u64().unwrap_or_else(|| panic!("no {key} in {}", self.statistics))
    }
}

/// What a script of `tests/readers` prints about these files.
fn read(mut reader: Command, script: &str, first: Option<&Path>, files: &[PathBuf]) -> Value {
    reader.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("readers").join(script)).args(first).args(files);
    let outcome = Outcome::of(reader);
    outcome.assert_ended_with(0, &[]);
    serde_json::from_str(&outcome.stdout).expect("it prints JSON")
}

/// What speedscope and pprof-format have understood; `None` where they are not installed.
fn seen(files: &[PathBuf]) -> Option<Value> {
    let modules = std::env::var_os("PROFILE_READERS").map(|folder| Path::new(&folder).join("node_modules"));
    let Some(modules) = modules.filter(|modules| modules.is_dir()) else {
        eprintln!("SKIPPED: speedscope and pprof-format are not installed: run through `cargo xtask test`");
        return None;
    };
    Some(read(Command::new("node"), "read_profiles.mjs", Some(&modules), files))
}

fn total(profile: &Value) -> u64 {
    profile["total"].as_u64().unwrap_or_else(|| panic!("no total in {profile}"))
}

#[test]
fn speedscope_and_pprof_find_what_pytorch_has_counted() {
    let Some(job) = Recorded::training() else { return };
    let mut files: Vec<PathBuf> =
        WEIGHTS.iter().map(|(weight, _)| job.export(weight, &format!("{weight}.folded"))).collect();
    files.push(job.export("peak", "job.speedscope.json"));
    files.push(job.export("alloc", "job.pb.gz"));
    let Some(seen) = seen(&files) else { return };
    let all = |name: &str| seen[name]["speedscope"]["profiles"].as_array().expect("a list").clone();
    for (index, (weight, key)) in WEIGHTS.iter().enumerate() {
        assert_eq!(total(&all(&format!("{weight}.folded"))[0]), job.said(key), "{weight}");
        // The first is what is in use, which is nothing.
        assert_eq!(total(&all("job.speedscope.json")[index + 1]), job.said(key), "{weight}");
    }
    let speedscope = &all("job.speedscope.json")[1];
    assert_eq!((&speedscope["unit"], all("job.speedscope.json").len()), (&"bytes".into(), 4));
    assert_eq!(seen["job.speedscope.json"]["speedscope"]["shown"], speedscope["name"]);
    let frames = speedscope["frames"].as_array().expect("a list");
    let is_of_script = |frame: &Value| {
        let file = frame["file"].as_str().unwrap_or_default();
        frame["name"] == "Trainer.step" && file.ends_with("/transformer.py") && frame["line"].as_u64() > Some(1)
    };
    assert!(frames.iter().any(is_of_script), "{frames:#?}");
    assert_eq!(total(&all("job.pb.gz")[0]), job.said("allocated_bytes.all.allocated"));
    let pprof = &seen["job.pb.gz"]["pprof"];
    let sums = ["allocation.all.allocated", "allocated_bytes.all.allocated"].map(|key| job.said(key));
    assert_eq!(pprof["sums"], serde_json::json!([sums[0], sums[1], 0, 0]));
    assert_eq!((&pprof["dangling"], &pprof["default_type"]), (&0.into(), &"alloc_space".into()));
    assert_eq!(pprof["labels"]["gpu"], serde_json::json!(["0"]));
    let stages = pprof["labels"]["stage"].as_array().expect("labels");
    assert!(["forward", "backward", "optimizer"].iter().all(|stage| stages.contains(&(*stage).into())), "{stages:?}");
}

#[test]
fn tables_pictures_and_pages_have_what_pytorch_has_counted() {
    let Some(job) = Recorded::training() else { return };
    let mut files = vec![job.export("inuse", "job.csv"), job.export("alloc", "job.svg")];
    let (command, page) = job.command(&["flamegraph", "--weight", "peak"], "job.html");
    Outcome::of(command).assert_ended_with(0, &["in use at the peak", "open it in a browser"]);
    files.push(page);
    let read = read(Command::new("python3"), "read_tables.py", None, &files);
    let rows = read["job.csv"].as_array().expect("rows");
    let sum = |column: &str| -> u64 {
        rows.iter().map(|row| row[column].as_str().expect("text").parse::<u64>().expect("a number")).sum()
    };
    for (column, key) in ["at_peak_bytes", "total_bytes", "allocations"].iter().zip(WEIGHTS.map(|(_, key)| key)) {
        assert_eq!(sum(column), job.said(key), "{column}");
    }
    let titles = read["job.svg"].as_array().expect("titles");
    let all = job.said("allocated_bytes.all.allocated").to_string();
    let is_all = |title: &&Value| {
        title.as_str().is_some_and(|title| title.replace(',', "") == format!("all ({all} bytes 100%)"))
    };
    assert_eq!(titles.iter().filter(is_all).count(), 1, "{titles:#?}");
    let page = &read["job.html"];
    assert_eq!(page["sources"], serde_json::json!([]), "nothing is loaded");
    let samples = page["data"]["parts"][0]["samples"].as_array().expect("samples");
    for (index, (_, key)) in WEIGHTS.iter().enumerate() {
        let sum: u64 = samples.iter().filter_map(|sample| sample[1][index + 1].as_u64()).sum();
        assert_eq!(sum, job.said(key), "{key}");
    }
}

#[test]
fn what_cannot_be_written_is_said_with_the_way_out() {
    let Some(job) = Recorded::training() else { return };
    let written = |words: &[&str], name: &str| Outcome::of(job.command(words, name).0);
    written(&["export"], "job.png").assert_ended_with(2, &["does not tell the format", "-f folded, speedscope"]);
    written(&["flamegraph"], "job.csv").assert_ended_with(2, &["an .svg or an .html"]);
    written(&["flamegraph"], "job.svg").assert_ended_with(1, &["nothing to draw: 0 in use", "--weight"]);
    written(&["export", "--weight", "peak"], "job.pb.gz").assert_ended_with(1, &["have no peak", "--weight"]);
    written(&["export", "--gpu", "7"], "job.csv").assert_ended_with(6, &["there is no GPU 7"]);
    written(&["export", "--pid", "1"], "job.csv").assert_ended_with(6, &["process 1 is not in"]);
    written(&["export"], "job.csv").assert_ended_with(0, &["job.csv is written"]);
    written(&["export"], "job.csv").assert_ended_with(1, &["is there already", "--force"]);
    written(&["export", "--force"], "job.csv").assert_ended_with(0, &["job.csv is written", "nothing in use"]);
    let same = |words: &[&str], name: &str| {
        let (command, output) = job.command(words, name);
        Outcome::of(command).assert_ended_with(0, &["is written"]);
        std::fs::read(output).expect("it was written")
    };
    assert_eq!(same(&["export", "-f", "memory-viz"], "one.pickle"), same(&["snapshot"], "other.pickle"));
}

#[test]
fn a_running_program_is_exported_by_an_own_watch() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let words = ["transformer.py", "--steps", "2", "--layers", "2", "--dim", "128"];
    let Some(mut job) = held_job(&gpu, "2.15", Allocator::Native, &words) else { return };
    let tgid = job.tgid().to_string();
    let words = ["--no-agent", "export", "-f", "speedscope", "-o", "-", "--duration", "10m", "--pid", &tgid];
    let watch = PlacesWatch::of(gpu.memwatch(&words));
    job.go_on();
    let mut step = job.next_checkpoint().expect("a training has steps");
    while step["label"] != "step 2" {
        job.go_on();
        step = job.next_checkpoint().expect("it has two");
    }
    let written = watch.interrupt();
    let statistics = &step["devices"][0]["memory_stats"];
    let ends = written["profiles"].as_array().expect("a list").iter().map(|profile| profile["endValue"].as_u64());
    let keys = ["allocated_bytes.all.current"].into_iter().chain(WEIGHTS.map(|(_, key)| key));
    let said = keys.map(|key| statistics[key].as_u64());
    assert_eq!(ends.collect::<Vec<_>>(), said.collect::<Vec<_>>());
    assert_eq!(written["activeProfileIndex"], 0);
}
