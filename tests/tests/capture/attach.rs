//! Late attach: memory from before the attach is reported separately, later allocations exactly.

use std::sync::atomic::{AtomicBool, Ordering};

use memwatch_tests::report::{ReportLine, ReportedGpu};
use memwatch_tests::test;
use memwatch_tests::{
    CONTEXT_BYTES, MIB, PrologueShape, RunningProgram, RunningWatch, SimulatedGpu, SimulatedWorkload, TorchAllocator,
    TorchJob,
};
use serde_json::Value;

fn reserved_bytes(checkpoint: &Value) -> u64 {
    checkpoint["devices"][0]["memory_reserved"].as_u64().unwrap_or_else(|| panic!("no memory_reserved: {checkpoint}"))
}

fn checkpoint(job: &mut TorchJob, label: &str) -> Value {
    let checkpoint = job.next_checkpoint().expect("the script has not ended");
    assert_eq!(checkpoint["label"], label);
    checkpoint
}

/// Expected report of a process on its only GPU.
#[derive(Debug, PartialEq, Eq)]
struct Expected {
    live_bytes: u64,
    preexisting_bytes: u64,
    includes_context: bool,
    used_bytes: u64,
}

fn assert_reported(report: &ReportLine, tgid: u32, expected: &Expected) {
    let process = report.process(tgid).unwrap_or_else(|| panic!("{tgid} is not reported: {report:#?}"));
    let on_gpu = process.only_gpu();
    let reported = Expected {
        live_bytes: on_gpu.number("driver_allocated_bytes"),
        preexisting_bytes: on_gpu.number("preexisting_bytes"),
        includes_context: on_gpu.0["preexisting_includes_context"] == true,
        used_bytes: on_gpu.number("used_bytes"),
    };
    assert_eq!(&reported, expected, "{report:#?}");
    assert_eq!(on_gpu.number("unattributed_bytes"), expected.used_bytes - expected.live_bytes, "{report:#?}");
    assert!(process.is_exact() && report.is_complete(), "records were lost: {report:#?}");
}

fn only_gpu_of<'a>(report: &'a ReportLine, workload: &SimulatedWorkload) -> ReportedGpu<'a> {
    report.process(workload.tgid()).unwrap_or_else(|| panic!("not reported: {report:#?}")).only_gpu()
}

/// Runs the job of `idle_hold.py`, attached at its first checkpoint, to its end.
fn follow_idle_hold(job: &mut TorchJob, watch: &mut RunningWatch, held_bytes: u64, unknown_context_bytes: u64) {
    for (label, unknown_frees) in [("more", 0), ("early part freed", 8), ("end", 8)] {
        job.go_on();
        let reserved = reserved_bytes(&checkpoint(job, label));
        let live_bytes = match label {
            "more" => reserved - held_bytes,
            _ => reserved,
        };
        let report = watch.settled();
        assert_reported(
            &report,
            job.tgid(),
            &Expected {
                live_bytes,
                preexisting_bytes: reserved - live_bytes + unknown_context_bytes,
                includes_context: unknown_context_bytes > 0,
                used_bytes: reserved + CONTEXT_BYTES,
            },
        );
        let process = report.process(job.tgid()).expect("it was there a moment ago");
        assert_eq!(process.number("unknown_frees"), unknown_frees, "at {label}: {report:#?}");
    }
    job.go_on();
    assert!(job.next_checkpoint().is_none());
}

#[test(alone)]
fn pytorch_memory_at_attach_is_preexisting_and_later_memory_is_live() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["idle_hold.py"]);
    let held_bytes = reserved_bytes(&checkpoint(&mut job, "holding"));
    let mut watch = gpu.watch(&["--pid", &job.tgid().to_string()]);
    let report = watch.settled();
    // The size of a context is unknown here, so it cannot be separated from the job's own
    // allocations.
    assert_reported(
        &report,
        job.tgid(),
        &Expected {
            live_bytes: 0,
            preexisting_bytes: held_bytes + CONTEXT_BYTES,
            includes_context: true,
            used_bytes: held_bytes + CONTEXT_BYTES,
        },
    );
    assert_eq!(report.process(job.tgid()).expect("the target").0["from_start"], false);
    follow_idle_hold(&mut job, &mut watch, held_bytes, CONTEXT_BYTES);
    let (last, code) = watch.finish();
    assert_eq!(code, 0);
    let process = last.process(job.tgid()).expect("the target stays in the report");
    assert!(process.has_ended());
    assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 0);
}

#[test(alone)]
fn another_job_seen_from_its_start_takes_the_context_out_of_preexisting() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["idle_hold.py"]);
    let held_bytes = reserved_bytes(&checkpoint(&mut job, "holding"));
    let mut watch = gpu.watch(&[]);
    let mut teacher = gpu.workload();
    teacher.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let report = watch.settled();
    assert_reported(
        &report,
        job.tgid(),
        &Expected {
            live_bytes: 0,
            preexisting_bytes: held_bytes,
            includes_context: false,
            used_bytes: held_bytes + CONTEXT_BYTES,
        },
    );
    assert_eq!(report.gpu(0)["context_bytes"], CONTEXT_BYTES);
    follow_idle_hold(&mut job, &mut watch, held_bytes, 0);
}

