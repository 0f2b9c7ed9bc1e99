//! Memory over time is reported equally by a watch and by a recording, and its peaks equal
//! PyTorch's.

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::report::ReportLine;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator};
use serde_json::Value;

/// Returns the first process's row on its GPU.
fn row(report: &Value) -> &Value {
    let row = &report["data"]["profile"]["processes"][0]["gpus"][0];
    assert!(row.is_object(), "{report:#}");
    row
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number of bytes"))
}

/// Asserts that two numbers, measured over nearly the same time, differ by a fifth at most.
fn assert_near(one: u64, other: u64, what: &str) {
    assert!(one.abs_diff(other) <= one.max(other) / 5, "{what}: {one} and {other}");
}

#[test]
fn a_watch_and_its_recording_agree_and_peaks_are_all_that_pytorch_reports() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let words = ["keeps_tensors.py", "--seconds", "8"];
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &words);
    let (tgid, file) = (job.tgid().to_string(), gpu.directory().join("job.mwr").display().to_string());
    let recorder =
        AttributionWatch::of(gpu.memwatch(&["record", "--tensors=modules", "--json", "--pid", &tgid, "-o", &file]));
    let profile = ["--no-agent", "report", "--only", "profile", "--json", "-i", "100ms", "--pid", &tgid];
    let watch = AttributionWatch::of(gpu.memwatch(&profile));
    job.go_on();
    let trained = job.next_checkpoint().expect("it trains to its end");
    let live = watch.interrupt();
    recorder.interrupt();
    // The same period of both: the recording begins earlier and ends later, depending on the
    // machine's load.
    let [since, until] =
        ["begin_time", "end_time"].map(|key| live["data"]["profile"][key].as_str().expect("a time").to_owned());
    let in_the_same_time =
        ["report", "--only", "profile", "--json", "-i", "100ms", "--in", &file, "--since", &since, "--until", &until];
    let replayed = CommandOutcome::of(gpu.memwatch(&in_the_same_time));
    replayed.assert_ended_with(0, &[]);
    let replayed = ReportLine::parse(&replayed.stdout).json().clone();
    let statistics = &trained["devices"][0]["memory_stats"];
    for report in [&live, &replayed] {
        let row = row(report);
        for (track, key) in [("allocated", "allocated_bytes"), ("reserved", "reserved_bytes")] {
            for (side, own) in [("peak", "peak_bytes"), ("current", "current_bytes")] {
                assert_eq!(row[track][own], statistics[format!("{key}.all.{side}")], "{track} {side}: {row:#}");
            }
        }
        assert_eq!(row["live"]["peak_bytes"], row["reserved"]["peak_bytes"], "it has nothing else");
        assert!(row["fragmentation"]["maximum"].as_f64() > Some(0.0), "{row:#}");
        assert!(row["live"]["samples"].as_u64() > Some(30), "{row:#}");
        assert_eq!(report["data"]["profile"]["processes"][0]["exact"], true);
    }
    for track in ["live", "allocated", "reserved"] {
        for key in ["average_bytes", "p50_bytes", "p95_bytes"] {
            assert_near(number(&row(&live)[track][key]), number(&row(&replayed)[track][key]), key);
        }
    }
}

#[test]
fn profile_of_a_late_attach_has_nvml_bytes_and_no_pytorch() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.workload();
    job.run(&["device 0", "alloc held 268435456"]);
    let words =
        ["--no-agent", "report", "--only", "profile", "--json", "-d", "3s", "-i", "200ms", "--pid", &job.tgid_word()];
    let outcome = CommandOutcome::of(gpu.memwatch(&words));
    outcome.assert_ended_with(0, &[]);
    let report = ReportLine::parse(&outcome.stdout).json().clone();
    let used = &report["data"]["profile"]["gpus"][0]["used"];
    assert!(used["current_bytes"].as_u64() >= Some(268_435_456), "{used}");
    assert_eq!(used["peak_bytes"], Value::Null, "NVML is only read now and then");
    let utilization = &report["data"]["profile"]["gpus"][0]["utilization"];
    assert!(utilization["average"].as_f64().is_some_and(|part| part > 0.0 && part < 1.0), "{utilization}");
    let row = row(&report);
    assert!(row["used"]["p50_bytes"].as_u64() >= Some(268_435_456), "{row:#}");
    let (allocated, fragmentation) = (&row["allocated"], &row["fragmentation"]);
    assert_eq!((allocated, fragmentation), (&Value::Null, &Value::Null), "PyTorch is not there");
    let text = CommandOutcome::of(gpu.memwatch(&[
        "--no-agent",
        "report",
        "--only",
        "profile",
        "-d",
        "1s",
        "--pid",
        &job.tgid_word(),
    ]));
    text.assert_ended_with(0, &[]);
    assert!(text.stdout.contains("used (NVML)") && text.stdout.contains("used on average"), "{}", text.stdout);
}

#[test]
fn a_report_of_running_processes_has_every_section() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.workload();
    job.run(&["device 0", "alloc held 268435456"]);
    let words = ["--no-agent", "report", "--json", "-d", "2s", "--pid", &job.tgid_word()];
    let outcome = CommandOutcome::of(gpu.memwatch(&words));
    outcome.assert_ended_with(0, &[]);
    let report = ReportLine::parse(&outcome.stdout).json().clone();
    let summarized = &report["data"]["processes"][0]["pid"];
    assert_eq!((&report["data"]["recording"], summarized), (&Value::Null, &job.tgid().into()), "{report:#}");
    assert!(report["data"]["oom"]["failures"].is_array(), "{report:#}");
    assert!(report["data"]["leak"]["processes"].is_array(), "{report:#}");
    let forecast = &report["data"]["forecast"]["gpus"][0];
    assert!(forecast["needed_bytes"].as_u64() >= Some(268_435_456), "{report:#}");
    assert_eq!(forecast["level"], "unknown", "two seconds are too short: {report:#}");
    assert_eq!(report["data"]["fragment"]["devices"], serde_json::json!([]), "without PyTorch: {report:#}");
    assert!(report["data"]["churn"]["kinds"].is_array(), "{report:#}");
    assert!(report["data"]["profile"]["gpus"][0]["used"]["current_bytes"].as_u64() >= Some(268_435_456), "{report:#}");
    let refused = CommandOutcome::of(gpu.memwatch(&["report", "--only", "nothing", "--pid", &job.tgid_word()]));
    refused.assert_ended_with(2, &["there is where, oom, leak, forecast, fragment, profile, churn"]);
}
