use serde_json::Value;

use super::*;
use crate::render::fixture;

fn report(snapshot: &Snapshot) -> Value {
    let mut out = Vec::new();
    let clock = fixture::clock();
    write(&mut out, snapshot, ReportOrigin { host: "node-7", clock: &clock }).expect("memory takes all");
    assert_eq!(out.iter().position(|byte| *byte == b'\n'), Some(out.len() - 1));
    serde_json::from_slice(&out).expect("valid JSON")
}

#[test]
fn every_number_has_pytorchs_key_and_says_how_sure_it_is() {
    let report = report(&fixture::training_node());
    assert_eq!(report["schema"], "memwatch.stats/3");
    assert!(report["coverage"].is_object() && report["losses"].is_object() && report["complete"].is_boolean());
    let device = &report["data"]["processes"][0]["devices"][0];
    assert_eq!(device["statistics"]["allocated_bytes.all.peak"], 40_u64 << 30);
    assert_eq!(device["certainty"]["allocated_bytes.all.peak"], "exact");
    assert_eq!(device["certainty"]["inactive_split_bytes.all.current"], "derived");
    assert_eq!(device["reasons"]["inactive_split_bytes.all.current"], "older_neighbours");
    assert!(device["reasons"]["allocated_bytes.all.peak"].is_null());
    assert_eq!(device["readout"], "2026-11-21T14:02:12.000000Z");
}

#[test]
fn stats_json_uses_null_not_0_for_unknown_values() {
    let report = report(&fixture::training_node());
    let device = &report["data"]["processes"][0]["devices"][0];
    let unknown = &device["statistics"]["num_oom_rejections"];
    assert!(unknown.is_null() && device["statistics"].get("num_oom_rejections").is_some());
    assert_eq!(device["certainty"]["num_oom_rejections"], "unknown");
}

#[test]
fn a_machine_without_pytorch_has_no_such_process() {
    assert_eq!(report(&fixture::quiet_node())["data"]["processes"], serde_json::json!([]));
}

#[test]
fn a_process_has_its_largest_phases_modules_and_lines() {
    let snapshot = fixture::training_node();
    let tensors = snapshot.processes.iter().find_map(|process| process.tensors.as_deref()).expect("it trains");
    let field = serde_json::to_value(tensor(tensors)).expect("it is JSON");
    let (own, listed) = (&field["attribution"][0], &tensors.attribution.devices[0]);
    assert_eq!(own["attributed_bytes"], listed.total.live_bytes);
    for (list, rows) in
        [("phases", listed.phases.len()), ("modules", listed.modules.len()), ("lines", listed.sites.len())]
    {
        assert_eq!(own[list].as_array().map(Vec::len), Some(rows.min(PLACES)), "{list}: {own:#}");
        let live: u64 =
            own[list].as_array().into_iter().flatten().filter_map(|row| row["allocated_bytes"].as_u64()).sum();
        assert_eq!(live, listed.total.live_bytes, "{list} add up: {own:#}");
    }
}
