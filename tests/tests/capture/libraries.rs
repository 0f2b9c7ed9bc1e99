//! Locations of the driver library: containers, copies, and files that are replaced while a job
//! runs.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use memwatch_tests::agent::TestAgent;
use memwatch_tests::mounts::after_mounting;
use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{MIB, PrologueShape, RunningWatch, SimulatedGpu, SimulatedWorkload};
use serde_json::Value;

/// Starts a watch of these processes that has to find their driver libraries itself.
fn search_for(gpu: &SimulatedGpu, workloads: &[&SimulatedWorkload]) -> RunningWatch {
    let targets: Vec<String> = workloads.iter().map(|workload| workload.tgid_word()).collect();
    RunningWatch::start(gpu.searching_memwatch(&["--pid", &targets.join(",")]))
}

/// Waits until a workload has loaded the driver library. It has not called the library yet.
fn ready(mut workload: SimulatedWorkload) -> SimulatedWorkload {
    workload.ask("tgid");
    workload
}

fn paths(report: &ReportLine) -> Vec<&str> {
    let libraries = report.json()["coverage"]["libraries"].as_array().expect("libraries");
    libraries.iter().filter_map(|library| library["path"].as_str()).collect()
}

/// Returns the report on the library at a path.
fn library<'a>(report: &'a ReportLine, path: &Path) -> &'a Value {
    let mut libraries = report.json()["coverage"]["libraries"].as_array().expect("libraries").iter();
    libraries
        .find(|library| library["path"] == text(path))
        .unwrap_or_else(|| panic!("no {}: {report:#?}", path.display()))
}

fn assert_probed(report: &ReportLine) {
    for library in report.json()["coverage"]["libraries"].as_array().expect("libraries") {
        assert_eq!(library["error"], Value::Null, "{library:#}");
        assert!(library["probes_attached"].as_u64() >= Some(40), "{library:#}");
    }
}

/// Makes some calls in each process and asserts that each call is counted once.
fn assert_counted_once(gpu: &SimulatedGpu, watch: &mut RunningWatch, workloads: &mut [&mut SimulatedWorkload]) {
    for workload in workloads.iter_mut() {
        workload.run(&["uuid 0", "device 0", "alloc a 4M", "alloc b 6M", "free a", "async c 2M", "create d 8M"]);
    }
    for workload in workloads.iter() {
        let report = assert_agrees(gpu, watch, workload, Agreement::Exact);
        let on_gpu = report.process(workload.tgid()).expect("it is reported").only_gpu();
        assert_eq!(on_gpu.number("driver_allocated_bytes"), 16 * MIB);
        assert_eq!((on_gpu.number("allocations"), on_gpu.number("frees")), (4, 1), "{report:#?}");
    }
}

mod mapping {
    use std::fs::File;
    use std::os::fd::AsRawFd as _;
    use std::path::Path;

    /// The first page of a file, mapped into this process as executable code that is never run.
    pub(super) struct ExecutableMapping(*mut libc::c_void);

    const PAGE_BYTES: usize = 4096;

    impl ExecutableMapping {
        pub(super) fn of(path: &Path) -> Self {
            let file = File::open(path).expect("the file is there");
            let protection = libc::PROT_READ | libc::PROT_EXEC;
            let (nowhere, descriptor) = (std::ptr::null_mut(), file.as_raw_fd());
            // SAFETY: a new mapping, at an address that the kernel chooses, of a file that is open.
            let address = unsafe { libc::mmap(nowhere, PAGE_BYTES, protection, libc::MAP_PRIVATE, descriptor, 0) };
            assert_ne!(address, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
            Self(address)
        }
    }

