//! PyTorch programs besides training in one process on one device: ranks, several devices, graphs,
//! compiled code, and named ranges.

use std::collections::BTreeMap;

use memwatch_tests::places::{AttributionWatch, assert_agreement, by_phase, measured, on_device, seen};
use memwatch_tests::report::ReportLine;
use memwatch_tests::statistics::{assert_all_exact, compare_statistics, held_job, stats_of};
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, RunningWatch, SimulatedGpu, TorchAllocator, TorchJob};
use serde_json::Value;

/// Two processes that train one model, each on its own device.
struct Ranks {
    jobs: [TorchJob; 2],
}

impl Ranks {
    fn start(gpu: &SimulatedGpu, version: &str, kind: &str, option: &str) -> Self {
        let store = gpu.directory().join(format!("store{option}")).display().to_string();
        let rank = |rank: &str| {
            let words = ["two_ranks.py", kind, "--store", &store, option];
            let mut command = gpu.torch_command(version, TorchAllocator::Native, &words);
            command.env("RANK", rank);
            TorchJob::start(command)
        };
        Self { jobs: [rank("0"), rank("1")] }
    }

    /// Starts both ranks, which wait before their first allocation.
    fn held(gpu: &SimulatedGpu, version: &str, kind: &str) -> Self {
        let mut ranks = Self::start(gpu, version, kind, "--hold");
        ranks.next_checkpoints();
        ranks
    }

    fn all(&self) -> [&TorchJob; 2] {
        self.jobs.each_ref()
    }

    /// Returns the next checkpoints of both ranks.
    fn next_checkpoints(&mut self) -> [Value; 2] {
        self.jobs.each_mut().map(|job| job.next_checkpoint().expect("there is a last checkpoint before the end"))
    }

    fn go_on(&mut self) {
        self.jobs.iter_mut().for_each(TorchJob::go_on);
    }

    /// Runs both ranks to their last checkpoints, at which they wait. Calls `look` at every
    /// checkpoint.
    fn trained(&mut self, mut look: impl FnMut(&Self, &[Value; 2])) -> [Value; 2] {
        loop {
            let checkpoints = self.next_checkpoints();
            look(self, &checkpoints);
            if checkpoints.iter().all(|checkpoint| checkpoint["label"] == "trained") {
                return checkpoints;
            }
            self.go_on();
        }
    }
}

fn two_gpus() -> SimulatedGpu {
    SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_DEVICES", &2)
}

/// Asserts that both ranks' statistics equal PyTorch's at each checkpoint, and that phases and
/// modules equal those measured by hooks in a control run.
fn two_ranks_are_seen_each_by_itself(version: &str, kind: &str) {
    let gpu = two_gpus();
    let mut control = Ranks::start(&gpu, version, kind, "--control");
    let mut ranks = Ranks::held(&gpu, version, kind);
    let mut stats = stats_of(&gpu, &ranks.all());
    let modules = AttributionWatch::start(&gpu, "module", &ranks.all());
    ranks.go_on();
    ranks.trained(|ranks, checkpoints| {
        let report = stats.next_fresh();
        for (checkpoint, job) in checkpoints.iter().zip(ranks.all()) {
            compare_statistics(&report, checkpoint, job.tgid());
            assert_all_exact(&report, checkpoint, job.tgid());
        }
    });
    let report = modules.interrupt();
    let truths = control.trained(|_, _| ());
    for (rank, (truth, job)) in truths.iter().zip(ranks.all()).enumerate() {
        let (truth, seen) = (measured(&truth["truth"]), seen(&report, job.tgid(), rank));
        assert_agreement(&format!("stages of rank {rank}"), &by_phase(&truth), &by_phase(&seen));
        assert_agreement(&format!("layers of rank {rank}"), &truth, &seen);
    }
}

macro_rules! ranks_are_seen {
    ($($name:ident: $version:literal, $kind:literal;)*) => {$(
        #[test]
        fn $name() {
            two_ranks_are_seen_each_by_itself($version, $kind);
        }
    )*};
}

