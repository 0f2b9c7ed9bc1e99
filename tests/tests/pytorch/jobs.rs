//! Situations of real PyTorch jobs: a full device, a second device, another job on the same device,
//! and `memwatch run`.

use memwatch_tests::report::{ReportLine, ReportedGpu};
use memwatch_tests::test;
use memwatch_tests::{CONTEXT_BYTES, CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator, TorchJob};
use serde_json::Value;

/// Returns a number of a checkpoint for the device at this index of its list.
fn stated(checkpoint: &Value, device: usize, field: &str) -> u64 {
    checkpoint["devices"][device][field].as_u64().unwrap_or_else(|| panic!("no {field}: {checkpoint}"))
}

/// Asserts that memwatch's numbers equal PyTorch's. Its native allocator allocates from the driver
/// what it has reserved, and nothing else allocates.
fn assert_as_stated(on_gpu: ReportedGpu<'_>, checkpoint: &Value, device: usize) {
    let reserved_bytes = stated(checkpoint, device, "memory_reserved");
    assert_eq!(on_gpu.number("driver_allocated_bytes"), reserved_bytes, "live at {checkpoint}: {:#}", on_gpu.0);
    assert_eq!(on_gpu.number("peak_bytes"), stated(checkpoint, device, "max_memory_reserved"), "peak at {checkpoint}");
    assert_eq!(on_gpu.number("used_bytes"), reserved_bytes + CONTEXT_BYTES, "used at {checkpoint}: {:#}", on_gpu.0);
}

fn assert_exact(report: &ReportLine, job: &TorchJob) {
    let process = report.process(job.tgid()).unwrap_or_else(|| panic!("not reported: {report:#?}"));
    assert!(process.is_exact() && report.is_complete(), "records were lost: {report:#?}");
}

#[test(alone)]
fn an_allocation_that_exceeds_the_device_is_shown_with_its_size() {
    // A multiple of the 2 MiB to which PyTorch rounds large requests.
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_TOTAL_MB", &81_560);
    let mut watch = gpu.watch(&[]);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["oom.py"]);
    let mut requested_bytes = None;
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.settled();
        assert_exact(&report, &job);
        let process = report.process(job.tgid()).expect("the job is reported");
        assert_as_stated(process.only_gpu(), &checkpoint, 0);
        requested_bytes = requested_bytes.or(checkpoint["requested_bytes"].as_u64());
        let refused = gpu.ledger().process(job.tgid()).expect("the job is in the simulator's ledger").failures;
        assert_eq!(process.only_gpu().number("failed_allocations"), refused, "at {checkpoint}");
        assert_eq!(refused > 0, requested_bytes.is_some(), "at {checkpoint}");
        assert_eq!(u64::try_from(process.failures().len()), Ok(refused), "at {checkpoint}");
        for failure in process.failures() {
            assert_eq!(failure["requested_bytes"].as_u64(), requested_bytes, "{failure}");
            assert_eq!((&failure["symbol"], &failure["error"]), (&"cuMemAlloc_v2".into(), &"out of memory".into()));
            assert_eq!(failure["uuid"], report.gpu(0)["uuid"]);
        }
        job.go_on();
    }
    assert!(requested_bytes.is_some(), "the script has asked for too little");
}

#[test(alone)]
fn a_job_on_two_gpus_has_each_gpus_bytes_on_it() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with("GPUSIM_DEVICES", &2);
    let mut watch = gpu.watch(&[]);
    let mut job = gpu.torch("2.15", TorchAllocator::Native, &["two_gpus.py"]);
    let mut checkpoints = 0;
    while let Some(checkpoint) = job.next_checkpoint() {
        let report = watch.settled();
        assert_exact(&report, &job);
        let process = report.process(job.tgid()).expect("the job is reported");
        for device in 0..2 {
            let uuid = gpu.ledger().uuid(device).expect("there are two devices");
            assert_as_stated(process.on(&uuid).expect("it is on both devices"), &checkpoint, device);
        }
        checkpoints += 1;
        job.go_on();
    }
    assert_eq!(checkpoints, 4);
}

#[test(alone)]
fn two_jobs_on_one_gpu_are_both_exact() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut watch = gpu.watch(&[]);
    let start = |words| gpu.torch("2.15", TorchAllocator::Native, words);
    let mut jobs = [start(&["idle_hold.py", "--mib", "256"]), start(&["grow_free.py"])];
    for _ in 0..4 {
        let checkpoints = jobs.each_mut().map(|job| job.next_checkpoint().expect("both have four checkpoints"));
        let report = watch.settled();
        for (job, checkpoint) in jobs.iter_mut().zip(&checkpoints) {
            assert_exact(&report, job);
            assert_as_stated(report.process(job.tgid()).expect("both are reported").only_gpu(), checkpoint, 0);
            job.go_on();
        }
    }
}

#[test(alone)]
fn run_reports_the_peak_of_a_training() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let words = ["transformer.py", "--steps", "2", "--layers", "4", "--dim", "512"];
    let job = gpu.torch_command("2.15", TorchAllocator::Native, &words);
    let outcome = CommandOutcome::of(gpu.memwatch_run(&["--json"], &job));
    outcome.assert_ended_with(0, &[]);
    let end: Value =
        outcome.stdout.lines().last().and_then(|line| serde_json::from_str(line).ok()).expect("a checkpoint");
    assert_eq!(end["label"], "end");
    let report = ReportLine::parse(outcome.stderr.lines().last().expect("the report is the last line"));
    let tgid = end["pid"].as_u64().and_then(|tgid| u32::try_from(tgid).ok()).expect("a checkpoint says who it is");
    let process = report.process(tgid).unwrap_or_else(|| panic!("not reported: {report:#?}"));
    assert!(process.is_exact() && report.is_complete() && process.has_ended(), "{report:#?}");
    assert_eq!(process.0["from_start"], true);
    let on_gpu = process.only_gpu();
    assert_eq!(on_gpu.number("peak_bytes"), stated(&end, 0, "max_memory_reserved"));
    assert_eq!(on_gpu.number("driver_allocated_bytes"), 0);
    assert_eq!(on_gpu.number("allocations"), on_gpu.number("frees") + process.number("implicit_frees"));
}
