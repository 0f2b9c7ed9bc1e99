//! `memwatch explain`: the kernel driver's state gives a purpose for everything that NVML charges a
//! process, or a sentence says why there is none.

use std::path::PathBuf;

use memwatch_tests::agent::TestAgent;
use memwatch_tests::test;
use memwatch_tests::{CONTEXT_BYTES, MIB, PrologueShape, SimulatedGpu, TorchAllocator, TorchJob, until};
use serde_json::Value;

const ROOT: u32 = 0;

/// Creates a machine with this version of the kernel driver.
pub(crate) fn machine(version: &str) -> SimulatedGpu {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let file = gpu.directory().join("version");
    std::fs::write(&file, format!("{version}\n")).expect("it is this test's");
    let path = file.display().to_string();
    gpu.with("MEMWATCH_DRIVER_VERSION_FILE", &path)
}

/// Returns the agent's explanation of a process, or `None` if the process has no GPU yet.
fn asked(gpu: &SimulatedGpu, agent: &TestAgent, tgid: u32) -> Option<Value> {
    let answer =
        agent.ask(gpu, ROOT, &["--json", "explain", "--by=part", "--pid", &tgid.to_string(), "--duration", "100ms"]);
    assert!(!answer.stderr.contains("panicked"), "{answer:#?}");
    let report: Value = serde_json::from_str(&answer.stdout).ok()?;
    let process = report["data"]["processes"].as_array()?.iter().find(|process| process["pid"] == tgid)?.clone();
    (!process["gpus"][0].is_null()).then_some(process)
}

/// Waits until the explanation of a process's first GPU fulfils a condition, and returns that of
/// the process.
pub(crate) fn explained(gpu: &SimulatedGpu, agent: &TestAgent, tgid: u32, is_it: impl Fn(&Value) -> bool) -> Value {
    until("the process is explained", || asked(gpu, agent, tgid).filter(|process| is_it(&process["gpus"][0])))
}

/// Returns whether the explanation is trusted and its reading is of an unchanged state.
pub(crate) fn is_settled(own: &Value) -> bool {
    own["trust"] == "trusted" && own["since_reading_bytes"] == 0
}

pub(crate) fn sum(parts: &Value, label: Option<&str>) -> u64 {
    let all = parts.as_array().expect("parts").iter();
    let of = all.filter(|part| label.is_none_or(|label| part["label"] == label));
    of.map(|part| part["bytes"].as_u64().expect("bytes")).sum()
}

/// Asserts that nothing is unexplained and that the parts and the columns each sum up to the total.
pub(crate) fn assert_all_is_explained(own: &Value, what: &str) {
    assert_eq!((&own["unexplained_bytes"], &own["older_bytes"]), (&0.into(), &0.into()), "{what}: {own:#}");
    assert_eq!(Some(sum(&own["parts"], None)), own["used_bytes"].as_u64(), "{what}: {own:#}");
    let columns = own["columns"].as_object().expect("columns").values();
    let columns: u64 = columns.map(|bytes| bytes.as_u64().expect("bytes")).sum();
    assert_eq!(Some(columns), own["live_bytes"].as_u64(), "{what}: {own:#}");
}

