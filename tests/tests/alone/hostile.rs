//! A user who means harm to the agent, or to what it says of others: it stays small, and all numbers of others are right.
//!
//! `MEMWATCH_HOSTILE_PROCESSES` says how many short processes he starts: 100000 take some minutes.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use memwatch_tests::agent::Agent;
use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::{Gpu, MIB, Shape, Watch, Workload, resident_bytes};

const MALLORY: u32 = 65_534;
const ROOT: u32 = 0;
/// More than any user's processes may have, than anybody may have clients, and than are remembered.
const FILES: usize = 300;
const CLIENTS: usize = 1000;
/// What the agent may grow by: probes in as many libraries as one user's processes may have, and what is remembered of 4,096 ended processes.
const ROOM: u64 = 64 * MIB;

/// His program, which waits once it has done what it can.
fn mallory(gpu: &Gpu, agent: &Agent, processes: &str) -> Child {
    let folder = gpu.directory().join("mallory");
    std::fs::create_dir(&folder).expect("a folder in the temporary one");
    chown(&folder, Some(MALLORY), Some(MALLORY)).expect("it is given away");
    let mut command = Command::new("python3");
    command.args(["-c", include_str!("../../workloads/hostile.py")]);
    command.arg(gpu.libcuda()).arg(agent.socket()).arg(&folder);
    command.args([&FILES.to_string(), &CLIENTS.to_string(), processes]);
    command.uid(MALLORY).gid(MALLORY).stdin(Stdio::piped()).stdout(Stdio::piped());
    command.spawn().expect("python3 is installed")
}

/// A process with a library of its own, as a container has one.
fn in_container(gpu: &Gpu, libraries: &Path) -> Workload {
    std::fs::create_dir(libraries).expect("a folder in the temporary one");
    gpu.copy_libcuda(libraries);
    let mut command = gpu.workload_command();
    command.env("LD_LIBRARY_PATH", libraries);
    Workload::start(command)
}

#[test]
fn a_user_with_endless_libraries_mute_clients_and_processes_costs_others_nothing() {
    let Some(gpu) = Gpu::new(Shape::Push) else { return };
    let gpu = gpu.with_own_libcuda();
    let agent = Agent::start(&gpu);
    let mut watch = Watch::start(agent.client(&gpu, ROOT, &[]));
    let mut honest = gpu.workload();
    honest.run(&["uuid 0", "device 0", "alloc kept 2M"]);
    assert_agrees(&gpu, &mut watch, &honest, Agreement::CallsOnly);
    let before_bytes = resident_bytes(agent.tgid());
    honest.report("loop cuMemAlloc 20000 2M");
    let processes = std::env::var("MEMWATCH_HOSTILE_PROCESSES").unwrap_or_else(|_| "1000".to_owned());
    let mut mallory = mallory(&gpu, &agent, &processes);
    let mut line = String::new();
    let mut reported = BufReader::new(mallory.stdout.take().expect("it is piped"));
    reported.read_line(&mut line).expect("he reports when he is done");
    assert_eq!(line, "done\n");
    assert_eq!(honest.answer()["result"], 0);
    let report = assert_agrees(&gpu, &mut watch, &honest, Agreement::CallsOnly);
    let process = report.process(honest.tgid()).expect("it is reported");
    assert_eq!(process.only_gpu().number("allocations"), 20_001);
    // While he still holds all that: somebody new has probes in a library that nobody knew, and others are answered.
    let mut new = in_container(&gpu, &gpu.directory().join("new"));
    new.run(&["uuid 0", "device 0"]);
    let folder = gpu.directory().join("new/libcuda.so.1").display().to_string();
    watch.until(|report| {
        let libraries = report.json()["coverage"]["libraries"].as_array();
        let is_its =
            |library: &serde_json::Value| library["path"] == *folder && library["probes_attached"].as_u64() > Some(0);
        libraries.is_some_and(|libraries| libraries.iter().any(is_its))
    });
    new.run(&["alloc more 4M"]);
    assert_agrees(&gpu, &mut watch, &new, Agreement::CallsOnly);
    agent.ask(&gpu, ROOT, &["ps", "--json"]).assert_ended_with(0, &[]);
    let after_bytes = resident_bytes(agent.tgid());
    eprintln!("the agent has grown from {} to {} MiB", before_bytes >> 20, after_bytes >> 20);
    assert!(after_bytes < before_bytes + ROOM, "it has grown from {before_bytes} to {after_bytes} bytes");
    drop(mallory.stdin.take());
    assert!(mallory.wait().expect("he ends").success());
}
