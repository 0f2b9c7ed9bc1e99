//! `memwatch holdings` of an idle real PyTorch: its report equals what the process itself reports
//! afterwards.

use std::collections::{BTreeMap, BTreeSet};

use memwatch_tests::test;
use memwatch_tests::{PrologueShape, SimulatedGpu, TorchAllocator, TorchJob, until};
use serde_json::Value;

use super::retainers::end_of_readings;

/// Starts a job and waits for its first checkpoint.
fn held(gpu: &SimulatedGpu, version: &str, allocator: TorchAllocator) -> (TorchJob, Value) {
    let mut job = gpu.torch(version, allocator, &["holdings.py"]);
    let checkpoint = job.next_checkpoint().expect("it holds something");
    (job, checkpoint)
}

/// Returns memwatch's report on the process.
fn report(gpu: &SimulatedGpu, job: &TorchJob, words: &[&str]) -> Value {
    let tgid = job.tgid().to_string();
    let all = [&["--json", "holdings", "--pid", &tgid], words].concat();
    let ended = gpu.run_memwatch(&all);
    ended.assert_ended_with(0, &[]);
    let report: Value = serde_json::from_str(&ended.stdout).expect("it prints JSON");
    assert_eq!(report["schema"], "memwatch.holdings/1");
    assert_eq!(report["data"]["processes"].as_array().map(Vec::len), Some(1));
    report["data"]["processes"][0].clone()
}

/// Returns what the process reports about itself, requested after the reading.
fn truth(job: &mut TorchJob) -> Value {
    job.go_on();
    job.next_checkpoint().expect("it says what it held")
}

fn block_at(process: &Value, address: u64) -> &Value {
    let mut blocks = process["blocks"].as_array().expect("blocks").iter();
    blocks.find(|block| block["address"] == address).unwrap_or_else(|| panic!("no block is at {address:#x}"))
}

fn names(block: &Value) -> BTreeSet<String> {
    let others = block["other_names"].as_array().into_iter().flatten();
    others.chain([&block["name"]]).filter_map(|name| name.as_str().map(str::to_owned)).collect()
}

fn names_are_pytorchs_own(version: &str, allocator: TorchAllocator) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let (mut job, checkpoint) = held(&gpu, version, allocator);
    let process = report(&gpu, &job, &[]);
    let truth = truth(&mut job);
    assert_eq!((&process["without_names"], &process["dropped_names"]), (&Value::Null, &0.into()));
    assert_eq!(process["allocated_bytes"], checkpoint["devices"][0]["memory_allocated"]);
    assert_eq!(process["devices"][0]["reserved_bytes"], checkpoint["devices"][0]["memory_reserved"]);
    let mut expected = BTreeMap::<u64, (&str, BTreeSet<String>)>::new();
    for row in truth["names"].as_array().expect("names") {
        let (address, class, name) = (row[0].as_u64(), row[1].as_str(), row[2].as_str());
        let (address, class, name) = (address.expect("one"), class.expect("one"), name.expect("one"));
        let block = block_at(&process, address);
        assert_eq!((&block["shape"], &block["dtype"]), (&row[3], &row[4]), "{version}: {name}: {block:#}");
        expected.entry(address).or_insert_with(|| (class, BTreeSet::new())).1.insert(name.to_owned());
    }
    for (address, (class, expected)) in &expected {
        let block = block_at(&process, *address);
        assert_eq!((&block["class"], &names(block)), (&(*class).into(), expected), "{version}: {block:#}");
    }
    for block in process["blocks"].as_array().expect("blocks") {
        let is_pytorchs =
            ["parameter", "gradient", "buffer", "optimizer_state"].iter().any(|class| block["class"] == *class);
        let address = block["address"].as_u64().expect("an address");
        assert!(!is_pytorchs || expected.contains_key(&address), "{version}: PyTorch does not know this: {block:#}");
    }
    for saved in truth["saved"].as_array().expect("what autograd has") {
        let block = block_at(&process, saved[0].as_u64().expect("an address"));
        assert_eq!((&block["class"], &block["name"]), (&"saved_for_backward".into(), &saved[1]));
        assert_eq!(block["kept_by"], "holdings.py:main: graph");
    }
    assert_eq!(process["named_bytes"], process["allocated_bytes"], "{version}: every byte has a class: {process:#}");
    assert_advice(&process);
}

