//! The layout of free memory equals PyTorch's own counts, in a watch and in a recording, and can be
//! drawn.

use std::process::Command;

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::report::ReportLine;
use memwatch_tests::statistics::held_job;
use memwatch_tests::test;
use memwatch_tests::{CONTEXT_BYTES, CommandOutcome, MIB, PrologueShape, SimulatedGpu, TorchAllocator};
use serde_json::Value;

/// Asserts that the only device has PyTorch's numbers at this checkpoint.
fn assert_lies(report: &Value, checkpoint: &Value) {
    let device = &report["data"]["devices"][0];
    let (all, stated) = (&device["all"], &checkpoint["devices"][0]["memory_stats"]);
    for (own, key) in [
        ("reserved_bytes", "reserved_bytes.all.current"),
        ("allocated_bytes", "allocated_bytes.all.current"),
        ("split_bytes", "inactive_split_bytes.all.current"),
        ("split_blocks", "inactive_split.all.current"),
        ("segments", "segment.all.current"),
    ] {
        assert_eq!(all[own], stated[key], "{own}: {device:#}");
    }
    assert_eq!((&all["largest_free_bytes"], &all["unused_segment_bytes"]), (&(9 * MIB).into(), &0.into()), "{all:#}");
    // 660 MiB are free in pieces of 9 and 2 MiB, so no request above 9 MiB fits.
    assert!((0.98..0.99).contains(&all["scattered_part"].as_f64().expect("a number")), "{all:#}");
    assert_eq!(
        (&device["request"]["cached"], &device["request"]["driver_bytes"]),
        (&false.into(), &(512 * MIB).into()),
        "{device:#}"
    );
    // All free memory is next to blocks of one line, which keeps every other piece.
    let sites = device["lines"].as_array().expect("sites");
    assert_eq!(sites.len(), 1, "{sites:#?}");
    let name = sites[0]["name"].as_str().expect("a line");
    assert!(name.contains("fragments.py:") && sites[0]["kind"] == "line", "{sites:#?}");
    for part in ["share_bytes", "alone_bytes"] {
        assert_eq!(sites[0][part], all["split_bytes"], "{part}: {sites:#?}");
    }
    assert_eq!(sites[0]["held_bytes"], all["allocated_bytes"], "{sites:#?}");
    // Segments are multiples of the driver's granule.
    let driver = &report["data"]["driver"][0]["gpus"][0];
    assert_eq!(driver["device"]["live_bytes"], all["reserved_bytes"], "{driver:#}");
    assert_eq!((&driver["device"]["unused_bytes"], &driver["wasted_bytes"]), (&0.into(), &0.into()), "{driver:#}");
    let blocks = device["segments"].as_array().into_iter().flatten().filter_map(|segment| segment["blocks"].as_array());
    let used = blocks.flatten().filter(|block| block["state"] == "allocated");
    let used_bytes: u64 = used.filter_map(|block| block["bytes"].as_u64()).sum();
    assert_eq!(stated["allocated_bytes.all.current"], used_bytes);
}

#[test]
fn fragment_map_matches_pytorch_live_and_at_the_worst_recorded_moment() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &2_100);
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &["fragments.py"]);
    let place = |name: &str| gpu.directory().join(name).display().to_string();
    let (tgid, file, svg, html) = (job.tgid().to_string(), place("job.mwr"), place("map.svg"), place("map.html"));
    let recorder =
        AttributionWatch::of(gpu.memwatch(&["record", "--tensors=modules", "--json", "--pid", &tgid, "-o", &file]));
    let words = ["--no-agent", "fragment", "--json", "-d", "10m", "-r", "512M", "-o", &svg, "--pid", &tgid];
    let watch = AttributionWatch::of(gpu.memwatch(&words));
    job.go_on();
    let pieces = job.next_checkpoint().expect("it comes so far");
    assert_lies(&watch.interrupt(), &pieces);
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("it survives")["label"], "refused");
    job.go_on();
    assert!(job.next_checkpoint().is_none(), "it ends");
    recorder.wait();
    let reading = |words: &[&str]| CommandOutcome::of(gpu.memwatch(&[&["fragment", "--in", &file], words].concat()));
    let replayed = reading(&["--json", "-r", "512M", "-o", &html]);
    replayed.assert_ended_with(0, &[]);
    let report = ReportLine::parse(&replayed.stdout);
    assert!(report.json()["data"]["devices"][0]["at_worst"].is_string(), "{report:#?}");
    assert_lies(report.json(), &pieces);
    let text = reading(&[]);
    text.assert_ended_with(0, &[]);
    assert!(text.stdout.contains("660.0 MiB in 120 blocks") && text.stdout.contains("at its worst"), "{}", text.stdout);
    for (path, begin) in [(&svg, "<svg "), (&html, "<!doctype html>")] {
        let picture = std::fs::read_to_string(path).expect("it was written");
        assert!(picture.starts_with(begin), "{path}");
        assert_eq!(picture.matches("tensors: 9.0 MiB in a segment of 20.0 MiB").count(), 60, "{path}");
    }
    reading(&["-o", &html]).assert_ended_with(1, &["map.html"]);
}

