//! Many calls of many processes in waves: every process ends with the simulator's numbers, no
//! record is lost, and memwatch does not grow.
//!
//! `MEMWATCH_SOAK_PROCESSES` and `MEMWATCH_SOAK_PAIRS` (allocations and frees per process) set the
//! length: 500 and 20000 make 20 million calls.
//!
//! A second test runs an agent with a history while processes, containers and libraries come and
//! go. `MEMWATCH_SOAK_SECONDS` sets its duration.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use memwatch_tests::agent::TestAgent;
use memwatch_tests::groups::TestControlGroup;
use memwatch_tests::oracle::{Agreement, assert_agrees};
use memwatch_tests::report::ReportLine;
use memwatch_tests::test;
use memwatch_tests::{MIB, PrologueShape, SimulatedGpu, SimulatedWorkload, resident_bytes, until};

/// Processes that run at once: more than there are processors, and fewer than the slots of the
/// simulator's ledger.
const WAVE: usize = 25;

fn number(variable: &str, otherwise: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

/// Starts a process of one of three kinds: linear, stream-ordered or virtual memory. Each keeps
/// some memory.
fn start(gpu: &SimulatedGpu, number: usize, pairs: usize) -> SimulatedWorkload {
    let function = ["cuMemAlloc", "cuMemAllocAsync", "cuMemCreate"][number % 3];
    let mut workload = gpu.workload();
    workload.run(&["uuid 0", "device 0", "alloc kept 2M", "async pooled 4M", "create physical 2M"]);
    workload.report(&format!("loop {function} {pairs} 2M"));
    workload
}

#[test(alone)]
fn soak_of_short_processes_matches_the_simulator_in_bounded_memory() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let (processes, pairs) = (number("MEMWATCH_SOAK_PROCESSES", 50), number("MEMWATCH_SOAK_PAIRS", 4000));
    let mut watch = gpu.watch(&[]);
    let mut first_bytes = None;
    for wave in 0..processes.div_ceil(WAVE) {
        let members = (wave * WAVE..processes.min((wave + 1) * WAVE)).map(|number| start(&gpu, number, pairs));
        let mut members: Vec<SimulatedWorkload> = members.collect();
        for workload in &mut members {
            assert_eq!(workload.answer()["result"], 0);
        }
        for workload in &members {
            let report = assert_agrees(&gpu, &mut watch, workload, Agreement::CallsOnly);
            let on_gpu = report.process(workload.tgid()).expect("it is reported").only_gpu();
            assert_eq!(on_gpu.number("driver_allocated_bytes"), 8 * MIB);
            let calls = u64::try_from(pairs).expect("a number of calls");
            assert_eq!((on_gpu.number("allocations"), on_gpu.number("frees")), (calls + 3, calls));
        }
        drop(members);
        let now_bytes = resident_bytes(watch.tgid());
        eprintln!("wave {wave}: {} calls, memwatch has {} MiB", 2 * pairs * WAVE * (wave + 1), now_bytes >> 20);
        let first_bytes = *first_bytes.get_or_insert(now_bytes);
        assert!(now_bytes < first_bytes + first_bytes / 2 + 16 * MIB, "it grows: {first_bytes} to {now_bytes}");
    }
}

/// A container with its own library and some processes.
struct SoakContainer {
    workloads: Vec<SimulatedWorkload>,
    libraries: PathBuf,
    _group: TestControlGroup,
}

/// Number of concurrent containers, and of processes in each.
const CONTAINERS: usize = 4;
const MEMBERS: usize = 5;
/// Interval between two readings of the agent's size in a long run.
const LOOK_EVERY: Duration = Duration::from_secs(60);
/// Number of readings before the agent's size is checked: its tables have reached their sizes by
/// then.
const FIRST_LOOKS: usize = 10;

impl SoakContainer {
    fn start(gpu: &SimulatedGpu, number: usize, members: usize) -> Self {
        let group = TestControlGroup::new(&format!("/memwatch-soak-{}/docker-{number:064x}.scope", std::process::id()));
        let libraries = gpu.directory().join(format!("container-{number}"));
        std::fs::create_dir(&libraries).expect("a folder in the temporary one");
        gpu.copy_libcuda(&libraries);
        let member = |_| {
            let mut command = gpu.workload_command();
            command.env("LD_LIBRARY_PATH", &libraries);
            group.start_in(&mut command);
            let mut workload = SimulatedWorkload::start(command);
            workload.run(&["uuid 0", "device 0"]);
            workload
        };
        Self { workloads: (0..members).map(member).collect(), libraries, _group: group }
    }