#[test(alone)]
fn all_that_nvml_charges_a_process_seen_from_its_start_has_a_purpose() {
    let gpu = machine("580.159.04");
    let agent = TestAgent::start(&gpu);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 3M", "create h 4M", "hostalloc pinned 5M"]);
    let process = explained(&gpu, &agent, workload.tgid(), is_settled);
    let own = &process["gpus"][0];
    assert_all_is_explained(own, "a context and two allocations");
    assert_eq!(sum(&own["parts"], Some("context")), CONTEXT_BYTES);
    assert_eq!(own["columns"]["requested_bytes"], 7 * MIB);
    assert!(process["host"]["pinned_bytes"].as_u64() >= Some(5 * MIB), "{process:#}");
    assert_eq!(process["kernel_driver"], "580.159.04");
    let shown = agent.ask(&gpu, ROOT, &["explain", "--by=part", "--pid", &workload.tgid().to_string()]);
    shown.assert_ended_with(0, &[]);
    for part in
        ["used ", " = context ", "cuMemAlloc_v2", "cuMemCreate", "requested by the program 7.0 MiB", "host memory"]
    {
        assert!(shown.stdout.contains(part), "{part} is not in {}", shown.stdout);
    }
    assert!(!shown.stdout.contains("unexplained"), "{}", shown.stdout);
    workload.run(&["free a", "alloc b 64M"]);
    let process = explained(&gpu, &agent, workload.tgid(), |own| {
        is_settled(own) && own["columns"]["requested_bytes"] == 68 * MIB
    });
    assert_all_is_explained(&process["gpus"][0], "after a free");
}

#[test(alone)]
fn explain_gives_local_memory_per_thread_and_requested_bytes_per_object() {
    let gpu = machine("580.159.04").with("GPUSIM_RM_EXTRAS", &1);
    let agent = TestAgent::start(&gpu);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 3M", "alloc b 4096", "kernel 1952"]);
    let process = explained(&gpu, &agent, workload.tgid(), is_settled);
    let own = &process["gpus"][0];
    assert_all_is_explained(own, "a kernel with local memory");
    let parts = own["parts"].as_array().expect("parts").iter();
    let per_thread: Vec<_> =
        parts.filter_map(|part| Some((part["label"].as_str()?, part["bytes_per_thread"].as_u64()?))).collect();
    assert_eq!(per_thread, [("local_memory", 1952)], "{own:#}");
    let shown = agent.ask(&gpu, ROOT, &["explain", "--by=part", "--pid", &workload.tgid().to_string()]);
    assert!(shown.stdout.contains("local memory, 1,952 bytes per thread"), "{}", shown.stdout);
    let objects = own["objects"].as_array().expect("objects");
    let number = |object: &Value, key: &str| object[key].as_u64().expect("a number");
    let whole: u64 = objects.iter().map(|object| number(object, "granted_bytes") * number(object, "objects")).sum();
    assert_eq!(Some(whole), own["live_bytes"].as_u64(), "{own:#}");
    let of = |requested: u64| {
        let one = objects.iter().find(|object| object["used"]["requested_bytes"] == requested).expect("an object");
        let bytes = |field: &str| one["used"][field].as_u64().expect("bytes");
        assert!(one["address"].is_u64() && one["objects"] == 1, "{one:#}");
        (bytes("slack_bytes") + bytes("rounding_bytes"), one["granted_bytes"].as_u64().expect("bytes"))
    };
    assert_eq!((of(3 * MIB), of(4096)), ((MIB, 4 * MIB), (2 * MIB - 4096, 2 * MIB)), "{own:#}");
}

/// Asserts that the roles of a process's memory add up to NVML's charge, with every part outside of
/// PyTorch.
fn assert_balanced((gpu, agent): (&SimulatedGpu, &TestAgent), tgid: u32) {
    let process = until("the process is explained", || {
        let answer = agent.ask(gpu, ROOT, &["--json", "explain", "--pid", &tgid.to_string()]);
        let report: Value = serde_json::from_str(&answer.stdout).ok()?;
        let process = report["data"]["processes"][0].clone();
        is_settled(&process["gpus"][0]).then_some(process)
    });
    let (explained, sheet) = (&process["gpus"][0], &process["balance"][0]);
    let rows = sheet["roles"].as_array().unwrap_or_else(|| panic!("{process:#}"));
    let bytes = |row: &Value| row["bytes"].as_i64().expect("bytes");
    assert_eq!(sheet["used_bytes"], explained["used_bytes"], "{process:#}");
    assert_eq!(Some(rows.iter().map(bytes).sum()), sheet["used_bytes"].as_i64(), "{process:#}");
    let parts = rows.iter().filter(|row| row["part"] == "context").map(bytes).sum::<i64>();
    assert_eq!(u64::try_from(parts).ok(), Some(sum(&explained["parts"], Some("context"))), "{process:#}");
    assert!(rows.iter().all(|row| row["role"] != "changed" && bytes(row) > 0), "{process:#}");
}