ranks_are_seen! {
    two_ranks_of_distributed_data_parallel_on_2_15: "2.15", "ddp";
    two_ranks_of_fully_sharded_data_parallel_on_2_15: "2.15", "fsdp";
    two_ranks_of_fully_sharded_data_parallel_on_2_8: "2.8", "fsdp";
    two_ranks_of_fully_shard_on_2_8: "2.8", "fully_shard";
}

#[test]
fn each_rank_has_a_log_of_its_own() {
    let gpu = two_gpus();
    let mut ranks = Ranks::held(&gpu, "2.8", "fsdp");
    let pattern = gpu.directory().join("mem_trace_rank_{rank}.log").display().to_string();
    let mut command = gpu.memwatch(&["--no-agent", "--log", &pattern]);
    for job in ranks.all() {
        command.arg("--pid").arg(job.tgid().to_string());
    }
    let mut watch = RunningWatch::start(command);
    let is_watched = |report: &ReportLine, job: &TorchJob| {
        report.process(job.tgid()).is_some_and(|process| !process.0["tensor"].is_null())
    };
    watch.until(|report| ranks.all().into_iter().all(|job| is_watched(report, job)));
    // The phases' probes are attached a moment later: their library is large.
    watch.settled();
    ranks.go_on();
    let [first, second] = ranks.trained(|_, _| ());
    watch.next_fresh();
    for (rank, checkpoint) in [first, second].iter().enumerate() {
        let path = gpu.directory().join(format!("mem_trace_rank_{rank}.log"));
        let log = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let last = log.lines().last().expect("a log has lines");
        let peak = &checkpoint["devices"][0]["max_memory_allocated"];
        assert_eq!(last.split('\t').nth(5), Some(peak.to_string().as_str()), "{log}");
        assert!(log.contains("Net blocks.1.wide Linear\tforward\t"), "{log}");
    }
}

/// A script that waits before its first allocation, with a watch of its statistics and one of its
/// attribution by code.
struct WatchedScript {
    job: TorchJob,
    stats: RunningWatch,
    places: AttributionWatch,
}

impl WatchedScript {
    fn start(gpu: &SimulatedGpu, (version, allocator): (&str, TorchAllocator), list: &str, words: &[&str]) -> Self {
        let mut job = held_job(gpu, version, allocator, words);
        let stats = stats_of(gpu, &[&job]);
        let places = AttributionWatch::start(gpu, list, &[&job]);
        job.go_on();
        Self { job, stats, places }
    }

    /// Runs the script to its last checkpoint and compares its statistics on the way. Returns the
    /// first checkpoint, the last, and the report by code at that time.
    fn run(mut self, last: &str) -> (Value, Value, Value) {
        let mut first = Value::Null;
        loop {
            let checkpoint = self.job.next_checkpoint().expect("the last checkpoint comes");
            let report = self.stats.next_fresh();
            compare_statistics(&report, &checkpoint, self.job.tgid());
            assert_all_exact(&report, &checkpoint, self.job.tgid());
            if checkpoint["label"] == last {
                return (first, checkpoint, self.places.interrupt());
            }
            if first.is_null() {
                first = checkpoint;
            }
            self.job.go_on();
        }
    }
}

/// Returns the last checkpoint of a control run with hooks.
fn control(gpu: &SimulatedGpu, (version, allocator): (&str, TorchAllocator), words: &[&str]) -> Value {
    let mut job = gpu.torch(version, allocator, &[words, &["--control"]].concat());
    loop {
        let checkpoint = job.next_checkpoint().expect("the last checkpoint comes");
        if checkpoint["label"] == "trained" {
            return checkpoint;
        }
        job.go_on();
    }
}

fn tgid(checkpoint: &Value) -> u32 {
    checkpoint["pid"].as_u64().and_then(|tgid| u32::try_from(tgid).ok()).expect("a process id")
}

#[test]
fn two_devices_of_one_process_distinguished() {
    let gpu = two_gpus();
    let how = ("2.15", TorchAllocator::Native);
    let truth = control(&gpu, how, &["two_devices.py"]);
    let script = WatchedScript::start(&gpu, how, "module", &["two_devices.py"]);
    let (_, last, report) = script.run("trained");
    for (device, truth) in truth["truths"].as_array().expect("one of each device").iter().enumerate() {
        let (truth, seen) = (measured(truth), seen(&report, tgid(&last), device));
        assert_agreement(&format!("stages of device {device}"), &by_phase(&truth), &by_phase(&seen));
        assert_agreement(&format!("layers of device {device}"), &truth, &seen);
    }
}

