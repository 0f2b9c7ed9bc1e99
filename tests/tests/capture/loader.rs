//! The driver library is found before a process loads it, in all places where the loader searches.
//! No allocation is missed.

use std::path::{Path, PathBuf};
use std::process::Command;

use memwatch_tests::harness::cannot_run;
use memwatch_tests::mounts::after_mounting;
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, Later, MIB, PrologueShape, RunningWatch, SimulatedGpu};

/// Compiles the program that loads the driver library only on demand, with this path in its
/// RUNPATH.
fn program(gpu: &SimulatedGpu, run_path: Option<&Path>) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads/later.c");
    let program = gpu.directory().join("later");
    let mut compiler = Command::new("cc");
    compiler.arg("-o").arg(&program).arg(source).arg("-ldl");
    if let Some(path) = run_path {
        compiler.arg(format!("-Wl,--enable-new-dtags,-rpath,{}", path.display()));
    }
    if !compiler.status().is_ok_and(|status| status.success()) {
        cannot_run("there is no C compiler");
    }
    program
}

/// Returns the program's command on this machine, without a path to the driver.
fn command(gpu: &SimulatedGpu, program: &Path) -> Command {
    let mut command = Command::new(program);
    gpu.apply(&mut command);
    command.env_remove("LD_LIBRARY_PATH");
    command
}

fn directory(gpu: &SimulatedGpu) -> PathBuf {
    gpu.libcuda().parent().expect("a directory").to_owned()
}

/// Attaches to a process that has not loaded the driver library. The process then loads it and
/// allocates at once.
fn assert_nothing_is_missed(gpu: &SimulatedGpu, command: Command) {
    let mut later = Later::start(command);
    let mut watch = RunningWatch::start(gpu.searching_memwatch(&["--pid", &later.tgid().to_string()]));
    later.load();
    let report = watch.settled();
    assert_whole(&report, later.tgid());
    let path = gpu.libcuda();
    let libraries = report.json()["coverage"]["libraries"].as_array().expect("libraries");
    let own = libraries.iter().filter(|library| library["in_use"] == true);
    let own: Vec<_> = own.map(|library| (library["path"].as_str(), library["gap_ns"].is_null())).collect();
    let name = path.file_name().expect("a name");
    assert!(matches!(own[..], [(Some(path), true)] if Path::new(path).file_name() == Some(name)), "{report:#?}");
}

fn assert_whole(report: &ReportLine, tgid: u32) {
    let process = report.process(tgid).unwrap_or_else(|| panic!("it is not reported: {report:#?}"));
    assert_eq!(process.0["from_start"], true, "{report:#?}");
    assert!(process.is_exact(), "{report:#?}");
    let on_gpu = process.only_gpu();
    assert_eq!(on_gpu.number("driver_allocated_bytes"), 66 * MIB, "{report:#?}");
    assert_eq!((on_gpu.number("allocations"), on_gpu.number("preexisting_bytes")), (1, 0), "{report:#?}");
}

#[test(alone)]
fn library_found_by_runpath_only_is_probed_before_it_is_loaded() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let program = program(&gpu, Some(&directory(&gpu)));
    assert_nothing_is_missed(&gpu, command(&gpu, &program));
}

#[test(alone)]
fn library_found_by_ld_library_path_only_is_probed_before_it_is_loaded() {
    let gpu = SimulatedGpu::new(PrologueShape::Push).with_own_libcuda();
    let program = program(&gpu, None);
    let mut command = command(&gpu, &program);
    command.env("LD_LIBRARY_PATH", directory(&gpu));
    assert_nothing_is_missed(&gpu, command);
}

#[test(alone)]
fn library_found_by_ld_cache_of_a_mount_is_probed_before_it_is_loaded() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let program = program(&gpu, None);
    let (cache, list) = (gpu.directory().join("cache"), gpu.directory().join("list"));
    let directories = format!("{}\ninclude /etc/ld.so.conf\n", directory(&gpu).display());
    std::fs::write(&list, directories).expect("a file in the temporary directory");
    let words = [&cache, &list].map(|path| path.to_str().expect("a plain path"));
    let script = "ldconfig -X -C \"$1\" -f \"$2\" 2>/dev/null && mount --bind \"$1\" /etc/ld.so.cache";
    let command = after_mounting(script, &words, &command(&gpu, &program));
    assert_nothing_is_missed(&gpu, command);
}