/// Compares every checkpoint of a job; the job must have at least one.
fn assert_training_is_explained((gpu, agent): (&SimulatedGpu, &TestAgent), mut job: TorchJob, what: &str) {
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        checkpoints += 1;
        let reserved = checkpoint["devices"][0]["memory_reserved"].as_u64().expect("a number");
        let granted = |own: &Value| sum(&own["parts"], Some("requested")) + sum(&own["parts"], Some("pool"));
        let process = explained(gpu, agent, job.tgid(), |own| is_settled(own) && granted(own) >= reserved);
        let own = &process["gpus"][0];
        assert_all_is_explained(own, &format!("{what} {}", checkpoint["label"]));
        assert_balanced((gpu, agent), job.tgid());
        job.go_on();
    }
    assert!(checkpoints > 0, "{what}");
}

#[test(alone)]
fn nothing_of_pytorch_is_unexplained_with_any_allocator() {
    let gpu = machine("580.159.04");
    let agent = TestAgent::start(&gpu);
    let programs = [
        ("2.8", TorchAllocator::Native),
        ("2.8", TorchAllocator::Expandable),
        ("2.8", TorchAllocator::Async),
        ("2.15", TorchAllocator::Native),
    ];
    // All jobs start at once and wait for their turn at their first checkpoint.
    let jobs =
        programs.map(|(version, allocator)| (version, allocator, gpu.torch(version, allocator, &["idle_hold.py"])));
    for (version, allocator, job) in jobs {
        assert_training_is_explained((&gpu, &agent), job, &format!("{version} {allocator:?}"));
    }
}

#[test(alone)]
fn explain_of_a_late_training_adds_its_roles_up_to_the_charge() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["holdings.py"]);
    let checkpoint = job.next_checkpoint().expect("it holds its objects");
    let tgid = job.tgid().to_string();
    let shown = gpu.run_memwatch(&["--no-agent", "--json", "explain", "--pid", &tgid]);
    shown.assert_ended_with(0, &[]);
    let report: Value = serde_json::from_str(&shown.stdout).expect("one line");
    let process = &report["data"]["processes"][0];
    let (sheet, statistics) = (&process["balance"][0], &checkpoint["devices"][0]);
    let rows = sheet["roles"].as_array().unwrap_or_else(|| panic!("{report:#}"));
    let of = |roles: &[&str]| -> u64 {
        let own = rows.iter().filter(|row| roles.is_empty() || roles.contains(&row["role"].as_str().unwrap_or("")));
        own.map(|row| row["bytes"].as_u64().unwrap_or_else(|| panic!("{sheet:#}"))).sum()
    };
    assert_eq!(Some(of(&[])), sheet["used_bytes"].as_u64(), "{sheet:#}");
    let outside = of(&["context_and_libraries", "part"]);
    assert_eq!(Some(of(&[]) - outside), statistics["memory_reserved"].as_u64(), "{sheet:#}");
    assert_eq!(Some(of(&[]) - outside - of(&["cached"])), statistics["memory_allocated"].as_u64(), "{sheet:#}");
    assert!(of(&["weights"]) > 0 && of(&["optimizer_state"]) > 0, "{sheet:#}");
    let table = gpu.run_memwatch(&["--no-agent", "explain", "--pid", &tgid]);
    table.assert_ended_with(0, &[]);
    for part in
        ["weights", "optimizer state", "cached, free", "context, code, libraries: one row, because memwatch came"]
    {
        assert!(table.stdout.contains(part), "{part} is not in {}", table.stdout);
    }
    job.go_on();
}

