//! NVML's charge for a job is fully explained at every settled reading: for real PyTorch with each
//! allocator, in one process or in eight, and for an exited process that is still charged.

use memwatch_tests::agent::TestAgent;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CONTEXT_BYTES, MIB, SimulatedGpu, TorchAllocator, TorchJob, until};
use serde_json::{Value, json};

use super::explain::{assert_all_is_explained, explained, is_settled, machine, sum};

const VERSION: &str = "2.8";
const ROOT: u32 = 0;

/// Asserts that a job seen from its start is explained on each of its GPUs at the same reading.
fn assert_is_explained(gpu: &SimulatedGpu, agent: &TestAgent, tgid: u32, what: &str) {
    let process = until("the job is explained on each GPU", || {
        let process = explained(gpu, agent, tgid, is_settled);
        gpus(&process).iter().all(is_settled).then_some(process)
    });
    for own in gpus(&process) {
        assert_all_is_explained(own, what);
    }
}

fn gpus(process: &Value) -> &[Value] {
    process["gpus"].as_array().expect("a list")
}

/// Runs all jobs in parallel from checkpoint to checkpoint, each as long as it has one.
fn assert_jobs_are_explained(gpu: &SimulatedGpu, agent: &TestAgent, jobs: Vec<(String, TorchJob)>) {
    let mut running = jobs;
    let mut checkpoints = 0;
    while !running.is_empty() {
        let reached = running.into_iter().map(|(what, mut job)| {
            let checkpoint = job.next_checkpoint();
            assert!(checkpoint.is_some() || checkpoints > 0, "{what} has none");
            checkpoint.map(|checkpoint| (what, job, checkpoint["label"].to_string()))
        });
        let reached: Vec<_> = reached.collect();
        checkpoints += 1;
        for (what, job, label) in reached.iter().flatten() {
            assert_is_explained(gpu, agent, job.tgid(), &format!("{what} {label}"));
        }
        let go_on = |(what, mut job, _): (String, TorchJob, String)| {
            job.go_on();
            (what, job)
        };
        running = reached.into_iter().flatten().map(go_on).collect();
    }
}

#[test(alone)]
fn nothing_of_any_kind_of_pytorch_job_is_unexplained() {
    let gpu = machine("580.159.04").with("GPUSIM_RM_EXTRAS", &1);
    let agent = TestAgent::start(&gpu);
    let jobs = [
        ("grow_free.py", TorchAllocator::Native),
        ("grow_free.py", TorchAllocator::Expandable),
        ("grow_free.py", TorchAllocator::Async),
        ("graphs.py", TorchAllocator::Native),
        ("holdings.py", TorchAllocator::Native),
        ("fork_copy.py", TorchAllocator::Native),
        ("oom.py", TorchAllocator::Native),
    ];
    let jobs = jobs
        .map(|(program, allocator)| (format!("{program} {allocator:?}"), gpu.torch(VERSION, allocator, &[program])));
    assert_jobs_are_explained(&gpu, &agent, jobs.into());
}

#[test(alone)]
fn two_ranks_and_a_job_on_two_gpus_are_explained_on_each() {
    let gpu = machine("580.159.04").with("GPUSIM_DEVICES", &2);
    let agent = TestAgent::start(&gpu);
    let store = gpu.directory().join("store").display().to_string();
    let rank = |rank: &str| {
        let mut command =
            gpu.torch_command(VERSION, TorchAllocator::Native, &["two_ranks.py", "ddp", "--store", &store]);
        command.env("RANK", rank);
        TorchJob::start(command)
    };
    let (one, other) = (rank("0"), rank("1"));
    let ranks = vec![("rank 0".to_owned(), one), ("rank 1".to_owned(), other)];
    assert_jobs_are_explained(&gpu, &agent, ranks);
    let job = gpu.torch(VERSION, TorchAllocator::Native, &["two_gpus.py"]);
    assert_jobs_are_explained(&gpu, &agent, vec![("two GPUs".to_owned(), job)]);
}

#[test(alone)]
fn eight_pytorch_processes_at_once_are_each_explained() {
    let gpu = machine("580.159.04");
    let agent = TestAgent::start(&gpu);
    let allocators = [TorchAllocator::Native, TorchAllocator::Expandable, TorchAllocator::Async];
    let started = (0..8)
        .map(|at| (format!("job {at}"), gpu.torch(VERSION, allocators[at % 3], &["idle_hold.py", "--mib", "64"])));
    assert_jobs_are_explained(&gpu, &agent, started.collect());
}

#[test(alone)]
fn explain_of_a_late_attach_keeps_the_older_part_and_explains_the_rest() {
    let gpu = machine("580.159.04");
    let mut job = gpu.torch(VERSION, TorchAllocator::Native, &["idle_hold.py", "--mib", "256"]);
    assert_eq!(job.next_checkpoint().expect("it holds memory")["label"], "holding");
    let older_bytes = gpu.ledger().process(job.tgid()).expect("it is in the ledger").devices[0].used_bytes;
    assert!(older_bytes >= CONTEXT_BYTES + 256 * MIB);
    let agent = TestAgent::start(&gpu);
    let mut newer = gpu.workload();
    newer.run(&["uuid 0", "device 0", "alloc a 8M"]);
    explained(&gpu, &agent, newer.tgid(), is_settled);
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("it takes more")["label"], "more");
    let own = explained(&gpu, &agent, job.tgid(), is_settled)["gpus"][0].clone();
    assert_eq!((&own["older_bytes"], &own["unexplained_bytes"]), (&older_bytes.into(), &0.into()), "{own:#}");
    assert_eq!(sum(&own["parts"], Some("requested")), 128 * MIB, "{own:#}");
    // The request that frees part of the older memory has no size, so the older part is computed
    // again at the next settled reading.
    job.go_on();
    assert_eq!(job.next_checkpoint().expect("it frees the early part")["label"], "early part freed");
    let left_bytes = older_bytes - 256 * MIB;
    let own = explained(&gpu, &agent, job.tgid(), |own| is_settled(own) && own["older_bytes"] == left_bytes);
    assert_eq!(own["gpus"][0]["unexplained_bytes"], 0, "{own:#}");
}