#[test(alone)]
fn run_probes_what_the_commands_own_runpath_leads_to_before_it_starts() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let program = program(&gpu, Some(&directory(&gpu)));
    let mut job = command(&gpu, &program);
    job.arg("at-once");
    let mut run = gpu.memwatch_run(&["--json"], &job);
    run.env_remove("LD_LIBRARY_PATH");
    let outcome = CommandOutcome::of(run);
    outcome.assert_ended_with(0, &[]);
    let report = ReportLine::parse(outcome.stderr.lines().last().expect("a report"));
    let process = &report.json()["data"]["processes"][0];
    assert_eq!((&process["from_start"], &process["exact"]), (&true.into(), &true.into()), "{report:#?}");
    let on_gpu = &process["gpus"][0];
    assert_eq!(on_gpu["peak_bytes"].as_u64(), Some(66 * MIB), "{report:#?}");
}

/// Compiles an NVML that loads the driver library into memwatch, as NVIDIA's does.
fn nvml_with_the_driver_library(gpu: &SimulatedGpu) -> PathBuf {
    let simulated = PathBuf::from(std::env::var_os("GPUSIM_CMP").expect("a machine was made")).join("lib");
    let place = gpu.directory().join("nvml");
    std::fs::create_dir(&place).expect("a directory in the temporary one");
    let (source, library) = (place.join("empty.c"), place.join("libnvidia-ml.so.1"));
    std::fs::write(&source, "int nvml_with_the_driver_library;\n").expect("a file in the temporary directory");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-Wl,--no-as-needed", "-o"]).arg(&library).arg(&source);
    compiler.arg(gpu.libcuda()).arg(simulated.join("libnvidia-ml.so.1"));
    compiler.arg(format!("-Wl,--disable-new-dtags,-rpath,{}:{}", directory(gpu).display(), simulated.display()));
    if !compiler.status().is_ok_and(|status| status.success()) {
        cannot_run("there is no C compiler");
    }
    library
}

#[test(alone)]
fn memwatch_omits_itself_although_nvml_loads_the_driver_library() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp).with_own_libcuda();
    let nvml = nvml_with_the_driver_library(&gpu);
    let gpu = gpu.with_nvml(nvml);
    let mut watch = RunningWatch::start(gpu.searching_memwatch(&[]));
    watch.settled();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", watch.tgid())).expect("it runs");
    assert!(maps.contains(gpu.libcuda().to_str().expect("a plain path")), "NVML has not loaded it");
    // Another process uses the same library, so memwatch has examined that library by now.
    let mut beside = gpu.workload();
    beside.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let beside = beside.tgid();
    let report = watch.until(|report| report.process(beside).is_some());
    assert!(report.process(watch.tgid()).is_none(), "{report:#?}");
    assert!(watch.settled().process(watch.tgid()).is_none());
}

#[test(alone)]
fn library_files_past_the_owner_limit_are_not_probed_and_unused_released() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let program = program(&gpu, None);
    let fakes = gpu.directory().join("fakes");
    for number in 0..300 {
        let place = fakes.join(number.to_string());
        std::fs::create_dir_all(&place).expect("a directory in the temporary one");
        std::fs::copy(gpu.libcuda(), place.join("libcuda.so.1")).expect("a copy of the library");
    }
    let mut watch = gpu.watch(&["--poll-libraries"]);
    let before = libraries(&watch.settled());
    let mut greedy = command(&gpu, &program);
    greedy.arg("map").arg(&fakes);
    let mut greedy = Later::start(greedy);
    let report = watch.until(|report| report.json()["coverage"]["libraries_over_limit"].as_u64() > Some(0));
    assert!(libraries(&report) <= before + 32, "{report:#?}");
    assert!(report.json()["coverage"]["libraries_over_limit"].as_u64() >= Some(300 - 32), "{report:#?}");
    // Other processes are watched as usual.
    let mut beside = gpu.workload();
    beside.run(&["uuid 0", "device 0", "alloc a 4M"]);
    let report = watch.settled();
    let beside = report.process(beside.tgid()).expect("it is reported");
    assert_eq!((beside.only_gpu().number("driver_allocated_bytes"), beside.is_exact()), (4 * MIB, true), "{report:#?}");
    greedy.end();
    watch.until(|report| libraries(report) == before);
}

fn libraries(report: &ReportLine) -> usize {
    report.json()["coverage"]["libraries"].as_array().expect("libraries").len()
}