#[test(alone)]
fn explain_reports_older_memory_as_one_part_and_all_later_memory() {
    let gpu = machine("580.159.04");
    let mut older = gpu.workload();
    older.run(&["uuid 0", "device 0", "alloc a 64M"]);
    let agent = TestAgent::start(&gpu);
    let tgid = older.tgid().to_string();
    let shown = agent.ask(&gpu, ROOT, &["explain", "--by=part", "--pid", &tgid, "--duration", "100ms"]);
    assert!(shown.stdout.contains("no request to the kernel driver was seen"), "{}", shown.stdout);
    older.run(&["alloc c 32M"]);
    let older_bytes = CONTEXT_BYTES + 64 * MIB;
    let process = explained(&gpu, &agent, older.tgid(), |own| own["older_bytes"] == older_bytes);
    assert_ne!(process["gpus"][0]["trust"], "trusted", "any number would fit: {process:#}");
    let shown = agent.ask(&gpu, ROOT, &["explain", "--by=part", "--pid", &tgid, "--duration", "100ms"]);
    assert!(shown.stdout.contains("it started before memwatch came"), "{}", shown.stdout);
    // Another process confirms that the totals of this kernel driver are correct.
    let mut newer = gpu.workload();
    newer.run(&["uuid 0", "device 0", "alloc b 8M"]);
    explained(&gpu, &agent, newer.tgid(), is_settled);
    let process = explained(&gpu, &agent, older.tgid(), is_settled);
    let own = &process["gpus"][0];
    assert_eq!((&own["older_bytes"], &own["unexplained_bytes"]), (&older_bytes.into(), &0.into()), "{own:#}");
    assert_eq!(own["live_bytes"], 32 * MIB);
}

/// Asserts that `explain` gives the reason when the driver's requests cannot be decoded, and that
/// all other output stays the same.
fn assert_refused(version: &str, setting: &str, trust: &str, sentence: &str) {
    let gpu = machine(version);
    let gpu = gpu.with("GPUSIM_RM", &setting);
    let agent = TestAgent::start(&gpu);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 3M"]);
    let tgid = workload.tgid().to_string();
    let process = explained(&gpu, &agent, workload.tgid(), |own| own["trust"] == trust);
    assert_eq!(process["gpus"][0]["trust"], trust);
    let shown = agent.ask(&gpu, ROOT, &["explain", "--by=part", "--pid", &tgid]);
    assert!(shown.stdout.contains(sentence), "{setting}: {}", shown.stdout);
    let report: Value = until("the agent has a reading", || {
        let answer = agent.ask(&gpu, ROOT, &["--json", "ps", "--pid", &tgid]);
        let report: Value = serde_json::from_str(&answer.stdout).ok()?;
        (report["data"]["processes"][0]["gpus"][0]["used_bytes"].is_u64()).then_some(report)
    });
    let own = &report["data"]["processes"][0];
    let allocated = &own["gpus"][0]["driver_allocated_bytes"];
    assert_eq!((&own["exact"], allocated), (&true.into(), &(3 * MIB).into()), "{own:#}");
}

#[test(alone)]
fn explain_refuses_an_unknown_kernel_driver_with_its_version() {
    assert_refused("610.10.01", "580", "unknown", "610.10.01 have layouts not known here");
}

#[test(alone)]
fn a_request_of_another_size_is_refused_with_that_reason() {
    assert_refused("580.159.04", "odd", "refused", "a size that no known version of it has");
}

#[test(alone)]
fn explain_reads_older_driver_branches_and_request_variants() {
    let ways = [
        ("535.54.03", "535"),
        ("525.60.11", "525"),
        ("515.43.04", "515"),
        ("580.159.04", "xfer"),
        ("580.159.04", "heap"),
    ];
    for (version, setting) in ways {
        let gpu = machine(version);
        let gpu = gpu.with("GPUSIM_RM", &setting);
        let agent = TestAgent::start(&gpu);
        let mut workload = gpu.workload();
        workload.run(&["uuid 0", "device 0", "alloc a 3M", "create h 4M"]);
        let process = explained(&gpu, &agent, workload.tgid(), is_settled);
        assert_all_is_explained(&process["gpus"][0], setting);
    }
}