/// Compares what `empty_cache` releases, what each stream and private pool has, and what a request
/// gets with PyTorch's own numbers.
fn free_memory_is_whose_pytorch_says(version: &str) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch(version, TorchAllocator::Native, &["private_pools.py"]);
    let stated = job.next_checkpoint().expect("it comes so far");
    let words = ["--no-agent", "fragment", "--json", "-d", "10m", "-r", "40M", "--pid", &job.tgid().to_string()];
    let report = AttributionWatch::of(gpu.memwatch(&words)).interrupt();
    job.go_on();
    let emptied = job.next_checkpoint().expect("it empties its cache");
    let device = &report["data"]["devices"][0];
    let all = &device["all"];
    let number = |row: &Value, key: &str| row[key].as_u64().expect("a number");
    assert_eq!(number(all, "unused_segment_bytes"), number(&emptied, "released"), "{all:#}");
    let parts = |row: &Value| ["unused_segment_bytes", "reusable_bytes", "stranded_bytes"].map(|key| number(row, key));
    let rows = device["pools"].as_array().expect("rows");
    for row in rows.iter().chain([all]) {
        assert_eq!(parts(row).iter().sum::<u64>(), number(row, "free_bytes"), "{row:#}");
    }
    let own = rows.iter().map(|row| {
        let name = match (&row["owner"], &row["private_pool"]) {
            (owner, _) if owner == "stream" => format!("stream {}", row["stream"]),
            (_, pool) => format!("pool {}_{}", pool[0], pool[1]),
        };
        (name, serde_json::json!([row["reserved_bytes"], row["allocated_bytes"]]))
    });
    assert_eq!(own.collect::<serde_json::Map<_, _>>(), *stated["pools"].as_object().expect("pools"), "{version}");
    let graph = |in_use: bool| rows.iter().find(|row| row["owner"] == "graph" && row["in_use"] == in_use);
    let [living, gone] = [true, false].map(|in_use| graph(in_use).map(parts).expect("a graph's pool"));
    assert_eq!((living[0], living[2], gone[2]), (0, 64 * MIB, 0), "{rows:#?}");
    assert_eq!(gone[0], 192 * MIB, "{rows:#?}");
    // The default stream has 24 MiB in use, and no free block of the requested size.
    let request = &device["request"];
    assert_eq!((&request["stream"], &request["cached"]), (&0.into(), &false.into()), "{request:#}");
    assert_eq!(request["other_streams"].as_array().map(Vec::len), Some(1), "{request:#}");
}

#[test]
fn free_memory_is_of_a_stream_or_a_pool_as_pytorch_2_15_releases_it() {
    free_memory_is_whose_pytorch_says("2.15");
}

#[test]
fn free_memory_is_of_a_stream_or_a_pool_as_pytorch_2_8_releases_it() {
    free_memory_is_whose_pytorch_says("2.8");
}

/// Commands for small requests in two granules, a large request that does not fill its granule,
/// memory that is not mapped, and a pool that keeps freed memory.
const OF_THE_DRIVER: &str = "device 0
alloc a 1M
alloc b 1M
alloc c 512
free b
alloc d 3M
reserve r 100M
create p 20M
map r+40M 20M p
access r+40M 20M
create q 30M
pool create pool 0
pool threshold pool max
frompool f 5M pool
frompool g 3M pool
asyncfree g
pool info pool
sleep 4000
kill
";

