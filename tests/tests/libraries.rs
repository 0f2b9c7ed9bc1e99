//! Where the driver library is, and how often: containers, copies, and files replaced under a running job.

use std::fs;
use std::path::Path;

use memwatch_tests::mounts::after_mounting;
use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::report::Report;
use memwatch_tests::{Gpu, MIB, Shape, Watch, Workload};
use serde_json::Value;

/// A watch on these processes that has to find their driver libraries itself.
fn search_for(gpu: &Gpu, workloads: &[&Workload]) -> Watch {
    let targets: Vec<String> = workloads.iter().map(|workload| workload.tgid_word()).collect();
    Watch::start(gpu.searching_memwatch(&["--pid", &targets.join(",")]))
}

/// A workload that has loaded the driver library and done nothing with it.
fn ready(mut workload: Workload) -> Workload {
    workload.ask("tgid");
    workload
}

fn paths(report: &Report) -> Vec<&str> {
    let libraries = report.json()["coverage"]["libraries"].as_array().expect("libraries");
    libraries.iter().filter_map(|library| library["path"].as_str()).collect()
}

fn assert_probed(report: &Report) {
    for library in report.json()["coverage"]["libraries"].as_array().expect("libraries") {
        assert_eq!(library["error"], Value::Null, "{library:#}");
        assert!(library["probes_attached"].as_u64() >= Some(40), "{library:#}");
    }
}

/// Some calls of each process, of which each must be counted once.
fn assert_counted_once(gpu: &Gpu, watch: &mut Watch, workloads: &mut [&mut Workload]) {
    for workload in workloads.iter_mut() {
        workload.run(&["uuid 0", "device 0", "alloc a 4M", "alloc b 6M", "free a", "async c 2M", "create d 8M"]);
    }
    for workload in workloads.iter() {
        let report = assert_agrees(gpu, watch, workload, Agreement::Exact);
        let on_gpu = report.process(workload.tgid()).expect("it is reported").only_gpu();
        assert_eq!(on_gpu.number("live_bytes"), 16 * MIB);
        assert_eq!((on_gpu.number("allocations"), on_gpu.number("frees")), (4, 1), "{report:#?}");
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test]
fn one_file_in_two_containers_is_probed_once() {
    let Some(gpu) = Gpu::new(Shape::Cmp).map(Gpu::with_own_libcuda) else { return };
    let libraries = gpu.libcuda().parent().expect("a directory").to_owned();
    let empty = gpu.directory().join("empty");
    fs::create_dir(&empty).expect("a directory in the temporary one");
    // Each gets an overlay of its own over the very same file, as two containers of one image do.
    let overlay = "mount -t overlay overlay -o \"lowerdir=$1:$2\" \"$1\"";
    let start = || {
        let command = after_mounting(overlay, &[text(&libraries), text(&empty)], &gpu.workload_command())?;
        Some(ready(Workload::start(command)))
    };
    let (Some(mut first), Some(mut second)) = (start(), start()) else { return };
    let mut beside = ready(gpu.workload());
    let mut watch = search_for(&gpu, &[&first, &second, &beside]);
    assert_counted_once(&gpu, &mut watch, &mut [&mut first, &mut second, &mut beside]);
    let report = watch.settled();
    assert_probed(&report);
    assert_eq!(paths(&report).len(), 1, "{report:#?}");
}

#[test]
fn a_containers_own_copy_is_found_through_its_process() {
    let Some(gpu) = Gpu::new(Shape::Push) else { return };
    let place = gpu.directory().join("in container");
    fs::create_dir(&place).expect("a directory in the temporary one");
    // The host sees an empty directory there.
    let copy = "mount -t tmpfs none \"$1\" && cp \"$2\" \"$1\"";
    let mut job = gpu.workload_command();
    job.env("LD_LIBRARY_PATH", &place);
    let Some(command) = after_mounting(copy, &[text(&place), text(&gpu.libcuda())], &job) else { return };
    let mut inside = ready(Workload::start(command));
    let mut watch = search_for(&gpu, &[&inside]);
    assert_counted_once(&gpu, &mut watch, &mut [&mut inside]);
    let report = watch.settled();
    assert_probed(&report);
    assert_eq!(paths(&report), [text(&place.join("libcuda.so.1"))]);
}

#[test]
fn two_copies_are_two_files_and_both_are_probed() {
    let Some(gpu) = Gpu::new(Shape::Cmp) else { return };
    let place = gpu.directory().join("copy");
    fs::create_dir(&place).expect("a directory in the temporary one");
    fs::copy(gpu.libcuda(), place.join("libcuda.so.1")).expect("a copy of the library");
    let mut job = gpu.workload_command();
    job.env("LD_LIBRARY_PATH", &place);
    let mut copied = ready(Workload::start(job));
    let mut original = ready(gpu.workload());
    let mut watch = search_for(&gpu, &[&copied, &original]);
    assert_counted_once(&gpu, &mut watch, &mut [&mut copied, &mut original]);
    let report = watch.settled();
    assert_probed(&report);
    assert_eq!(paths(&report).len(), 2, "{report:#?}");
}

#[test]
fn a_library_deleted_or_replaced_under_a_job_is_probed_all_the_same() {
    for replaced in [false, true] {
        let Some(gpu) = Gpu::new(Shape::Cmp).map(Gpu::with_own_libcuda) else { return };
        let mut old = ready(gpu.workload());
        let file = gpu.libcuda();
        let copy = gpu.directory().join("newer");
        fs::copy(&file, &copy).expect("a copy of the library");
        fs::remove_file(&file).expect("the library is ours");
        if replaced {
            fs::rename(&copy, &file).expect("the library is ours");
        }
        let mut watch = search_for(&gpu, &[&old]);
        assert_counted_once(&gpu, &mut watch, &mut [&mut old]);
        let report = watch.settled();
        assert_probed(&report);
        assert_eq!(paths(&report), [text(&file)], "replaced: {replaced}");
        if replaced {
            let mut new = ready(gpu.workload());
            let mut watch = search_for(&gpu, &[&new]);
            assert_counted_once(&gpu, &mut watch, &mut [&mut new]);
        }
    }
}

#[test]
fn a_library_that_appears_while_everybody_is_watched_gets_its_probes() {
    let Some(gpu) = Gpu::new(Shape::Cmp).map(Gpu::with_own_libcuda) else { return };
    let mut watch = Watch::start(gpu.searching_memwatch(&[]));
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc early 4M"]);
    let path = gpu.libcuda();
    watch.until(|report| paths(report).contains(&text(&path)));
    workload.run(&["alloc late 6M"]);
    let report = watch.settled();
    let process = report.process(workload.tgid()).expect("it is reported");
    // Its first allocation came before the probes.
    assert_eq!(process.0["from_start"], false);
    assert_eq!(process.only_gpu().0["before_attach_bytes"], 4 * MIB + memwatch_tests::CONTEXT_BYTES);
    assert_eq!(process.only_gpu().number("live_bytes"), 6 * MIB);
    assert_eq!(process.only_gpu().number("unexplained_bytes"), 4 * MIB + memwatch_tests::CONTEXT_BYTES);
    assert!(process.is_exact());
}
