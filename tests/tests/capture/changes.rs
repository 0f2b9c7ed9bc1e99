//! Calls that change a thread's context: memwatch stops tracing them in a program that makes too
//! many, and every number stays correct.

use std::time::Duration;

use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{MIB, PrologueShape, RunningWatch, SimulatedGpu, SimulatedWorkload, until};

/// More calls than any budget allows within one pause, and fewer than the ring can hold.
const CALLS: u64 = 1000;
const PAUSE: Duration = Duration::from_millis(10);

fn machine() -> SimulatedGpu {
    SimulatedGpu::new(PrologueShape::Push).with("GPUSIM_DEVICES", &2)
}

/// Returns how many calls of the process were traced.
fn traced(report: &ReportLine, workload: &SimulatedWorkload) -> u64 {
    report.process(workload.tgid()).map_or(0, |process| process.0["overhead"]["events"].as_u64().expect("a number"))
}

fn burst(workload: &mut SimulatedWorkload) {
    workload.report(&format!("loop cuCtxSetCurrent {CALLS}"));
    assert_eq!(workload.answer()["result"], 0);
}

/// Returns whether a burst of the workload's calls is traced.
pub(crate) fn sees_burst(watch: &mut RunningWatch, workload: &mut SimulatedWorkload) -> bool {
    let before = traced(&watch.settled(), workload);
    burst(workload);
    traced(&watch.settled(), workload) - before >= CALLS
}

/// Makes bursts until none is traced.
pub(crate) fn until_spared(watch: &mut RunningWatch, workload: &mut SimulatedWorkload) {
    until("the program is spared", || {
        for _ in 0..50 {
            std::thread::sleep(PAUSE);
            burst(workload);
        }
        (!sees_burst(watch, workload)).then_some(())
    });
}

#[test(alone)]
fn single_context_switches_are_not_traced_and_numbers_stay_exact() {
    spared_and_exact(&[]);
}

#[test(alone)]
fn single_context_switches_are_not_traced_with_classic_uprobes() {
    spared_and_exact(&["--classic-uprobes"]);
}

fn spared_and_exact(words: &[&str]) {
    let gpu = machine();
    let mut watch = gpu.watch(words);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    until_spared(&mut watch, &mut workload);
    workload.run(&["alloc b 2M", "thread start other", "@other device 0", "@other alloc c 8M", "free a"]);
    assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
    // A process that starts meanwhile sets its current context untraced.
    let mut newcomer = gpu.workload();
    newcomer.run(&["uuid 1", "device 1", "alloc a 16M", "async b 4M"]);
    let report = assert_agrees(&gpu, &mut watch, &newcomer, Agreement::Exact);
    assert_eq!(report.process(workload.tgid()).expect("it runs").only_gpu().number("driver_allocated_bytes"), 10 * MIB);
}

#[test(alone)]
fn second_context_resumes_switch_tracing_with_memory_on_its_gpu() {
    let gpu = machine();
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "uuid 1", "device 0", "alloc a 4M", "thread start other", "@other device 0"]);
    until_spared(&mut watch, &mut workload);
    // The device of this allocation may be unknown. In that case it is attributed to no device,
    // rather than to the only one before.
    workload.run(&["@other device 1", "@other alloc early 2M"]);
    until("context changes are traced", || sees_burst(&mut watch, &mut workload).then_some(()));
    let uuids = [0, 1].map(|ordinal| gpu.ledger().uuid(ordinal).expect("a device"));
    let on = |report: &ReportLine, uuid: &str| {
        let process = report.process(workload.tgid()).expect("it runs");
        process.on(uuid).map_or(0, |gpu| gpu.number("driver_allocated_bytes"))
    };
    let report = watch.settled();
    let early = on(&report, &uuids[1]);
    assert!(on(&report, &uuids[0]) == 4 * MIB && [0, 2 * MIB].contains(&early), "{report:#?}");
    workload.run(&["@other free early", "@other device 1", "@other alloc b 8M", "device 0", "alloc c 16M"]);
    assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
}
