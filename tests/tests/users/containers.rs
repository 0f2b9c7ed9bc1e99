//! Owners of processes in real runtimes: Docker, containerd through the CRI, and Slurm.

use std::os::unix::net::UnixListener;
use std::time::Instant;

use memwatch_tests::agent::TestAgent;
use memwatch_tests::containerd::{self, Containerd, TestPodNames};
use memwatch_tests::enclosure::{Cgroups, workload_in_group, workloads_in_group};
use memwatch_tests::report::{ReportLine, ReportedProcess};
use memwatch_tests::slurm::Slurm;
use memwatch_tests::test;
use memwatch_tests::{
    Docker, Engine, MIB, PrologueShape, RunningWatch, SimulatedGpu, SimulatedWorkload, TIMEOUT, rootfs,
};
use serde_json::{Value, json};

fn process(report: &ReportLine, tgid: u32) -> ReportedProcess<'_> {
    report.process(tgid).unwrap_or_else(|| panic!("{tgid} is not reported: {report:#?}"))
}

/// Asserts that each of these processes is reported with the numbers of the simulator's ledger, and
/// that together they account for all used memory of the GPU.
fn assert_adds_up(gpu: &SimulatedGpu, report: &ReportLine, tgids: &[u32]) {
    let ledger = gpu.ledger();
    let mut used_bytes = 0;
    for &tgid in tgids {
        let entry = ledger.process(tgid).unwrap_or_else(|| panic!("{tgid} is not in the simulator's ledger"));
        let on_gpu = process(report, tgid).only_gpu();
        assert_eq!(on_gpu.number("driver_allocated_bytes"), entry.devices[0].owned_live_bytes, "{report:#?}");
        assert_eq!(on_gpu.number("used_bytes"), entry.devices[0].used_bytes, "{report:#?}");
        used_bytes += on_gpu.number("used_bytes");
    }
    assert_eq!(report.gpu(0)["used_bytes"], used_bytes, "{report:#?}");
    assert!(report.is_complete(), "{report:#?}");
}

/// Makes some calls after which 8 MiB and `bytes` bytes are live.
fn allocate(workload: &mut SimulatedWorkload, bytes: u64) {
    workload.run(&["uuid 0", "device 0", "alloc a 4M", "alloc b 6M", "free a", "async c 2M"]);
    workload.run(&[&format!("alloc d {bytes}")]);
}

/// Waits until this many copies of the image's driver library have probes.
fn until_probed(watch: &mut RunningWatch, copies: usize) {
    let is_probed = |library: &&Value| library["path"].as_str().is_some_and(|path| path.starts_with(rootfs::LIBRARIES));
    let count = |report: &ReportLine| {
        report.json()["coverage"]["libraries"].as_array().map(|all| all.iter().filter(is_probed).count())
    };
    watch.until(|report| count(report) == Some(copies));
}

/// Returns the first report that is newer than this call and has a value at `pointer` for each of
/// these processes.
fn report_with(watch: &mut RunningWatch, tgids: &[u32], pointer: &str) -> ReportLine {
    let has = |process: ReportedProcess<'_>| process.0.pointer(pointer).is_some_and(|value| !value.is_null());
    watch.until(|report| tgids.iter().all(|tgid| report.process(*tgid).is_some_and(has)));
    watch.settled()
}

const NAME: &str = "/container/name";

/// Checks two containers and a process outside of containers.
fn assert_containers_are_named(engine: Engine, cgroups: Cgroups) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut docker = Docker::start(&gpu, engine, cgroups);
    docker.import(&gpu, "memwatch-test:1");
    let mut watch = RunningWatch::start(gpu.memwatch(&["--docker-socket", &docker.socket()]));
    let mut first = docker.run("train-a", "memwatch-test:1");
    let mut second = docker.run("train-b", "memwatch-test:1");
    let mut beside = gpu.workload();
    // Each container has its own library, a different file from the machine's.
    until_probed(&mut watch, 2);
    for (workload, bytes) in [(&mut first, MIB), (&mut second, 3 * MIB), (&mut beside, 5 * MIB)] {
        allocate(workload, bytes);
    }
    let ids = [docker.id("train-a"), docker.id("train-b")];
    let inside = [workload_in_group(&ids[0]), workload_in_group(&ids[1])];
    let report = report_with(&mut watch, &inside, NAME);
    for ((tgid, id), name) in inside.into_iter().zip(&ids).zip(["train-a", "train-b"]) {
        let process = process(&report, tgid).0;
        let container = &process["container"];
        let runtime = if engine == Engine::Docker { "docker" } else { "podman" };
        assert_eq!((&container["id"], &container["name"]), (&json!(id), &json!(name)), "{report:#?}");
        assert_eq!(container["runtime"], runtime, "{report:#?}");
        // Podman prefixes the image with a registry name.
        let image = container["image"].as_str();
        assert!(image.is_some_and(|image| image.ends_with("memwatch-test:1")), "{report:#?}");
        assert_eq!(process["inner_pid"], 1, "{report:#?}");
    }
    assert_eq!(process(&report, beside.tgid()).0["container"], Value::Null);
    assert_adds_up(&gpu, &report, &[inside[0], inside[1], beside.tgid()]);
    drop(watch);
    let once = gpu.run_memwatch(&["ps", "--by", "container", "--json", "--docker-socket", &docker.socket()]);
    once.assert_ended_with(0, &[]);
    assert_groups_add_up(&gpu, &once.stdout, &["train-a", "train-b"]);
}

