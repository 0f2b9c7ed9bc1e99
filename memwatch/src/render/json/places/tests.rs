use serde_json::Value;

use super::*;
use crate::render::fixture;

fn report(which: AttributionList, top: usize) -> Value {
    let mut out = Vec::new();
    let clock = fixture::clock();
    let origin = ReportOrigin { host: "node-7", clock: &clock };
    write(&mut out, (which, top), &fixture::training_node(), origin).expect("memory takes all");
    assert_eq!(String::from_utf8_lossy(&out).lines().count(), 1);
    serde_json::from_slice(&out).expect("valid JSON")
}

fn device(report: &Value) -> &Value {
    &report["data"]["processes"][0]["devices"][0]
}

#[test]
fn each_list_has_its_schema_and_what_it_adds_up_to() {
    for (which, schema, list) in [
        (AttributionList::Sites, "memwatch.lines/3", "lines"),
        (AttributionList::Phases, "memwatch.phases/3", "phases"),
        (AttributionList::Modules, "memwatch.modules/3", "modules"),
    ] {
        let report = report(which, 100);
        assert_eq!(report["schema"], schema);
        assert!(report["coverage"].is_object() && report["losses"].is_object() && report["complete"].is_boolean());
        let device = device(&report);
        let sum: u64 =
            device[list].as_array().expect("a list").iter().map(|row| row["allocated_bytes"].as_u64().unwrap()).sum();
        assert_eq!(Some(sum), device["attributed_bytes"].as_u64(), "{list}");
        assert_eq!(device["unplaced_bytes"], -512);
        assert_eq!(report["data"]["processes"][0]["optimizers"]["SGD.step"], 617);
    }
}

#[test]
fn attribution_json_uses_null_for_unknown_values() {
    let report = report(AttributionList::Sites, 100);
    let older = &device(&report)["lines"][0];
    assert_eq!(older["kind"], "preexisting");
    assert!(older["file"].is_null() && older["line"].is_null() && older["mean_lifetime_seconds"].is_null());
    assert_eq!(device(&report)["lines"][1]["mean_lifetime_seconds"], 0.012_345_678);
}

#[test]
fn attribution_json_gives_failures_and_large_blocks_their_phase() {
    let report = report(AttributionList::Sites, 100);
    let large = &device(&report)["large"][0];
    assert_eq!((&large["phase"], &large["phase_by"]), (&Value::from("forward"), &Value::from("frames")));
    let failure = &report["data"]["processes"][0]["failures"][0];
    assert_eq!(
        (&failure["step"], &failure["module"]["name"]),
        (&1233.into(), &"Net layers.0.attention Attention".into())
    );
}
