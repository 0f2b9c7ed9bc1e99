//! Unusual device information of NVML and the driver: MIG instances, MPS clients, irregular process
//! lists, and device numbers that differ from NVML's.

use memwatch_tests::mounts::after_mounting;
use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::report::{ReportLine, ReportedProcess};
use memwatch_tests::test;
use memwatch_tests::{MIB, PrologueShape, SimulatedGpu, SimulatedWorkload};

/// An impossible process id: Linux assigns none above 2^22.
const NOBODY: u32 = (1 << 22) + 1;

fn machine(settings: &[(&'static str, &str)]) -> SimulatedGpu {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    settings.iter().fold(gpu, |gpu, (name, value)| gpu.with(name, value))
}

/// Starts a workload that sees these devices, in this order.
fn seeing(gpu: &SimulatedGpu, devices: &str) -> SimulatedWorkload {
    let mut command = gpu.workload_command();
    command.env("CUDA_VISIBLE_DEVICES", devices);
    SimulatedWorkload::start(command)
}

fn reported<'a>(report: &'a ReportLine, workload: &SimulatedWorkload) -> ReportedProcess<'a> {
    report.process(workload.tgid()).unwrap_or_else(|| panic!("not reported: {report:#?}"))
}

#[test(alone)]
fn mig_instances_distinguished_and_their_gpu_counts_nothing_twice() {
    let gpu = machine(&[("GPUSIM_MIG", "1"), ("GPUSIM_DEVICES", "3")]);
    let mut first = gpu.workload();
    first.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let last_uuid = gpu.ledger().uuid(2).expect("the third instance");
    let mut last = seeing(&gpu, &last_uuid);
    let mut watch = gpu.watch(&[]);
    // Like an older runtime, the program reports the whole GPU's UUID; only NVML knows the
    // instance.
    last.run(&["uuid 0 v1", "device 0", "alloc b 6M", "async c 2M", "create d 2M"]);
    first.run(&["uuid 0", "alloc e 8M"]);
    assert_agrees(&gpu, &mut watch, &last, Agreement::Exact);
    let report = watch.settled();
    assert_eq!(reported(&report, &first).only_gpu().number("driver_allocated_bytes"), 8 * MIB);
    for (index, used_by) in [(0, Some(&first)), (1, None), (2, Some(&last))] {
        let instance = report.gpu(index);
        assert_eq!(instance["uuid"], gpu.ledger().uuid(index).expect("an instance"));
        assert_eq!(instance["name"], "Simulated NVIDIA H100 80GB HBM3 MIG 1g.10gb");
        assert_eq!((&instance["nvml_index"], &instance["pci_bus_id"]), (&0.into(), &"00000000:10:00.0".into()));
        let mig = serde_json::json!({
            "parent_uuid": "GPU-b0677075-7369-4d00-8000-000000000000",
            "index": index,
            "profile": "1g.10gb",
            "gpu_instance_id": index + 7,
            "compute_instance_id": 0,
        });
        assert_eq!(instance["mig"], mig);
        let used = used_by.map_or(0, |workload| reported(&report, workload).only_gpu().number("used_bytes"));
        assert_eq!((&instance["used_bytes"], &instance["unwatched_processes"]), (&used.into(), &0.into()));
    }
    assert_eq!(report.json()["data"]["gpus"].as_array().map(Vec::len), Some(3));
    for word in ["0:2", &last_uuid[..6]] {
        let once = gpu.run_memwatch(&["ps", "--json", "-g", word]);
        once.assert_ended_with(0, &[]);
        let chosen = ReportLine::parse(&once.stdout);
        assert_eq!((&chosen.gpu(0)["uuid"], chosen.gpu(1)), (&last_uuid.as_str().into(), &serde_json::Value::Null));
        assert!(chosen.process(first.tgid()).is_none() && chosen.process(last.tgid()).is_some(), "{chosen:#?}");
    }
}

#[test(alone)]
fn a_job_attached_late_to_an_instance_is_on_the_one_that_nvml_shows() {
    let gpu = machine(&[("GPUSIM_MIG", "1"), ("GPUSIM_DEVICES", "2")]);
    let mut other = gpu.workload();
    other.run(&["device 0"]);
    let uuid = gpu.ledger().uuid(1).expect("the second instance");
    let mut workload = seeing(&gpu, &uuid);
    workload.run(&["uuid 0", "device 0"]);
    let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
    workload.run(&["alloc a 4M", "free a", "alloc b 2M"]);
    let report = assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
    assert_eq!(reported(&report, &workload).only_gpu().0["uuid"], uuid.as_str());
}

