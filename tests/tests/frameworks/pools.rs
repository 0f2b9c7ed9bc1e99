//! The pools of RAPIDS' memory manager and of CuPy in a program with late attach. The files of the
//! real packages are probed by the same rows as the libraries used in their place.

use memwatch_tests::pools::{CUPY, RMM, job, pools, rows};
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchJob};
use serde_json::{Value, json};

#[test]
fn late_attach_to_rmm_has_younger_blocks_and_no_totals() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = job(&gpu, RMM, "late");
    job.next_checkpoint().expect("the library");
    job.go_on();
    job.next_checkpoint().expect("blocks from before the attach");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    watch.until(|report| pools(report, job.tgid()).is_array());
    for known_bytes in [4096, 4096, 0] {
        job.go_on();
        let checkpoint = job.next_checkpoint().expect("it goes on");
        let report = watch.until(|report| pools(report, job.tgid())[0]["known_bytes"] == known_bytes);
        let pool = &pools(&report, job.tgid())[0];
        for number in ["bytes_in_use", "peak_bytes_in_use", "num_allocs"] {
            assert!(pool[number].is_null(), "{number} is that of all: {pool:#}");
        }
        assert_eq!((&pool["pool_bytes"], &pool["out_of_step"]), (&checkpoint["pools"][0]["pool_bytes"], &json!(0)));
        assert_eq!((&pool["exact"], &pool["older_unknown"]), (&json!(false), &json!(true)));
    }
    drop(watch);
    let shown = CommandOutcome::of(gpu.memwatch(&["--no-agent", "ps"]));
    assert!(shown.stdout.contains(" rmm "), "{}", shown.stdout);
}

#[test]
fn attached_late_cupys_pool_says_itself_what_is_in_use() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = job(&gpu, CUPY, "late");
    job.next_checkpoint().expect("the library");
    job.go_on();
    job.next_checkpoint().expect("chunks from before the attach");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    watch.until(|report| pools(report, job.tgid()).is_array());
    let mut last = Value::Null;
    for _ in 0..3 {
        job.go_on();
        let checkpoint = job.next_checkpoint().expect("it goes on");
        let own = &checkpoint["pools"][0];
        let report = watch.until(|report| {
            let pool = &pools(report, job.tgid())[0];
            ["bytes_in_use", "pool_bytes"].iter().all(|number| pool[number] == own[number])
        });
        last = pools(&report, job.tgid())[0].clone();
        assert_eq!((&last["out_of_step"], &last["device"]), (&json!(0), &json!(0)), "{last:#}");
        assert!(last["peak_bytes_in_use"].is_null(), "{last:#}");
    }
    assert_eq!(
        (&last["exact"], &last["known_bytes"]),
        (&json!(true), &json!(0)),
        "nothing is older any more: {last:#}"
    );
    assert_eq!(last["framework"], "cupy");
}

#[test]
fn rmm_and_cupy_packages_have_the_functions_and_layout_of_the_stubs() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let command = gpu.pools_command(&["pools_files.py"]);
    let mut job = TorchJob::start(command);
    job.next_checkpoint().expect("both files are mapped");
    let mut watch = gpu.watch(&["--no-agent", "stats", &job.tgid().to_string()]);
    let frameworks =
        |report: &ReportLine| report.process(job.tgid()).map(|process| process.0["pools"]["frameworks"].clone());
    watch.until(|report| frameworks(report) == Some(json!(["rmm", "cupy"])));
    job.go_on();
    let checkpoint = job.next_checkpoint().expect("RAPIDS' own functions were called");
    let found = |report: &ReportLine| pools(report, job.tgid());
    let report = watch.until(|report| {
        rows(&found(report), &["kind", "known_bytes"]) == rows(&checkpoint["pools"], &["kind", "known_bytes"])
    });
    assert_eq!(
        rows(&found(&report), &["pool_bytes", "block_bytes", "exact"]),
        rows(&checkpoint["pools"], &["pool_bytes", "block_bytes", "exact"])
    );
}
