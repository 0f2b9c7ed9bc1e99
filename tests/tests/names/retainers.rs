//! Retainers of growing memory: eleven kinds of leaks, each found with the path of its retainer, by
//! reading alone and by tracing.

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator, TorchJob};
use serde_json::Value;

/// Kinds of retainers in `retainers.py`, and the path that leads to the tensors of each.
const PATHS: [(&str, &str); 11] = [
    ("list", "keepers.py:main: history[*]"),
    ("dict", "by_step[*]"),
    ("attribute", "trainer.outputs[*]"),
    ("closure", "callbacks[*].__closure__[*].cell_contents"),
    ("graph", "keepers.py:main: steps.total"),
    ("hook", "model._forward_hooks[*].__closure__[*].cell_contents[*]"),
    ("tensor_hook", "keepers.py:main: steps.weight._backward_hooks[*].args[*]"),
    ("cache", "cached[*]"),
    ("exception", "errors[*].__traceback__.tb_next.tb_frame → keepers.py:fail: logits"),
    ("class_attribute", "Trainer.everything[*]"),
    ("registry", "keepers_registry.ENTRIES[*]"),
];

fn findings(report: &Value) -> impl Iterator<Item = &Value> {
    report["data"]["processes"][0]["findings"].as_array().into_iter().flatten()
}

/// Returns the path that a retainer is printed with. For an autograd graph this is the path of the
/// tensor it belongs to.
fn path(retainer: &Value) -> &str {
    retainer["kept_by"].as_str().or_else(|| retainer["name"].as_str()).unwrap_or_default()
}

fn parsed(ended: &CommandOutcome) -> Value {
    serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error} in {ended:?}"))
}

/// Returns the growing paths that reading alone has found.
fn growing(report: &Value) -> Vec<&str> {
    let grows = findings(report).filter(|finding| finding["verdict"] == "leak" && finding["level"] == "name");
    grows.map(|finding| path(&finding["retainers"][0])).collect()
}

/// Watches an idle job without probes while something happens to it. Returns the reported reason
/// for which the readings ended.
pub(crate) fn end_of_readings(gpu: &SimulatedGpu, job: &mut TorchJob, happens: impl FnOnce(&mut TorchJob)) -> String {
    let tgid = job.tgid().to_string();
    let words = ["leak", "--json", "--read-only", "--interval", "100ms", "--duration", "10m", &tgid];
    let watch = AttributionWatch::of(gpu.memwatch(&words));
    happens(job);
    let report = watch.ended();
    let process = &report["data"]["processes"][0];
    assert!(process["readings"]["count"].as_u64() >= Some(1), "{report:#}");
    process["readings"]["ended"].as_str().unwrap_or_else(|| panic!("{report:#}")).to_owned()
}

#[test]
fn all_kinds_of_leaks_are_found_with_the_path_that_keeps_them() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["keepers.py", "--hold"]);
    assert_eq!(job.next_checkpoint().expect("it holds")["label"], "begun");
    let tgid = job.tgid().to_string();
    let traced =
        AttributionWatch::of(gpu.memwatch(&["--no-agent", "leak", "--json", "--duration", "10m", "--pid", &tgid]));
    job.go_on();
    // A trace has a verdict after ten seconds. On a busy machine reading alone needs longer: a
    // reading in the middle of a step misses names.
    let mut report = Value::Null;
    for duration in ["16s", "32s", "64s"] {
        let words = ["--json", "leak", "--read-only", "--interval", "400ms", "--duration", duration, &tgid];
        let ended = gpu.run_memwatch(&words);
        // There may be no allocation yet at the first reading.
        if ended.code != 0 {
            continue;
        }
        report = parsed(&ended);
        let growing = growing(&report);
        if PATHS.iter().all(|(_, path)| growing.contains(path)) {
            break;
        }
    }
    let names = growing(&report);
    for (retainer, path) in PATHS {
        assert!(names.contains(&path), "{retainer}: {path} is not among {names:?}");
    }
    let history = findings(&report).find(|finding| path(&finding["retainers"][0]) == PATHS[0].1).expect("it grows");
    assert!(history["blocks"]["came"].as_u64() > Some(3) && history["retainers"][0]["newest"].is_string(), "{history}");
    assert!(report["data"]["processes"][0]["readings"]["count"].as_u64() >= Some(10), "{report}");
    // The job is idle, so nothing changes while the retainers are read.
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("it stops")["label"], "kept");
    let traced = traced.interrupt();
    let leaks: Vec<&Value> = findings(&traced).filter(|finding| finding["verdict"] == "leak").collect();
    let retainers = leaks.iter().flat_map(|finding| finding["retainers"].as_array().into_iter().flatten());
    let paths: Vec<&str> = retainers.map(path).collect();
    for (retainer, path) in PATHS {
        assert!(paths.contains(&path), "{retainer}: {path} is not among {paths:?} of {leaks:#?}");
    }
    let functions: Vec<_> = leaks.iter().filter_map(|finding| finding["function"].as_str()).collect();
    assert_eq!(functions.iter().filter(|function| **function == "made").count(), 1, "ten keep what one line takes");
    let by_name = gpu.run_memwatch(&["holdings", "keepers.py", "--top", "100"]);
    by_name.assert_ended_with(0, &[]);
    assert!(by_name.stdout.contains(PATHS[0].1), "{}", by_name.stdout);
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("it goes on")["label"], "goes");
    let end = end_of_readings(&gpu, &mut job, TorchJob::go_on);
    assert_eq!(end, "the process runs another program now (exec): sleep 600");
}
