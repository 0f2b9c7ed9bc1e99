//! Watches by the agent for users without the right to trace: the owner of a job gets what root gets, and
//! nobody else gets anything.

use std::collections::BTreeSet;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use memwatch_tests::agent::{TestAgent, workload_command_of};
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator, TorchJob, until};
use serde_json::Value;

use crate::answers::run::{SCRIPT, SUMMARY};

const ANN: u32 = 64_001;
const BOB: u32 = 64_002;
const ROOT: u32 = 0;

/// A training of Ann's, which makes its steps, and an agent.
fn job(words: &[&str]) -> (SimulatedGpu, TorchJob, TestAgent) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let ann = ANN.to_string();
    let words: Vec<&str> = ["owned.py", &ann].into_iter().chain(words.iter().copied()).collect();
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &words);
    job.next_checkpoint().expect("it is Ann's");
    job.go_on();
    let agent = TestAgent::start(&gpu);
    (gpu, job, agent)
}

fn json(outcome: &CommandOutcome) -> Value {
    outcome.assert_ended_with(0, &[]);
    serde_json::from_str(&outcome.stdout).expect("one line of JSON")
}

/// Returns the worker processes of the agent.
fn workers(agent: &TestAgent) -> BTreeSet<u32> {
    // A child is listed with the thread that started it, and a thread may end at any time.
    let tasks = fs::read_dir(format!("/proc/{}/task", agent.tgid())).expect("it runs").flatten();
    let children = tasks.map(|task| fs::read_to_string(task.path().join("children")).unwrap_or_default());
    children.flat_map(|list| list.split_whitespace().filter_map(|word| word.parse().ok()).collect::<Vec<_>>()).collect()
}

/// Starts a client whose watch lasts, and waits until the probes are attached.
fn lasting(gpu: &SimulatedGpu, agent: &TestAgent, tgid: &str) -> (Child, PathBuf) {
    let messages = gpu.directory().join("messages");
    let mut command = agent.client(gpu, ANN, &["record", "--pid", tgid, "-o", "/dev/null"]);
    let file = File::create(&messages).expect("it is ours");
    let client = command.stdout(Stdio::null()).stderr(file).spawn().expect("it starts");
    until("the watch has begun", || said(&messages).contains("the agent watches for you").then_some(()));
    (client, messages)
}

fn said(messages: &Path) -> String {
    fs::read_to_string(messages).expect("it is ours")
}

#[test]
fn owner_of_a_job_gets_lines_leaks_and_files_without_root() {
    let (gpu, job, agent) = job(&[]);
    let own = tempfile::tempdir().expect("a directory");
    chown(own.path(), Some(ANN), Some(ANN)).expect("the tests run as root");
    let tgid = job.tgid().to_string();
    let file = |name: &str| own.path().join(name).display().to_string();
    let ask = |words: &[&str]| agent.ask(&gpu, ANN, words);
    let places = json(&ask(&["where", "--json", "--pid", &tgid, "-d", "3s"]));
    assert!(places["data"]["processes"][0].to_string().contains("owned.py"), "{places:#}");
    let leaks = ask(&["leak", "--pid", &tgid, "-d", "15s"]);
    leaks.assert_ended_with(0, &[]);
    let cause = leaks.stdout.lines().next().unwrap_or_default();
    assert!(cause.contains("owned.py:main: kept[*] grows"), "{leaks:#?}");
    for words in [
        &["stats"][..],
        &["holdings"],
        &["explain"],
        &["fragment", "-d", "1s"],
        &["oom", "-d", "1s"],
        &["timeline", "-d", "2s"],
    ] {
        let words: Vec<&str> = words.iter().copied().chain(["--pid", &tgid]).collect();
        let outcome = ask(&words);
        outcome.assert_ended_with(0, &[]);
        assert!(!outcome.stdout.is_empty(), "{words:?}: {outcome:#?}");
    }
    let (recording, snapshot) = (file("ann.mwr"), file("ann.pickle"));
    ask(&["record", "--pid", &tgid, "-d", "2s", "-o", &recording]).assert_ended_with(0, &["ann.mwr is written"]);
    ask(&["snapshot", "--pid", &tgid, "-d", "1s", "-o", &snapshot]).assert_ended_with(0, &["ann.pickle is written"]);
    let read = json(&agent.ask(&gpu, ANN, &["where", "--json", "--in", &recording]));
    assert!(read["data"]["processes"][0].to_string().contains("owned.py"), "{read:#}");
    assert_eq!(workers(&agent), BTreeSet::new(), "no worker is left");
}

#[test]
fn watch_of_somebody_elses_job_is_refused_without_a_word_about_it() {
    let (gpu, job, agent) = job(&[]);
    let tgid = job.tgid().to_string();
    let agent_tgid = agent.tgid().to_string();
    for target in [&tgid, &agent_tgid] {
        for words in [&["where"][..], &["leak"], &["oom"], &["fragment"], &["record", "-o", "/dev/null"]] {
            let words: Vec<&str> = words.iter().copied().chain(["--pid", target, "-d", "1s"]).collect();
            let outcome = agent.ask(&gpu, BOB, &words);
            outcome.assert_ended_with(4, &["it is not a process of yours"]);
            assert!(outcome.stdout.is_empty() && !outcome.stderr.contains("owned.py"), "{outcome:#?}");
        }
    }
    let of_root = json(&agent.ask(&gpu, ROOT, &["where", "--json", "--pid", &tgid, "-d", "1s"]));
    assert_eq!(of_root["data"]["processes"][0]["pid"], job.tgid(), "{of_root:#}");
}

