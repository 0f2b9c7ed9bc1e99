//! Processes that are hard to read: whatever happens to a process during the reading, memwatch
//! reports its memory or says why it cannot.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::process::Command;

use memwatch_tests::test;
use memwatch_tests::{CommandOutcome, PrologueShape, SimulatedGpu, TorchAllocator, TorchJob, until};
use serde_json::Value;

/// Child processes of `hard_to_read.py`.
struct Children {
    gpu: SimulatedGpu,
    job: TorchJob,
}

impl Children {
    fn start(mode: &str, children: u32, step_ms: u32) -> Self {
        let gpu = SimulatedGpu::new(PrologueShape::Cmp);
        let (children, step) = (children.to_string(), step_ms.to_string());
        let words = ["hard_to_read.py", mode, "--children", &children, "--step", &step];
        let job = gpu.torch("2.8", TorchAllocator::Native, &words);
        Self { gpu, job }
    }

    /// Returns the process id of the next child.
    fn next(&mut self) -> Option<u32> {
        let checkpoint = self.job.next_checkpoint()?;
        Some(u32::try_from(checkpoint["child"].as_u64().expect("a child")).expect("a process id"))
    }

    fn holdings(&self, child: u32) -> CommandOutcome {
        self.gpu.run_memwatch(&["--json", "holdings", "--pid", &child.to_string()])
    }
}

/// Returns the reading, or `None` if a sentence says why there is none.
fn read_or_refused(ended: &CommandOutcome) -> Option<Value> {
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
    if ended.code != 0 {
        assert!(ended.stderr.starts_with("memwatch: "), "{ended:#?}");
        return None;
    }
    let report: Value = serde_json::from_str(&ended.stdout).unwrap_or_else(|error| panic!("{error}: {ended:#?}"));
    Some(report["data"]["processes"][0].clone())
}

/// Reads each child while it changes as the mode says. Returns how many were read and how many were
/// refused.
fn read_all(mode: &str, children: u32, step_ms: u32) -> (u32, u32) {
    let mut all = Children::start(mode, children, step_ms);
    let (mut read, mut refused) = (0, 0);
    while let Some(child) = all.next() {
        match read_or_refused(&all.holdings(child)) {
            Some(process) => {
                assert!(process["allocated_bytes"].as_u64() > Some(0), "{mode}: {process:#}");
                read += 1;
            }
            None => refused += 1,
        }
        all.job.go_on();
    }
    println!("{mode}: {read} were read, {refused} refused");
    assert_eq!(read + refused, children);
    (read, refused)
}

#[test]
fn a_process_that_dies_while_it_is_read_is_read_or_refused() {
    read_all("dies", 8, 60);
}

#[test]
fn process_that_execs_while_it_is_read_is_read_or_refused() {
    read_all("execs", 8, 60);
}

#[test]
fn a_process_that_unmaps_its_memory_while_it_is_read_is_read_or_refused() {
    read_all("unmaps", 8, 60);
}

#[test]
fn process_with_changing_pages_and_objects_is_read() {
    for mode in ["forks", "changes"] {
        let (read, _) = read_all(mode, 2, 0);
        assert_eq!(read, 2, "its allocator rests: {mode}");
    }
}

#[test]
fn corrupt_python_objects_do_not_hide_others() {
    let mut all = Children::start("lies", 1, 0);
    let child = all.next().expect("a child");
    until("the child rests", || is_in_state(child, b'S'));
    let process = read_or_refused(&all.holdings(child)).expect("its allocator's books are true");
    let parameters = process["blocks"].as_array().expect("blocks").iter();
    let names: Vec<_> =
        parameters.filter(|block| block["class"] == "parameter").filter_map(|block| block["name"].as_str()).collect();
    assert_eq!(names.len(), 4, "{names:?} {process:#}");
}

/// Stops a process and waits until it has stopped, so that only the test changes its memory.
fn stop(child: u32) {
    let tgid = libc::pid_t::try_from(child).expect("a process id");
    // SAFETY: it has no preconditions; the child is this test's.
    assert_eq!(unsafe { libc::kill(tgid, libc::SIGSTOP) }, 0);
    until("the child has stopped", || is_in_state(child, b'T'));
}