#[test(alone)]
fn an_mps_client_is_found_in_the_list_of_its_own_and_named_as_one() {
    let gpu = machine(&[("GPUSIM_MPS", "1")]);
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 4M", "async b 2M"]);
    let report = assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
    assert_eq!(reported(&report, &workload).0["mps_client"], true);
    // Memory that a server keeps for all its clients is in none of their contexts, so the context
    // size of a client says nothing about that of another process.
    assert!(report.gpu(0)["context_bytes"].is_null(), "{report:#?}");
}

#[test(alone)]
fn a_process_in_three_lists_is_counted_once() {
    let gpu = machine(&[("GPUSIM_NVML_DUPLICATES", "1")]);
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let report = assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
    assert_eq!(report.gpu(0)["used_bytes"], reported(&report, &workload).only_gpu().number("used_bytes"));
    assert_eq!(report.gpu(0)["unwatched_processes"], 0);
}

#[test(alone)]
fn a_list_that_grows_while_it_is_read_is_read_again() {
    // The client list is read with a buffer of exactly the counted size, so a process that joins
    // makes it too small.
    let gpu = machine(&[("GPUSIM_MPS", "1"), ("GPUSIM_NVML_JOINS", "4")]);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let once = gpu.run_memwatch(&["ps", "--json", "--pid", &workload.tgid_word()]);
    once.assert_ended_with(0, &[]);
    let report = ReportLine::parse(&once.stdout);
    let used_bytes = gpu.ledger().process(workload.tgid()).expect("it is in the ledger").devices[0].used_bytes;
    assert_eq!(reported(&report, &workload).only_gpu().number("used_bytes"), used_bytes, "{report:#?}");
}

#[test(alone)]
fn a_list_that_never_stops_growing_is_unknown_and_not_empty() {
    let gpu = machine(&[("GPUSIM_MPS", "1"), ("GPUSIM_NVML_JOINS", "1000000")]);
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let report = watch.settled();
    let on_gpu = reported(&report, &workload).only_gpu();
    assert!(on_gpu.0["used_bytes"].is_null() && report.gpu(0)["unwatched_processes"].is_null(), "{report:#?}");
    assert_eq!(on_gpu.number("driver_allocated_bytes"), 4 * MIB);
    assert!(report.gpu(0)["used_bytes"].as_u64() > Some(4 * MIB), "the GPU's own number is another call");
}

#[test(alone)]
fn a_driver_with_longer_entries_is_asked_for_the_lists_that_it_gets_right() {
    let gpu = machine(&[("GPUSIM_NVML_DRIVER", "535.86.10")]);
    let mut watch = gpu.watch(&[]);
    let mut workloads = [gpu.workload(), gpu.workload(), gpu.workload()];
    for (workload, size) in workloads.iter_mut().zip(["alloc a 2M", "alloc a 4M", "alloc a 8M"]) {
        workload.run(&["uuid 0", "device 0", size]);
    }
    for workload in &workloads {
        assert_agrees(&gpu, &mut watch, workload, Agreement::Exact);
    }
    assert_eq!(watch.settled().gpu(0)["unwatched_processes"], 0);
    let doctor = gpu.run_memwatch(&["doctor", "--json"]);
    assert!(doctor.stdout.contains("by NVML's earlier call: this driver's present one is wrong"), "{doctor:#?}");
}

#[test(alone)]
fn nvml_pid_without_a_process_is_ignored() {
    let gpu = machine(&[]).with("GPUSIM_NVML_GHOST", &NOBODY);
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 2M"]);
    let report = assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
    assert_eq!(report.gpu(0)["unwatched_processes"], 0);
    assert!(report.process(NOBODY).is_none());
}

/// Allocates on both GPUs before the attach and again after it, under the process's own device
/// numbers.
///
/// Returns the live bytes that memwatch reports on each GPU by UUID, and those whose GPU is
/// unknown.
fn late_on_two_gpus(gpu: &SimulatedGpu, workload: &mut SimulatedWorkload) -> ([Option<u64>; 2], Option<u64>) {
    workload.run(&["device 0", "alloc early 4M", "device 1", "alloc older 6M"]);
    let before = gpu.ledger().process(workload.tgid()).expect("it is in the ledger");
    let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
    workload.run(&["create a 2M 0", "create b 8M 1", "ctx create 1 as own", "alloc c 16M"]);
    let report = watch.settled();
    let process = reported(&report, workload);
    let after = gpu.ledger().process(workload.tgid()).expect("it is in the ledger");
    let reported = [0, 1].map(|index| {
        let uuid = gpu.ledger().uuid(index).expect("there are two");
        let row = process.on(&uuid).expect("NVML lists it on both");
        let grown = after.devices[index].owned_live_bytes - before.devices[index].owned_live_bytes;
        let live_bytes = row.number("driver_allocated_bytes");
        assert!(live_bytes == grown || live_bytes == 0, "{live_bytes} of {grown} on {uuid}: {report:#?}");
        (live_bytes > 0).then_some(live_bytes)
    });
    let gpus = process.0["gpus"].as_array().expect("a list");
    let unknown = gpus.iter().find(|row| row["uuid"].is_null()).and_then(|row| row["driver_allocated_bytes"].as_u64());
    (reported, unknown)
}

