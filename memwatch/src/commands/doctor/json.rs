//! JSON report of `memwatch doctor`, in the same envelope as every other report.

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;
use memwatch_core::input::{LibraryCoverage, TensorLevel};
use memwatch_core::words::{Tgid, json};
use serde::Serialize;

use super::Diagnosis;
use super::check::Check;
use super::library::{LibraryReport, RequesterReport};
use super::nvml::NvmlReport;
use super::prices::{LevelOverhead, PredictedOverheadReport, ProcessOverheads};
use crate::printable::write_json;
use crate::render::json::form::Formed;
use crate::render::output::host_name;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;

#[derive(Serialize)]
struct DoctorEnvelope<'a> {
    schema: &'static str,
    version: &'static str,
    host: String,
    #[serde(serialize_with = "json::date")]
    time_ns: u64,
    complete: bool,
    losses: BTreeMap<&'static str, u64>,
    coverage: DoctorCoverage<'a>,
    data: DoctorData<'a>,
}

#[derive(Serialize)]
struct DoctorCoverage<'a> {
    libraries: Vec<&'a LibraryCoverage>,
    mechanism: Option<&'static str>,
    nvml: &'static str,
    nvml_reason: Option<&'a str>,
}

#[derive(Serialize)]
struct DoctorData<'a> {
    ready: bool,
    exit_code: u8,
    summary: String,
    program: &'a str,
    kernel_release: &'a str,
    checks: &'a [Check],
    libraries: &'a [LibraryReport],
    graphics_and_video: &'a [RequesterReport],
    libraries_left_out: Vec<LeftOutLibrary<'a>>,
    processes_seen: usize,
    processes_denied: usize,
    nvml: Option<&'a NvmlReport>,
    prices: Option<OverheadForecastData<'a>>,
}

/// Predicted overhead of tracing PyTorch, in nanoseconds of CPU time per second.
#[derive(Serialize)]
struct OverheadForecastData<'a> {
    /// `null` for no limit.
    #[serde(serialize_with = "json::budget_seconds_per_second")]
    budget_ns_per_second: Option<u64>,
    probe_ns: u64,
    probe_measured: bool,
    /// Why the probe was not measured.
    probe_reason: Option<&'a str>,
    processes: Vec<DoctorProcess<'a>>,
}

#[derive(Serialize)]
struct DoctorProcess<'a> {
    #[serde(rename = "pid")]
    tgid: Tgid,
    name: &'a str,
    /// Why there is no prediction.
    reason: Option<&'a str>,
    tensor_events_per_second: Option<u64>,
    chosen: Option<TensorLevel>,
    levels: &'a [LevelOverhead],
}

#[derive(Serialize)]
struct LeftOutLibrary<'a> {
    path: &'a str,
    reason: String,
    pids: &'a [u32],
}

/// Renders the report as one line.
pub(crate) fn render(diagnosis: &Diagnosis) -> String {
    let clock = WallClock::utc(clock::boottime_to_unix_ns());
    let envelope = DoctorEnvelope {
        schema: "memwatch.doctor/1",
        version: env!("CARGO_PKG_VERSION"),
        host: host_name(),
        time_ns: clock::boottime_ns(),
        // A diagnosis records nothing that could be lost; a missing record of the trial run is a
        // failed check.
        complete: true,
        losses: Loss::ALL.map(|loss| (loss.name(), 0)).into(),
        coverage: coverage(diagnosis),
        data: data(diagnosis),
    };
    let mut line = Vec::new();
    write_json(&mut line, &Formed::new(&envelope, &clock))
        .expect("maps with text keys and plain values always serialise");
    line.push(b'\n');
    String::from_utf8(line).expect("JSON is UTF-8")
}

fn coverage(diagnosis: &Diagnosis) -> DoctorCoverage<'_> {
    let reason = diagnosis.nvml.as_ref().err().map(String::as_str);
    DoctorCoverage {
        libraries: diagnosis.libraries.files.iter().map(|file| &file.coverage).collect(),
        mechanism: diagnosis.mechanism,
        nvml: if reason.is_some() { "unavailable" } else { "ok" },
        nvml_reason: reason,
    }
}

fn data(diagnosis: &Diagnosis) -> DoctorData<'_> {
    let left_out = diagnosis.libraries.left_out.iter().map(|left_out| LeftOutLibrary {
        path: &left_out.display,
        reason: left_out.reason.to_string(),
        pids: &left_out.mapped_by,
    });
    DoctorData {
        ready: diagnosis.barrier().is_none(),
        exit_code: diagnosis.exit().number(),
        summary: diagnosis.summary(),
        program: &diagnosis.program,
        kernel_release: &diagnosis.release,
        checks: &diagnosis.checks,
        libraries: &diagnosis.libraries.files,
        graphics_and_video: &diagnosis.libraries.requesters,
        libraries_left_out: left_out.collect(),
        processes_seen: diagnosis.libraries.processes,
        processes_denied: diagnosis.libraries.processes_denied,
        nvml: diagnosis.nvml.as_ref().ok(),
        prices: diagnosis.prices.as_ref().map(prices),
    }
}