/// Asserts the advice on what could be held with less memory, in bytes of allocator blocks: the
/// float32 masters of the frozen layer's weight (a bias is one-dimensional, like many other
/// tensors), a view of two rows of 4096, the frozen layer itself, and what an exception and a
/// reference cycle keep alive.
fn assert_advice(process: &Value) {
    let mut advice = BTreeMap::new();
    for row in process["advice"].as_array().expect("advice") {
        let (kind, example) = (row["kind"].as_str().expect("a word"), row["example"].as_str().expect("a name"));
        advice.insert(kind, (row["bytes"].as_u64().expect("bytes"), row["count"].as_u64().expect("a count"), example));
    }
    let traceback = "in_exception.__traceback__.tb_next.tb_frame → holdings.py:fail: kept";
    let expected = [
        ("full_precision_copies", (96 * 64 * 4, 1, "holdings.py:main: masters[0]")),
        ("mostly_unused_storage", (4096 * 128 * 4, 1, "half")),
        ("no_gradient", (96 * 64 * 2 + 512, 2, "frozen.weight")),
        ("traceback", (512, 1, traceback)),
        ("unreachable", (512, 1, "<list>[0]")),
    ];
    assert_eq!(advice, BTreeMap::from(expected));
}

#[test]
fn everything_that_2_6_holds_has_the_name_that_the_process_gives_it() {
    names_are_pytorchs_own("2.6", TorchAllocator::Native);
}

#[test]
fn everything_that_2_8_holds_has_the_name_that_the_process_gives_it() {
    names_are_pytorchs_own("2.8", TorchAllocator::Native);
    names_are_pytorchs_own("2.8", TorchAllocator::Expandable);
}

#[test]
fn holdings_of_pytorch_2_9_to_2_11_have_the_names_the_process_gives() {
    for version in ["2.9", "2.10", "2.11"] {
        names_are_pytorchs_own(version, TorchAllocator::Native);
    }
}

#[test]
fn everything_that_2_15_holds_has_the_name_that_the_process_gives_it() {
    names_are_pytorchs_own("2.15", TorchAllocator::Native);
}

/// Returns the first word of a line of `/proc/PID/status`.
fn status_text(job: &TorchJob, key: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{}/status", job.tgid())).expect("the job is there");
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).expect("the kernel says it");
    line.split_whitespace().next().expect("a word").to_owned()
}

/// Returns the number in a line of `/proc/PID/status`, in the line's unit.
fn status(job: &TorchJob, key: &str) -> u64 {
    status_text(job, key).parse().expect("a number")
}

/// Returns the process's minor and major page faults: fields 10 and 12 of `/proc/PID/stat`, counted
/// after the name.
fn page_faults(job: &TorchJob) -> [u64; 2] {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", job.tgid())).expect("the job is there");
    let (_, behind) = stat.rsplit_once(") ").expect("a name ends");
    let fields: Vec<_> = behind.split(' ').collect();
    [fields[7], fields[9]].map(|field| field.parse().expect("a number"))
}

#[test]
fn a_reading_of_names_changes_nothing_in_the_process() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let (job, _) = held(&gpu, "2.8", TorchAllocator::Native);
    let keys = ["VmPTE", "VmSwap", "Threads", "voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];
    // The kernel may meanwhile reclaim pages that the process has freed, so the counts may only
    // fall.
    let grown = |before: &[u64; 2], now: &[u64; 2]| before.iter().zip(now).any(|(before, now)| now > before);
    let pages = || ["VmRSS", "RssAnon"].map(|key| status(&job, key));
    // The job prints the checkpoint a moment before it waits.
    until("the job rests", || (status_text(&job, "State") == "S").then_some(()));
    let before = (keys.map(|key| status(&job, key)), page_faults(&job), pages());
    let process = report(&gpu, &job, &[]);
    assert_eq!((keys.map(|key| status(&job, key)), page_faults(&job)), (before.0, before.1));
    assert!(!grown(&before.2, &pages()), "{:?} to {:?}", before.2, pages());
    let read = process["read_bytes"].as_u64().expect("a number");
    assert!((1..200 << 20).contains(&read), "{read} bytes are read");
}