#[test(alone)]
fn late_attach_on_two_gpus_resolves_devices_by_visible_devices() {
    let gpu = machine(&[("GPUSIM_DEVICES", "2")]);
    // The process's first device is the machine's second, so the larger part is on the machine's
    // first.
    let turned = ([Some(24 * MIB), Some(2 * MIB)], None);
    assert_eq!(late_on_two_gpus(&gpu, &mut seeing(&gpu, "1,0")), turned);
    let uuids = [1, 0].map(|index| gpu.ledger().uuid(index).expect("there are two"));
    assert_eq!(late_on_two_gpus(&gpu, &mut seeing(&gpu, &uuids.join(","))), turned);
    assert_eq!(late_on_two_gpus(&gpu, &mut gpu.workload()), ([Some(2 * MIB), Some(24 * MIB)], None));
}

#[test(alone)]
fn in_a_container_only_uuids_distinguish_the_gpus() {
    let gpu = machine(&[("GPUSIM_DEVICES", "2")]);
    let contained = |devices: &str| {
        let mut command = gpu.workload_command();
        command.env("CUDA_VISIBLE_DEVICES", devices);
        SimulatedWorkload::start(after_mounting("true", &[], &command))
    };
    let mut numbered = contained("1,0");
    assert_eq!(late_on_two_gpus(&gpu, &mut numbered), ([None, None], Some(26 * MIB)));
    drop(numbered);
    let uuids = [1, 0].map(|index| gpu.ledger().uuid(index).expect("there are two"));
    let mut named = contained(&uuids.join(","));
    assert_eq!(late_on_two_gpus(&gpu, &mut named), ([Some(24 * MIB), Some(2 * MIB)], None));
}

#[test(alone)]
fn a_job_that_has_ended_stays_on_the_gpu_where_it_was() {
    let gpu = machine(&[("GPUSIM_DEVICES", "2")]);
    let mut workload = gpu.workload();
    workload.run(&["device 1"]);
    let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
    workload.run(&["alloc a 4M"]);
    watch.settled();
    workload.end();
    let (last, code) = watch.finish();
    assert_eq!(code, 0);
    let on_gpu = reported(&last, &workload).only_gpu();
    assert_eq!(on_gpu.0["uuid"], gpu.ledger().uuid(1).expect("the second GPU").as_str());
    assert_eq!(on_gpu.number("peak_bytes"), 4 * MIB);
}

/// Returns the number of open uprobe links of a process. Each is an entry or return program on some
/// functions.
fn uprobe_links(tgid: u32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{tgid}/fdinfo")).expect("memwatch runs").flatten();
    let texts = files.filter_map(|file| std::fs::read_to_string(file.path()).ok());
    texts.filter(|text| text.contains("probe_multi")).count()
}

#[test(alone)]
fn late_attach_on_two_gpus_resolves_threads_by_driver_calls() {
    let gpu = machine(&[("GPUSIM_DEVICES", "2")]);
    let mut workload = gpu.workload();
    workload.run(&["device 0", "alloc early 4M", "thread start t", "@t device 1", "@t alloc older 6M"]);
    let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
    let memwatch = watch.tgid();
    // Links at entry and return of four groups of functions: the driver's functions, functions that
    // change a context, the driver's stub for ioctl, and that of the graphics library.
    let always = 8;
    watch.until(|_| uprobe_links(memwatch) > always);
    let before = gpu.ledger().process(workload.tgid()).expect("it is in the ledger");
    workload.run(&["current", "alloc a 2M", "@t current", "@t alloc b 8M", "@t async c 16M"]);
    let report = watch.settled();
    let process = reported(&report, &workload);
    assert!(process.is_exact() && report.is_complete(), "records were lost: {report:#?}");
    let after = gpu.ledger().process(workload.tgid()).expect("it is in the ledger");
    for index in 0..2 {
        let uuid = gpu.ledger().uuid(index).expect("there are two");
        let grown = after.devices[index].owned_live_bytes - before.devices[index].owned_live_bytes;
        assert_eq!(process.on(&uuid).expect("it is on both").number("driver_allocated_bytes"), grown, "{report:#?}");
    }
    assert_eq!(process.0["gpus"].as_array().map(Vec::len), Some(2), "nothing is on an unknown GPU: {report:#?}");
    watch.until(|_| uprobe_links(memwatch) == always);
    workload.run(&["current", "alloc d 2M", "@t alloc e 2M", "free a", "@t free b"]);
    let report = watch.settled();
    assert!(reported(&report, &workload).is_exact() && report.is_complete(), "records were lost: {report:#?}");
}