#[test(alone)]
fn a_library_with_two_stubs_is_followed_and_one_without_any_is_reported() {
    let gpu = machine("580.159.04").with_variant("two");
    let agent = TestAgent::start(&gpu);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 3M"]);
    let process = explained(&gpu, &agent, workload.tgid(), is_settled);
    assert_all_is_explained(&process["gpus"][0], "two stubs");
    let gpu = machine("580.159.04").with_variant("noplt");
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 3M"]);
    let tgid = workload.tgid().to_string();
    let shown = gpu.run_memwatch(&["--no-agent", "explain", "--by=part", "--pid", &tgid]);
    assert!(shown.stdout.contains("no request to the kernel driver was seen"), "{shown:#?}");
}

#[test(alone)]
fn explain_lists_refused_requests_with_the_call_that_made_them() {
    let gpu = machine("580.159.04");
    let agent = TestAgent::start(&gpu);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 3M"]);
    workload.ask("alloc b 900G");
    let process = explained(&gpu, &agent, workload.tgid(), is_settled);
    assert_eq!(process["refused_requests"], 1, "{process:#}");
    let refused = &process["last_refused"][0];
    assert_eq!((&refused["function"], &refused["asked_bytes"]), (&"cuMemAlloc_v2".into(), &(900_u64 << 30).into()));
    assert_eq!(refused["uuid"], process["gpus"][0]["uuid"], "{process:#}");
    assert!(refused["uuid"].is_string());
    let pages = std::fs::read_to_string(format!("/proc/{}/statm", workload.tgid())).expect("it lives");
    let pages: u64 = pages.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("a number");
    let resident = process["host"]["resident_bytes"].as_u64().expect("it lives");
    assert!(resident.abs_diff(pages * 4096) < 4 * MIB, "{resident} for {pages} pages");
}

#[test(alone)]
fn memory_of_an_exporter_that_was_killed_is_its_importers_and_names_it() {
    let gpu = machine("580.159.04");
    let agent = TestAgent::start(&gpu);
    let mut exporter = gpu.workload();
    exporter.run(&["uuid 0", "device 0", "alloc a 6M", "create h 4M"]);
    let handle = exporter.ask("ipcget a")["handle"].as_str().expect("a handle").to_owned();
    let file = exporter.ask("export f h")["f"].as_u64().expect("a file");
    let mut importer = gpu.workload();
    importer.run(&["uuid 0", "device 0", &format!("ipcopen b {handle}")]);
    importer.run(&[&format!("takefd g {} {file}", exporter.tgid()), "import i g"]);
    let own = &explained(&gpu, &agent, importer.tgid(), is_settled)["gpus"][0];
    assert_eq!(own["used_bytes"], CONTEXT_BYTES, "what is imported is charged to its exporter: {own:#}");
    exporter.report("kill");
    exporter.wait();
    let own = &explained(&gpu, &agent, importer.tgid(), |own| own["used_bytes"] != CONTEXT_BYTES)["gpus"][0];
    assert_all_is_explained(own, "an importer whose exporter was killed");
    assert_eq!(sum(&own["parts"], Some("inherited")), 10 * MIB, "{own:#}");
    let inherited = own["parts"].as_array().expect("parts").iter().filter(|part| part["label"] == "inherited");
    let from: Vec<_> = inherited.map(|part| part["from_pid"].as_u64().expect("a PID")).collect();
    assert_eq!(from, [u64::from(exporter.tgid()); 2], "by two functions: {own:#}");
    importer.run(&["ipcclose b"]);
    let own = &explained(&gpu, &agent, importer.tgid(), |own| {
        is_settled(own) && own["used_bytes"] == CONTEXT_BYTES + 4 * MIB
    })["gpus"][0];
    assert_all_is_explained(own, "one of two is closed");
}