/// Asserts that the groups have these names, that one group without a name covers the processes
/// outside of containers, and that their sum is the used memory of the GPU.
fn assert_groups_add_up(gpu: &SimulatedGpu, report: &str, expected: &[&str]) {
    let report = ReportLine::parse(report);
    let data = &report.json()["data"];
    let groups = data["groups"].as_array().expect("sums were asked for");
    let named = |name: &str| groups.iter().filter(|group| group["name"] == name).count();
    assert!(expected.iter().all(|name| named(name) == 1), "{report:#?}");
    assert_eq!(groups.iter().filter(|group| group["id"].is_null()).count(), 1, "{report:#?}");
    let charged = |group: &Value| group["gpus"][0]["charged_bytes"].as_i64().expect("a number");
    let rest = data["rest"][0]["bytes"].as_i64().expect("a number");
    let used_bytes = gpu.ledger().device_used_bytes(0).expect("the device is in the ledger");
    assert_eq!(groups.iter().map(charged).sum::<i64>() + rest, i64::try_from(used_bytes).expect("less than 2^63"));
}

#[test(alone)]
fn two_docker_containers_and_a_process_beside_them_are_named_and_add_up() {
    assert_containers_are_named(Engine::Docker, Cgroups::Machine);
}

#[test(alone)]
fn docker_containers_are_named_with_cgroup_v2_only() {
    assert_containers_are_named(Engine::Docker, Cgroups::Unified);
}

#[test(alone)]
fn podman_containers_are_named_through_the_same_interface() {
    assert_containers_are_named(Engine::Podman, Cgroups::Machine);
}

#[test(alone)]
fn a_runtime_that_hangs_costs_the_name_and_nothing_else() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut docker = Docker::start(&gpu, Engine::Docker, Cgroups::Machine);
    docker.import(&gpu, "memwatch-test:1");
    // This socket accepts connections and never answers.
    let hung = gpu.directory().join("hung.sock");
    let _listener = UnixListener::bind(&hung).expect("a socket in the temporary directory");
    let hung = hung.to_str().expect("a plain path");
    let mut watch = RunningWatch::start(gpu.memwatch(&["--docker-socket", hung]));
    let mut workload = docker.run("train", "memwatch-test:1");
    until_probed(&mut watch, 1);
    allocate(&mut workload, MIB);
    let id = docker.id("train");
    let tgid = workload_in_group(&id);
    let report = report_with(&mut watch, &[tgid], "/container/id");
    let container = &process(&report, tgid).0["container"];
    assert_eq!((&container["id"], &container["name"]), (&json!(id), &Value::Null), "{report:#?}");
    assert_adds_up(&gpu, &report, &[tgid]);
    let once = gpu.run_memwatch(&["ps", "--by", "container", "--json", "--docker-socket", hung]);
    once.assert_ended_with(0, &[]);
}

#[test(alone)]
fn an_agent_that_has_given_up_its_privileges_still_has_names() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut docker = Docker::start(&gpu, Engine::Docker, Cgroups::Machine);
    docker.import(&gpu, "memwatch-test:1");
    let agent = TestAgent::by(&gpu, gpu.memwatch(&["--docker-socket", &docker.socket()]));
    let mut workload = docker.run("train", "memwatch-test:1");
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let tgid = workload_in_group(&docker.id("train"));
    let begin = Instant::now();
    loop {
        let outcome = agent.ask(&gpu, 0, &["ps", "--json"]);
        outcome.assert_ended_with(0, &[]);
        let report = ReportLine::parse(&outcome.stdout);
        if report.process(tgid).is_some_and(|process| process.0["container"]["name"] == "train") {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT, "{report:#?}");
    }
}