    impl Drop for ExecutableMapping {
        fn drop(&mut self) {
            // SAFETY: the mapping is ours, and nothing points into it.
            unsafe { libc::munmap(self.0, PAGE_BYTES) };
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a plain path")
}

#[test(alone)]
fn one_file_in_two_containers_is_probed_once() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let libraries = gpu.libcuda().parent().expect("a directory").to_owned();
    let empty = gpu.directory().join("empty");
    fs::create_dir(&empty).expect("a directory in the temporary one");
    // Each process gets its own overlay over the same file, like two containers of one image.
    let overlay = "mount -t overlay overlay -o \"lowerdir=$1:$2\" \"$1\"";
    let start = || {
        let command = after_mounting(overlay, &[text(&libraries), text(&empty)], &gpu.workload_command());
        ready(SimulatedWorkload::start(command))
    };
    let (mut first, mut second) = (start(), start());
    let mut beside = ready(gpu.workload());
    let mut watch = search_for(&gpu, &[&first, &second, &beside]);
    assert_counted_once(&gpu, &mut watch, &mut [&mut first, &mut second, &mut beside]);
    let report = watch.settled();
    assert_probed(&report);
    assert_eq!(paths(&report).len(), 1, "{report:#?}");
}

/// Starts a job with its own copy of the library in this folder, which is empty for the host.
fn inside_of(gpu: &SimulatedGpu, place: &Path) -> SimulatedWorkload {
    let copy = "mount -t tmpfs none \"$1\" && cp \"$2\" \"$1\"";
    let mut job = gpu.workload_command();
    job.env("LD_LIBRARY_PATH", place);
    let command = after_mounting(copy, &[text(place), text(&gpu.libcuda())], &job);
    ready(SimulatedWorkload::start(command))
}

#[test(alone)]
fn a_containers_own_copy_is_found_through_its_process() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let place = gpu.directory().join("in container");
    fs::create_dir(&place).expect("a directory in the temporary one");
    let mut inside = inside_of(&gpu, &place);
    let mut watch = search_for(&gpu, &[&inside]);
    assert_counted_once(&gpu, &mut watch, &mut [&mut inside]);
    let report = watch.settled();
    assert_probed(&report);
    assert_eq!(paths(&report), [text(&place.join("libcuda.so.1"))]);
}

#[test(alone)]
fn two_copies_are_two_files_and_both_are_probed() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let place = gpu.directory().join("copy");
    fs::create_dir(&place).expect("a directory in the temporary one");
    fs::copy(gpu.libcuda(), place.join("libcuda.so.1")).expect("a copy of the library");
    let mut job = gpu.workload_command();
    job.env("LD_LIBRARY_PATH", &place);
    let mut copied = ready(SimulatedWorkload::start(job));
    let mut original = ready(gpu.workload());
    let mut watch = search_for(&gpu, &[&copied, &original]);
    assert_counted_once(&gpu, &mut watch, &mut [&mut copied, &mut original]);
    let report = watch.settled();
    assert_probed(&report);
    assert_eq!(paths(&report).len(), 2, "{report:#?}");
}

#[test(alone)]
fn a_library_deleted_or_replaced_under_a_job_is_probed_all_the_same() {
    for replaced in [false, true] {
        let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
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
        // A job could load the file at the old path, too.
        assert_eq!(paths(&report), vec![text(&file); 1 + usize::from(replaced)], "replaced: {replaced}");
        if replaced {
            let mut new = ready(gpu.workload());
            let mut watch = search_for(&gpu, &[&new]);
            assert_counted_once(&gpu, &mut watch, &mut [&mut new]);
        }
    }
}

/// Stops a process until `happens` has returned.
fn while_stopped<R>(tgid: u32, happens: impl FnOnce() -> R) -> R {
    let send = |signal| {
        let tgid = libc::pid_t::try_from(tgid).expect("a process id");
        // SAFETY: the process is a child of this test, and was not waited for.
        assert_eq!(unsafe { libc::kill(tgid, signal) }, 0);
    };
    memwatch_tests::stop(tgid);
    let result = happens();
    send(libc::SIGCONT);
    result
}

/// A library appears while the whole machine is watched, and its process allocates before memwatch
/// has found the library.
fn appears_while_everybody_is_watched(options: &[&str], discovery: &str) -> (Value, Duration) {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let mut watch = RunningWatch::start(gpu.searching_memwatch(options));
    let (mut workload, missed) = while_stopped(watch.tgid(), || {
        let mut workload = ready(gpu.workload());
        let begin = Instant::now();
        workload.run(&["uuid 0", "device 0", "alloc early 4M"]);
        (workload, begin.elapsed())
    });
    let path = gpu.libcuda();
    watch.until(|report| paths(report).contains(&text(&path)));
    workload.run(&["alloc late 6M"]);
    let report = watch.settled();
    let process = report.process(workload.tgid()).expect("it is reported");
    // The first allocation was made before the probes were attached.
    assert_eq!(process.0["from_start"], false);
    assert_eq!(process.only_gpu().0["preexisting_bytes"], 4 * MIB + memwatch_tests::CONTEXT_BYTES);
    assert_eq!(process.only_gpu().number("driver_allocated_bytes"), 6 * MIB);
    assert_eq!(process.only_gpu().number("unattributed_bytes"), 4 * MIB + memwatch_tests::CONTEXT_BYTES);
    assert!(process.is_exact());
    assert_eq!(report.json()["coverage"]["discovery"], discovery);
    (library(&report, &path).clone(), missed)
}

#[test(alone)]
fn library_appearing_during_a_watch_of_all_is_probed_and_its_gap_reported() {
    let (library, missed) = appears_while_everybody_is_watched(&[], "mapping_records");
    let gap_ns = library["gap_ns"].as_u64().unwrap_or_else(|| panic!("no gap: {library:#}"));
    // The library was mapped before the first of the missed calls, and probed after the last.
    assert!(u128::from(gap_ns) > missed.as_nanos(), "{gap_ns} ns, but {missed:?} were missed");
}