#[test]
fn groups_are_printed_with_a_star_for_every_index() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let (job, _) = held(&gpu, "2.8", TorchAllocator::Native);
    let tgid = job.tgid().to_string();
    let shown = gpu.run_memwatch(&["holdings", &tgid, "--top", "100"]);
    shown.assert_ended_with(0, &[]);
    for part in [
        "holdings.py:main: history[*]",
        "server.requests[*].layers[*][*]",
        "h.*.query.weight",
        "exp_avg_sq of h.*.query.weight",
        "cuda:0 allocated",
        "100.0 % named",
    ] {
        assert!(shown.stdout.contains(part), "{part} is not in {}", shown.stdout);
    }
    let by_module = report(&gpu, &job, &["--by", "module"]);
    let modules = by_module["groups"].as_array().expect("groups").iter();
    let query = modules.filter(|group| group["name"] == "h.1.query").map(|group| &group["count"]);
    // Weight and bias, each with its gradient and two moments.
    assert_eq!(query.collect::<Vec<_>>(), [&Value::from(8)]);
    let by_class = gpu.run_memwatch(&["holdings", &tgid, "--by", "class"]);
    by_class.assert_ended_with(0, &[]);
    assert!(by_class.stdout.contains("optimizer state"), "{}", by_class.stdout);
    let mut job = job;
    assert_eq!(end_of_readings(&gpu, &mut job, TorchJob::kill), "the process has ended");
}

#[test]
fn a_process_without_pytorch_is_refused_with_a_sentence() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let workload = gpu.workload();
    let tgid = workload.tgid().to_string();
    gpu.run_memwatch(&["holdings", &tgid]).assert_ended_with(6, &["no PyTorch with CUDA"]);
    gpu.run_memwatch(&["leak", "--read-only", &tgid]).assert_ended_with(6, &["no PyTorch with CUDA"]);
    let unknown = "there is no process of name no-such-program";
    gpu.run_memwatch(&["leak", "--read-only", "no-such-program"]).assert_ended_with(6, &[unknown]);
}

/// Like the workers of a data loader: their memory shows their parent's objects.
#[test]
fn a_child_that_was_forked_later_is_reported_to_have_a_copy() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &["fork_copy.py"]);
    let checkpoint = job.next_checkpoint().expect("it has a child");
    let tgid = job.tgid().to_string();
    let ended = gpu.run_memwatch(&["--json", "holdings", &tgid]);
    ended.assert_ended_with(0, &[]);
    let report: Value = serde_json::from_str(&ended.stdout).expect("it prints JSON");
    let processes = report["data"]["processes"].as_array().expect("a list").iter();
    let copies: Vec<_> = processes.map(|process| (&process["pid"], &process["copy_of"])).collect();
    assert_eq!(copies, [(&job.tgid().into(), &Value::Null), (&checkpoint["child"], &job.tgid().into())]);
    let shown = gpu.run_memwatch(&["holdings", &tgid]);
    assert!(shown.stdout.contains(&format!("it was forked from PID {tgid}")), "{}", shown.stdout);
    let places = gpu.run_memwatch(&["--no-agent", "--json", "where", "--pid", &tgid, "--duration", "4s"]);
    let report: Value = serde_json::from_str(&places.stdout).expect("it prints JSON");
    let mut holders = report["data"]["processes"].as_array().into_iter().flatten();
    assert!(holders.all(|process| process["pid"] != checkpoint["child"]), "a trace counts it once: {report:#}");
}
