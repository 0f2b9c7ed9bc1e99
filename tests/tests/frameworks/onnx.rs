//! ONNX Runtime's arena: memwatch's numbers equal those of its own `AllocatorGetStats`, from before
//! its first chunk and with late attach.

use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchJob};
use serde_json::Value;

/// Fields by memwatch's name and by ONNX Runtime's.
const FIELDS: [(&str, &str); 5] = [
    ("num_allocs", "NumAllocs"),
    ("bytes_in_use", "InUse"),
    ("peak_bytes_in_use", "MaxInUse"),
    ("largest_alloc_size", "MaxAllocSize"),
    ("pool_bytes", "TotalAllocated"),
];
/// Bytes of the job's model: 256 by 256 numbers of four bytes.
const WEIGHT_BYTES: u64 = 4 * 256 * 256;

/// Returns the only arena in device memory of the process.
fn arena(report: &Value) -> Option<&Value> {
    let mut arenas =
        report["data"]["processes"].as_array()?.iter().filter_map(|process| process["arenas"].as_array()).flatten();
    arenas.next().filter(|_| arenas.next().is_none())
}

/// Returns whether an arena has all of ONNX Runtime's numbers and all of its chunks are known. Its
/// device memory is known if its segments have chunks.
fn agrees(report: &Value, checkpoint: &Value, fields: &[(&str, &str)]) -> bool {
    let stats = &checkpoint["stats"];
    arena(report).is_some_and(|arena| {
        fields.iter().all(|(own, its)| arena[*own] == stats[*its])
            && arena["exact"] == true
            && arena["known_chunk_bytes"] == arena["bytes_in_use"]
    })
}

#[test]
fn onnx_arena_probed_early_matches_its_statistics_and_weight_bytes() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.onnx_command(&["onnx_job.py", "--early"]);
    let mut job = TorchJob::start(command);
    assert_eq!(job.next_checkpoint().expect("its library is there")["label"], "library");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    watch.until(|report| !report.json()["data"]["processes"].as_array().is_none_or(Vec::is_empty));
    job.go_on();
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.until(|report| agrees(report.json(), &checkpoint, &FIELDS[..4]));
        let found = arena(report.json()).expect("it agrees");
        assert_eq!((&found["framework"], &found["out_of_step"]), (&"onnxruntime".into(), &0.into()), "{found:#}");
        assert_eq!(found["weight_bytes"], WEIGHT_BYTES, "{found:#}");
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 6);
}

#[test]
fn onnx_memory_outside_regions_counts_in_early_and_late_attaches() {
    for words in [&["onnx_job.py", "--reserve", "--early"][..], &["onnx_job.py", "--reserve"]] {
        let gpu = SimulatedGpu::new(PrologueShape::Cmp);
        let command = gpu.onnx_command(words);
        let mut job = TorchJob::start(command);
        let mut checkpoint = job.next_checkpoint().expect("the first checkpoint");
        let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
        let is_early = checkpoint["label"] == "library";
        if is_early {
            watch.until(|report| !report.json()["data"]["processes"].as_array().is_none_or(Vec::is_empty));
            job.go_on();
            checkpoint = job.next_checkpoint().expect("its model is loaded");
        }
        loop {
            let report = watch.until(|report| agrees(report.json(), &checkpoint, &FIELDS[..4]));
            let found = arena(report.json()).expect("it agrees");
            assert_eq!(found["out_of_step"], 0, "{found:#}");
            let weights = if is_early { Value::from(WEIGHT_BYTES) } else { Value::Null };
            assert_eq!(found["weight_bytes"], weights, "{found:#}");
            job.go_on();
            let Some(next) = job.next_checkpoint() else { break };
            checkpoint = next;
        }
        assert_eq!(checkpoint["stats"]["NumReserves"], 3, "the weights, and two more");
    }
}

#[test]
fn attached_late_an_arena_has_onnx_runtimes_numbers_at_every_checkpoint() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.onnx_command(&["onnx_job.py"]);
    let mut job = TorchJob::start(command);
    let first = job.next_checkpoint().expect("the first checkpoint");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    let report = watch.until(|report| agrees(report.json(), &first, &FIELDS));
    let found = arena(report.json()).expect("it agrees");
    assert_eq!((&found["name"], &found["device_by"]), (&"Cuda".into(), &"name".into()), "{found:#}");
    assert!(found["weight_bytes"].is_null(), "what came before the first run is not known: {found:#}");
    job.go_on();
    let mut checkpoints = 1;
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.until(|report| agrees(report.json(), &checkpoint, &FIELDS[..4]));
        assert_eq!(arena(report.json()).expect("it agrees")["out_of_step"], 0);
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 6);
}

#[test]
fn a_process_is_listed_with_its_framework() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.onnx_command(&["onnx_job.py"]);
    let mut job = TorchJob::start(command);
    job.next_checkpoint().expect("the first checkpoint");
    let listed = CommandOutcome::of(gpu.memwatch(&["--no-agent", "ps"]));
    assert!(listed.stdout.contains("FRAMEWORK") && listed.stdout.contains(" onnxruntime "), "{}", listed.stdout);
}
