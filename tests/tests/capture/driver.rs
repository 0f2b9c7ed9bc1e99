//! Process events besides driver calls, and lost records: memwatch's numbers equal the simulator's
//! in every case.

use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::test;
use memwatch_tests::{CONTEXT_BYTES, MIB, PrologueShape, SimulatedGpu, SimulatedWorkload};

const BOTH_SHAPES: [PrologueShape; 2] = [PrologueShape::Cmp, PrologueShape::Push];

fn start(gpu: &SimulatedGpu) -> SimulatedWorkload {
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0"]);
    workload
}

#[test(alone)]
fn a_refused_allocation_is_shown_with_its_size() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut workload = start(&gpu);
    assert_eq!(workload.ask("alloc huge 200G")["result"], 2);
    assert_eq!(workload.ask("create huge 300G")["result"], 2);
    workload.run(&["alloc small 4M"]);
    let report = assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
    let process = report.process(workload.tgid()).expect("it is reported");
    assert_eq!(process.only_gpu().number("failed_allocations"), 2);
    let shown: Vec<_> =
        process.failures().iter().map(|failure| (&failure["requested_bytes"], &failure["error"])).collect();
    assert_eq!(shown[0], (&(200_u64 << 30).into(), &"out of memory".into()));
    assert_eq!(shown[1], (&(300_u64 << 30).into(), &"out of memory".into()));
}

#[test(alone)]
fn failed_and_unknown_frees_change_nothing() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut workload = start(&gpu);
    workload.run(&["alloc a 4M"]);
    assert_ne!(workload.ask("free 12345")["result"], 0);
    workload.run(&["free 0"]);
    assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
}

#[test(alone)]
fn eight_threads_that_free_and_allocate_the_same_addresses_end_exactly() {
    for shape in BOTH_SHAPES {
        let gpu = SimulatedGpu::new(shape);
        let mut watch = gpu.watch(&[]);
        let mut workload = start(&gpu);
        workload.run(&["alloc kept 2M"]);
        let answer = workload.ask("churn 8 2000 2M");
        assert_eq!(answer["result"], 0, "{answer}");
        let report = assert_agrees(&gpu, &mut watch, &workload, Agreement::ExceptPeaks);
        let on_gpu = report.process(workload.tgid()).expect("it is reported").only_gpu();
        assert_eq!(on_gpu.number("driver_allocated_bytes"), 2 * MIB);
        assert_eq!(on_gpu.number("allocations"), 16_001);
        assert_eq!(on_gpu.number("frees"), 16_000);
    }
}

#[test(alone)]
fn two_processes_on_one_gpu_distinguished() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let (mut first, mut second) = (start(&gpu), start(&gpu));
    first.run(&["alloc a 4M"]);
    second.run(&["alloc a 6M", "alloc b 8M", "free a"]);
    let report = assert_agrees(&gpu, &mut watch, &first, Agreement::Exact);
    assert_agrees(&gpu, &mut watch, &second, Agreement::Exact);
    assert_eq!(report.gpu(0)["driver_allocated_bytes"], 12 * MIB);
    assert_eq!(report.gpu(0)["used_bytes"], 12 * MIB + 2 * CONTEXT_BYTES);
    assert_eq!(report.gpu(0)["unattributed_bytes"], 2 * CONTEXT_BYTES);
}

#[test(alone)]
fn one_process_on_two_gpus_has_each_gpus_bytes_on_it() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_DEVICES", &2);
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&[
        "uuid 0",
        "uuid 1",
        "device 0",
        "alloc a 4M",
        "device 1",
        "alloc b 6M",
        "async c 2M",
        "create d 2M 0",
    ]);
    assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
    workload.run(&["thread start t", "@t device 0", "@t alloc e 8M", "alloc f 2M", "@t free b", "free a"]);
    assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
}

#[test(alone)]
fn a_process_that_ends_holds_nothing_whether_it_frees_or_not() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    for ending in ["exit 3", "kill"] {
        let mut workload = start(&gpu);
        workload.run(&["alloc a 4M", "async b 2M", "create c 2M", "hostalloc h 1M"]);
        assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
        workload.report(ending);
        workload.wait();
        let tgid = workload.tgid();
        let report = watch.until(|report| report.process(tgid).is_some_and(|process| process.has_ended()));
        let process = report.process(tgid).expect("ended processes are shown for a while");
        assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 0, "{ending}");
        assert_eq!(process.only_gpu().number("peak_bytes"), 8 * MIB, "{ending}");
        assert_eq!(process.host("pinned_live_bytes"), 0, "{ending}");
        assert_eq!(process.number("implicit_frees"), 4, "{ending}");
    }
}

