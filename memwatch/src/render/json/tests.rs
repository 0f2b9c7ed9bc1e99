use super::*;
use crate::render::fixture;
use serde_json::Value;

fn line(report: JsonReport, snapshot: &Snapshot) -> String {
    let mut out = Vec::new();
    let clock = fixture::clock();
    write(&mut out, report, snapshot, ReportOrigin { host: "node-7", clock: &clock }).expect("memory takes all");
    String::from_utf8(out).expect("JSON is UTF-8")
}

fn value(snapshot: &Snapshot) -> serde_json::Value {
    serde_json::from_str(&line(JsonReport::Ps(None), snapshot)).expect("valid JSON")
}

#[test]
fn a_report_is_one_line_with_the_fields_of_the_contract() {
    let text = line(JsonReport::Ps(None), &fixture::quiet_node());
    let golden = include_str!("quiet_node.json").replace("VERSION", env!("CARGO_PKG_VERSION"));
    let golden: Value = serde_json::from_str(&golden).expect("valid JSON");
    assert_eq!(serde_json::from_str::<Value>(&text).expect("valid JSON"), golden);
    assert_eq!(text.matches('\n').count(), 1);
}

#[test]
fn json_report_has_no_duplicate_field() {
    for snapshot in [fixture::quiet_node(), fixture::owned_node(), fixture::divided_node()] {
        for report in [JsonReport::Ps(Some(OwnerGrouping::Container)), JsonReport::Run] {
            let text = line(report, &snapshot);
            let read: Value = serde_json::from_str(&text).expect("valid JSON");
            assert_eq!(text.trim_end().len(), read.to_string().len(), "what stands twice is read once: {text}");
        }
    }
}

#[test]
fn json_mig_instance_names_its_parent_gpu() {
    let report = value(&fixture::divided_node());
    let mig = serde_json::json!({"parent_uuid": fixture::UUID_1, "index": 1, "profile": "1g.10gb", "gpu_instance_id": 8, "compute_instance_id": 0});
    assert_eq!(report["data"]["gpus"][2]["mig"], mig);
    assert!(report["data"]["gpus"][0]["mig"].is_null());
    assert_eq!(report["data"]["processes"][0]["mps_client"], true);
}

#[test]
fn the_stream_has_its_own_schema() {
    assert!(line(JsonReport::Watch, &fixture::quiet_node()).starts_with(r#"{"schema":"memwatch.watch/3","#));
}

#[test]
fn unknown_is_null_and_never_0() {
    let report = value(&fixture::busy_node());
    let ended = &report["data"]["processes"][2];
    for field in ["used_bytes", "preexisting_bytes", "unattributed_bytes"] {
        assert!(ended["gpus"][0][field].is_null(), "{field}");
    }
    assert!(ended["user"].is_null() && ended["tensor"].is_null() && ended["container"].is_null());
    assert_eq!(ended["ended"], "2026-11-21T14:03:05.000000Z");
    assert!(report["data"]["processes"][1]["frees_per_second"].is_null());
}

#[test]
fn every_kind_has_its_key() {
    let report = value(&fixture::busy_node());
    let kinds = &report["data"]["processes"][0]["gpus"][0]["kinds"];
    assert_eq!(kinds["physical"], serde_json::json!({}));
    assert_eq!(kinds["array"], serde_json::json!({}));
    assert_eq!(
        (&kinds["pool"]["backed_bytes"], &kinds["pool"]["backed_estimated"]),
        (&(5_u64 << 29).into(), &false.into())
    );
    assert_eq!(report["data"]["processes"][2]["gpus"][0]["kinds"]["array"]["estimated"], true);
}

#[test]
fn json_reports_always_include_losses_and_missing_nvml() {
    let report = value(&fixture::busy_node());
    assert_eq!(report["complete"], false);
    assert_eq!((&report["losses"]["ring_full"], &report["losses"]["nested_too_deep"]), (&12.into(), &0.into()));
    assert_eq!(report["data"]["processes"][1]["exact"], false);
    let report = value(&fixture::empty_node());
    assert_eq!(report["coverage"]["nvml"], "unavailable");
    assert_eq!(report["coverage"]["nvml_reason"], "no NVIDIA driver is loaded");
    assert_eq!(report["data"], serde_json::json!({"gpus": [], "processes": [], "hidden": null}));
}

#[test]
fn a_hostile_command_line_is_valid_json() {
    let report = line(JsonReport::Ps(None), &fixture::busy_node());
    assert!(!report.contains('\x1b'));
    assert_eq!(value(&fixture::busy_node())["data"]["processes"][1]["command"], "vllm serve \x1b[2J日本");
}

#[test]
fn sums_by_owner_add_up_to_what_the_driver_says() {
    for by in
        [OwnerGrouping::Container, OwnerGrouping::Pod, OwnerGrouping::Job, OwnerGrouping::User, OwnerGrouping::Gpu]
    {
        let snapshot = fixture::owned_node();
        let report: Value = serde_json::from_str(&line(JsonReport::Ps(Some(by)), &snapshot)).expect("valid JSON");
        let data = &report["data"];
        for gpu in data["gpus"].as_array().expect("GPUs") {
            let on_it = |row: &&Value| row["uuid"] == gpu["uuid"];
            let groups = data["groups"].as_array().expect("groups").iter();
            let rows = groups.flat_map(|group| group["gpus"].as_array().expect("rows")).filter(on_it);
            let charged: i64 = rows.map(|row| row["charged_bytes"].as_i64().expect("bytes")).sum();
            let rest = data["rest"].as_array().expect("rest").iter().find(on_it).expect("a rest for each GPU");
            let rest = rest["bytes"].as_i64().expect("the driver says what is used");
            assert_eq!(gpu["used_bytes"].as_i64(), Some(charged + rest), "{by:?}: {data:#}");
        }
    }
}
