//! Processes that start, exec, exit and reuse process ids: each is reported with its own memory,
//! and nothing of an exited process is left.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Stdio;

use jiff::Timestamp;
use memwatch_tests::harness::cannot_run;
use memwatch_tests::kernel_maps::{KernelMap, processes_in};
use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::report::{ReportLine, ReportedProcess};
use memwatch_tests::test;
use memwatch_tests::{MIB, PrologueShape, RunningWatch, SimulatedGpu, SimulatedWorkload, TIMEOUT, resident_bytes};
use serde_json::Value;

/// Commands that make GPU 0 current, as every program starts.
const BEGIN: [&str; 2] = ["uuid 0", "device 0"];

fn exists(tgid: u32) -> bool {
    Path::new(&format!("/proc/{tgid}")).exists()
}

/// Waits until no map of the kernel half has an entry of an exited process.
fn assert_the_dead_are_forgotten(watch: &mut RunningWatch) {
    for table in KernelMap::ALL {
        let dead = |tgids: Vec<u32>| tgids.into_iter().filter(|tgid| !exists(*tgid)).collect::<Vec<u32>>();
        let begin = std::time::Instant::now();
        // Loss entries are read and removed with each report.
        while !dead(processes_in(watch.tgid(), table)).is_empty() && begin.elapsed() < TIMEOUT {
            watch.next_report();
        }
        assert_eq!(dead(processes_in(watch.tgid(), table)), Vec::<u32>::new(), "in {table:?}");
    }
}

/// Returns the last state of every process that is reported between now and the first report newer
/// than this call, and that report.
fn all_reported(watch: &mut RunningWatch) -> (BTreeMap<u32, Value>, ReportLine) {
    let now = Timestamp::now();
    let mut reported = BTreeMap::new();
    loop {
        let report = watch.next_report();
        for process in report.json()["data"]["processes"].as_array().expect("processes") {
            let tgid = u32::try_from(process["pid"].as_u64().expect("a number")).expect("a process id");
            reported.insert(tgid, process.clone());
        }
        if report.is_newer_than(now) {
            return (reported, report);
        }
    }
}

#[test(alone)]
fn a_thousand_quick_processes_are_each_seen_with_their_exact_numbers() {
    const PROCESSES: u64 = 1000;
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut sizes = BTreeMap::new();
    for number in 1..=PROCESSES {
        let script = gpu.directory().join("script");
        fs::write(&script, format!("device 0\nalloc a {}\n", number * 512)).expect("a script");
        let mut command = gpu.workload_command();
        command.stdin(fs::File::open(&script).expect("the script")).stdout(Stdio::null());
        let mut child = command.spawn().expect("the workload starts");
        sizes.insert(child.id(), number * 512);
        assert!(child.wait().expect("it is ours").success());
    }
    let (reported, report) = all_reported(&mut watch);
    assert!(report.is_complete(), "{:#}", report.json()["losses"]);
    assert_eq!(sizes.len() as u64, PROCESSES, "a process number came twice");
    for (tgid, bytes) in sizes {
        let process = ReportedProcess(reported.get(&tgid).unwrap_or_else(|| panic!("{tgid} is not reported")));
        assert!(process.is_exact() && process.has_ended() && process.0["from_start"] == true, "{:#}", process.0);
        let on_gpu = process.only_gpu();
        let numbers =
            ["driver_allocated_bytes", "peak_bytes", "allocations", "frees"].map(|field| on_gpu.number(field));
        assert_eq!(numbers, [0, bytes, 1, 0], "{:#}", process.0);
    }
    assert_the_dead_are_forgotten(&mut watch);
}

#[test(alone)]
fn ten_thousand_short_processes_leave_nothing_behind() {
    const PROCESSES: u64 = 10_000;
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut watch = gpu.watch(&[]);
    let before_bytes = resident_bytes(watch.tgid());
    let mut workload = gpu.workload();
    assert_eq!(workload.ask(&format!("herd {PROCESSES} 1M"))["granted"], PROCESSES);
    watch.skip_reports();
    let report = watch.settled();
    assert!(report.is_complete(), "{:#}", report.json()["losses"]);
    // The parent never called the driver itself.
    assert!(report.process(workload.tgid()).is_none_or(|process| process.0["gpus"] == serde_json::json!([])));
    let herd = report.json()["data"]["processes"].as_array().expect("processes").iter().map(ReportedProcess);
    let herd: Vec<_> = herd.filter(ReportedProcess::has_ended).collect();
    assert!(herd.len() > 1000, "only {} are reported", herd.len());
    for process in herd {
        assert!(process.is_exact(), "{:#}", process.0);
        assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 0);
    }
    assert_the_dead_are_forgotten(&mut watch);
    let after_bytes = resident_bytes(watch.tgid());
    eprintln!("memwatch's resident memory: {} KiB before, {} KiB after", before_bytes >> 10, after_bytes >> 10);
}