fn prices(report: &PredictedOverheadReport) -> OverheadForecastData<'_> {
    OverheadForecastData {
        budget_ns_per_second: report.budget.ns_per_second(),
        probe_ns: report.prices.trap_ns.get(),
        probe_measured: report.not_measured.is_none(),
        probe_reason: report.not_measured.as_deref(),
        processes: report.processes.iter().map(process).collect(),
    }
}

fn process(process: &ProcessOverheads) -> DoctorProcess<'_> {
    let predicted = process.prediction.as_ref();
    DoctorProcess {
        tgid: process.tgid,
        name: &process.name,
        reason: predicted.err().map(String::as_str),
        tensor_events_per_second: predicted.ok().map(|all| all.events_per_second),
        chosen: predicted.ok().map(|all| all.chosen),
        levels: predicted.map_or(&[], |all| &all.levels),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Diagnosis, render};
    use std::num::NonZeroU64;

    use crate::commands::doctor::tests::{broken, healthy, priced};

    fn value(diagnosis: &Diagnosis) -> Value {
        serde_json::from_str(&render(diagnosis)).expect("valid JSON")
    }

    #[test]
    fn the_envelope_is_that_of_every_report() {
        let text = render(&healthy());
        assert!(text.starts_with(r#"{"schema":"memwatch.doctor/1","version":""#), "{text}");
        assert_eq!(text.matches('\n').count(), 1);
        let report = value(&healthy());
        assert_eq!(report["complete"], true);
        assert_eq!(report["losses"]["ring_full"], 0);
        assert_eq!(report["coverage"]["nvml"], "ok");
        assert_eq!(report["coverage"]["mechanism"], "uprobe_multi");
        assert_eq!(report["coverage"]["libraries"][0]["probes_attached"], 2);
    }

    #[test]
    fn doctor_json_lists_each_symbol_with_its_attach_offset() {
        let library = &value(&healthy())["data"]["libraries"][0];
        assert_eq!(library["path"], "/usr/lib/libcuda.so.1");
        let site = json!({
            "symbol": "cuMemAlloc_v2", "offset_bytes": 10, "instruction": "je",
            "reason": "moved past 1 instruction", "single_stepped": false
        });
        assert_eq!(library["functions"][0], site);
        assert_eq!(library["missing"][0], json!({"symbol": "cuCtxCreate_v4", "since": "12.5"}));
    }

    #[test]
    fn doctor_json_states_the_barrier_and_null_for_unknown_values() {
        let report = value(&broken());
        assert_eq!((&report["data"]["ready"], &report["data"]["exit_code"]), (&json!(false), &json!(4)));
        let checks = report["data"]["checks"].as_array().expect("a list");
        let check = checks.iter().find(|check| check["id"] == "cap_bpf").expect("the check");
        assert_eq!((&check["state"], &check["barrier"]), (&json!("missing"), &json!("permission")));
        assert_eq!(check["fixes"][0], "sudo /usr/bin/memwatch doctor");
        assert!(report["coverage"]["mechanism"].is_null() && report["data"]["nvml"].is_null());
        assert_eq!(report["coverage"]["nvml_reason"], "no NVIDIA driver is loaded");
    }

    #[test]
    fn doctor_json_lists_overhead_by_process_and_level() {
        assert_eq!(value(&healthy())["data"]["prices"], Value::Null);
        let report = value(&priced(Ok(NonZeroU64::new(1_000).expect("a price"))));
        let prices = &report["data"]["prices"];
        assert_eq!((&prices["budget_seconds_per_second"], &prices["probe_ns"]), (&json!(0.02), &json!(1_000)));
        assert_eq!((&prices["probe_measured"], &prices["probe_reason"]), (&json!(true), &Value::Null));
        let hot = &prices["processes"][0];
        assert_eq!((&hot["pid"], &hot["chosen"], &hot["reason"]), (&json!(7), &json!("read"), &Value::Null));
        let blocks = json!({
            "level": "blocks", "shows": "every tensor allocation and free", "ns_per_event": 2_650,
            "predicted_seconds_per_second": 318.0 / 1000.0, "fits_budget": false
        });
        assert_eq!(hot["levels"][1], blocks);
        let without = &prices["processes"][2];
        assert_eq!((&without["tensor_events_per_second"], &without["levels"]), (&Value::Null, &json!([])));
        assert!(without["reason"].as_str().is_some_and(|reason| reason.contains("not loaded")));
        let report = value(&priced(Err("the trial run did not work".to_owned())));
        assert_eq!(report["data"]["prices"]["probe_measured"], false);
        assert_eq!(report["data"]["prices"]["probe_reason"], "the trial run did not work");
    }
}
