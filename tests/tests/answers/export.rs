//! Exported profiles of real PyTorch: their target programs open them and find PyTorch's own
//! numbers in them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memwatch_tests::harness::cannot_run;
use memwatch_tests::places::AttributionWatch;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, RunningProgram, SimulatedGpu, TIMEOUT, TorchAllocator};
use serde_json::Value;

/// Weights that are not 0 after the end of a program, with PyTorch's name of the same number.
const WEIGHTS: [(&str, &str); 3] = [
    ("peak", "allocated_bytes.all.peak"),
    ("alloc", "allocated_bytes.all.allocated"),
    ("count", "allocation.all.allocated"),
];

/// A recording, and what its program reported at the end.
struct ExportRecording {
    gpu: SimulatedGpu,
    file: PathBuf,
    devices: Value,
}

impl ExportRecording {
    /// Records a training with `memwatch run -o`.
    fn training() -> Self {
        let words = ["transformer.py", "--steps", "2", "--layers", "2", "--dim", "128"];
        let gpu = SimulatedGpu::new(PrologueShape::Cmp);
        let job = gpu.torch_command("2.15", TorchAllocator::Native, &words);
        let file = gpu.directory().join("job.mwr");
        let path = file.display().to_string();
        let outcome = CommandOutcome::of(gpu.memwatch_run(&["-o", &path], &job));
        outcome.assert_ended_with(0, &["job.mwr is written"]);
        let last = outcome.stdout.lines().rev().find_map(|line| serde_json::from_str::<Value>(line).ok());
        let devices = last.expect("the job says what it has")["devices"].clone();
        Self { gpu, file, devices }
    }

    /// Records a job on two devices whose code has unusual names, while it holds memory: names are
    /// read from a living process.
    fn strange() -> Self {
        let gpu = SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_DEVICES", &2);
        let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &["strange_names.py"]);
        let (tgid, file) = (job.tgid().to_string(), gpu.directory().join("job.mwr"));
        let recorder =
            gpu.memwatch(&["record", "--tensors=modules", "--pid", &tgid, "-o", &file.display().to_string()]);
        let mut recorder = RunningProgram::start(recorder);
        let mut made = Self { gpu, file, devices: Value::Null };
        made.until(|table| table.code == 0);
        job.go_on();
        made.devices = job.next_checkpoint().expect("it holds memory")["devices"].clone();
        made.until(|table| table.stdout.matches("/srv/").count() >= 2);
        recorder.signal(libc::SIGINT);
        assert_eq!(recorder.end(), 0);
        made
    }

    /// Exports the recording as a table, while it is written, until the table fulfils a condition.
    fn until(&self, holds: impl Fn(&CommandOutcome) -> bool) {
        let begin = Instant::now();
        let mut table = None;
        while begin.elapsed() < TIMEOUT {
            let mut command = self.gpu.memwatch(&["export", "-f", "csv", "-o", "-", "--in"]);
            command.arg(&self.file);
            let outcome = CommandOutcome::of(command);
            if holds(&outcome) {
                return;
            }
            table = Some(outcome);
            std::thread::sleep(Duration::from_millis(50));
        }
        panic!("the recording was never as expected; last: {table:#?}")
    }

    /// Returns a command on the recording that writes a file of this name, and the file.
    fn command(&self, words: &[&str], name: &str) -> (Command, PathBuf) {
        let output = self.gpu.directory().join(name);
        let mut command = self.gpu.memwatch(words);
        command.arg("--in").arg(&self.file).arg("-o").arg(&output);
        (command, output)
    }

    fn export(&self, weight: &str, name: &str) -> PathBuf {
        let (command, output) = self.command(&["export", "--weight", weight], name);
        CommandOutcome::of(command).assert_ended_with(0, &["is written"]);
        output
    }

    /// Returns PyTorch's number for its first device.
    fn stated(&self, key: &str) -> u64 {
        self.stated_of(0, key)
    }

    fn stated_of(&self, device: usize, key: &str) -> u64 {
        let statistics = &self.devices[device]["memory_stats"];
        statistics[key].as_u64().unwrap_or_else(|| panic!("no {key} in {statistics}"))
    }
}

/// Runs a script of `tests/readers` on these files and returns its output.
fn read(mut reader: Command, script: &str, first: Option<&Path>, files: &[PathBuf]) -> Value {
    reader.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("readers").join(script)).args(first).args(files);
    let outcome = CommandOutcome::of(reader);
    outcome.assert_ended_with(0, &[]);
    serde_json::from_str(&outcome.stdout).expect("it prints JSON")
}