#[test(alone)]
fn without_mapping_records_a_library_that_appears_is_found_by_looking() {
    let found = appears_while_everybody_is_watched(&["--poll-libraries"], "polling");
    let (library, _) = found;
    // The time of the mapping is unknown.
    assert_eq!(library["gap_ns"], Value::Null);
}

#[test(alone)]
fn a_library_probed_before_anybody_mapped_it_has_no_gap() {
    let gpu = SimulatedGpu::new(PrologueShape::Push).with_own_libcuda();
    let mut watch = gpu.watch(&[]);
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let report = assert_agrees(&gpu, &mut watch, &workload, Agreement::Exact);
    assert_eq!(report.process(workload.tgid()).expect("it is reported").0["from_start"], true);
    assert_eq!(library(&report, &gpu.libcuda())["gap_ns"], Value::Null);
}

#[test(alone)]
fn target_that_execs_onto_another_library_is_followed() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let mut workload = ready(gpu.workload());
    let mut watch = search_for(&gpu, &[&workload]);
    let next = gpu.directory().join("next");
    fs::create_dir(&next).expect("a directory in the temporary one");
    fs::copy(gpu.libcuda(), next.join("libcuda.so.1")).expect("a copy of the library");
    // The same process, after an exec, with the library of another folder.
    let words = format!("exec /usr/bin/env LD_LIBRARY_PATH={} {}", text(&next), text(&gpu.workload_program()));
    workload.report(&words);
    workload.ask("tgid");
    watch.until(|report| paths(report).len() == 2);
    assert_counted_once(&gpu, &mut watch, &mut [&mut workload]);
}

/// Writes the first bytes of a 32-bit ELF file, padded to a page so that it can be mapped.
fn write_32_bit_library(path: &Path) {
    let mut contents = b"\x7fELF\x01\x01\x01".to_vec();
    contents.resize(4096, 0);
    fs::write(path, contents).expect("a file in the temporary directory");
}

const LEFT_OUT: &str = "32-bit library: only 64-bit processes are watched";

fn errors(report: &ReportLine) -> Vec<(&str, &str)> {
    let libraries = report.json()["coverage"]["libraries"].as_array().expect("libraries");
    let left_out = libraries.iter().filter_map(|library| Some((library["path"].as_str()?, library["error"].as_str()?)));
    left_out.collect()
}

#[test(alone)]
fn library_of_32_bit_is_skipped_with_a_message_if_named_or_mapped() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let named = gpu.directory().join("libcuda.so.32");
    write_32_bit_library(&named);
    let once = gpu.run_memwatch(&["--libcuda", text(&named), "ps", "--json"]);
    assert_eq!(once.code, 0, "{once:#?}");
    assert!(errors(&ReportLine::parse(&once.stdout)).contains(&(text(&named), LEFT_OUT)), "{once:#?}");

    let mut watch = gpu.watch(&[]);
    let mapped = gpu.directory().join("libcuda.so.1");
    write_32_bit_library(&mapped);
    // The test's own process maps the file as executable.
    let _mapping = mapping::ExecutableMapping::of(&mapped);
    watch.until(|report| errors(report).contains(&(text(&mapped), LEFT_OUT)));
    let mut beside = gpu.workload();
    assert_counted_once(&gpu, &mut watch, &mut [&mut beside]);
}

/// Starts a workload on its own overlay over the directory of the machine's library, as in a
/// container.
fn on_an_overlay(gpu: &SimulatedGpu, empty: &Path) -> SimulatedWorkload {
    let overlay = "mount -t overlay overlay -o \"lowerdir=$1:$2\" \"$1\"";
    let libraries = gpu.libcuda().parent().expect("a directory").to_owned();
    let command = after_mounting(overlay, &[text(&libraries), text(empty)], &gpu.workload_command());
    ready(SimulatedWorkload::start(command))
}

#[test(alone)]
fn a_file_probed_twice_has_each_call_counted_once() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let empty = gpu.directory().join("empty");
    fs::create_dir(&empty).expect("a directory in the temporary one");
    let mut first = on_an_overlay(&gpu, &empty);
    // The test's future children are watched, too.
    let targets = format!("{},{}", first.tgid(), std::process::id());
    let mut watch = RunningWatch::start(gpu.searching_memwatch(&["--pid", &targets]));
    first.run(&["uuid 0", "device 0", "alloc early 2M", "free early"]);
    // After a change, the same file looks like a new one through the next overlay, and gets probes
    // again.
    let file = fs::File::options().append(true).open(gpu.libcuda()).expect("the library is ours");
    file.set_modified(std::time::SystemTime::now()).expect("a new time");
    let mut second = on_an_overlay(&gpu, &empty);
    let report = watch.until(|report| paths(report).len() == 2);
    assert_probed(&report);
    for workload in [&mut first, &mut second] {
        workload.run(&["uuid 0", "device 0", "alloc a 4M", "alloc b 6M", "free a", "async c 2M", "create d 8M"]);
        let report = assert_agrees(&gpu, &mut watch, workload, Agreement::ExceptPeaks);
        let on_gpu = report.process(workload.tgid()).expect("it is reported").only_gpu();
        assert_eq!(on_gpu.number("driver_allocated_bytes"), 16 * MIB);
    }
    let report = watch.settled();
    let calls = |workload: &SimulatedWorkload| {
        let on_gpu = report.process(workload.tgid()).expect("both are reported").only_gpu();
        (on_gpu.number("allocations"), on_gpu.number("frees"))
    };
    assert_eq!((calls(&first), calls(&second)), ((5, 2), (4, 1)), "{report:#?}");
}

