//! An agent that is killed or restarted: its successor resumes the session, and nothing of the
//! agent remains after a clean end.
//!
//! `MEMWATCH_SURVIVE_KILLS` sets the number of kills: 100 take some minutes.
//! `MEMWATCH_SURVIVE_PROCESSES` sets the number of calling processes if there should be more than
//! four. `MEMWATCH_SURVIVE_CALLS` limits the calls per second of all processes together.
//! `MEMWATCH_SURVIVE_BIN` is another build of the same version: every second agent runs it, as
//! after an upgrade.

mod uninstall;

use std::fs;
use std::io::Error;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use memwatch_tests::agent::TestAgent;
use memwatch_tests::mounts::{BpfFolder, SmallDisk};
use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::report::{ReportLine, ReportedProcess};
use memwatch_tests::test;
use memwatch_tests::{
    CommandOutcome, MIB, PrologueShape, RunningWatch, SimulatedGpu, SimulatedWorkload, TIMEOUT, until,
};

use crate::capture::changes::{sees_burst, until_spared};

/// Holds the records of several processes while no agent reads them.
const LARGE_RING: &str = "64M";
const ROOT: u32 = 0;

/// A machine whose agents may leave pinned objects behind.
struct RestartMachine {
    gpu: SimulatedGpu,
    bpf: BpfFolder,
    ring: &'static str,
    /// Path of another build of memwatch.
    other: Option<PathBuf>,
}

impl RestartMachine {
    fn new(shape: PrologueShape) -> Self {
        let gpu = SimulatedGpu::new(shape).with_own_libcuda();
        let bpf = BpfFolder::mount(&gpu.directory().join("bpf"));
        let other = std::env::var_os("MEMWATCH_SURVIVE_BIN").map(PathBuf::from);
        Self { gpu, bpf, ring: LARGE_RING, other }
    }

    fn agent(&self, words: &[&str]) -> TestAgent {
        self.agent_by(self.gpu.memwatch(&["--ring-bytes", self.ring]), words)
    }

    fn agent_by(&self, command: Command, words: &[&str]) -> TestAgent {
        let bpf = self.bpf.path().display().to_string();
        TestAgent::with(&self.gpu, command, &[&["--bpffs", &bpf], words].concat())
    }

    /// Starts the next agent, every second time with the other build if there is one.
    fn next_agent(&self, number: u64) -> TestAgent {
        let mut command = self.gpu.memwatch(&["--ring-bytes", self.ring]);
        if let Some(other) = self.other.as_deref().filter(|_| number.is_multiple_of(2)) {
            command = with_program(&command, other);
        }
        // SAFETY: setpriority has no memory preconditions and may be called between fork and exec.
        let usual = || {
            if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 0) } == 0 {
                Ok(())
            } else {
                Err(Error::last_os_error())
            }
        };
        // SAFETY: as above.
        unsafe { command.pre_exec(usual) };
        self.agent_by(command, &[])
    }

    /// Returns the pinned objects by their paths in the file system.
    fn pinned(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut folders = vec![self.bpf.path().join("memwatch")];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).into_iter().flatten() {
                let path = entry.expect("it is listed").path();
                if path.is_dir() { folders.push(path) } else { found.push(path) }
            }
        }
        found
    }

    fn journal(&self) -> PathBuf {
        self.gpu.directory().join("run/memwatch.sock.journal")
    }

    fn uninstall(&self) -> CommandOutcome {
        let socket = self.gpu.directory().join("run/memwatch.sock");
        let mut command = self.uninstaller();
        command.arg("--socket").arg(socket);
        CommandOutcome::of(command)
    }

    /// Returns the command that uninstalls all agents.
    fn uninstaller(&self) -> Command {
        let mut command = self.gpu.memwatch(&["agent", "--uninstall", "--bpffs"]);
        command.arg(self.bpf.path());
        command
    }

    /// Asserts that nothing of any agent is left.
    fn assert_clean(&self) {
        assert_eq!(self.pinned(), Vec::<PathBuf>::new());
        assert!(!self.bpf.path().join("memwatch").exists() && !self.journal().exists());
    }

    fn watch(&self, agent: &TestAgent) -> RunningWatch {
        RunningWatch::start(agent.client(&self.gpu, ROOT, &[]))
    }
}