#[test(alone)]
fn losses_of_the_dead_are_reported_and_then_forgotten() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut watch = gpu.watch(&["--ring-bytes", "4K"]);
    let mut workload = gpu.workload();
    workload.run(&BEGIN);
    workload.run(&["loop cuMemAlloc 100000"]);
    let report = watch.until(|report| report.lost("ring_full") > 0);
    assert!(!report.is_complete());
    workload.end();
    let report = watch.until(|report| report.process(workload.tgid()).is_some_and(|process| process.has_ended()));
    assert!(!report.process(workload.tgid()).expect("it was there a moment ago").is_exact());
    assert_the_dead_are_forgotten(&mut watch);
}

#[test(alone)]
fn forked_child_is_a_separate_process_without_parent_memory() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut parent = gpu.workload();
    let child = parent.ask("fork child")["tgid"].as_u64().and_then(|tgid| u32::try_from(tgid).ok()).expect("a child");
    parent.run(&BEGIN);
    parent.run(&["alloc a 4M", "@child uuid 0", "@child device 0", "@child alloc b 6M", "free a"]);
    let report = assert_agrees(&gpu, &mut watch, &parent, Agreement::Exact);
    let of_child = report.process(child).expect("it has called the driver");
    assert_eq!(of_child.only_gpu().number("driver_allocated_bytes"), 6 * MIB);
    assert_eq!(of_child.only_gpu().number("peak_bytes"), 6 * MIB);
    assert!(of_child.is_exact() && of_child.0["from_start"] == true, "{:#}", of_child.0);
    assert_eq!(parent.ask("wait child")["exit_code"], 0);
    watch.until(|report| report.process(child).is_some_and(|process| process.has_ended()));
    assert_the_dead_are_forgotten(&mut watch);
}

#[test(alone)]
fn an_exec_from_another_thread_keeps_the_process_and_none_of_its_memory() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&BEGIN);
    workload.run(&["alloc a 4M", "thread start other", "@other device 0", "@other alloc b 2M"]);
    assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
    // No answer comes: the thread becomes the main thread of a new program, which reads the same
    // input.
    workload.report("@other exec");
    workload.run(&BEGIN);
    workload.run(&["alloc c 8M"]);
    let report = assert_agrees(&gpu, &mut watch, &workload, Agreement::ExceptPeaks);
    let process = report.process(workload.tgid()).expect("it is reported");
    assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 8 * MIB);
    assert_eq!(process.number("implicit_frees"), 2);
    workload.end();
    assert_the_dead_are_forgotten(&mut watch);
}

#[test(alone)]
fn process_with_an_ended_main_thread_is_watched_and_found() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let mut first = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&BEGIN);
    workload.run(&["alloc a 4M", "leaderexit", "device 0", "alloc b 2M"]);
    let report = assert_agrees(&gpu, &mut first, &workload, Agreement::Exact);
    assert!(!report.process(workload.tgid()).expect("it lives on").has_ended());
    // The library cannot be found through the main thread, which has exited and has no address
    // space.
    let mut second = RunningWatch::start(gpu.searching_memwatch(&["--pid", &workload.tgid_word()]));
    workload.run(&["alloc c 8M", "free b"]);
    let report = second.settled();
    let process = report.process(workload.tgid()).expect("it is the target");
    assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 8 * MIB, "{report:#?}");
    assert_eq!(process.number("unknown_frees"), 1);
    workload.end();
    let report = first.until(|report| report.process(workload.tgid()).is_none_or(|process| process.has_ended()));
    assert!(report.is_complete(), "{report:#?}");
    assert_the_dead_are_forgotten(&mut first);
}

/// Starts a workload with this process id. Ignores the test if other processes take the id every
/// time.
fn workload_numbered(gpu: &SimulatedGpu, tgid: u32) -> SimulatedWorkload {
    for _ in 0..200 {
        fs::write("/proc/sys/kernel/ns_last_pid", (tgid - 1).to_string()).ok();
        let workload = gpu.workload();
        if workload.tgid() == tgid {
            return workload;
        }
    }
    cannot_run("a process number cannot be had twice here")
}