#[test]
fn watch_ends_when_its_client_leaves_or_the_process_gets_other_rights() {
    let gpu_directory = tempfile::tempdir().expect("a directory");
    fs::set_permissions(gpu_directory.path(), Permissions::from_mode(0o755)).expect("it is ours");
    let setuid = gpu_directory.path().join("sleep");
    fs::copy("/bin/sleep", &setuid).expect("every system has it");
    fs::set_permissions(&setuid, Permissions::from_mode(0o4755)).expect("it is ours");
    let (gpu, mut job, agent) = job(&[&setuid.display().to_string()]);
    let tgid = job.tgid().to_string();
    let (mut client, _) = lasting(&gpu, &agent, &tgid);
    let twice = agent.ask(&gpu, ANN, &["where", "--pid", &tgid, "-d", "1s"]);
    twice.assert_ended_with(4, &["is being watched already"]);
    client.kill().and_then(|()| client.wait()).expect("it runs");
    until("the worker is gone", || workers(&agent).is_empty().then_some(()));
    let (mut client, messages) = lasting(&gpu, &agent, &tgid);
    job.go_on();
    assert_eq!(client.wait().expect("it is ours").code(), Some(1));
    assert!(said(&messages).contains("it runs with rights that you do not have"), "{}", said(&messages));
    until("the worker is gone", || workers(&agent).is_empty().then_some(()));
    let after = agent.ask(&gpu, ANN, &["where", "--pid", &tgid, "-d", "1s"]);
    after.assert_ended_with(4, &["it runs with rights that you do not have"]);
}

#[test]
fn workers_end_with_their_agent() {
    let (gpu, job, mut agent) = job(&[]);
    let (mut client, messages) = lasting(&gpu, &agent, &job.tgid().to_string());
    let all = workers(&agent);
    agent.signal(libc::SIGKILL);
    agent.end();
    assert_eq!(client.wait().expect("it is ours").code(), Some(1));
    assert!(said(&messages).contains("closed the connection"), "{}", said(&messages));
    // Nobody may have waited for it yet.
    let is_gone = |worker: &u32| {
        let state = fs::read_to_string(format!("/proc/{worker}/status")).unwrap_or_default();
        state.is_empty() || state.contains("State:\tZ")
    };
    until("the workers are gone", || all.iter().all(is_gone).then_some(()));
}

/// Runs the workload program as Ann with this script, through the agent.
fn run_as_ann(gpu: &SimulatedGpu, agent: &TestAgent, script: &str) -> CommandOutcome {
    let program = workload_command_of(gpu, ANN).get_program().to_owned();
    let file = gpu.directory().join("script");
    fs::write(&file, script).expect("a script in the temporary directory");
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("it is ours");
    let mut command = agent.client(gpu, ANN, &["run", "--", "sh", "-c", "exec \"$0\" < \"$1\""]);
    gpu.apply(&mut command);
    command.arg(program).arg(file);
    CommandOutcome::of(command)
}

#[test(alone)]
fn run_as_a_user_sees_the_first_allocation_and_passes_the_commands_end_on() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let agent = TestAgent::start(&gpu);
    let outcome = run_as_ann(&gpu, &agent, SCRIPT);
    outcome.assert_ended_with(3, &SUMMARY);
    assert_eq!(outcome.stdout.lines().count(), 6, "standard output is only the command's: {outcome:#?}");
    let mut command = agent.client(&gpu, ANN, &["run", "--", "sh", "-c", "id -u; exit 77"]);
    gpu.apply(&mut command);
    let outcome = CommandOutcome::of(command);
    assert_eq!((outcome.code, outcome.stdout.trim()), (77, "64001"), "{outcome:#?}");
}

#[test(alone)]
fn run_as_a_user_starts_nothing_that_the_agent_cannot_watch() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let agent = TestAgent::start(&gpu);
    let file = gpu.directory().join("ran");
    let touch = format!("touch {}", file.display());
    let outcome = agent.ask(&gpu, ANN, &["--no-agent", "run", "--", "sh", "-c", &touch]);
    outcome.assert_ended_with(125, &[]);
    fs::set_permissions(gpu.directory(), Permissions::from_mode(0o777)).expect("it is ours");
    let client = agent.client(&gpu, ANN, &["run", "--", "sh", "-c", &touch]);
    // A client whose program may not be read is not dumpable, and nobody's to watch.
    let program = gpu.directory().join("memwatch");
    fs::set_permissions(&program, Permissions::from_mode(0o711)).expect("it is ours");
    let outcome = CommandOutcome::of(client);
    outcome.assert_ended_with(125, &["it runs with rights that you do not have"]);
    assert!(!file.exists(), "the command has not run");
}
