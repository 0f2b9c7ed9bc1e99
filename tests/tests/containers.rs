//! Whose a process is, with real runtimes: Docker, containerd through the CRI, Slurm.

use memwatch_tests::enclosure::{Cgroups, workload_in_group};
use memwatch_tests::report::{Process, Report};
use memwatch_tests::{Docker, Gpu, MIB, Shape, Watch, Workload};
use serde_json::{Value, json};

fn process(report: &Report, tgid: u32) -> Process<'_> {
    report.process(tgid).unwrap_or_else(|| panic!("{tgid} is not reported: {report:#?}"))
}

/// What is reported of a process's container: name and image.
fn container(report: &Report, tgid: u32) -> (Value, Value) {
    let container = &process(report, tgid).0["container"];
    (container["name"].clone(), container["image"].clone())
}

/// Every process of the simulator's books is reported with what these say, and together they are what the GPU has in use.
fn assert_adds_up(gpu: &Gpu, report: &Report, tgids: &[u32]) {
    let ledger = gpu.ledger();
    let mut used_bytes = 0;
    for &tgid in tgids {
        let entry = ledger.process(tgid).unwrap_or_else(|| panic!("{tgid} is not in the simulator's books"));
        let on_gpu = process(report, tgid).only_gpu();
        assert_eq!(on_gpu.number("live_bytes"), entry.devices[0].owned_live_bytes, "{report:#?}");
        assert_eq!(on_gpu.number("used_bytes"), entry.devices[0].used_bytes, "{report:#?}");
        used_bytes += on_gpu.number("used_bytes");
    }
    assert_eq!(report.gpu(0)["used_bytes"], used_bytes, "{report:#?}");
    assert!(report.is_complete(), "{report:#?}");
}

/// Some calls, of which 8 MiB and a bit stay.
fn allocate(workload: &mut Workload, bytes: u64) {
    workload.run(&[
        "uuid 0",
        "device 0",
        "alloc a 4M",
        "alloc b 6M",
        "free a",
        "async c 2M",
        &format!("alloc d {bytes}"),
    ]);
}

fn watch_with(gpu: &Gpu, docker: &Docker) -> Watch {
    Watch::start(gpu.searching_memwatch(&["--docker-socket", &docker.socket()]))
}

/// Two containers and a process beside them.
fn assert_docker_containers_are_named(cgroups: Cgroups) {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let Some(mut docker) = Docker::start(&gpu, cgroups) else { return };
    docker.import(&gpu, "memwatch-test:1");
    let mut watch = watch_with(&gpu, &docker);
    let mut first = docker.run("train-a", "memwatch-test:1");
    let mut second = docker.run("train-b", "memwatch-test:1");
    let mut beside = gpu.workload();
    for (workload, bytes) in [(&mut first, MIB), (&mut second, 3 * MIB), (&mut beside, 5 * MIB)] {
        allocate(workload, bytes);
    }
    let ids = [docker.id("train-a"), docker.id("train-b")];
    let tgids = [workload_in_group(&ids[0]), workload_in_group(&ids[1]), beside.tgid()];
    let image = json!("memwatch-test:1");
    watch.until(|report| {
        tgids[..2]
            .iter()
            .all(|tgid| report.process(*tgid).is_some_and(|process| !process.0["container"]["name"].is_null()))
    });
    let report = watch.settled();
    assert_eq!(container(&report, tgids[0]), (json!("train-a"), image.clone()), "{report:#?}");
    assert_eq!(container(&report, tgids[1]), (json!("train-b"), image));
    for (tgid, id) in tgids.iter().zip(&ids) {
        let container = &process(&report, *tgid).0["container"];
        assert_eq!((&container["id"], &container["runtime"]), (&json!(id), &json!("docker")), "{report:#?}");
        assert_eq!(process(&report, *tgid).0["inner_pid"], 1);
    }
    assert_eq!(process(&report, tgids[2]).0["container"], Value::Null);
    assert_adds_up(&gpu, &report, &tgids);
    drop((first, second, docker));
}

#[test]
fn two_docker_containers_and_a_process_beside_them_are_named_and_add_up() {
    assert_docker_containers_are_named(Cgroups::Machine);
}

#[test]
fn docker_containers_are_named_where_there_are_only_control_groups_of_version_2() {
    assert_docker_containers_are_named(Cgroups::Unified);
}