#[test]
fn threads_on_two_devices_have_statistics_and_lines_of_their_own() {
    let gpu = two_gpus();
    let how = ("2.8", TorchAllocator::Native);
    let script = WatchedScript::start(&gpu, how, "line", &["two_gpus.py"]);
    let (threads, last, report) = script.run("end");
    for device in 0..2 {
        let sites = on_device(&report, tgid(&last), device)["lines"].as_array().expect("a list of sites");
        let sum = |sites: &mut dyn Iterator<Item = &Value>| sites.filter_map(|site| site["total_bytes"].as_u64()).sum();
        let stated = |checkpoint: &Value| {
            checkpoint["devices"][device]["memory_stats"]["allocated_bytes.all.allocated"].as_u64()
        };
        let all: u64 = sum(&mut sites.iter());
        assert_eq!(Some(all), stated(&last), "device {device}");
        // Until the first checkpoint, only the two threads have allocated.
        let of_thread: u64 = sum(&mut sites.iter().filter(|site| site["function"] == "work"));
        assert_eq!(Some(of_thread), stated(&threads), "device {device}: {sites:#?}");
    }
}

#[test]
fn a_transformer_in_bf16_with_expandable_segments() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let how = ("2.15", TorchAllocator::Expandable);
    let words = ["stages_truth.py", "transformer"];
    let truth = control(&gpu, how, &words);
    let script = WatchedScript::start(&gpu, how, "module", &words);
    let (_, last, report) = script.run("trained");
    let (truth, seen) = (measured(&truth["truth"]), seen(&report, tgid(&last), 0));
    assert_agreement("phases", &by_phase(&truth), &by_phase(&seen));
    assert_agreement("modules", &truth, &seen);
}

/// Asserts that allocations during a graph capture are marked, and that the statistics of the
/// graph's private pool are exact.
fn graphs_are_seen(version: &str) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let script = WatchedScript::start(&gpu, (version, TorchAllocator::Native), "phase", &["graphs.py"]);
    let (_, last, report) = script.run("trained");
    let phases = &on_device(&report, tgid(&last), 0)["phases"];
    let captured: Vec<&Value> = phases.as_array().into_iter().flatten().filter(|row| row["captured"] == true).collect();
    let total: u64 = captured.iter().filter_map(|row| row["total_bytes"].as_u64()).sum();
    assert_eq!(Some(total), last["captured_bytes"].as_u64(), "{captured:#?}");
    for phase in ["forward", "backward"] {
        assert!(captured.iter().any(|row| row["phase"] == phase), "no captured {phase} in {captured:#?}");
    }
}

#[test]
fn cuda_graphs_on_2_15() {
    graphs_are_seen("2.15");
}

#[test]
fn cuda_graphs_on_2_8() {
    graphs_are_seen("2.8");
}

/// Asserts that each range that the program names, by `record_function` or NVTX, has the bytes
/// granted within it.
fn named_ranges_are_seen(version: &str) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let how = (version, TorchAllocator::Native);
    let script = WatchedScript::start(&gpu, how, "phase", &["named_ranges.py"]);
    let (_, last, report) = script.run("trained");
    let ranges = &on_device(&report, tgid(&last), 0)["ranges"];
    let seen: BTreeMap<&str, &Value> = ranges
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| (row["name"].as_str().unwrap_or("none"), &row["total_bytes"]))
        .collect();
    let reported = last["ranges"].as_object().expect("ranges by name");
    let reported: BTreeMap<&str, &Value> = reported.iter().map(|(name, bytes)| (name.as_str(), bytes)).collect();
    assert_eq!(seen, reported);
}

#[test]
fn named_ranges_on_2_15() {
    named_ranges_are_seen("2.15");
}

#[test]
fn named_ranges_on_2_8() {
    named_ranges_are_seen("2.8");
}