/// Returns a command with the same arguments and environment for another program.
fn with_program(command: &Command, program: &Path) -> Command {
    let mut other = Command::new(program);
    other.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => other.env(name, value),
            None => other.env_remove(name),
        };
    }
    other
}

/// Pseudorandom numbers, the same in every run.
struct PseudoRandom(u64);

impl PseudoRandom {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

fn killed(mut agent: TestAgent) {
    agent.signal(libc::SIGKILL);
    assert_eq!(agent.end(), -1);
}

fn stop(mut agent: TestAgent) {
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.end(), 0);
}

fn begun(gpu: &SimulatedGpu) -> SimulatedWorkload {
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc kept 2M", "async pooled 4M", "create physical 2M"]);
    workload
}

/// Asserts that the live bytes equal the simulator's.
fn assert_holds(gpu: &SimulatedGpu, report: &ReportLine, workload: &SimulatedWorkload) {
    let live_bytes =
        report.process(workload.tgid()).expect("it is reported").only_gpu().number("driver_allocated_bytes");
    let truth = gpu.ledger().process(workload.tgid()).expect("it is in the simulator's ledger");
    assert_eq!(live_bytes, truth.devices[0].owned_live_bytes, "{report:#?}");
}

fn number(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Runs a closure with raised priority: the test measures how soon an agent answers, not how soon a
/// client or the test gets a processor among busy processes.
fn before_others<T>(run: impl FnOnce() -> T) -> T {
    has_priority(-20);
    let result = run();
    has_priority(0);
    result
}

fn has_priority(nice: i32) {
    // SAFETY: setpriority has no memory preconditions; 0 is this thread, and processes that it
    // starts inherit its priority.
    assert_eq!(unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, nice) }, 0, "root may");
}

/// Asserts that the numbers of allocations and frees equal the simulator's.
fn assert_counts(gpu: &SimulatedGpu, process: ReportedProcess<'_>, tgid: u32, kill: u64) {
    let entry = gpu.ledger().process(tgid).expect("it is there");
    let device = &entry.devices[0];
    let counts = [&device.device, &device.pool_used, &device.physical].map(|kind| (kind.allocations, kind.frees));
    let sums = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    let on_gpu = process.only_gpu();
    assert_eq!((on_gpu.number("allocations"), on_gpu.number("frees")), sums, "after kill {kill}: {:#}", process.0);
}

#[test(alone)]
fn agent_killed_under_load_resumes_with_the_same_numbers() {
    let mut machine = RestartMachine::new(PrologueShape::Push);
    let processes = number("MEMWATCH_SURVIVE_PROCESSES", 4);
    if processes > 4 {
        machine.ring = "512M";
    }
    // Turns per second of one process; each turn is two calls. Without a limit, as many as
    // possible.
    let turns_per_second = number("MEMWATCH_SURVIVE_CALLS", 0) / 2 / processes;
    let turns = if turns_per_second == 0 { 4000 } else { 2 * turns_per_second };
    let gpu = &machine.gpu;
    let mut drawn = PseudoRandom(0x9e37_79b9_7f4a_7c15);
    let mut agent = machine.agent(&[]);
    // A first query before the timed ones: the client is a separate file, which the first query
    // copies.
    agent.ask(gpu, ROOT, &["ps", "--json"]).assert_ended_with(0, &[]);
    let mut workloads: Vec<SimulatedWorkload> = (0..processes).map(|_| begun(gpu)).collect();
    let (mut kept, mut answered) = (0, Vec::new());
    for kill in 0..number("MEMWATCH_SURVIVE_KILLS", 10) {
        for (workload, function) in
            workloads.iter_mut().zip(["cuMemAlloc", "cuMemAllocAsync", "cuMemCreate", "cuMemHostAlloc"].iter().cycle())
        {
            kept += 1;
            workload.run(&[&format!("alloc more{kept} {}", (1 + drawn.below(4096)) * 512)]);
            if drawn.below(3) == 0 {
                workload.run(&[&format!("free more{kept}")]);
            }
            workload.report(&format!("loop {function} {turns} 2M {turns_per_second}"));
        }
        std::thread::sleep(Duration::from_millis(drawn.below(120)));
        killed(agent);
        std::thread::sleep(Duration::from_millis(drawn.below(60)));
        let begin = Instant::now();
        agent = before_others(|| {
            let agent = machine.next_agent(kill);
            agent.ask(gpu, ROOT, &["ps", "--json"]).assert_ended_with(0, &[]);
            agent
        });
        answered.push(begin.elapsed());
        for workload in &mut workloads {
            assert_eq!(workload.answer()["result"], 0);
        }
        let mut watch = machine.watch(&agent);
        for workload in &workloads {
            let report = assert_agrees(gpu, &mut watch, workload, Agreement::CallsOnly);
            let process = report.process(workload.tgid()).expect("it is reported");
            assert_eq!(process.0["from_start"], true, "after kill {kill}: {:#}", process.0);
            assert_counts(gpu, process, workload.tgid(), kill);
        }
    }
    answered.sort();
    let (middle, longest) = (answered[answered.len() / 2], answered[answered.len() - 1]);
    eprintln!("from a start to the first answer: {middle:?} in the middle, {longest:?} at the most");
}

