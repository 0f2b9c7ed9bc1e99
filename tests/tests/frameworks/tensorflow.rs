//! TensorFlow's arena: memwatch's numbers equal those of `tf.config.experimental.get_memory_info`,
//! from before its first chunk and with late attach.
//!
//! TensorFlow's wheel has 0.6 GB: it is installed only by `cargo xtask matrix tensorflow`, and the
//! tests are skipped without it.

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, MIB, PrologueShape, SimulatedGpu, TorchJob};
use serde_json::Value;

/// Fields that both report.
const FIELDS: [&str; 2] = ["bytes_in_use", "peak_bytes_in_use"];

/// Returns the only arena in device memory of the only process that has one.
fn arena(report: &Value) -> Option<&Value> {
    let mut arenas =
        report["data"]["processes"].as_array()?.iter().filter_map(|process| process["arenas"].as_array()).flatten();
    arenas.next().filter(|_| arenas.next().is_none())
}

/// Returns whether an arena has TensorFlow's numbers and all of its chunks are known.
fn agrees(report: &Value, checkpoint: &Value) -> bool {
    arena(report).is_some_and(|arena| {
        FIELDS.iter().all(|field| arena[field] == checkpoint["stats"][field])
            && arena["exact"] == true
            && arena["known_chunk_bytes"] == arena["bytes_in_use"]
    })
}

#[test]
fn tensorflow_arena_probed_early_matches_its_statistics() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.tensorflow_command(&["tensorflow_job.py", "--early"]);
    let mut job = TorchJob::start(command);
    assert_eq!(job.next_checkpoint().expect("its library is there")["label"], "library");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    watch.until(|report| !report.json()["data"]["processes"].as_array().is_none_or(Vec::is_empty));
    job.go_on();
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.until(|report| agrees(report.json(), &checkpoint));
        let found = arena(report.json()).expect("it agrees");
        assert_eq!((&found["framework"], &found["out_of_step"]), (&"tensorflow".into(), &0.into()), "{found:#}");
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 5);
}

/// TensorFlow's arenas are objects of their own class, for which memwatch does not search the heap:
/// an arena is found at its next event, and then shows its earlier memory too.
#[test]
fn late_attach_to_tensorflow_matches_from_its_next_event() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.tensorflow_command(&["tensorflow_job.py"]);
    let mut job = TorchJob::start(command);
    assert_eq!(job.next_checkpoint().expect("it has its arena")["label"], "first");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    let report = watch.until(|report| report.json()["data"]["processes"].as_array().is_some_and(|all| !all.is_empty()));
    assert_eq!(arena(report.json()), None, "nothing of it is known before its next event");
    let mut checkpoints = 0;
    job.go_on();
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.until(|report| agrees(report.json(), &checkpoint));
        assert_eq!(arena(report.json()).expect("it agrees")["out_of_step"], 0);
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 4);
}

#[test]
fn tensorflow_arena_exhaustion_is_an_oom_failure_with_its_line() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.tensorflow_command(&["tensorflow_oom.py"]);
    let mut job = TorchJob::start(command);
    job.next_checkpoint().expect("it has its arena");
    let tgid = job.tgid().to_string();
    let oom = ["--no-agent", "oom", "--json", "--duration", "10m", "--fail-on-oom", "--pid", &tgid];
    let watch = AttributionWatch::of(gpu.memwatch(&oom));
    job.go_on();
    let after = job.next_checkpoint().expect("it survives");
    assert!(after["failure"].as_str().is_some_and(|says| says.contains("OOM when allocating")), "{after:#}");
    let report = watch.interrupt_with(3);
    let failure = &report["data"]["failures"][0];
    assert_eq!((&failure["level"], &failure["framework"]), (&"tensor".into(), &"tensorflow".into()), "{report:#}");
    assert_eq!(failure["wanted_bytes"], 600 * MIB, "{failure:#}");
    let site = failure["attributed_to"]["call_site"]["name"].as_str().unwrap_or_else(|| panic!("{failure:#}"));
    assert!(site.contains("tensorflow_oom.py:") && site.contains("put"), "{site}");
}

/// Operators of the job's first part.
const BEFORE: [&str; 4] = ["Fill", "AddV2", "Transpose", "ConcatV2"];

/// Returns the devices with attribution by code of all processes, from a report by module or from
/// the entry of each process.
fn places(report: &Value) -> impl Iterator<Item = &Value> {
    let processes = report["data"]["processes"].as_array().into_iter().flatten();
    processes.flat_map(|process| {
        let places = if process["tensor"].is_null() { &process["devices"] } else { &process["tensor"]["attribution"] };
        places.as_array().into_iter().flatten()
    })
}

