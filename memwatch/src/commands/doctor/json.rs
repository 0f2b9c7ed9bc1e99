//! The report for programs: the same envelope as every other report of memwatch.

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;
use memwatch_core::input::LibraryCoverage;
use serde::Serialize;

use super::Diagnosis;
use super::check::{Barrier, Check, Topic};
use super::library::LibraryReport;
use super::nvml::NvmlReport;
use crate::printable::write_json;
use crate::render::output::host_name;
use crate::render::wall_clock::WallClock;
use crate::sources::clock;

#[derive(Serialize)]
struct Envelope<'a> {
    schema: &'static str,
    version: &'static str,
    host: String,
    time: String,
    complete: bool,
    losses: BTreeMap<&'static str, u64>,
    coverage: CoverageJson<'a>,
    data: Data<'a>,
}

#[derive(Serialize)]
struct CoverageJson<'a> {
    libraries: Vec<&'a LibraryCoverage>,
    mechanism: Option<&'static str>,
    nvml: &'static str,
    nvml_reason: Option<&'a str>,
}

#[derive(Serialize)]
struct Data<'a> {
    ready: bool,
    exit_code: u8,
    summary: String,
    program: &'a str,
    kernel_release: &'a str,
    checks: Vec<CheckJson<'a>>,
    libraries: &'a [LibraryReport],
    libraries_left_out: Vec<LeftOutJson<'a>>,
    processes_seen: usize,
    processes_denied: usize,
    nvml: Option<&'a NvmlReport>,
}

#[derive(Serialize)]
struct CheckJson<'a> {
    id: &'static str,
    topic: Topic,
    state: &'static str,
    barrier: Option<Barrier>,
    fact: &'a str,
    fixes: &'a [String],
}

#[derive(Serialize)]
struct LeftOutJson<'a> {
    path: &'a str,
    reason: String,
    pids: &'a [u32],
}

/// The report as one line.
pub(crate) fn render(diagnosis: &Diagnosis) -> String {
    let clock = WallClock::utc(clock::boottime_to_unix_ns());
    let envelope = Envelope {
        schema: "memwatch.doctor/1",
        version: env!("CARGO_PKG_VERSION"),
        host: host_name(),
        time: clock.rfc3339(clock::boottime_ns()),
        // A diagnosis records nothing that could be lost; a record of the trial that does not arrive is a failed check.
        complete: true,
        losses: Loss::ALL.map(|loss| (loss.name(), 0)).into(),
        coverage: coverage(diagnosis),
        data: data(diagnosis),
    };
    let mut line = Vec::new();
    write_json(&mut line, &envelope).expect("maps with text keys and plain values always serialise");
    line.push(b'\n');
    String::from_utf8(line).expect("JSON is UTF-8")
}

fn coverage(diagnosis: &Diagnosis) -> CoverageJson<'_> {
    let reason = diagnosis.nvml.as_ref().err().map(String::as_str);
    CoverageJson {
        libraries: diagnosis.libraries.files.iter().map(|file| &file.coverage).collect(),
        mechanism: diagnosis.mechanism,
        nvml: if reason.is_some() { "unavailable" } else { "ok" },
        nvml_reason: reason,
    }
}

fn data(diagnosis: &Diagnosis) -> Data<'_> {
    let left_out = diagnosis.libraries.left_out.iter().map(|left_out| LeftOutJson {
        path: &left_out.display,
        reason: left_out.reason.to_string(),
        pids: &left_out.mapped_by,
    });
    Data {
        ready: diagnosis.barrier().is_none(),
        exit_code: diagnosis.exit().number(),
        summary: diagnosis.summary(),
        program: &diagnosis.program,
        kernel_release: &diagnosis.release,
        checks: diagnosis.checks.iter().map(check).collect(),
        libraries: &diagnosis.libraries.files,
        libraries_left_out: left_out.collect(),
        processes_seen: diagnosis.libraries.processes,
        processes_denied: diagnosis.libraries.processes_denied,
        nvml: diagnosis.nvml.as_ref().ok(),
    }
}

fn check(check: &Check) -> CheckJson<'_> {
    let Check { id, topic, state, fact, fixes, details: _ } = check;
    CheckJson { id, topic: *topic, state: state.name(), barrier: state.barrier(), fact, fixes }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{Diagnosis, render};
    use crate::commands::doctor::tests::{broken, healthy};

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
    fn every_symbol_stands_with_its_site() {
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
    fn a_refusal_says_what_is_in_the_way_and_what_is_not_known_is_null() {
        let report = value(&broken());
        assert_eq!((&report["data"]["ready"], &report["data"]["exit_code"]), (&json!(false), &json!(4)));
        let checks = report["data"]["checks"].as_array().expect("a list");
        let check = checks.iter().find(|check| check["id"] == "cap_bpf").expect("the check");
        assert_eq!((&check["state"], &check["barrier"]), (&json!("missing"), &json!("permission")));
        assert_eq!(check["fixes"][0], "sudo /usr/bin/memwatch doctor");
        assert!(report["coverage"]["mechanism"].is_null() && report["data"]["nvml"].is_null());
        assert_eq!(report["coverage"]["nvml_reason"], "no NVIDIA driver is loaded");
    }
}
