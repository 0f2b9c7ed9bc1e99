//! The flight recorder: what the owner of a job learns of a failure that nobody watched.

use std::path::Path;

use memwatch_tests::agent::TestAgent;
use memwatch_tests::test;
use memwatch_tests::{PrologueShape, SimulatedGpu, TorchAllocator, TorchJob, until};
use serde_json::Value;

const ANN: u32 = 64_001;
const BOB: u32 = 64_002;
const ROOT: u32 = 0;
const OOM: [&str; 4] = ["oom", "--since", "1h", "--json"];

fn keeping(gpu: &SimulatedGpu, history: &Path) -> TestAgent {
    let mut command = gpu.memwatch(&[]);
    command.env("MEMWATCH_HISTORY", history);
    TestAgent::by(gpu, command)
}

/// Starts a training of Ann's that runs out of the memory of a device.
fn job(gpu: &SimulatedGpu, what: &str, device: &str) -> TorchJob {
    let mut command = gpu.torch_command("2.15", TorchAllocator::Native, &["unwatched.py", &ANN.to_string(), what]);
    command.env("CUDA_VISIBLE_DEVICES", device);
    let mut job = TorchJob::start(command);
    job.next_checkpoint().expect("it has begun");
    job.go_on();
    job
}

fn report(gpu: &SimulatedGpu, agent: &TestAgent, uid: u32) -> Value {
    let outcome = agent.ask(gpu, uid, &OOM);
    outcome.assert_ended_with(0, &[]);
    serde_json::from_str(&outcome.stdout).expect("one line of JSON")
}

/// Returns the last failure of a process in a report.
fn failure(report: &Value, tgid: u32) -> Option<Value> {
    let failures = report["data"]["failures"].as_array().expect("a list");
    failures.iter().rfind(|failure| failure["pid"] == tgid).cloned()
}

/// Waits until a failure's outcome is known, and returns it.
fn known(gpu: &SimulatedGpu, agent: &TestAgent, tgid: u32) -> Value {
    until("the outcome is known", || {
        let failure = failure(&report(gpu, agent, ROOT), tgid)?;
        (failure["is_survived"] == true || failure["ended"].is_string()).then_some(failure)
    })
}

/// Asserts that the report names what the process died of. The variable is in two frames of the
/// program: each of them leads to it.
fn assert_named(report: &Value, tgid: u32, kind: &str, variable: &str) {
    let is_it = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        ["main", "steps"].iter().any(|frame| name == format!("unwatched.py:{frame}: {variable}"))
    };
    let causes = report["data"]["causes"].as_array().expect("a list");
    let own: Vec<_> = causes.iter().filter(|cause| cause["pid"] == tgid).collect();
    assert!(own[0]["kind"] == kind && is_it(&own[0]["subject"]), "{own:#?}");
    assert!(own[0]["fix"].as_str().is_some_and(|fix| !fix.is_empty()), "{own:#?}");
    let failure = failure(report, tgid).expect("it is there");
    let readings = failure["names"].as_array().expect("a list");
    let then = readings.iter().find(|reading| reading["is_of_failure"] == true).expect("one of them");
    let largest = &then["groups"][0];
    let name = if largest["kept_by"].is_null() { &largest["name"] } else { &largest["kept_by"] };
    assert!(is_it(name), "{then:#}");
    let groups = then["groups"].as_array().expect("a list");
    let bytes = groups.iter().map(|group| group["bytes"].as_u64().expect("a number")).sum::<u64>();
    assert!(then["totals"][0]["allocated_bytes"].as_u64() >= Some(bytes) && bytes > 30 << 30, "{then:#}");
    assert!(is_it(&failure["grown"][0]["name"]), "{failure:#}");
}

#[test(alone)]
fn owner_learns_what_unwatched_jobs_died_of_also_from_the_next_agent() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_DEVICES", &2);
    let history = gpu.directory().join("history");
    let agent = keeping(&gpu, &history);
    let jobs = [("survives", "0"), ("graphs", "1")].map(|(what, device)| job(&gpu, what, device));
    let [survivor, mut graphs] = jobs;
    // Before it ends there is one more checkpoint.
    graphs.go_on();
    assert!(known(&gpu, &agent, graphs.tgid())["ended"].is_string());
    assert_eq!(known(&gpu, &agent, survivor.tgid())["is_survived"], true);
    let text = agent.ask(&gpu, ANN, &["oom", "--since", "1h"]);
    text.assert_ended_with(0, &[]);
    for part in ["holds", "by name, read", "meter.kept[*]", "grew", "cause"] {
        assert!(text.stdout.contains(part), "{part}: {}", text.stdout);
    }
    agent.signal(libc::SIGKILL);
    drop(agent);

    let agent = keeping(&gpu, &history);
    let of_owner = until("the history is readable", || Some(report(&gpu, &agent, ANN)));
    assert_named(&of_owner, graphs.tgid(), "graphs_kept", "meter.losses[*]");
    assert_named(&of_owner, survivor.tgid(), "unbounded", "meter.kept[*]");
    let of_root = report(&gpu, &agent, ROOT);
    assert_eq!(of_root["data"]["causes"], of_owner["data"]["causes"]);
    let of_other = report(&gpu, &agent, BOB);
    assert_eq!(
        (&of_other["data"]["failures"], &of_other["data"]["causes"]),
        (&Value::Array(vec![]), &Value::Array(vec![]))
    );
    assert!(!of_other.to_string().contains("unwatched.py"), "{of_other:#}");
    // The next agent reads it, too.
    let words = ["explain", "--since", "1h", "--pid", &survivor.tgid().to_string()];
    until("the running job has names", || {
        let explained = agent.ask(&gpu, ANN, &words);
        (explained.code == 0 && explained.stdout.contains("names: read")).then_some(())
    });
}

#[test]
fn without_the_flight_recorder_no_process_is_read() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut command = gpu.memwatch(&[]);
    command.env("MEMWATCH_FLIGHT_RECORDER", "off");
    let agent = TestAgent::with(&gpu, command, &["--history", &gpu.directory().join("history").display().to_string()]);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["oom.py"]);
    job.next_checkpoint().expect("it holds memory");
    job.go_on();
    job.next_checkpoint().expect("it was refused");
    let failure = until("the failure is known", || failure(&report(&gpu, &agent, ROOT), job.tgid()));
    assert_eq!(failure["names"], Value::Array(vec![]), "{failure:#}");
}