#[test(alone)]
fn two_processes_of_one_number_are_two_processes() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut watch = gpu.watch(&[]);
    let mut first = gpu.workload();
    first.run(&BEGIN);
    first.run(&["alloc a 4M"]);
    let tgid = first.tgid();
    first.end();
    let mut second = workload_numbered(&gpu, tgid);
    second.run(&BEGIN);
    second.run(&["alloc b 6M", "alloc c 2M", "free b"]);
    let report = assert_agrees(&gpu, &mut watch, &second, Agreement::Exact);
    let processes = report.json()["data"]["processes"].as_array().expect("processes").iter().map(ReportedProcess);
    let of_number: Vec<_> = processes.filter(|process| process.0["pid"] == tgid).collect();
    let reported = |process: &ReportedProcess<'_>| {
        let on_gpu = process.only_gpu();
        let numbers =
            ["driver_allocated_bytes", "peak_bytes", "allocations", "frees"].map(|field| on_gpu.number(field));
        (process.has_ended(), process.0["from_start"] == true, numbers)
    };
    let reported: Vec<_> = of_number.iter().map(reported).collect();
    assert_eq!(reported, [(true, true, [0, 4 * MIB, 1, 0]), (false, true, [2 * MIB, 8 * MIB, 2, 1])], "{report:#?}");
}

#[test(alone)]
fn thread_that_ends_in_a_call_is_one_loss_and_leaves_no_state() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    let mut beside = gpu.workload();
    beside.run(&BEGIN);
    workload.run(&BEGIN);
    workload.run(&["alloc a 4M", "fault thread", "alloc b 2M"]);
    let report = watch.until(|report| report.lost("thread_ended_in_call") > 0);
    assert_eq!(report.lost("thread_ended_in_call"), 1);
    let report = watch.settled();
    let process = report.process(workload.tgid()).expect("it is reported");
    assert!(!process.is_exact());
    assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 6 * MIB);
    assert!(report.process(beside.tgid()).expect("it is reported").is_exact());
    workload.end();
    assert_the_dead_are_forgotten(&mut watch);
}

#[test(alone)]
fn a_process_killed_inside_a_call_even_its_first_leaves_no_trace() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut watch = gpu.watch(&[]);
    for begin in [&["init"][..], &["init", "uuid 0", "device 0", "alloc a 4M"]] {
        let mut workload = gpu.workload();
        workload.run(begin);
        workload.report("fault process");
        workload.wait();
        assert_the_dead_are_forgotten(&mut watch);
    }
    let report = watch.settled();
    assert!(report.is_complete(), "its memory is gone, whatever it was doing: {:#}", report.json()["losses"]);
}

#[test(alone)]
fn an_exec_inside_a_call_of_another_thread_leaves_no_call_behind() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&BEGIN);
    workload.run(&["alloc a 4M"]);
    assert!(processes_in(watch.tgid(), KernelMap::InFlight).contains(&workload.tgid()), "the main thread has called");
    // The thread inside the call takes over the main thread's id; the new program answers.
    workload.report("fault exec");
    workload.ask("tgid");
    assert!(
        !processes_in(watch.tgid(), KernelMap::InFlight).contains(&workload.tgid()),
        "the new program has not called"
    );
    workload.run(&BEGIN);
    workload.run(&["alloc b 2M"]);
    let report = assert_agrees(&gpu, &mut watch, &workload, Agreement::ExceptPeaks);
    assert_eq!(
        report.process(workload.tgid()).expect("it is reported").only_gpu().number("driver_allocated_bytes"),
        2 * MIB
    );
}

#[test(alone)]
fn a_child_made_by_vfork_and_exec_is_watched_from_its_start() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut parent = gpu.workload();
    parent.run(&BEGIN);
    // Also as the child of a target.
    for words in [vec![], vec!["--pid".to_owned(), parent.tgid_word()]] {
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut watch = gpu.watch(&words);
        let child = parent.ask("vforkexec child")["tgid"].as_u64().and_then(|tgid| u32::try_from(tgid).ok());
        let child = child.expect("a child");
        parent.run(&["alloc a 4M", "@child uuid 0", "@child device 0", "@child alloc b 6M"]);
        let report = watch.settled();
        let process = report.process(child).unwrap_or_else(|| panic!("not reported: {report:#?}"));
        assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 6 * MIB);
        assert!(process.is_exact() && process.0["from_start"] == true, "{:#}", process.0);
        assert_eq!(
            report.process(parent.tgid()).expect("it is reported").only_gpu().number("driver_allocated_bytes"),
            4 * MIB
        );
        assert_eq!(parent.ask("wait child")["exit_code"], 0);
        parent.run(&["free a"]);
        assert_the_dead_are_forgotten(&mut watch);
    }
}