#[test(alone)]
fn a_name_or_an_id_that_is_used_again_is_another_container() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut docker = Docker::start(&gpu, Engine::Docker, Cgroups::Machine);
    docker.import(&gpu, "memwatch-test:1");
    docker.ask(&["tag", "memwatch-test:1", "memwatch-test:2"]);
    let mut watch = RunningWatch::start(gpu.memwatch(&["--docker-socket", &docker.socket()]));
    let started = |docker: &mut Docker, watch: &mut RunningWatch, mut workload: SimulatedWorkload, name: &str| {
        let id = docker.id(name);
        let tgid = workload_in_group(&id);
        workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
        let report = report_with(watch, &[tgid], NAME);
        (process(&report, tgid).0["container"].clone(), tgid, workload)
    };
    let first = docker.run("train", "memwatch-test:1");
    let (before, tgid, mut first) = started(&mut docker, &mut watch, first, "train");
    assert_eq!((&before["name"], &before["image"]), (&json!("train"), &json!("memwatch-test:1")));
    docker.ask(&["rm", "--force", "train"]);
    first.wait();
    watch.until(|report| report.process(tgid).is_none_or(|process| process.has_ended()));

    // The same name for another image in another container.
    let second = docker.run("train", "memwatch-test:2");
    let (after, tgid, mut second) = started(&mut docker, &mut watch, second, "train");
    assert_eq!((&after["name"], &after["image"]), (&json!("train"), &json!("memwatch-test:2")));
    assert_ne!(before["id"], after["id"]);

    // The same container id under another name.
    second.end();
    watch.until(|report| report.process(tgid).is_none_or(|process| process.has_ended()));
    docker.ask(&["rename", "train", "evaluate"]);
    let third = docker.restart("evaluate");
    let (again, ..) = started(&mut docker, &mut watch, third, "evaluate");
    assert_eq!((&again["name"], &again["id"]), (&json!("evaluate"), &after["id"]));
}

#[test(alone)]
fn a_pods_container_is_named_by_its_runtime() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut containerd = Containerd::start(&gpu, Cgroups::Machine);
    let mut watch = RunningWatch::start(gpu.memwatch(&["--cri-socket", &containerd.socket()]));
    let labelled = TestPodNames {
        namespace: "ml",
        pod: "train-0",
        uid: "8712f785-1a3e-41ec-a00b-e2dcc77431cb",
        container: "main",
    };
    let bare = TestPodNames {
        namespace: "ops",
        pod: "probe-0",
        uid: "0f51c7c1-0000-4000-8000-000000000001",
        container: "side",
    };
    let mut pods = [(labelled, true), (bare, false)].map(|(names, labels)| (names, containerd.run(names, labels)));
    until_probed(&mut watch, 2);
    for (_, (workload, ..)) in &mut pods {
        allocate(workload, MIB);
    }
    let tgids = [pods[0].1.1, pods[1].1.1];
    let report = report_with(&mut watch, &tgids, "/pod/name");
    for (names, (_, tgid, id)) in &pods {
        let process = process(&report, *tgid).0;
        let (pod, container) = (&process["pod"], &process["container"]);
        assert_eq!(pod["uid"], names.uid, "{report:#?}");
        assert_eq!((&pod["namespace"], &pod["name"]), (&json!(names.namespace), &json!(names.pod)), "{report:#?}");
        assert_eq!(pod["container"], names.container, "{report:#?}");
        assert_eq!((&container["id"], &container["image"]), (&json!(id), &json!(containerd::IMAGE)), "{report:#?}");
    }
    assert_adds_up(&gpu, &report, &tgids);
}

#[test(alone)]
fn a_slurm_jobs_tasks_are_reported_with_job_step_and_task() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let slurm = Slurm::start();
    let mut watch = RunningWatch::start(gpu.memwatch(&[]));
    let mut job = slurm.run(&gpu, "train", 2);
    for (task, megabytes) in job.tasks.iter_mut().zip([1, 3]) {
        allocate(task, megabytes * MIB);
    }
    let id = slurm.job("train");
    let tgids = workloads_in_group(&format!("job_{id}/step_0"));
    assert_eq!(tgids.len(), 2);
    let report = report_with(&mut watch, &tgids, "/slurm/task");
    let mut reported = Vec::new();
    for &tgid in &tgids {
        let process = process(&report, tgid).0;
        let (slurm, rank) = (&process["slurm"], &process["rank"]);
        assert_eq!((&slurm["job_id"], &slurm["step"]), (&json!(id), &json!("0")), "{report:#?}");
        assert_eq!((&slurm["name"], &slurm["partition"]), (&json!("train"), &json!("all")), "{report:#?}");
        assert_eq!(rank["world_size"], 2, "{report:#?}");
        reported.push((slurm["task"].as_str(), rank["rank"].as_u64(), process_live(&report, tgid)));
    }
    reported.sort();
    assert_eq!(reported, [(Some("0"), Some(0), 9 * MIB), (Some("1"), Some(1), 11 * MIB)], "{report:#?}");
    assert_adds_up(&gpu, &report, &tgids);
}

fn process_live(report: &ReportLine, tgid: u32) -> u64 {
    process(report, tgid).only_gpu().number("driver_allocated_bytes")
}
