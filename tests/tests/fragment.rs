//! How free memory lies is what PyTorch itself counts, in a watch and in a recording, and it can be drawn.

use memwatch_tests::places::PlacesWatch;
use memwatch_tests::report::Report;
use memwatch_tests::statistics::held_job;
use memwatch_tests::{Allocator, Gpu, MIB, Outcome, Shape};
use serde_json::Value;

/// What is said of the only device is what PyTorch says at this checkpoint.
fn assert_lies(report: &Value, checkpoint: &Value) {
    let device = &report["data"]["devices"][0];
    let (all, said) = (&device["all"], &checkpoint["devices"][0]["memory_stats"]);
    for (own, key) in [
        ("reserved_bytes", "reserved_bytes.all.current"),
        ("allocated_bytes", "allocated_bytes.all.current"),
        ("split_bytes", "inactive_split_bytes.all.current"),
        ("split_blocks", "inactive_split.all.current"),
        ("segments", "segment.all.current"),
    ] {
        assert_eq!(all[own], said[key], "{own}: {device:#}");
    }
    assert_eq!((&all["largest_free_bytes"], &all["unused_segment_bytes"]), (&(9 * MIB).into(), &0.into()), "{all:#}");
    // Of 660 MiB free in 9 and 2 MiB, no request gets more than 9.
    assert!((0.98..0.99).contains(&all["scattered_part"].as_f64().expect("a number")), "{all:#}");
    assert_eq!(
        (&device["request"]["cached"], &device["request"]["driver_bytes"]),
        (&false.into(), &(512 * MIB).into()),
        "{device:#}"
    );
    let blocks = device["segments"].as_array().into_iter().flatten().filter_map(|segment| segment["blocks"].as_array());
    let used = blocks.flatten().filter(|block| block["state"] == "allocated");
    let used_bytes: u64 = used.filter_map(|block| block["bytes"].as_u64()).sum();
    assert_eq!(said["allocated_bytes.all.current"], used_bytes);
}

#[test]
fn memory_in_pieces_lies_as_pytorch_counts_it_live_and_at_its_worst_in_a_recording() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let gpu = gpu.with("GPUSIM_TOTAL_MB", &2_100);
    let Some(mut job) = held_job(&gpu, "2.15", Allocator::Native, &["fragments.py"]) else { return };
    let place = |name: &str| gpu.directory().join(name).display().to_string();
    let (tgid, file, svg, html) = (job.tgid().to_string(), place("job.mwr"), place("map.svg"), place("map.html"));
    let recorder = PlacesWatch::of(gpu.memwatch(&["record", "--json", "--pid", &tgid, "-o", &file]));
    let words = ["--no-agent", "fragment", "--json", "-d", "10m", "-r", "512M", "-o", &svg, "--pid", &tgid];
    let watch = PlacesWatch::of(gpu.memwatch(&words));
    job.go_on();
    let pieces = job.next_checkpoint().expect("it comes so far");
    assert_lies(&watch.interrupt(), &pieces);
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("it survives")["label"], "refused");
    job.go_on();
    assert!(job.next_checkpoint().is_none(), "it ends");
    recorder.wait();
    let reading = |words: &[&str]| Outcome::of(gpu.memwatch(&[&["fragment", "--in", &file], words].concat()));
    let replayed = reading(&["--json", "-r", "512M", "-o", &html]);
    replayed.assert_ended_with(0, &[]);
    let report = Report::parse(&replayed.stdout);
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