    /// Returns whether the agent has probes in the container's library. Calls before that are older
    /// than the watch.
    fn is_watched_in(&self, report: &ReportLine) -> bool {
        let folder = self.libraries.file_name().expect("a name").to_string_lossy();
        let libraries = report.json()["coverage"]["libraries"].as_array();
        let is_its = |library: &&serde_json::Value| {
            let path = library["path"].as_str().unwrap_or_default();
            path.ends_with(&format!("/{folder}/libcuda.so.1")) && library["probes_attached"].as_u64() > Some(0)
        };
        libraries.is_some_and(|libraries| libraries.iter().any(|library| is_its(&library)))
    }

    fn allocate(&mut self) {
        for workload in &mut self.workloads {
            workload.run(&["alloc kept 2M", "async pooled 4M", "create physical 2M"]);
            workload.report("loop cuMemAlloc 100 2M");
        }
        self.workloads.iter_mut().for_each(|workload| assert_eq!(workload.answer()["result"], 0));
    }

    /// Returns whether the agent reports the live bytes of each process correctly.
    fn is_right_in(&self, report: &ReportLine) -> bool {
        let right = |workload: &SimulatedWorkload| {
            let gpus = report.process(workload.tgid()).and_then(|process| process.0["gpus"].as_array());
            matches!(gpus.map(Vec::as_slice), Some([only]) if only["driver_allocated_bytes"] == 8 * MIB)
        };
        self.workloads.iter().all(right)
    }

    fn end(mut self) {
        self.workloads.iter_mut().for_each(SimulatedWorkload::end);
        std::fs::remove_dir_all(&self.libraries).expect("it is ours");
    }
}

/// One more than the files of one owner that may have probes at once. The last would otherwise wait
/// for the next scan of all processes.
const AFTER_ANOTHER: usize = 36;

#[test(alone)]
fn container_library_is_probed_after_unused_ones_are_released() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let mut agent = TestAgent::start(&gpu);
    let report = || {
        let asked = agent.ask(&gpu, 0, &["ps", "--json"]);
        // An agent that removes probes still answers. Otherwise the client would have started its
        // own watch.
        assert!(!asked.stderr.contains("cannot be used"), "{}", asked.stderr);
        ReportLine::parse(&asked.stdout)
    };
    for number in 0..AFTER_ANOTHER {
        let mut container = SoakContainer::start(&gpu, number, 1);
        until("the container's library is probed", || container.is_watched_in(&report()).then_some(()));
        container.allocate();
        until("the agent has what the process holds", || container.is_right_in(&report()).then_some(()));
        container.end();
    }
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.end(), 0);
}

#[test(alone)]
fn agent_memory_stays_bounded_as_processes_and_libraries_come_and_go() {
    let gpu = SimulatedGpu::new(PrologueShape::Push);
    let history = gpu.directory().join("history").display().to_string();
    let mut agent = TestAgent::with(&gpu, gpu.memwatch(&[]), &["--history", &history]);
    let span = Duration::from_secs(number("MEMWATCH_SOAK_SECONDS", 6).try_into().expect("a number of seconds"));
    let (begin, mut looked, mut sizes) = (Instant::now(), Instant::now(), Vec::new());
    let mut there = VecDeque::new();
    for number in 0.. {
        let mut container = SoakContainer::start(&gpu, number, MEMBERS);
        let report = || ReportLine::parse(&agent.ask(&gpu, 0, &["ps", "--json"]).stdout);
        until("the container's library is probed", || container.is_watched_in(&report()).then_some(()));
        container.allocate();
        until("the agent has what each process holds", || container.is_right_in(&report()).then_some(()));
        there.push_back(container);
        if there.len() > CONTAINERS {
            there.pop_front().into_iter().for_each(SoakContainer::end);
        }
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            sizes.push(resident_bytes(agent.tgid()));
            eprintln!("{number} containers, {} s: {} KiB", begin.elapsed().as_secs(), sizes[sizes.len() - 1] >> 10);
        }
        if begin.elapsed() >= span {
            break;
        }
    }
    there.into_iter().for_each(SoakContainer::end);
    if let [_, first, .., last] = sizes.get(FIRST_LOOKS..).unwrap_or_default() {
        assert!(last.saturating_sub(*first) <= 2 * MIB, "it grows: {sizes:?}");
    }
    agent.signal(libc::SIGTERM);
    assert_eq!(agent.end(), 0);
}
