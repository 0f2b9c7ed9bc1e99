//! A user whose file system answers everything except reads, and whose programs block readers of
//! their /proc files. Other users' processes are watched as usual, and the agent answers, starts
//! and ends.

use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use memwatch_tests::agent::{TestAgent, workload_command_of};
use memwatch_tests::harness::cannot_run;
use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{MIB, PrologueShape, RunningProgram, RunningWatch, SimulatedGpu, SimulatedWorkload};

const ROOT: u32 = 0;
const MALLORY: u32 = 65_534;
const BOB: u32 = 65_533;

/// Files that the hostile user's programs map: a driver library and a framework's library that
/// memwatch has not seen before, pages below the program's own command line, and a file whose
/// mapping does not return while it holds the lock of the address space.
const PROGRAMS: [&str; 7] = [
    "library:libcuda.so.1",
    "library:libcuda.so.2",
    "library:libcuda.so.3",
    "library:libc10_cuda.so",
    "library:libnvidia-glcore.so.1",
    "arguments",
    "lock",
];

/// The hostile user's file system and programs. When this is dropped, the programs end and the file
/// system is unmounted.
struct HangingFiles {
    /// `None` only while this is dropped.
    server: Option<RunningProgram>,
    folder: PathBuf,
}

impl HangingFiles {
    /// Mounts the file system. Returns when the programs have mapped their files and a thread of
    /// this agent hangs in one. Ignores the test if there is no FUSE.
    fn start(gpu: &SimulatedGpu, agent: u32) -> Self {
        if let Err(error) = std::fs::File::open("/dev/fuse") {
            cannot_run(format!("no file system can be served here: /dev/fuse: {error}"));
        }
        let [script, folder] = ["hanging_files.py", "hanging"].map(|name| gpu.directory().join(name));
        std::fs::write(&script, include_str!("../../hostile/hanging_files.py"))
            .expect("a file in the temporary folder");
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o644)).expect("it is ours");
        std::fs::create_dir(&folder).expect("a folder in the temporary one");
        let mut command = Command::new("python3");
        command.arg(script).arg(&folder).arg(MALLORY.to_string()).args(PROGRAMS);
        let mut server = RunningProgram::start(command);
        let (mut are_ready, mut hangs) = (false, false);
        while !(are_ready && hangs) {
            let line = server.next_line().expect("the server has ended");
            are_ready |= line == "ready";
            hangs |= line.strip_prefix("read ").is_some_and(|reader| is_thread(agent, reader));
        }
        Self { server: Some(server), folder }
    }
}

impl Drop for HangingFiles {
    fn drop(&mut self) {
        // The connection ends with the server, which makes all pending reads fail.
        drop(self.server.take());
        let folder = std::ffi::CString::new(self.folder.as_os_str().as_bytes()).expect("a path");
        // SAFETY: the path ends with a zero byte.
        unsafe { libc::umount2(folder.as_ptr(), libc::MNT_DETACH) };
    }
}

fn is_thread(tgid: u32, number: &str) -> bool {
    Path::new(&format!("/proc/{tgid}/task/{number}")).exists()
}

/// Starts a process of another user with its own copy of the library, as in a container.
fn in_container(gpu: &SimulatedGpu, folder: &Path) -> SimulatedWorkload {
    std::fs::create_dir(folder).expect("a folder in the temporary one");
    gpu.copy_libcuda(folder);
    let mut command = workload_command_of(gpu, BOB);
    command.env("LD_LIBRARY_PATH", folder);
    SimulatedWorkload::start(command)
}

/// Returns whether a process is reported exactly, with just this number of allocations and bytes.
fn is_exact(report: &ReportLine, workload: &SimulatedWorkload, (allocations, bytes): (u64, u64)) -> bool {
    report.process(workload.tgid()).is_some_and(|process| {
        let on_gpu = &process.0["gpus"][0];
        process.is_exact() && on_gpu["allocations"] == allocations && on_gpu["driver_allocated_bytes"] == bytes
    })
}

/// Asserts that a newly started process of another user is watched exactly, and that the agent
/// answers.
fn assert_others_are_watched(gpu: &SimulatedGpu, agent: &TestAgent, watch: &mut RunningWatch, name: &str) {
    let folder = gpu.directory().join(name);
    let mut new = in_container(gpu, &folder);
    new.run(&["uuid 0", "device 0"]);
    let library = folder.join("libcuda.so.1").display().to_string();
    watch.until(|report| report.has_probes_in(&library));
    new.run(&["alloc kept 4M"]);
    watch.until(|report| is_exact(report, &new, (1, 4 * MIB)));
    agent.ask(gpu, ROOT, &["ps", "--json"]).assert_ended_with(0, &[]);
}

#[test(alone)]
fn hanging_files_and_memory_delay_only_scans_of_their_owner() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let gpu = gpu.with_own_libcuda();
    let mut agent = TestAgent::start(&gpu);
    let mut watch = RunningWatch::start(agent.client(&gpu, ROOT, &[]));
    let mut honest = gpu.workload();
    honest.run(&["uuid 0", "device 0", "alloc kept 2M"]);
    assert_agrees(&gpu, &mut watch, &honest, Agreement::CallsOnly);
    let hanging = HangingFiles::start(&gpu, agent.tgid());
    assert_others_are_watched(&gpu, &agent, &mut watch, "first");
    honest.run(&["alloc more 2M"]);
    watch.until(|report| is_exact(report, &honest, (2, 4 * MIB)));
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.end(), 0);
    drop(watch);
    // An agent that starts meanwhile becomes ready and watches other users' processes.
    let mut agent = TestAgent::start(&gpu);
    let mut watch = RunningWatch::start(agent.client(&gpu, ROOT, &[]));
    assert_others_are_watched(&gpu, &agent, &mut watch, "second");
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.end(), 0);
    drop(hanging);
}
