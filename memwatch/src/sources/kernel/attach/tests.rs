//! Probes for one process, on the simulated driver: with kernels that can attach them to one
//! process, and with those on which they would only fire in its first thread.

mod ioctl;

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use aya::maps::RingBuf;
use memwatch_common::record::{Item, RingRecord};
use tempfile::TempDir;

use super::*;
use crate::sources::kernel::load::{LoadOptions, may_probe};
use crate::sources::library::LibraryScan;

#[test]
fn missing_function_is_newer_than_the_driver_if_no_peer_is_as_new() {
    let there = || ["cuMemAlloc_v2", "cuMulticastCreate"].into_iter();
    assert_eq!(older_than_others(there(), ["cuMulticastBindMem_v2"].into_iter()), [""; 0]);
    assert_eq!(older_than_others(there(), ["cuMemFree_v2", "cuMulticastBindMem_v2"].into_iter()), ["cuMemFree_v2"]);
}

/// The simulated driver's workload program. It is killed when it is dropped.
struct WorkloadProgram {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _directory: TempDir,
}

impl WorkloadProgram {
    /// Starts the program. Returns `None`, with the reason on standard error, if it cannot run
    /// here.
    fn start() -> Option<Self> {
        if !may_probe() {
            return None;
        }
        let driver = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/gpusim/cmp");
        if !driver.join("bin/gpusim-workload").exists() {
            eprintln!("SKIPPED: the simulated driver is not built: cargo xtask test integration does that");
            return None;
        }
        let directory = TempDir::with_prefix("memwatch-test-").unwrap();
        let mut command = Command::new(driver.join("bin/gpusim-workload"));
        command.env("LD_LIBRARY_PATH", driver.join("lib")).env("GPUSIM_LEDGER", directory.path().join("ledger"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut program = Self { child, input, output, _directory: directory };
        program.run(&["device 0", "thread start other"]);
        Some(program)
    }

    fn run(&mut self, lines: &[&str]) {
        for line in lines {
            writeln!(self.input, "{line}").unwrap();
            let mut answer = String::new();
            assert_ne!(self.output.read_line(&mut answer).unwrap(), 0, "{line}");
        }
    }

    fn tgid(&self) -> NonZeroU32 {
        NonZeroU32::new(self.child.id()).unwrap()
    }

    fn library(&self) -> LibraryFile {
        LibraryScan::new("/proc").scan_process(self.child.id()).files.remove(0)
    }
}

impl Drop for WorkloadProgram {
    fn drop(&mut self) {
        // Fails if the program has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn version() -> KernelVersion {
    KernelVersion::from_release(&std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap()).unwrap()
}

fn getters(program: &WorkloadProgram) -> AttachPlan {
    let file = WorkloadProgram::library(program);
    plan(&file, version(), (PROBES, When::DeviceUnknown)).unwrap()
}

/// Returns the threads whose calls have arrived since the last reading, and the number of calls.
fn callers(ring: &mut RingBuf<aya::maps::MapData>) -> (BTreeSet<(u32, u32)>, usize) {
    let (mut threads, mut calls) = (BTreeSet::new(), 0);
    while let Some(bytes) = ring.next() {
        if let Ok(Item::Record(RingRecord::Call(call))) = Item::from_bytes(&bytes) {
            threads.insert((call.tgid, call.tid));
            calls += 1;
        }
    }
    (threads, calls)
}

fn one_process_sees_all_of_its_threads_and_nobody_elses(one_process: bool) {
    let (Some(mut own), Some(mut other)) = (WorkloadProgram::start(), WorkloadProgram::start()) else { return };
    let options = LoadOptions { all_processes: true, ring_bytes: 1 << 20, classic_uprobes: false, diagnostics: false };
    let mut kernel = KernelHalf::load(options).unwrap();
    let mut ring = RingBuf::try_from(kernel.ebpf.take_map("RECORDS").unwrap()).unwrap();
    let plan = getters(&own);
    assert_eq!(plan.probes.len(), 2);
    let attach = |kernel: &mut KernelHalf| attach_to(kernel, &own.library(), &plan, (own.tgid(), one_process)).unwrap();
    let first = attach(&mut kernel);
    let second = attach(&mut kernel);
    own.run(&["current", "@other current"]);
    other.run(&["current", "@other current"]);
    let (threads, calls) = callers(&mut ring);
    assert!(threads.iter().all(|(tgid, _)| *tgid == own.tgid().get()), "{threads:?}");
    // With two sets of probes, each call is reported twice.
    assert_eq!((threads.len(), calls % 2), (2, 0), "{calls} calls of {threads:?}");

    detach(&mut kernel, first).unwrap();
    own.run(&["@other current"]);
    assert_eq!(callers(&mut ring).0.len(), 1, "the second set is there");
    detach(&mut kernel, second).unwrap();
    own.run(&["current", "@other current"]);
    assert_eq!(callers(&mut ring).1, 0);
}

#[test]
fn where_the_kernel_filters_by_process_the_probes_are_in_one() {
    if Mechanism::UprobeMulti.attaches_to_processes() {
        one_process_sees_all_of_its_threads_and_nobody_elses(true);
    } else {
        eprintln!("SKIPPED: this kernel filters by thread");
    }
}

#[test]
fn thread_filtered_probes_record_all_threads_of_listed_processes() {
    one_process_sees_all_of_its_threads_and_nobody_elses(false);
}