#[test(alone)]
fn agent_restart_with_keep_resumes_and_a_stop_without_it_leaves_nothing() {
    let machine = RestartMachine::new(PrologueShape::Cmp);
    let gpu = &machine.gpu;
    let agent = machine.agent(&["--keep"]);
    let mut workload = begun(gpu);
    workload.run(&["alloc high 32M", "free high"]);
    assert_agrees(gpu, &mut machine.watch(&agent), &workload, Agreement::Exact);
    stop(agent);
    assert!(machine.pinned().len() > 10 && machine.journal().exists());
    workload.run(&["free kept", "alloc more 6M"]);
    let agent = machine.agent(&[]);
    let report = assert_agrees(gpu, &mut machine.watch(&agent), &workload, Agreement::Exact);
    let process = report.process(workload.tgid()).expect("it is reported");
    assert_eq!(process.0["from_start"], true);
    assert!(process.only_gpu().number("peak_bytes") >= 32 * MIB, "{:#}", process.0);
    stop(agent);
    machine.assert_clean();
    let agent = machine.agent(&["--keep"]);
    let report = machine.watch(&agent).settled();
    let process = report.process(workload.tgid());
    assert!(process.is_none_or(|process| process.0["from_start"] == false), "that watch has ended: {report:#?}");
}

#[test(alone)]
fn processes_begun_and_ended_without_an_agent_are_known_to_the_next() {
    let machine = RestartMachine::new(PrologueShape::Push);
    let gpu = &machine.gpu;
    let agent = machine.agent(&[]);
    let (mut ends, stays) = (begun(gpu), begun(gpu));
    assert_agrees(gpu, &mut machine.watch(&agent), &stays, Agreement::CallsOnly);
    killed(agent);
    ends.end();
    let begins = begun(gpu);
    let mut execs = begun(gpu);
    execs.report("exec");
    execs.run(&["uuid 0", "device 0", "alloc a 6M"]);
    let agent = machine.agent(&[]);
    let mut watch = machine.watch(&agent);
    // A process that calls exec has the peaks of all its programs.
    let (all, but_peaks) = (Agreement::CallsOnly, Agreement::CallsExceptPeaks);
    for (workload, agreement) in [(&stays, all), (&begins, all), (&execs, but_peaks)] {
        let report = assert_agrees(gpu, &mut watch, workload, agreement);
        let process = report.process(workload.tgid()).expect("it is reported");
        assert_eq!(process.0["from_start"], true, "{:#}", process.0);
        assert!(report.process(ends.tgid()).is_none_or(|process| process.has_ended()), "{report:#?}");
    }
}

#[test(alone)]
fn of_a_library_that_was_first_mapped_meanwhile_it_is_known_since_when() {
    let machine = RestartMachine::new(PrologueShape::Push);
    let gpu = &machine.gpu;
    let agent = machine.agent(&[]);
    let known = begun(gpu);
    assert_agrees(gpu, &mut machine.watch(&agent), &known, Agreement::CallsOnly);
    killed(agent);
    let own = gpu.directory().join("another");
    fs::create_dir(&own).expect("a directory in the temporary one");
    gpu.copy_libcuda(&own);
    let mut command = gpu.workload_command();
    command.env("LD_LIBRARY_PATH", &own);
    let mut late = SimulatedWorkload::start(command);
    late.run(&["uuid 0", "device 0", "alloc early 2M"]);
    let agent = machine.agent(&[]);
    late.run(&["alloc seen 4M"]);
    let mut watch = machine.watch(&agent);
    let report = watch.until(|report| {
        report
            .process(late.tgid())
            .is_some_and(|process| process.only_gpu().number("driver_allocated_bytes") == 4 * MIB)
    });
    assert_eq!(report.process(late.tgid()).expect("it is reported").0["from_start"], false, "{report:#?}");
    let report = assert_agrees(gpu, &mut watch, &known, Agreement::CallsOnly);
    assert_eq!(report.process(known.tgid()).expect("it is reported").0["from_start"], true, "{report:#?}");
}