/// Returns what speedscope and pprof-format have parsed. Ignores the test if they are not
/// installed.
fn seen(files: &[PathBuf]) -> Value {
    let modules = std::env::var_os("PROFILE_READERS").map(|folder| Path::new(&folder).join("node_modules"));
    let Some(modules) = modules.filter(|modules| modules.is_dir()) else {
        cannot_run("speedscope and pprof-format are not installed: run through `cargo xtask test`");
    };
    read(Command::new("node"), "read_profiles.mjs", Some(&modules), files)
}

fn total(profile: &Value) -> u64 {
    profile["total"].as_u64().unwrap_or_else(|| panic!("no total in {profile}"))
}

#[test]
fn exported_speedscope_and_pprof_match_pytorch_statistics() {
    let job = ExportRecording::training();
    let mut files: Vec<PathBuf> =
        WEIGHTS.iter().map(|(weight, _)| job.export(weight, &format!("{weight}.folded"))).collect();
    files.push(job.export("peak", "job.speedscope.json"));
    files.push(job.export("alloc", "job.pb.gz"));
    let seen = seen(&files);
    let all = |name: &str| seen[name]["speedscope"]["profiles"].as_array().expect("a list").clone();
    for (index, (weight, key)) in WEIGHTS.iter().enumerate() {
        assert_eq!(total(&all(&format!("{weight}.folded"))[0]), job.stated(key), "{weight}");
        // The first profile is memory in use, which is zero.
        assert_eq!(total(&all("job.speedscope.json")[index + 1]), job.stated(key), "{weight}");
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
    assert_eq!(total(&all("job.pb.gz")[0]), job.stated("allocated_bytes.all.allocated"));
    let pprof = &seen["job.pb.gz"]["pprof"];
    let sums = ["allocation.all.allocated", "allocated_bytes.all.allocated"].map(|key| job.stated(key));
    assert_eq!(pprof["sums"], serde_json::json!([sums[0], sums[1], 0, 0]));
    assert_eq!((&pprof["dangling"], &pprof["default_type"]), (&0.into(), &"alloc_space".into()));
    assert_eq!(pprof["labels"]["gpu"], serde_json::json!(["0"]));
    let phases = pprof["labels"]["phase"].as_array().expect("labels");
    assert!(["forward", "backward", "optimizer"].iter().all(|phase| phases.contains(&(*phase).into())), "{phases:?}");
}

#[test]
fn exported_csv_svg_and_html_match_pytorch_statistics() {
    let job = ExportRecording::training();
    let mut files = vec![job.export("inuse", "job.csv"), job.export("alloc", "job.svg")];
    let (command, page) = job.command(&["flamegraph", "--weight", "peak"], "job.html");
    CommandOutcome::of(command).assert_ended_with(0, &["in use at the peak", "open it in a browser"]);
    files.push(page);
    let read = read(Command::new("python3"), "read_tables.py", None, &files);
    let rows = read["job.csv"].as_array().expect("rows");
    let sum = |column: &str| -> u64 {
        rows.iter().map(|row| row[column].as_str().expect("text").parse::<u64>().expect("a number")).sum()
    };
    for (column, key) in ["at_peak_bytes", "total_bytes", "allocations"].iter().zip(WEIGHTS.map(|(_, key)| key)) {
        assert_eq!(sum(column), job.stated(key), "{column}");
    }
    let titles = read["job.svg"].as_array().expect("titles");
    let all = job.stated("allocated_bytes.all.allocated").to_string();
    let is_all = |title: &&Value| {
        title.as_str().is_some_and(|title| title.replace(',', "") == format!("all ({all} bytes 100%)"))
    };
    assert_eq!(titles.iter().filter(is_all).count(), 1, "{titles:#?}");
    let page = &read["job.html"];
    assert_eq!(page["sources"], serde_json::json!([]), "nothing is loaded");
    let samples = page["data"]["parts"][0]["samples"].as_array().expect("samples");
    for (index, (_, key)) in WEIGHTS.iter().enumerate() {
        let sum: u64 = samples.iter().filter_map(|sample| sample[1][index + 1].as_u64()).sum();
        assert_eq!(sum, job.stated(key), "{key}");
    }
}

/// Returns the live bytes of two devices as PyTorch reports them.
fn live(job: &ExportRecording) -> [u64; 2] {
    [0, 1].map(|device| job.stated_of(device, "allocated_bytes.all.current"))
}

#[test]
fn exported_files_with_unusual_names_on_two_devices_are_readable() {
    let job = ExportRecording::strange();
    let live = live(&job);
    assert!(live[0] > 0 && live[1] > live[0], "{live:?}");
    let names = ["job.folded", "job.speedscope.json", "job.pb.gz", "job.csv", "job.svg", "job.html"];
    let files = names.map(|name| job.export("inuse", name));
    let tables = read(Command::new("python3"), "read_tables.py", None, &files[3..]);
    let rows = tables["job.csv"].as_array().expect("rows");
    let is_second = |row: &&Value| row["gpu"] == "1" && row["allocated_bytes"] != "0";
    let row = rows.iter().find(is_second).expect("the second device has a row");
    let (name, file) = (r#"f;"</script><b>&\r\n 5"#, r#"/srv/=a;"</script><b>&\n\x1b[2J\u{202e}.py"#);
    assert_eq!((&row["function"], &row["file"]), (&name.into(), &file.into()));
    assert_eq!(row["allocated_bytes"], live[1].to_string());
    let titles = tables["job.svg"].as_array().expect("titles");
    let title = format!("{name} ({file}:3)").replace(';', ":");
    let is_strange = |given: &&Value| given.as_str().is_some_and(|given| given.starts_with(&title));
    assert_eq!(titles.iter().filter(is_strange).count(), 2, "{titles:#?}");
    let frames = tables["job.html"]["data"]["frames"].to_string();
    assert!(frames.contains(&serde_json::json!([name, format!("{file}:3")]).to_string()), "{frames}");
    let seen = seen(&files[..3]);
    let totals = |file: &str| -> Vec<u64> {
        seen[file]["speedscope"]["profiles"].as_array().expect("a list").iter().map(total).collect()
    };
    assert_eq!(totals("job.folded"), [live[0] + live[1]]);
    assert_eq!(totals("job.pb.gz"), [live[0] + live[1]]);
    let in_use: Vec<u64> = totals("job.speedscope.json").into_iter().step_by(4).collect();
    assert_eq!(in_use, live);
    let pprof = &seen["job.pb.gz"]["pprof"];
    assert_eq!(pprof["labels"]["gpu"], serde_json::json!(["0", "1"]));
    assert_eq!(pprof["sums"][2], 2, "a live block on each");
    assert!(pprof["functions"].as_array().is_some_and(|all| all.contains(&name.into())), "{pprof}");
}

#[test]
fn one_of_two_devices_can_be_chosen() {
    let job = ExportRecording::strange();
    let (mut command, output) = job.command(&["export", "--gpu", "1"], "job.speedscope.json");
    command.arg("--force");
    CommandOutcome::of(command).assert_ended_with(0, &["is written"]);
    let written: Value = serde_json::from_str(&std::fs::read_to_string(output).expect("text")).expect("JSON");
    assert_eq!(written["profiles"].as_array().map(Vec::len), Some(4));
    assert_eq!(written["profiles"][0]["endValue"], live(&job)[1]);
}

#[test]
fn export_that_cannot_be_written_is_reported_with_a_fix() {
    let job = ExportRecording::training();
    let written = |words: &[&str], name: &str| CommandOutcome::of(job.command(words, name).0);
    written(&["export"], "job.png").assert_ended_with(2, &["has no known format", "-f folded, speedscope"]);
    written(&["flamegraph"], "job.csv").assert_ended_with(2, &["ends in .svg or .html"]);
    let at_its_end = ["flamegraph", "--weight", "inuse"];
    written(&at_its_end, "job.svg").assert_ended_with(1, &["nothing to draw: 0 in use", "--weight"]);
    // The flame graph of an exited program shows the peak.
    written(&["flamegraph"], "job.svg").assert_ended_with(0, &["job.svg is written", "in use at the peak"]);
    written(&["export", "--weight", "peak"], "job.pb.gz").assert_ended_with(1, &["have no peak", "--weight"]);
    written(&["export", "--gpu", "7"], "job.csv").assert_ended_with(6, &["there is no GPU 7"]);
    written(&["export", "--pid", "1"], "job.csv").assert_ended_with(6, &["process 1 is not in"]);
    written(&["export"], "job.csv").assert_ended_with(0, &["job.csv is written"]);
    written(&["export"], "job.csv").assert_ended_with(1, &["already exists", "--force"]);
    written(&["export", "--force"], "job.csv").assert_ended_with(0, &["job.csv is written", "in use at the peak"]);
    let same = |words: &[&str], name: &str| {
        let (command, output) = job.command(words, name);
        CommandOutcome::of(command).assert_ended_with(0, &["is written"]);
        std::fs::read(output).expect("it was written")
    };
    assert_eq!(same(&["export", "-f", "memory-viz"], "one.pickle"), same(&["snapshot"], "other.pickle"));
}

#[test]
fn a_running_program_is_exported_by_an_own_watch() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let words = ["transformer.py", "--steps", "2", "--layers", "2", "--dim", "128"];
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &words);
    let tgid = job.tgid().to_string();
    let words = ["--no-agent", "export", "-f", "speedscope", "-o", "-", "--duration", "10m", "--pid", &tgid];
    let watch = AttributionWatch::of(gpu.memwatch(&words));
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
    let stated = keys.map(|key| statistics[key].as_u64());
    assert_eq!(ends.collect::<Vec<_>>(), stated.collect::<Vec<_>>());
    assert_eq!(written["activeProfileIndex"], 0);
}
