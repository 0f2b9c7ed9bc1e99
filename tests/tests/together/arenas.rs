//! JAX's arena: what memwatch says of it equals what `device.memory_stats()` says, field by field, from the start and attached late.

use memwatch_tests::report::Report;
use memwatch_tests::{Gpu, Outcome, Shape, TorchJob};
use serde_json::Value;

/// The fields that both have.
const FIELDS: [&str; 5] = ["num_allocs", "bytes_in_use", "peak_bytes_in_use", "largest_alloc_size", "pool_bytes"];

/// The only arena in device memory of the only process with one.
fn arena(report: &Value) -> Option<&Value> {
    let mut arenas =
        report["data"]["processes"].as_array()?.iter().filter_map(|process| process["arenas"].as_array()).flatten();
    arenas.next().filter(|_| arenas.next().is_none())
}

fn has_stats(arena: &Value, checkpoint: &Value) -> bool {
    FIELDS.iter().all(|field| arena[field] == checkpoint["stats"][field])
}

/// Whether an arena has what JAX says, and all of its chunks are known.
fn agrees(report: &Value, checkpoint: &Value) -> bool {
    arena(report).is_some_and(|arena| {
        has_stats(arena, checkpoint) && arena["exact"] == true && arena["known_chunk_bytes"] == arena["bytes_in_use"]
    })
}

#[test]
fn attached_late_an_arena_has_the_numbers_that_jax_says_at_every_checkpoint() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(command) = gpu.jax_command(&["jax_job.py"]) else { return };
    let mut job = TorchJob::start(command);
    let first = job.next_checkpoint().expect("the first checkpoint");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    let report = watch.until(|report| agrees(report.json(), &first));
    let found = arena(report.json()).expect("it agrees");
    assert_eq!((&found["name"], &found["device_by"]), (&"GPU_0_bfc".into(), &"name".into()), "{found:#}");
    job.go_on();
    let mut checkpoints = 1;
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.until(|report| agrees(report.json(), &checkpoint));
        assert_eq!(arena(report.json()).expect("it agrees")["out_of_step"], 0);
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 6);
}

#[test]
fn without_a_single_probe_an_arena_has_the_numbers_that_jax_says_and_is_never_exact() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(command) = gpu.jax_command(&["jax_job.py"]) else { return };
    let mut job = TorchJob::start(command);
    let tgid = job.tgid();
    let mut watch = None;
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        let watch = watch.get_or_insert_with(|| gpu.watch(&["--no-agent", "--budget=0", "--pid", &tgid.to_string()]));
        let of_process = |report: &Report| {
            let process = report.process(tgid)?;
            process.0["tensor"]["arenas"].as_array()?.first().cloned()
        };
        let report = watch.until(|report| of_process(report).is_some_and(|arena| has_stats(&arena, &checkpoint)));
        let arena = of_process(&report).expect("it has the same numbers");
        assert_eq!((&arena["as_read"], &arena["exact"]), (&true.into(), &false.into()), "{arena:#}");
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 6);
}

#[test]
fn a_recording_from_the_start_has_jaxs_last_numbers_and_the_lines_that_hold_its_memory() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(job) = gpu.jax_command(&["jax_job.py"]) else { return };
    let recording = gpu.directory().join("jax.mwr").display().to_string();
    let ended = Outcome::of(gpu.memwatch_run(&["--no-agent", "-o", &recording], &job));
    ended.assert_ended_with(0, &["is written"]);
    let last = ended.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).next_back();
    let last = last.filter(|checkpoint| checkpoint["label"] == "end").expect("the job has reached its end");
    let stats = gpu.run_memwatch(&["stats", "--json", "--in", &recording]);
    let stats: Value = serde_json::from_str(&stats.stdout).expect("one report");
    assert!(agrees(&stats, &last), "{stats:#}\n{last:#}");
    assert_eq!(arena(&stats).expect("it agrees")["device_by"], "segment", "the driver's allocation was seen");
    let lines = gpu.run_memwatch(&["where", "--in", &recording]);
    assert!(lines.stdout.contains("jax_job.py:"), "{}", lines.stdout);
}