#[test(alone)]
fn a_driver_replaced_under_a_job_stays_exact_across_a_restart() {
    let machine = RestartMachine::new(PrologueShape::Push);
    let gpu = &machine.gpu;
    let agent = machine.agent(&[]);
    let mut workload = begun(gpu);
    assert_agrees(gpu, &mut machine.watch(&agent), &workload, Agreement::Exact);
    let (file, newer) = (gpu.libcuda(), gpu.directory().join("newer"));
    let contents = [&fs::read(&file).expect("the library is ours")[..], b"x"].concat();
    fs::write(&newer, contents).expect("a file in the temporary directory");
    fs::rename(&newer, &file).expect("the library is ours");
    workload.run(&["alloc before 4M"]);
    killed(agent);
    workload.run(&["alloc meanwhile 8M", "free kept"]);
    let agent = machine.agent(&[]);
    workload.run(&["alloc after 16M", "free before"]);
    let report = assert_agrees(gpu, &mut machine.watch(&agent), &workload, Agreement::Exact);
    let process = report.process(workload.tgid()).expect("it is reported");
    assert!(process.is_exact() && process.0["from_start"] == true, "{:#}", process.0);
}

#[test(alone)]
fn restart_after_a_full_ring_takes_live_bytes_from_the_allocation_map() {
    // Requests to the kernel driver are off: they would fill so small a ring first.
    let mut machine = RestartMachine::new(PrologueShape::Push);
    machine.gpu = machine.gpu.with("GPUSIM_RM", &"off");
    machine.ring = "4096";
    let gpu = &machine.gpu;
    let agent = machine.agent(&[]);
    let mut workload = begun(gpu);
    machine.watch(&agent).settled();
    killed(agent);
    assert_eq!(workload.ask("loop cuMemAlloc 200 2M")["result"], 0);
    workload.run(&["alloc unseen 10M", "free kept"]);
    let agent = machine.agent(&[]);
    let mut watch = machine.watch(&agent);
    let tgid = workload.tgid();
    watch.until(|report| report.process(tgid).is_some_and(|process| process.0["anchored"].is_string()));
    let report = watch.settled();
    let process = report.process(tgid).expect("it is reported");
    assert!(!process.is_exact() && process.0["losses"]["ring_full"].as_u64() > Some(300), "{report:#?}");
    assert_holds(gpu, &report, &workload);
    let lost = report.lost("ring_full");
    drop(watch);
    // Losses are reported once, also across a restart.
    killed(agent);
    let agent = machine.agent(&[]);
    let report = machine.watch(&agent).settled();
    assert_eq!(report.lost("ring_full"), lost, "{report:#?}");
    assert_eq!(report.process(tgid).expect("it is known").0["losses"], process.0["losses"], "{report:#?}");
}

#[test(alone)]
fn restart_puts_no_memory_of_a_new_second_context_on_the_wrong_gpu() {
    let mut machine = RestartMachine::new(PrologueShape::Push);
    machine.gpu = machine.gpu.with("GPUSIM_DEVICES", &2);
    let mut workload = machine.gpu.workload();
    let agent = machine.agent(&[]);
    workload.run(&["uuid 0", "uuid 1", "device 0", "alloc a 4M"]);
    until_spared(&mut machine.watch(&agent), &mut workload);
    killed(agent);
    workload.run(&["device 1", "alloc b 2M"]);

    let agent = machine.agent(&[]);
    let mut watch = machine.watch(&agent);
    until("context changes are traced", || sees_burst(&mut watch, &mut workload).then_some(()));
    let report = watch.settled();
    let process = report.process(workload.tgid()).expect("it runs");
    let on = |ordinal| {
        let uuid = machine.gpu.ledger().uuid(ordinal).expect("a device");
        process.on(&uuid).map_or(0, |gpu| gpu.number("driver_allocated_bytes"))
    };
    assert!(on(0) == 4 * MIB && [0, 2 * MIB].contains(&on(1)), "{report:#?}");
    workload.run(&["free b", "device 1", "alloc c 8M", "device 0", "alloc d 16M"]);
    assert_agrees(&machine.gpu, &mut watch, &workload, Agreement::Exact);
    drop(watch);
    stop(agent);
    machine.assert_clean();
}

