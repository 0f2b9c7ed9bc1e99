//! The coming exhaustion of memory is reported in advance, once for each level, in a watch and from
//! its recording.

use std::collections::BTreeSet;

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator};
use serde_json::Value;

const WARNINGS: [&str; 3] = ["medium", "high", "critical"];

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error} in {line}"))).collect()
}

/// Removes and returns the failures that were reported when they occurred.
fn take_failures(all: &mut Vec<Value>) -> Vec<Value> {
    all.extract_if(.., |line| line["schema"] == "memwatch.oom_failure/1").collect()
}

/// Splits the output of `--follow --json` into the changes and the final report, and checks that
/// the report has the failures that were reported before it.
fn parted(text: &str) -> (Vec<Value>, Value) {
    let mut all = lines(text);
    let report = all.pop().expect("it ends with a report");
    assert_eq!(report["schema"], "memwatch.oom/3", "{report:#}");
    for failure in take_failures(&mut all) {
        let is_same = |one: &Value| one["time"] == failure["data"]["time"] && one["pid"] == failure["data"]["pid"];
        let reported = report["data"]["failures"].as_array().expect("a list");
        assert!(reported.iter().any(is_same), "{failure:#}\n{report:#}");
    }
    assert!(all.iter().all(|line| line["schema"] == "memwatch.forecast/3"), "{all:#?}");
    (all, report)
}

/// Returns the reported levels that were reached from below, and the thresholds.
fn reported(changes: &[Value]) -> Vec<String> {
    let rank =
        |level: &Value| ["unknown", "none", "low", "medium", "high", "critical"].iter().position(|name| level == name);
    let word = |change: &Value| {
        let data = &change["data"];
        match data["threshold_percent"].as_f64() {
            Some(percent) => Some(format!("{percent} %")),
            None => (rank(&data["level"]) > rank(&data["level_before"])).then(|| data["level"].to_string()),
        }
    };
    changes.iter().filter_map(word).collect()
}

/// Asserts that each level and threshold is reported once, and a warning and all thresholds before
/// the failure.
fn assert_reported_in_time(changes: &[Value], report: &Value) {
    let all = reported(changes);
    let once: BTreeSet<&String> = all.iter().collect();
    assert_eq!(once.len(), all.len(), "{all:?}");
    let failure = report["data"]["failures"][0]["time"].as_str().unwrap_or_else(|| panic!("it failed: {report:#}"));
    let is_before = |change: &&Value| change["data"]["time"].as_str().expect("a time") < failure;
    let before: Vec<Value> = changes.iter().filter(is_before).cloned().collect();
    let words = reported(&before);
    assert!(words.contains(&"75 %".to_owned()) && words.contains(&"90 %".to_owned()), "{words:?}");
    let warning = before.iter().find(|change| WARNINGS.iter().any(|level| change["data"]["level"] == *level));
    let warning = warning.unwrap_or_else(|| panic!("nobody was warned: {words:?}"));
    let range = &warning["data"]["gpu"]["end"]["range"];
    assert!(range["earliest_seconds"].as_f64() < range["latest_seconds"].as_f64(), "{range}");
    assert!(range["confidence"].as_f64() > Some(0.5), "{range}");
    let advice = warning["data"]["processes"][0]["advice"].as_array().expect("sentences");
    assert!(!advice.is_empty(), "{warning:#}");
}

#[test]
fn forecast_reports_each_level_once_before_exhaustion_and_runs_a_command() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &1_050);
    let words = ["courses.py", "linear", "--seconds", "120", "--rate", "12", "--pace", "8"];
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &words);
    let path = |name: &str| gpu.directory().join(name).display().to_string();
    let (tgid, file, heard) = (job.tgid().to_string(), path("job.mwr"), path("heard"));
    let recorder =
        AttributionWatch::of(gpu.memwatch(&["record", "--tensors=modules", "--json", "--pid", &tgid, "-o", &file]));
    let command = format!("cat >> {heard}");
    let oom = ["--no-agent", "oom", "--json", "--follow", "--threshold", "75,90", "--exec", &command, "--pid", &tgid];
    let watch = AttributionWatch::of(gpu.memwatch(&oom));
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("it survives")["label"], "refused");
    let (changes, report) = parted(&watch.stop());
    recorder.interrupt();
    assert_reported_in_time(&changes, &report);

    let mut heard = lines(&std::fs::read_to_string(heard).expect("the command has run"));
    let failures = take_failures(&mut heard);
    assert_eq!((failures.len(), &failures[0]["data"]["pid"]), (1, &Value::from(job.tgid())), "{failures:#?}");
    let times = |lines: &[Value]| lines.iter().map(|line| line["data"].to_string()).collect::<BTreeSet<_>>();
    assert_eq!((heard.len(), times(&heard)), (changes.len(), times(&changes)));
    // A change is of a GPU, and names the growing process.
    let growing = heard.iter().filter(|line| line["data"]["level"] != "none").map(|line| &line["data"]["processes"][0]);
    let is_named = |process: &Value| process["pid"] == job.tgid() && process["growth"]["grows"] == true;
    assert!(growing.clone().count() > 0 && growing.clone().all(is_named), "{:#?}", growing.collect::<Vec<_>>());

    let replay = ["oom", "--json", "--follow", "--threshold", "75,90", "--fail-on", "forecast", "--in", &file];
    let replayed = CommandOutcome::of(gpu.memwatch(&replay));
    replayed.assert_ended_with(3, &[]);
    let (changes, report) = parted(&replayed.stdout);
    assert_reported_in_time(&changes, &report);
    let text = CommandOutcome::of(gpu.memwatch(&["oom", "--in", &file]));
    text.assert_ended_with(0, &[]);
    assert!(
        text.stdout.starts_with("cause  ")
            && text.stdout.contains("\nCUDA OUT OF MEMORY  ")
            && text.stdout.contains("GPU 0"),
        "{}",
        text.stdout
    );
}