#[test]
fn fragment_unused_driver_memory_equals_nvml_beyond_the_context() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let (script, file) = (gpu.directory().join("script"), gpu.directory().join("job.mwr").display().to_string());
    std::fs::write(&script, OF_THE_DRIVER).expect("the script is written");
    let workload = gpu.workload_command();
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(format!("exec {} < {}", gpu.workload_program().display(), script.display()));
    shell.envs(workload.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let outcome = CommandOutcome::of(gpu.memwatch_run(&["-o", &file], &shell));
    assert_eq!(outcome.code, 128 + 9, "{outcome:#?}");
    let stated = |command: &str, words: &[&str]| {
        let outcome = CommandOutcome::of(gpu.memwatch(&[&[command, "--json", "--in", &file], words].concat()));
        outcome.assert_ended_with(0, &[]);
        serde_json::from_str::<Value>(&outcome.stdout).expect("JSON")["data"].clone()
    };
    let before_its_end = ["--until", "1500ms"];
    let now = stated("fragment", &[&before_its_end[..], &["-r", "512M"]].concat());
    let worst = stated("fragment", &[]);
    for (report, is_now) in [(&now, true), (&worst, false)] {
        let driver = &report["driver"][0];
        assert_eq!(driver["at_worst"].is_null(), is_now, "{driver:#}");
        let addresses = &driver["addresses"];
        let holes = [100 * MIB, 80 * MIB, 2, 40 * MIB].map(Value::from);
        let keys = ["reserved_bytes", "hole_bytes", "holes", "largest_hole_bytes"];
        assert_eq!(keys.map(|key| addresses[key].clone()), holes, "{driver:#}");
        let on_gpu = &driver["gpus"][0];
        let (device, pool) = (&on_gpu["device"], &on_gpu["pool"]);
        let asked_bytes = 4 * MIB + 512;
        assert_eq!((&device["live_bytes"], &device["allocations"]), (&asked_bytes.into(), &3.into()), "{on_gpu:#}");
        assert_eq!((&device["small_allocations"], &device["estimated"]), (&2.into(), &true.into()), "{on_gpu:#}");
        assert_eq!(on_gpu["physical"]["idle_bytes"], 30 * MIB, "{on_gpu:#}");
        assert_eq!((&pool["used_bytes"], &pool["backed_estimated"]), (&(5 * MIB).into(), &false.into()), "{on_gpu:#}");
    }
    // The driver's number: what the process uses besides its calls and its context.
    let held = stated("ps", &before_its_end);
    let unattributed = held["processes"][0]["gpus"][0]["unattributed_bytes"].as_u64().expect("NVML says");
    let on_gpu = &now["driver"][0]["gpus"][0];
    let unused = |kind: &str| on_gpu[kind]["unused_bytes"].as_u64().expect("it is known");
    assert_eq!(unused("device") + unused("pool"), unattributed - CONTEXT_BYTES, "{on_gpu:#}");
    assert_eq!(on_gpu["request"]["driver_bytes"], 512 * MIB);
    assert!(on_gpu["request"]["driver_free_bytes"].as_u64() > Some(512 * MIB), "{on_gpu:#}");
    let text = CommandOutcome::of(gpu.memwatch(&["fragment", "--in", &file]));
    text.assert_ended_with(0, &[]);
    for words in ["neither mapped nor bound", "at its worst at", "80.0 MiB have no memory"] {
        assert!(text.stdout.contains(words), "{words}: {}", text.stdout);
    }
}

#[test]
fn fragment_of_a_late_attach_recommends_no_setting() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_TOTAL_MB", &2_100);
    let mut job = held_job(&gpu, "2.15", TorchAllocator::Native, &["fragments.py"]);
    job.go_on();
    job.next_checkpoint().expect("it comes so far");
    let words = ["--no-agent", "fragment", "-d", "10m", "--pid", &job.tgid().to_string()];
    let watch = AttributionWatch::of(gpu.memwatch(&words));
    job.go_on();
    job.next_checkpoint().expect("it survives");
    let text = watch.stop();
    assert!(text.contains(&format!("PID {}", job.tgid())), "{text}");
    assert!(!text.contains("would have taken") && !text.contains("less at the peak"), "{text}");
}