#[test(alone)]
fn an_exec_frees_everything_and_the_new_program_starts_from_nothing() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut workload = start(&gpu);
    workload.run(&["alloc a 4M"]);
    workload.report("exec");
    workload.run(&["uuid 0", "device 0", "alloc b 6M"]);
    let report = watch.settled();
    let process = report.process(workload.tgid()).expect("the tgid stays");
    assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 6 * MIB);
    assert_eq!(process.number("implicit_frees"), 1);
}

#[test(alone)]
fn a_forked_child_is_a_process_of_its_own() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    let child = u32::try_from(workload.ask("fork c")["tgid"].as_u64().expect("a child")).expect("a tgid");
    workload.run(&["uuid 0", "device 0", "alloc a 4M", "@c uuid 0", "@c device 0", "@c alloc b 6M"]);
    let report = watch.settled();
    for (tgid, bytes) in [(workload.tgid(), 4 * MIB), (child, 6 * MIB)] {
        let process = report.process(tgid).unwrap_or_else(|| panic!("{tgid} is not reported: {report:#?}"));
        assert_eq!(process.only_gpu().number("driver_allocated_bytes"), bytes);
        assert!(process.is_exact());
    }
}

#[test(alone)]
fn a_child_of_a_target_is_watched_and_a_stranger_is_not() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut workload = gpu.workload();
    let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
    let mut stranger = start(&gpu);
    stranger.run(&["alloc a 4M"]);
    let child = u32::try_from(workload.ask("fork c")["tgid"].as_u64().expect("a child")).expect("a tgid");
    workload.run(&["@c uuid 0", "@c device 0", "@c alloc b 6M", "uuid 0", "device 0", "alloc a 2M"]);
    let report = watch.settled();
    assert_eq!(
        report.process(workload.tgid()).expect("the target").only_gpu().number("driver_allocated_bytes"),
        2 * MIB
    );
    assert_eq!(report.process(child).expect("its child").only_gpu().number("driver_allocated_bytes"), 6 * MIB);
    assert!(report.process(stranger.tgid()).is_none(), "{report:#?}");
    assert_eq!(report.gpu(0)["unwatched_processes"], 1);
}

#[test(alone)]
fn a_full_ring_is_counted_and_makes_its_owner_inexact() {
    // Requests to the kernel driver are off: they would fill the ring first, and are counted
    // separately.
    let gpu = SimulatedGpu::new(PrologueShape::Push).with("GPUSIM_RM", &"off");
    let mut watch = gpu.watch(&["--ring-bytes", "4096"]);
    // SAFETY: the process is ours and alive; stopped, it cannot empty its ring.
    let signal = |number| unsafe { libc::kill(i32::try_from(watch.tgid()).expect("a pid"), number) };
    memwatch_tests::stop(watch.tgid());
    let mut workload = start(&gpu);
    let answer = workload.ask("loop cuMemAlloc 200 2M");
    signal(libc::SIGCONT);
    assert_eq!(answer["result"], 0, "{answer}");
    let tgid = workload.tgid();
    // Its first records are among the lost ones, so the process may be known only through NVML.
    let report = watch.until(|report| report.lost("ring_full") > 0 && report.process(tgid).is_some());
    assert_eq!(report.json()["complete"], false);
    let process = report.process(tgid).expect("the loser is named");
    assert!(!process.is_exact());
    // The ring holds the calls before the loop and only some of the loop's. Each of the loop's 400
    // calls is either counted or lost.
    let on_gpu = process.0["gpus"][0].clone();
    let number = |field: &str| on_gpu[field].as_u64().expect("a number");
    let lost = process.0["losses"]["ring_full"].as_u64().expect("a number");
    assert_eq!(number("allocations") + number("frees") + lost, 400, "{report:#?}");
    assert!(lost > 300, "{report:#?}");
}