#[test(alone)]
fn restart_with_another_kernel_half_resumes_and_counts_unread_records() {
    let mut machine = RestartMachine::new(PrologueShape::Push);
    let agent = machine.agent(&[]);
    let (quiet, mut busy, mut execs) = (begun(&machine.gpu), begun(&machine.gpu), begun(&machine.gpu));
    assert_agrees(&machine.gpu, &mut machine.watch(&agent), &busy, Agreement::CallsOnly);
    killed(agent);
    busy.run(&["alloc unread 8M", "free kept"]);
    execs.report("exec");
    execs.run(&["uuid 0", "device 0", "alloc another 6M"]);
    let late = begun(&machine.gpu);
    // An agent with another ring size uses a new kernel half, like an agent of another version.
    machine.ring = "32M";
    let before = machine.pinned();
    let agent = machine.agent(&[]);
    busy.run(&["alloc more 4M"]);
    let mut watch = machine.watch(&agent);
    let report = watch.settled();
    let from_start = |tgid| report.process(tgid).expect("it is reported").0["from_start"].clone();
    assert_eq!([&quiet, &busy, &execs, &late].map(|workload| from_start(workload.tgid())), [true, true, false, false]);
    let lost = report.process(busy.tgid()).expect("it is reported").0["losses"].clone();
    assert!(lost["other_version"].as_u64() >= Some(2), "{lost}");
    let is_exact = |tgid| report.process(tgid).is_some_and(|process| process.is_exact());
    assert!(is_exact(quiet.tgid()) && !is_exact(busy.tgid()), "{report:#?}");
    assert_holds(&machine.gpu, &report, &quiet);
    drop(watch);
    let after = machine.pinned();
    assert!(!after.is_empty() && after.iter().all(|path| !before.contains(path)), "{after:?}");
    // From here on it is the same kernel half.
    killed(agent);
    let agent = machine.agent(&[]);
    let report = machine.watch(&agent).settled();
    assert_holds(&machine.gpu, &report, &quiet);
    assert_eq!(report.process(busy.tgid()).expect("it is reported").0["losses"], lost, "{report:#?}");
    stop(agent);
    machine.assert_clean();
}

#[test(alone)]
fn restart_with_unusable_state_removes_it_and_begins_a_new_watch() {
    let machine = RestartMachine::new(PrologueShape::Push);
    let agent = machine.agent(&[]);
    let workload = begun(&machine.gpu);
    assert_agrees(&machine.gpu, &mut machine.watch(&agent), &workload, Agreement::CallsOnly);
    killed(agent);
    // The session cannot be resumed without the journal.
    fs::write(machine.journal(), "nothing").expect("it is ours");
    let agent = machine.agent(&[]);
    let report = machine.watch(&agent).settled();
    assert!(report.process(workload.tgid()).is_none_or(|process| process.0["from_start"] == false), "{report:#?}");
    stop(agent);
    machine.assert_clean();
}

#[test(alone)]
fn without_a_bpf_file_system_or_a_journal_an_agent_watches_all_the_same() {
    let machine = RestartMachine::new(PrologueShape::Push);
    let gpu = &machine.gpu;
    let none = gpu.directory().display().to_string();
    let agent = TestAgent::with(gpu, gpu.memwatch(&[]), &["--bpffs", &none]);
    let workload = begun(gpu);
    assert_agrees(gpu, &mut machine.watch(&agent), &workload, Agreement::CallsOnly);
    stop(agent);
    assert!(!Path::new(&none).join("memwatch").exists() || machine.pinned().is_empty());
    fs::remove_dir_all(gpu.directory().join("run")).expect("it is ours");
    let disk = SmallDisk::mount(&gpu.directory().join("run"), "128k");
    let agent = machine.agent(&[]);
    disk.fill();
    let mut workload = begun(gpu);
    workload.run(&["loop cuMemAlloc 40000 2M"]);
    let begin = Instant::now();
    while !machine.pinned().is_empty() {
        assert!(begin.elapsed() < TIMEOUT, "nothing must be left of a watch whose journal is not whole");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_agrees(gpu, &mut machine.watch(&agent), &workload, Agreement::CallsOnly);
    stop(agent);
}