/// Returns the row of an operator.
fn operator<'a>(report: &'a Value, name: &str) -> Option<&'a Value> {
    let mut rows = places(report).flat_map(|device| device["modules"].as_array().into_iter().flatten());
    rows.find(|row| row["kind"] == "operator" && row["name"] == name)
}

/// Returns whether each operator, except those in `before`, has the program's numbers: the total
/// bytes that it requested, and at least the bytes that are still live.
fn operators_agree(report: &Value, checkpoint: &Value, before: &[&str]) -> bool {
    let asked = checkpoint["asked"].as_object().expect("by operator").iter();
    let mut asked = asked.filter(|(name, _)| !before.contains(&name.as_str()));
    asked.all(|(name, asked)| {
        let Some(row) = operator(report, name) else { return false };
        let [total, rounding, held] =
            ["total_bytes", "total_rounding_bytes", "allocated_bytes"].map(|field| row[field].as_u64());
        let stays = checkpoint["held"][name].as_u64();
        total.zip(rounding).is_some_and(|(total, rounding)| Some(total - rounding) == asked.as_u64())
            && held >= stays
            && held.zip(total).is_some_and(|(held, total)| held <= total && row["peak_bytes"].as_u64() >= Some(held))
    })
}

/// Returns whether this TensorFlow version stores operator names where memwatch reads them. In
/// other versions no chunk has one.
fn names_operators(checkpoint: &Value) -> bool {
    checkpoint["named"] == true
}

/// Eager operators are named by their kind, and those in a `tf.function` by their node.
#[test]
fn tensorflow_operators_probed_early_have_the_expected_bytes() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.tensorflow_command(&["tensorflow_operators.py", "--early"]);
    let mut job = TorchJob::start(command);
    let library = job.next_checkpoint().expect("its library is there");
    assert_eq!(library["label"], "library");
    if !names_operators(&library) {
        return;
    }
    let mut watch = gpu.watch(&["--no-agent", "--tensors=modules", "--pid", &job.tgid().to_string()]);
    watch.until(|report| !report.json()["data"]["processes"].as_array().is_none_or(Vec::is_empty));
    job.go_on();
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        watch.until(|report| operators_agree(report.json(), &checkpoint, &[]));
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 4);
}

/// As for lines, memory that is granted before the arena is found and read counts as older than the
/// watch.
#[test]
fn attached_late_operators_have_what_they_ask_for_from_then_on() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.tensorflow_command(&["tensorflow_operators.py"]);
    let mut job = TorchJob::start(command);
    let first = job.next_checkpoint().expect("it has its arena");
    assert_eq!(first["label"], "first");
    if !names_operators(&first) {
        return;
    }
    let mut watch = gpu.watch(&["--no-agent", "--tensors=modules", "--pid", &job.tgid().to_string()]);
    watch.until(|report| report.json()["data"]["processes"][0]["tensor"].is_object());
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("its arena is met")["label"], "eager");
    watch.until(|report| places(report.json()).next().is_some());
    job.go_on();
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.until(|report| operators_agree(report.json(), &checkpoint, &BEFORE));
        assert_eq!(operator(report.json(), "Fill"), None, "it is older than the watch");
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 2);
}

#[test]
fn a_recording_of_tensorflow_has_its_operators() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = gpu.tensorflow_command(&["tensorflow_operators.py"]);
    let recording = gpu.directory().join("operators.mwr").display().to_string();
    let ended = CommandOutcome::of(gpu.memwatch_run(&["--no-agent", "-o", &recording], &job));
    ended.assert_ended_with(0, &["is written"]);
    let last = ended.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).next_back();
    let last = last.filter(|checkpoint| checkpoint["label"] == "graph").expect("the job has reached its end");
    let report = gpu.run_memwatch(&["where", "--by", "module", "--json", "--in", &recording]);
    let report: Value = serde_json::from_str(&report.stdout).expect("one report");
    if !names_operators(&last) {
        assert!(!report.to_string().contains("\"operator\""), "{report:#}");
        return;
    }
    assert!(operators_agree(&report, &last, &[]), "{report:#}\n{last:#}");
    let text = gpu.run_memwatch(&["where", "--by", "module", "--in", &recording]);
    assert!(text.stdout.contains("ConcatV2") && text.stdout.contains("model/dense/Sums"), "{}", text.stdout);
}