#[test(alone)]
fn rm_requests_survive_a_full_ring_in_order() {
    let gpu = machine("580.159.04");
    let agent = TestAgent::by(&gpu, gpu.memwatch(&["--ring-bytes", "4096"]));
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    explained(&gpu, &agent, workload.tgid(), is_settled);
    agent.signal(libc::SIGSTOP);
    // An object's handle is reused as soon as the object is freed.
    let answer = workload.ask("loop cuMemAlloc 200 2M");
    workload.run(&["alloc b 6M", "free a", "alloc c 2M", "free b", "alloc d 8M"]);
    agent.signal(libc::SIGCONT);
    assert_eq!(answer["result"], 0, "{answer}");
    let bytes = CONTEXT_BYTES + 10 * MIB;
    let process = explained(&gpu, &agent, workload.tgid(), |own| is_settled(own) && own["used_bytes"] == bytes);
    assert_all_is_explained(&process["gpus"][0], "after a full ring");
    let shown: Value = serde_json::from_str(&agent.ask(&gpu, ROOT, &["--json", "ps"]).stdout).expect("JSON");
    assert!(shown["losses"]["ring_full"].as_u64() > Some(100), "records of calls were lost: {shown:#}");
    assert_eq!(shown["losses"]["rm_record_lost"], 0, "{shown:#}");
}

#[test(alone)]
fn explain_names_memory_of_graphics_libraries_as_a_separate_part() {
    let gpu = machine("580.159.04");
    let agent = TestAgent::start(&gpu);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    explained(&gpu, &agent, workload.tgid(), is_settled);
    workload.run(&["graphics 6M", "graphics 3M"]);
    let bytes = CONTEXT_BYTES + 14 * MIB;
    let process = explained(&gpu, &agent, workload.tgid(), |own| is_settled(own) && own["used_bytes"] == bytes);
    let own = &process["gpus"][0];
    assert_all_is_explained(own, "CUDA and OpenGL in one process");
    let of_graphics = own["parts"].as_array().expect("parts").iter().find(|part| part["owner"] == "OpenGL or Vulkan");
    let of_graphics = of_graphics.expect("a part");
    assert_eq!((&of_graphics["bytes"], &of_graphics["objects"]), (&(10 * MIB).into(), &2.into()), "{own:#}");
}

fn golden() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../memwatch-core/src/kernel_driver/tests/golden"))
}

/// Two readings of NVML that were taken during an allocation. The bytes are what the reading lacks.
const IN_FLIGHT: [(&str, &str, u64); 2] = [("cupy", "s2", 8 * MIB), ("gpt2async", "s5", 32 * MIB)];

#[test(alone)]
fn explain_of_replayed_real_requests_equals_the_nvml_charge() {
    let gpu = machine("580.159.04");
    let agent = TestAgent::start(&gpu);
    for name in ["steps", "gpt2", "gpt2async", "gpt2exp", "nccl", "jax", "cupy", "graph", "managed", "compile"] {
        let mut workload = gpu.workload();
        workload.run(&[&format!("replay {}", golden().join(format!("{name}.tsv")).display())]);
        let mut marks = 0;
        loop {
            let answer = workload.ask("mark");
            let Some(mark) = answer["mark"].as_str().filter(|mark| *mark != "after_exit") else { break };
            let ahead =
                IN_FLIGHT.iter().find(|(log, at, _)| (*log, *at) == (name, mark)).map_or(0, |(.., bytes)| *bytes);
            let charged = answer["used_bytes"].as_u64().expect("a number") + ahead;
            if charged > 0 {
                // Records are fetched every 20 ms.
                explained(&gpu, &agent, workload.tgid(), |own| own["live_bytes"] == charged);
                marks += 1;
            }
        }
        assert!(marks > 0, "{name}");
    }
}
