//! Native frames that are read from outside real, unmodified PyTorch on the simulated GPU equal
//! the frames that PyTorch records itself.

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, SimulatedGpu, TorchAllocator, TorchJob};
use serde_json::Value;

/// Returns the result of comparing memwatch's frames with PyTorch's own.
fn compared(version: &str) -> Value {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let file = |name: &str| gpu.directory().join(name).display().to_string();
    let (ours, truth) = (file("ours.pickle"), file("truth.pickle"));
    let mut command = gpu.torch_command(version, TorchAllocator::Native, &["native_truth.py", &truth, "--hold"]);
    // With this setting PyTorch records the address of every frame, without lines and without names
    // of unexported functions.
    command.env("TORCH_SYMBOLIZE_MODE", "dladdr");
    let mut job = TorchJob::start(command);
    assert_eq!(job.next_checkpoint().expect("a job that is held says so")["label"], "begun");
    let tgid = job.tgid().to_string();
    let words = ["--no-agent", "snapshot", "--native", "--pid", &tgid, "--duration", "10m", "-o", &ours];
    let watch = AttributionWatch::of(gpu.memwatch(&words));
    job.go_on();
    while job.next_checkpoint().is_some_and(|checkpoint| checkpoint["label"] != "held") {
        job.go_on();
    }
    watch.stop();
    let mut reader = gpu.torch_command(version, TorchAllocator::Native, &["same_frames.py", &ours, &truth]);
    let stated = reader.output().expect("Python starts");
    assert!(stated.status.success(), "{}", String::from_utf8_lossy(&stated.stderr));
    serde_json::from_slice(&stated.stdout).expect("a line of JSON")
}

fn frames_are_pytorchs_own(version: &str) {
    let stated = compared(version);
    let count = |key: &str| stated[key].as_u64().expect("a count");
    assert_eq!(stated["differ"], Value::Array(Vec::new()));
    assert!(count("compared") >= 16 && count("missing") == 0, "{stated}");
    assert!(count("without_python") >= 4 && count("named") >= 100, "{stated}");
    // For results of a generator and of `map`, C code requests the first element at another address
    // than the others.
    assert_eq!(count("cut"), 5, "{stated}");
}

#[test]
fn native_frames_are_all_that_pytorch_2_8_records() {
    frames_are_pytorchs_own("2.8");
}

#[test]
fn native_frames_are_all_that_pytorch_2_15_records() {
    frames_are_pytorchs_own("2.15");
}

/// The autograd engine's thread runs no Python: the call site of its tensors is the node of the
/// graph that requests them.
#[test]
fn a_thread_without_python_has_a_site() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let truth = gpu.directory().join("truth.pickle").display().to_string();
    let words = ["native_truth.py", &truth];
    let mut job = held_job(&gpu, "2.8", TorchAllocator::Native, &words);
    let watch = AttributionWatch::start(&gpu, "line", &[&job]);
    job.go_on();
    while job.next_checkpoint().is_some_and(|checkpoint| checkpoint["label"] != "held") {
        job.go_on();
    }
    let report = watch.interrupt();
    let process = &report["data"]["processes"][0];
    let sites = process["devices"][0]["lines"].as_array().expect("a list");
    let native: Vec<_> = sites.iter().filter(|site| site["kind"] == "native").collect();
    let node = native.iter().find(|site| site["function"] == "torch::autograd::generated::AddmmBackward0::apply");
    let node = node.unwrap_or_else(|| panic!("{native:?}"));
    assert_eq!((&node["file"], &node["line"]), (&Value::from("libtorch_cpu.so"), &Value::Null));
    assert!(node["allocated_bytes"].as_u64() > Some(0), "{node}");
    let stacks = process["devices"][0]["stacks"].as_array().expect("a list");
    let without_python = stacks.iter().filter(|stack| stack["frames"].as_array().is_some_and(Vec::is_empty));
    for stack in without_python {
        let native = &stack["native"];
        assert_eq!((&native["end"], &native["cut"]), (&Value::from("complete"), &Value::Null), "{stack}");
        assert!(native["frames"].as_array().is_some_and(|frames| frames.len() > 15), "{stack}");
    }
    let ends = &process["native_stacks"];
    assert!(ends["complete"].as_u64() >= Some(5) && ends["contradictory"].is_null(), "{ends}");
}