#[test(alone)]
fn container_with_its_own_library_copy_is_watched_at_once() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let place = gpu.directory().join("in container");
    fs::create_dir(&place).expect("a directory in the temporary one");
    let mut watch = gpu.watch(&[]);
    let mut inside = inside_of(&gpu, &place);
    let copied = place.join("libcuda.so.1");
    let report = watch.until(|report| paths(report).contains(&text(&copied)));
    assert!(library(&report, &copied)["gap_ns"].is_u64(), "{report:#?}");
    assert_counted_once(&gpu, &mut watch, &mut [&mut inside]);
}

#[test(alone)]
fn library_replaced_on_disk_is_watched_in_old_and_new_jobs() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let mut watch = gpu.watch(&[]);
    let mut old = ready(gpu.workload());
    let (file, newer) = (gpu.libcuda(), gpu.directory().join("newer"));
    fs::copy(&file, &newer).expect("a copy of the library");
    fs::rename(&newer, &file).expect("the library is ours");
    let mut new = ready(gpu.workload());
    watch.until(|report| paths(report).iter().filter(|path| **path == text(&file)).count() == 2);
    assert_counted_once(&gpu, &mut watch, &mut [&mut old, &mut new]);
}

#[test(alone)]
fn processes_of_a_library_that_cannot_be_opened_are_inexact_and_named() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let place = gpu.directory().join("hidden");
    fs::create_dir(&place).expect("a directory in the temporary one");
    let mut inside = inside_of(&gpu, &place);
    inside.run(&["uuid 0", "device 0", "alloc a 4M"]);
    // No path leads to the file: another file system is mounted over its own.
    let mut hide = Command::new("nsenter");
    hide.args(["-t", &inside.tgid().to_string(), "-m", "mount", "-t", "tmpfs", "none"]).arg(&place);
    assert!(hide.status().expect("nsenter is there").success());
    let agent = TestAgent::start(&gpu);
    let ps = |words: &[&str]| agent.ask(&gpu, 0, &[&["ps"], words].concat());
    let report = ReportLine::parse(&ps(&["--json"]).stdout);
    let process = report.process(inside.tgid()).expect("it is reported");
    assert!(!process.is_exact() && process.0["losses"]["library_unreadable"] == 1, "{:#}", process.0);
    let words = ps(&[]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("calls of PID {} are not traced", inside.tgid())), "{words}");
}

#[test(alone)]
fn doctor_lists_driver_exports_unknown_to_this_version() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let unknown = |gpu: &SimulatedGpu| {
        let outcome = gpu.run_memwatch(&["doctor", "--json"]);
        outcome.assert_ended_with(0, &[]);
        let report = ReportLine::parse(&outcome.stdout);
        let libraries = report.json()["data"]["libraries"].as_array().expect("libraries").clone();
        let own = libraries.into_iter().find(|library| library["path"] == text(&gpu.libcuda()));
        own.expect("the named library is examined")["unknown_exports"].clone()
    };
    assert_eq!(unknown(&gpu), Value::Array(Vec::new()));

    // As in a newer driver, one function has a name that memwatch does not know.
    let mut library = fs::read(gpu.libcuda()).expect("the copy of the driver library");
    let (known, new) = (b"\0cuMemAdvise\0", b"\0cuMemAddNew\0");
    let places: Vec<usize> =
        (0..library.len() - known.len()).filter(|place| library[*place..].starts_with(known)).collect();
    assert!(!places.is_empty(), "the simulated driver exports cuMemAdvise");
    for place in places {
        library[place..place + new.len()].copy_from_slice(new);
    }
    fs::write(gpu.libcuda(), library).expect("the copy of the driver library");
    assert_eq!(unknown(&gpu), Value::Array(vec!["cuMemAddNew".into()]));
    let words = gpu.run_memwatch(&["doctor"]).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    let sentence = "1 export of this driver unknown to this version: cuMemAddNew; totals may miss what it allocates";
    assert!(words.contains(sentence), "{words}");
}