/// A process that is not a child of the test. It is killed when it is dropped.
struct Orphan(libc::pid_t);

impl Drop for Orphan {
    fn drop(&mut self) {
        // SAFETY: it takes numbers. It fails if the process has exited.
        let _ = unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// Returns the report on an exited process, or `None` once it is not charged anymore.
fn ended(gpu: &SimulatedGpu, agent: &TestAgent, tgid: u32) -> Option<Value> {
    let answer =
        agent.ask(gpu, ROOT, &["--json", "explain", "--by=part", "--pid", &tgid.to_string(), "--duration", "100ms"]);
    let report: Value = serde_json::from_str(&answer.stdout).ok()?;
    report["data"]["processes"].as_array()?.iter().find(|process| process["pid"] == tgid).cloned()
}

/// Returns the events about memory that exited processes left behind.
fn left_behind_events(gpu: &SimulatedGpu, agent: &TestAgent) -> Vec<Value> {
    let answer = agent.ask(gpu, ROOT, &["events", "--json"]);
    let all = answer.stdout.lines().map(|line| serde_json::from_str::<Value>(line).expect("a line of JSON"));
    all.filter(|event| event["kind"] == "left_behind").collect()
}

#[test(alone)]
fn memory_left_to_a_forked_child_is_reported_until_the_child_ends() {
    let gpu = machine("580.159.04");
    let agent = TestAgent::start(&gpu);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 128M"]);
    let tgid = workload.tgid();
    explained(&gpu, &agent, tgid, is_settled);
    let child = workload.ask("fork c")["tgid"].as_i64().expect("a child");
    let orphan = Orphan(libc::pid_t::try_from(child).expect("a tgid"));
    workload.report("@c sleep 600000");
    // Without the sleep it would exit with its parent, from which it reads.
    let doing = format!("/proc/{child}/wchan");
    until("the child sleeps", || std::fs::read_to_string(&doing).ok().filter(|doing| doing.contains("nanosleep")));
    drop(Orphan(libc::pid_t::try_from(tgid).expect("a tgid")));
    workload.wait();
    let left = |process: &Value| process["left_behind"]["gpus"][0]["used_bytes"].as_u64();
    let process =
        until("what is left of it is reported", || ended(&gpu, &agent, tgid).filter(|one| left(one).is_some()));
    assert_eq!(left(&process), Some(CONTEXT_BYTES + 128 * MIB), "{process:#}");
    assert_eq!(process["left_behind"]["forked_pids"], json!([child]), "{process:#}");
    assert_eq!(process["gpus"][0]["live_bytes"], CONTEXT_BYTES + 128 * MIB, "what it had last: {process:#}");
    let shown = agent.ask(&gpu, ROOT, &["explain", "--by=part", "--pid", &tgid.to_string(), "--duration", "100ms"]);
    let sentence = format!("NVML still charges it 646.0 MiB: PID {child}, which it forked, has its driver files open");
    assert!(shown.stdout.contains(&sentence), "{}", shown.stdout);
    let ps = agent.ask(&gpu, ROOT, &["ps"]).stdout;
    let row =
        ps.lines().find(|line| line.trim_start().starts_with(&format!("{tgid} "))).unwrap_or_else(|| panic!("{ps}"));
    assert!(row.contains("646.0 MiB"), "{ps}");
    assert!(
        ps.contains(&format!("646.0 MiB of it left by PID {tgid}, which has ended, and kept by PID {child}")),
        "{ps}"
    );
    // Without an agent the forks were not observed: a process that has the device files open is
    // reported.
    let alone = gpu.run_memwatch(&["--no-agent", "ps", "--json"]);
    let report = ReportLine::parse(&alone.stdout);
    let process = report.process(tgid).unwrap_or_else(|| panic!("{report:#?}"));
    assert_eq!(process.0["left_behind"]["forked_pids"], json!([child]), "{:#}", process.0);
    assert_eq!(process.only_gpu().number("used_bytes"), CONTEXT_BYTES + 128 * MIB, "{:#}", process.0);
    let [event] = &left_behind_events(&gpu, &agent)[..] else { panic!("it is one event") };
    assert_eq!((&event["pid"], &event["details"]["is_gone"]), (&tgid.into(), &false.into()), "{event:#}");
    assert_eq!(event["details"]["forked_pids"], json!([child]), "{event:#}");
    assert_eq!(event["details"]["gpus"][0]["used_bytes"], CONTEXT_BYTES + 128 * MIB, "{event:#}");
    drop(orphan);
    until("nothing is left of it", || ended(&gpu, &agent, tgid).is_none_or(|one| left(&one).is_none()).then_some(()));
    let is_gone = |event: &Value| event["pid"] == tgid && event["details"]["is_gone"] == true;
    until("its end is an event", || left_behind_events(&gpu, &agent).iter().any(is_gone).then_some(()));
}