fn is_in_state(child: u32, state: u8) -> Option<()> {
    let stat = std::fs::read(format!("/proc/{child}/stat")).expect("it is there");
    let behind = stat.iter().rposition(|byte| *byte == b')').expect("a name ends");
    (stat.get(behind + 2) == Some(&state)).then_some(())
}

/// Pseudorandom numbers, the same in every run.
struct GarbageNumbers(u64);

impl GarbageNumbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// Overwrites `per_100_000` of 100,000 words with garbage, in all writable memory without a file;
/// if `with_heap`, also in the C library's heap.
fn spoil(child: u32, per_100_000: u64, with_heap: bool, numbers: &mut GarbageNumbers) -> u64 {
    const PAGE: usize = 4096;
    let maps = std::fs::read_to_string(format!("/proc/{child}/maps")).expect("it is there");
    let memory: File =
        OpenOptions::new().read(true).write(true).open(format!("/proc/{child}/mem")).expect("it is a child");
    let (mut page, mut spoilt, mut last) = (vec![0; PAGE], 0, 0);
    for line in maps.lines() {
        let parts: Vec<_> = line.split_whitespace().collect();
        let is_spoilt = parts[1] == "rw-p" && (parts.len() == 5 || with_heap && parts[5] == "[heap]");
        let (start, end) = parts[0].split_once('-').expect("a range");
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).expect("an address"));
        if !is_spoilt || end - start > 1 << 30 {
            continue;
        }
        for address in (start..end).step_by(PAGE) {
            if memory.read_exact_at(&mut page, address).is_err() {
                continue;
            }
            let before = spoilt;
            for word in page.as_chunks_mut::<8>().0 {
                if numbers.next() % 100_000 >= per_100_000 {
                    last = u64::from_le_bytes(*word);
                    continue;
                }
                let garbage = match numbers.next() % 5 {
                    0 => numbers.next(),
                    1 => numbers.next() % 4096,
                    2 => last,
                    3 => start + numbers.next() % (end - start) / 8 * 8,
                    _ => u64::from_le_bytes(*word) ^ 1 << (numbers.next() % 64),
                };
                *word = garbage.to_le_bytes();
                spoilt += 1;
            }
            if spoilt > before {
                memory.write_all_at(&page, address).expect("it is writable");
            }
        }
    }
    spoilt
}

#[test]
fn a_process_with_garbage_in_its_memory_is_read_or_refused() {
    let rates =
        [(2, false), (20, false), (200, false), (5000, false), (2, true), (20, true), (200, true), (5000, true)];
    let mut all = Children::start("rests", 8, 0);
    let mut numbers = GarbageNumbers(0x9e37_79b9_7f4a_7c15);
    for (rate, with_heap) in rates {
        let child = all.next().expect("a child");
        stop(child);
        let spoilt = spoil(child, rate, with_heap, &mut numbers);
        let process = read_or_refused(&all.holdings(child));
        let read = process.as_ref();
        let found = read.map(|process| ["objects", "tensors", "without_names"].map(|key| process[key].to_string()));
        println!("{spoilt} words are garbage: {found:?}");
        all.job.go_on();
    }
}

fn largest_mapping(child: u32) -> u64 {
    let maps = std::fs::read_to_string(format!("/proc/{child}/maps")).expect("it is there");
    let bytes = |line: &str| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        Some(u64::from_str_radix(end, 16).ok()? - u64::from_str_radix(start, 16).ok()?)
    };
    maps.lines().filter(|line| line.contains("rw-p")).filter_map(bytes).max().expect("a mapping")
}

fn page_table_kib(child: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{child}/status")).expect("it is there");
    let line = status.lines().find_map(|line| line.strip_prefix("VmPTE:")).expect("the kernel says it");
    line.trim().strip_suffix(" kB").and_then(|number| number.parse().ok()).expect("a number")
}

