//! Memory that one process owns and another imports: it counts in the owner, and the importer's
//! report names the owner.

use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{MIB, PrologueShape, SimulatedGpu, SimulatedWorkload};
use serde_json::{Value, json};

fn start(gpu: &SimulatedGpu) -> SimulatedWorkload {
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0"]);
    workload
}

fn live(report: &ReportLine, tgid: u32) -> Value {
    report.process(tgid).map_or(Value::Null, |process| process.0["gpus"][0]["driver_allocated_bytes"].clone())
}

/// Returns a process's imports of other processes' memory.
fn imports(report: &ReportLine, tgid: u32) -> Value {
    report.process(tgid).expect("it is reported").0["imports"].clone()
}

fn import(from: u32, bytes: u64, orphaned_bytes: u64) -> Value {
    json!([{"from_pid": from, "aliases": 1, "bytes": bytes, "orphaned_bytes": orphaned_bytes}])
}

#[test(alone)]
fn an_ipc_handle_leads_to_its_exporter_and_outlives_it() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut watch = gpu.watch(&[]);
    let (mut owner, mut user) = (start(&gpu), start(&gpu));
    owner.run(&["alloc a 4M", "alloc b 2M"]);
    let handle = owner.ask("ipcget a")["handle"].as_str().expect("64 bytes").to_owned();
    user.run(&["alloc own 1M", &format!("ipcopen x {handle}"), &format!("ipcopen again {handle}")]);
    let report = watch.settled();
    assert_eq!(imports(&report, user.tgid()), import(owner.tgid(), 4 * MIB, 0), "{report:#?}");
    assert_eq!((live(&report, owner.tgid()), live(&report, user.tgid())), ((6 * MIB).into(), MIB.into()));
    assert_eq!(report.gpu(0)["driver_allocated_bytes"], 7 * MIB, "counted once");

    user.run(&["ipcclose x"]);
    owner.report("kill");
    owner.wait();
    let report = watch.settled();
    assert_eq!(imports(&report, user.tgid()), import(owner.tgid(), 4 * MIB, 4 * MIB), "opened twice, closed once");
    user.run(&["ipcclose x"]);
    assert_eq!(imports(&watch.settled(), user.tgid()), json!([]));
}

#[test(alone)]
fn imported_handle_file_leads_to_its_exporter_under_any_descriptor() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut watch = gpu.watch(&[]);
    let (mut owner, mut user) = (start(&gpu), start(&gpu));
    owner.run(&["create h 4M"]);
    let file = owner.ask("export f h")["f"].as_u64().expect("a descriptor");
    // The descriptor has another number in the other process: 0 to 2 and these are in use.
    user.run(&["alloc own 1M", &format!("takefd other {} 0", owner.tgid())]);
    user.run(&[&format!("takefd f {} {file}", owner.tgid()), "import i f"]);
    let report = watch.settled();
    assert_eq!(imports(&report, user.tgid()), import(owner.tgid(), 4 * MIB, 0), "{report:#?}");
    assert_eq!((live(&report, owner.tgid()), live(&report, user.tgid())), ((4 * MIB).into(), MIB.into()));
    owner.run(&["release h"]);
    assert_eq!(imports(&watch.settled(), user.tgid()), import(owner.tgid(), 4 * MIB, 4 * MIB));
    user.run(&["release i"]);
    assert_eq!(imports(&watch.settled(), user.tgid()), json!([]));
}

#[test(alone)]
fn a_pool_address_leads_to_its_exporter() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut watch = gpu.watch(&[]);
    let (mut owner, mut user) = (start(&gpu), start(&gpu));
    owner.run(&["pool create q 0", "frompool a 4M q", "call cuMemPoolExportPointer *x a"]);
    let file = owner.ask("call cuMemPoolExportToShareableHandle *f q 1 0")["f"].as_u64().expect("a descriptor");
    for offset in (0..64).step_by(8) {
        let word = owner.ask(&format!("get word x {offset}"))["word"].as_u64().expect("a number");
        user.run(&[&format!("set x {offset} {word}")]);
    }
    user.run(&["alloc own 1M", &format!("takefd f {} {}", owner.tgid(), file & 0xFFFF_FFFF)]);
    user.run(&["call cuMemPoolImportFromShareableHandle *p f 1 0", "call cuMemPoolImportPointer *y p *x"]);
    let report = watch.settled();
    assert_eq!(imports(&report, user.tgid()), import(owner.tgid(), 4 * MIB, 0), "{report:#?}");
    assert_eq!(live(&report, user.tgid()), MIB);
    user.run(&["free y"]);
    assert_eq!(imports(&watch.settled(), user.tgid()), json!([]));
}

#[test(alone)]
fn a_checkpoint_by_another_process_takes_the_memory_off_the_gpu() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut watch = gpu.watch(&[]);
    let (mut job, mut tool) = (start(&gpu), start(&gpu));
    job.run(&["alloc a 4M"]);
    tool.run(&[&format!("checkpoint {}", job.tgid())]);
    let report = watch.settled();
    let process = report.process(job.tgid()).expect("it is reported");
    assert_eq!((&process.0["checkpointed"], live(&report, job.tgid())), (&true.into(), 0.into()), "{report:#?}");
    assert_eq!(process.0["gpus"][0]["checkpointed_bytes"], 4 * MIB);
    assert_eq!(report.gpu(0)["driver_allocated_bytes"], 0);
    tool.run(&[&format!("restore {}", job.tgid())]);
    let report = watch.settled();
    assert_eq!(
        (live(&report, job.tgid()), report.gpu(0)["driver_allocated_bytes"].clone()),
        ((4 * MIB).into(), (4 * MIB).into())
    );
}
