//! JAX's arena: memwatch's numbers equal those of `device.memory_stats()`, field by field, from the
//! start and with late attach.

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, FrameworkRelease, MIB, PrologueShape, SimulatedGpu, TorchJob};
use serde_json::Value;

/// Fields that both report.
const FIELDS: [&str; 5] = ["num_allocs", "bytes_in_use", "peak_bytes_in_use", "largest_alloc_size", "pool_bytes"];

/// Returns the only arena in device memory of the only process that has one.
fn arena(report: &Value) -> Option<&Value> {
    let mut arenas =
        report["data"]["processes"].as_array()?.iter().filter_map(|process| process["arenas"].as_array()).flatten();
    arenas.next().filter(|_| arenas.next().is_none())
}

fn has_stats(arena: &Value, checkpoint: &Value) -> bool {
    FIELDS.iter().all(|field| arena[field] == checkpoint["stats"][field])
}

/// Returns whether an arena has JAX's numbers and all of its chunks are known.
fn agrees(report: &Value, checkpoint: &Value) -> bool {
    arena(report).is_some_and(|arena| {
        has_stats(arena, checkpoint) && arena["exact"] == true && arena["known_chunk_bytes"] == arena["bytes_in_use"]
    })
}

#[test]
fn late_attach_to_jax_matches_its_statistics_at_each_checkpoint() {
    attached_late(FrameworkRelease::Newest);
}

#[test]
fn late_attach_to_the_oldest_jax_matches_its_statistics() {
    attached_late(FrameworkRelease::Oldest);
}

fn attached_late(release: FrameworkRelease) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.jax_command(release, &["jax_job.py"]);
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
fn jax_without_probes_matches_its_statistics_and_is_never_exact() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.jax_command(FrameworkRelease::Newest, &["jax_job.py"]);
    let mut job = TorchJob::start(command);
    let tgid = job.tgid();
    let mut watch = None;
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        let watch = watch.get_or_insert_with(|| gpu.watch(&["--no-agent", "--budget=0", "--pid", &tgid.to_string()]));
        let of_process = |report: &ReportLine| {
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
fn jax_recording_from_start_has_its_last_numbers_and_lines() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = gpu.jax_command(FrameworkRelease::Newest, &["jax_job.py"]);
    let recording = gpu.directory().join("jax.mwr").display().to_string();
    let ended = CommandOutcome::of(gpu.memwatch_run(&["--no-agent", "-o", &recording], &job));
    ended.assert_ended_with(0, &["is written"]);
    let last = ended.stdout.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).next_back();
    let last = last.filter(|checkpoint| checkpoint["label"] == "end").expect("the job has reached its end");
    let stats = gpu.run_memwatch(&["stats", "--json", "--in", &recording]);
    let stats: Value = serde_json::from_str(&stats.stdout).expect("one report");
    assert!(agrees(&stats, &last), "{stats:#}\n{last:#}");
    assert_eq!(arena(&stats).expect("it agrees")["device_by"], "segment", "the driver's allocation was seen");
    let lines = gpu.run_memwatch(&["where", "--in", &recording]);
    assert!(lines.stdout.contains("jax_job.py:"), "{}", lines.stdout);
    let ranges = gpu.run_memwatch(&["where", "--by", "phase", "--json", "--in", &recording]);
    let ranges: Value = serde_json::from_str(&ranges.stdout).expect("one report");
    let step = named(&ranges, "jit__lambda").unwrap_or_else(|| panic!("{ranges:#}"));
    // Three steps make one array each. Donating the last array allocates no further one.
    assert_eq!((&step["total_bytes"], &step["allocated_bytes"]), (&(12 * MIB).into(), &(4 * MIB).into()), "{step:#}");
    assert_eq!((&step["temporary_bytes"], &step["most_temporary_bytes"]), (&0.into(), &0.into()), "{step:#}");
    // Each of two runs allocates as much temporary memory as the weights have, and leaves 1,024
    // sums.
    let sums = named(&ranges, "jit_column_sums").unwrap_or_else(|| panic!("{ranges:#}"));
    let [temporary, most] = ["temporary_bytes", "most_temporary_bytes"].map(|field| sums[field].as_u64());
    assert_eq!((temporary, most), (Some(8 * MIB), Some(4 * MIB)), "{sums:#}");
    assert_eq!(sums["total_bytes"], 8 * MIB + 2 * 4096, "{sums:#}");
}

/// Returns the object with this name at any depth.
fn named<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) if fields.get("name").is_some_and(|own| own == name) => Some(value),
        Value::Object(fields) => fields.values().find_map(|field| named(field, name)),
        Value::Array(all) => all.iter().find_map(|one| named(one, name)),
        _ => None,
    }
}

#[test]
fn jax_arena_exhaustion_is_an_oom_failure_with_its_line_and_arena_size() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &1_600);
    let mut command = gpu.jax_command(FrameworkRelease::Newest, &["jax_oom.py"]);
    // The arena is full before the GPU is.
    command.env("XLA_PYTHON_CLIENT_MEM_FRACTION", ".3");
    let mut job = TorchJob::start(command);
    let before = job.next_checkpoint().expect("it has its arena");
    let (tgid, file) = (job.tgid().to_string(), gpu.directory().join("jax.mwr").display().to_string());
    let recorder =
        AttributionWatch::of(gpu.memwatch(&["record", "--tensors=lines", "--json", "--pid", &tgid, "-o", &file]));
    let oom = ["--no-agent", "oom", "--json", "--duration", "10m", "--fail-on-oom", "--pid", &tgid];
    let watch = AttributionWatch::of(gpu.memwatch(&oom));
    job.go_on();
    let after = job.next_checkpoint().expect("it survives");
    let says = after["failure"].as_str().expect("it failed");
    assert!(says.contains("RESOURCE_EXHAUSTED") && says.contains("600.00M"), "{says}");
    let live = watch.interrupt_with(3);
    recorder.interrupt();
    let replayed = gpu.run_memwatch(&["oom", "--json", "--in", &file]);
    replayed.assert_ended_with(0, &[]);
    for report in [&live, ReportLine::parse(&replayed.stdout).json()] {
        let failure = &report["data"]["failures"][0];
        assert_eq!((&failure["level"], &failure["framework"]), (&"tensor".into(), &"jax".into()), "{report:#}");
        assert_eq!(failure["wanted_bytes"], 600 * MIB, "{failure:#}");
        let site = failure["attributed_to"]["call_site"]["name"].as_str().unwrap_or_else(|| panic!("{failure:#}"));
        assert!(site.contains("jax_oom.py:") && site.contains("put"), "{site}");
    }
    let text = gpu.run_memwatch(&["oom", "--in", &file]).stdout;
    assert!(text.contains("RESOURCE_EXHAUSTED: OUT OF MEMORY") && text.contains("320.0 MiB  in use of"), "{text}");
    assert!(text.contains("XLA_PYTHON_CLIENT_MEM_FRACTION"), "{text}\n{before:#}");
}