#[test]
fn addresses_without_memory_are_not_filled_by_a_reading() {
    let mut all = Children::start("reserves", 1, 0);
    let child = all.next().expect("a child");
    until("the child has reserved addresses", || (largest_mapping(child) >= 2 << 40).then_some(()));
    until("the child rests", || is_in_state(child, b'S'));
    let before = page_table_kib(child);
    let process = read_or_refused(&all.holdings(child)).expect("it is read");
    assert_eq!(page_table_kib(child), before, "a reading has made page tables");
    assert_eq!(process["named_bytes"], process["allocated_bytes"], "{process:#}");
    assert!(process["read_bytes"].as_u64() < Some(512 << 20), "{}", process["read_bytes"]);
}

/// Asserts how `holdings` and `stats` report an allocator whose state memwatch cannot read.
fn refused_as(gpu: &SimulatedGpu, job: &TorchJob, class: &str) {
    let tgid = job.tgid().to_string();
    let refused = gpu.run_memwatch(&["holdings", &tgid]);
    refused.assert_ended_with(5, &[class, "which is not supported"]);
    // PyTorch has to be found in the process first, which takes longer on a busy machine.
    let mut durations = ["1s", "2s", "4s", "8s", "16s"].into_iter();
    let is_refused = durations.any(|duration| {
        let stats = gpu.run_memwatch(&["--no-agent", "stats", "--pid", &tgid, "--duration", duration]);
        assert!(!stats.stderr.contains("panicked"), "{stats:#?}");
        stats.code == 5 && stats.stderr.contains(class)
    });
    assert!(is_refused, "stats does not name {class}");
}

#[test]
fn the_driver_s_own_pool_is_refused_by_its_name() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let mut job = gpu.torch("2.8", TorchAllocator::Async, &["idle_hold.py"]);
    job.next_checkpoint().expect("it holds something");
    refused_as(&gpu, &job, "CudaMallocAsyncAllocator");
}

#[test]
fn a_pluggable_allocator_is_refused_by_its_name() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let library = gpu.directory().join("libpluggable.so");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/workloads/pluggable.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-O1", "-o"]).arg(&library).arg(source);
    assert!(compiler.status().expect("a C compiler").success());
    let words = ["pluggable.py", library.to_str().expect("a path")];
    let mut job = gpu.torch("2.8", TorchAllocator::Native, &words);
    job.next_checkpoint().expect("it holds something");
    refused_as(&gpu, &job, "CUDAPluggableAllocator");
}

/// The layout of a build is searched once: later processes of the same build are read with the
/// proven layout.
#[test]
fn proven_build_layout_is_reused_for_the_next_process() {
    let gpu = SimulatedGpu::new(PrologueShape::Cmp);
    let searches = || {
        let mut job = gpu.torch("2.8", TorchAllocator::Native, &["idle_hold.py"]);
        let checkpoint = job.next_checkpoint().expect("it holds something");
        let read = gpu.run_memwatch(&["--json", "holdings", "--pid", &job.tgid().to_string()]);
        let process = read_or_refused(&read).expect("it is read");
        assert_eq!(process["allocated_bytes"], checkpoint["devices"][0]["memory_allocated"]);
        process["layout_searches"].as_u64()
    };
    let first = searches();
    assert_eq!((first, searches()), (Some(1), Some(0)));
    let kept = gpu.directory().join("pytorch-builds.json");
    let text = std::fs::read_to_string(&kept).expect("it was kept");
    // A plausible layout that belongs to no build: the reading fails its checks, and memwatch
    // searches again.
    let mut builds: Value = serde_json::from_str(&text).expect("JSON");
    let fields = builds[0]["block"].as_array_mut().expect("numbers");
    fields.swap(1, 4);
    std::fs::write(&kept, builds.to_string()).expect("it is this test's");
    assert_eq!(searches(), Some(1), "what is wrong leads to no reading");
    assert_eq!(std::fs::read_to_string(&kept).expect("it was kept"), text, "what was found is kept");
    std::fs::write(&kept, "garbage").expect("it is this test's");
    assert_eq!((searches(), searches()), (Some(1), Some(0)));
}
