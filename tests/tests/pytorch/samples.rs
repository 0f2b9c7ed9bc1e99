//! If lines are traced without modules, small blocks have call sites only if they are sampled:
//! totals by line are estimates, and exact numbers stay exact.

use memwatch_tests::places::AttributionWatch;
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, SimulatedGpu, TorchAllocator, TorchJob};
use serde_json::Value;

const KIB: u64 = 1 << 10;

/// Returns the row of the workload's line that ends with a comment of this name.
fn row<'a>(device: &'a Value, name: &str) -> &'a Value {
    let text = include_str!("../../workloads/small_blocks.py");
    let mut lines = (1..).zip(text.lines()).filter(|(_, line)| line.ends_with(&format!("# {name}")));
    let line: u64 = lines.next().expect("it is marked").0;
    let mut rows = device["lines"].as_array().expect("there are lines").iter();
    rows.find(|row| row["line"] == line).unwrap_or_else(|| panic!("{name}: {device:#}"))
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key}: {value:#}"))
}

/// Runs the workload. Returns the report of `where` on its only device, and PyTorch's own numbers.
fn watched(gpu: &SimulatedGpu, mut job: TorchJob, words: &[&str]) -> (Value, Value) {
    job.next_checkpoint().expect("it has begun");
    let tgid = job.tgid().to_string();
    let all = [&["--no-agent", "where", "--json", "--duration", "10m", "--pid", &tgid], words].concat();
    let places = AttributionWatch::of(gpu.memwatch(&all));
    job.go_on();
    let checkpoint = job.next_checkpoint().expect("it has allocated all");
    let report = places.interrupt();
    let device = report["data"]["processes"][0]["devices"][0].clone();
    (device, checkpoint["devices"][0]["memory_allocated"].clone())
}

#[test]
fn sampled_small_blocks_give_line_estimates_with_an_error() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = gpu.torch("2.15", TorchAllocator::Native, &["small_blocks.py"]);
    let (device, allocated) = watched(&gpu, job, &[]);
    let rows = device["lines"].as_array().expect("there are lines").iter();
    let sum: u64 = rows.map(|row| number(row, "allocated_bytes")).sum();
    assert_eq!((&device["allocated_bytes"], sum), (&allocated, number(&device, "allocated_bytes")), "{device:#}");
    for (name, live, all) in [("small", 40_000 * 4, 40_000 * 4), ("medium", 400 * 256, 800 * 256)] {
        let row = row(&device, name);
        let (live_now, total) = (&row["sampled_live"], &row["sampled"]);
        // The errors are about a tenth; a deviation of five errors is rarer than one in a million
        // runs.
        for (truth, estimate, key) in [(live, live_now, "allocated_bytes"), (all, total, "total_bytes")] {
            let (truth, bytes, error) = (truth * KIB, number(estimate, key), number(estimate, "standard_error_bytes"));
            assert!(error < truth / 4 && bytes.abs_diff(truth) <= 5 * error, "{name}: {bytes} ± {error} of {truth}");
        }
    }
    let large = row(&device, "large");
    assert_eq!((number(large, "allocated_bytes"), &large["sampled_live"]), (20 * KIB * KIB, &Value::Null));
    let not_drawn = |row: &&Value| row["kind"] == "not_sampled";
    let rest = device["lines"].as_array().and_then(|rows| rows.iter().find(not_drawn)).expect("some were not drawn");
    assert!(number(rest, "allocated_bytes") > 100 * KIB * KIB && rest["sampled"].is_null(), "{rest:#}");
}

#[test]
fn every_block_has_its_line_where_that_is_asked_for() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let job = gpu.torch("2.15", TorchAllocator::Native, &["small_blocks.py"]);
    let (device, _) = watched(&gpu, job, &["--stacks=all"]);
    let kib = |name| number(row(&device, name), "allocated_bytes") / KIB;
    assert_eq!([kib("small"), kib("medium"), kib("large")], [40_000 * 4, 400 * 256, 10 * 2048]);
    assert!(device["lines"].as_array().expect("lines").iter().all(|row| row["sampled_live"].is_null()), "{device:#}");
}

#[test]
fn a_recording_has_the_samples_and_its_table_says_what_is_estimated() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["small_blocks.py"]);
    job.next_checkpoint().expect("it has begun");
    let (tgid, file) = (job.tgid().to_string(), gpu.directory().join("job.mwr").display().to_string());
    let words = ["--no-agent", "record", "--tensors=lines", "--json", "--pid", &tgid, "-o", &file];
    let recorder = AttributionWatch::of(gpu.memwatch(&words));
    job.go_on();
    job.next_checkpoint().expect("it has allocated all");
    recorder.interrupt();
    let table = gpu.run_memwatch(&["where", "--in", &file]).stdout;
    let line = table.lines().find(|line| line.contains("small_blocks.py:") && line.contains('≈')).expect("an estimate");
    assert!(line.contains(" ± ") && line.contains('≥'), "{table}");
    assert!(table.contains("(below 1 MiB and not sampled: part of the sums marked ≈)"), "{table}");
    assert!(table.contains("For each one's line: --stacks=all"), "{table}");
}