#[test(alone)]
fn totals_are_taken_back_to_the_truth_after_a_full_ring() {
    // Requests to the kernel driver are off: they would fill so small a ring first.
    let gpu = SimulatedGpu::new(PrologueShape::Push).with("GPUSIM_RM", &"off");
    let mut watch = gpu.watch(&["--ring-bytes", "4096"]);
    let mut workload = start(&gpu);
    workload.run(&["alloc ghost 4M", "alloc kept 6M", "hostalloc pinned 1M", "managed m 8M"]);
    // Memory is freed with its context without a free call. The allocation map must not restore it.
    workload.run(&["ctx create 0 as own", "alloc gone 3M", "alloc gone2 1M", "ctx destroy own"]);
    // Allocations recorded into a graph that never runs are not memory.
    workload.run(&["stream s", "capture s", "async never 5M s", "endcapture g s", "graphdestroy g"]);
    watch.settled();
    // SAFETY: the process is ours and alive; stopped, it cannot empty its ring.
    let signal = |number| unsafe { libc::kill(i32::try_from(watch.tgid()).expect("a pid"), number) };
    memwatch_tests::stop(watch.tgid());
    assert_eq!(workload.ask("loop cuMemAlloc 200 2M")["result"], 0);
    workload.run(&[
        "free ghost",
        "alloc unseen 10M",
        "async pooled 12M",
        "hostfree pinned",
        "alloc again 2M",
        "free m",
    ]);
    signal(libc::SIGCONT);
    let tgid = workload.tgid();
    let anchored = |report: &memwatch_tests::report::ReportLine| {
        report.process(tgid).is_some_and(|process| process.0["anchored"].is_string())
    };
    watch.until(anchored);
    let report = watch.settled();
    let process = report.process(tgid).expect("it is reported");
    assert!(!process.is_exact() && report.lost("ring_full") > 0, "what was lost stays lost: {report:#?}");
    let truth = gpu.ledger().process(tgid).expect("it is in the simulator's ledger");
    assert_eq!(process.only_gpu().number("driver_allocated_bytes"), truth.devices[0].owned_live_bytes, "{report:#?}");
    assert_eq!(process.host("pinned_live_bytes"), truth.pinned_host_bytes);
    for (kind, balance) in [("device", truth.devices[0].device), ("pool", truth.devices[0].pool_used)] {
        assert_eq!(process.only_gpu().kind(kind, "driver_allocated_bytes"), balance.live_bytes, "{kind}: {report:#?}");
    }
    assert_eq!(process.only_gpu().kind("managed", "driver_allocated_bytes"), 0, "{report:#?}");
    // From here on every record arrives, and adopted allocations are freed like others.
    workload.run(&["free unseen", "asyncfree pooled", "free kept", "free again"]);
    let report = watch.settled();
    assert_eq!(
        report.process(tgid).expect("it is reported").only_gpu().number("driver_allocated_bytes"),
        0,
        "{report:#?}"
    );
}

#[test(alone)]
fn resync_after_a_lost_teardown_keeps_totals_and_marks_inexact() {
    // Requests to the kernel driver are off: they would fill so small a ring first.
    let gpu = SimulatedGpu::new(PrologueShape::Push).with("GPUSIM_RM", &"off");
    let mut watch = gpu.watch(&["--ring-bytes", "4096"]);
    let mut workload = start(&gpu);
    workload.run(&["alloc kept 6M", "ctx create 0 as own", "alloc gone 3M"]);
    let tgid = workload.tgid();
    // On a busy machine so small a ring may have been full before. Losses from then are repaired by
    // a resync.
    let before = watch.settled();
    let anchored = |report: &memwatch_tests::report::ReportLine| {
        report.process(tgid).expect("it is reported").0["anchored"].clone()
    };
    // SAFETY: the process is ours and alive; stopped, it cannot empty its ring.
    let signal = |number| unsafe { libc::kill(i32::try_from(watch.tgid()).expect("a pid"), number) };
    memwatch_tests::stop(watch.tgid());
    assert_eq!(workload.ask("loop cuMemAlloc 200 2M")["result"], 0);
    workload.run(&["ctx destroy own"]);
    signal(libc::SIGCONT);
    watch.until(|report| report.lost("ring_full") > before.lost("ring_full"));
    let report = watch.settled();
    let process = report.process(tgid).expect("it is reported");
    assert_eq!(anchored(&report), anchored(&before), "{report:#?}");
    assert!(!process.is_exact(), "{report:#?}");
    assert!(process.only_gpu().number("driver_allocated_bytes") >= 6 * MIB, "{report:#?}");
}