#[test(alone)]
fn the_table_says_what_is_older_than_the_watch() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc early 64M"]);
    let words = ["--pid", &workload.tgid_word()];
    let once = gpu.run_memwatch(&[&["ps"], &words[..]].concat());
    assert_eq!(once.code, 0, "{}", once.stderr);
    let mut watch = RunningProgram::start(gpu.memwatch(&[&words[..], &["--interval", "100ms"]].concat()));
    for text in [once.stdout, watch.until_line_with("≤582.0 MiB") + &watch.until_line_with("started before attach")] {
        // 64 MiB and the context.
        assert!(text.contains("≤582.0 MiB"), "{text}");
        assert!(text.contains("1 process started before attach"), "{text}");
    }
    workload.run(&["alloc late 32M", "free early"]);
    let row = watch.until_line_with("≤518.0 MiB");
    assert!(row.contains("32.0 MiB"), "{row}");
    watch.until_line_with("1 free of memory allocated before attach");
}

#[test(alone)]
fn an_old_and_a_new_process_on_one_gpu_are_determined_by_their_age() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut old = gpu.workload();
    old.run(&["uuid 0", "device 0", "alloc early 4M", "async pooled 2M", "create physical 6M"]);
    let mut watch = gpu.watch(&[]);
    let mut new = gpu.workload();
    new.run(&["uuid 0", "device 0", "alloc a 8M"]);
    old.run(&["alloc late 10M"]);
    let report = watch.settled();
    assert_eq!(only_gpu_of(&report, &old).number("driver_allocated_bytes"), 10 * MIB);
    // The pool has allocated 32 MiB for the 2 MiB in use.
    assert_eq!(only_gpu_of(&report, &old).number("preexisting_bytes"), (4 + 32 + 6) * MIB);
    assert_eq!(only_gpu_of(&report, &new).number("driver_allocated_bytes"), 8 * MIB);
    assert_eq!(only_gpu_of(&report, &new).number("preexisting_bytes"), 0);
    let from_start = |workload: &SimulatedWorkload| {
        report.process(workload.tgid()).expect("both are reported").0["from_start"].clone()
    };
    assert_eq!((from_start(&old), from_start(&new)), (false.into(), true.into()));
    old.run(&["free early", "release physical"]);
    let report = watch.settled();
    assert_eq!(only_gpu_of(&report, &old).number("driver_allocated_bytes"), 10 * MIB);
    assert_eq!(only_gpu_of(&report, &old).number("preexisting_bytes"), 32 * MIB);
}

#[test(alone)]
fn process_without_a_context_at_attach_has_no_preexisting_bytes() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut workload = gpu.workload();
    // The answer shows that the program has loaded the library.
    workload.ask("tgid");
    let mut watch = gpu.watch(&["--pid", &workload.tgid_word()]);
    watch.settled();
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let reported = Expected {
        live_bytes: 4 * MIB,
        preexisting_bytes: 0,
        includes_context: false,
        used_bytes: 4 * MIB + CONTEXT_BYTES,
    };
    assert_reported(&watch.settled(), workload.tgid(), &reported);
}

#[test(alone)]
fn two_watches_on_one_process_agree() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc early 4M"]);
    let words = ["--pid", &workload.tgid_word()];
    let mut first = gpu.watch(&words);
    let mut second = gpu.watch(&words);
    first.settled();
    second.settled();
    workload.run(&["alloc a 6M", "async b 2M", "free early", "alloc c 8M", "free a"]);
    let reports = [first.settled(), second.settled()];
    let reported = reports.each_ref().map(|report| only_gpu_of(report, &workload).0);
    assert_eq!(reported[0], reported[1]);
    assert_eq!(reported[0]["driver_allocated_bytes"], 10 * MIB);
    drop(first);
    workload.run(&["free c"]);
    assert_eq!(only_gpu_of(&second.settled(), &workload).number("driver_allocated_bytes"), 2 * MIB);
}

/// Sets a flag when it is dropped, also during a panic.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Attaches while threads allocate and free. The threads run until memwatch has attached.
fn attach_in_the_middle_of_calls(gpu: &SimulatedGpu, workload: &mut SimulatedWorkload) -> RunningWatch {
    let words = ["--pid", &workload.tgid_word()];
    let attached = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !attached.load(Ordering::Relaxed) {
                assert_eq!(workload.ask("churn 4 1000 2M")["result"], 0);
            }
        });
        let _over = Over(&attached);
        gpu.watch(&words)
    })
}

#[test(alone)]
fn an_attach_in_the_middle_of_calls_of_many_threads_ends_exactly() {
    // A copy of libcuda has no probes of other tests.
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0"]);
    let mut watch = attach_in_the_middle_of_calls(&gpu, &mut workload);
    workload.run(&["alloc kept 4M", "churn 4 1000 2M"]);
    let report = watch.settled();
    let process = report.process(workload.tgid()).expect("the target");
    assert!(process.is_exact() && report.is_complete(), "records were lost: {report:#?}");
    assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 4 * MIB);
    assert_eq!(process.only_gpu().number("preexisting_bytes"), CONTEXT_BYTES);
}

#[test(alone)]
fn a_second_watch_that_attaches_to_a_busy_process_loses_nothing() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0"]);
    let mut first = gpu.watch(&["--pid", &workload.tgid_word()]);
    let mut second = attach_in_the_middle_of_calls(&gpu, &mut workload);
    workload.run(&["alloc kept 4M", "churn 4 1000 2M"]);
    for watch in [&mut first, &mut second] {
        let report = watch.settled();
        let process = report.process(workload.tgid()).expect("the target");
        assert!(process.is_exact() && report.is_complete(), "records were lost: {report:#?}");
        assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 4 * MIB);
    }
}
