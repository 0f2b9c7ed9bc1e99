//! Requests to a kernel driver through the stub of a compiled library, with real probes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use aya::maps::{Array, MapData, RingBuf};
use memwatch_common::loss::Loss;
use memwatch_common::record::{CallRecord, Item, RingRecord};
use memwatch_common::rm::FLAG_WRAPPED;
use memwatch_core::input::rm::{Inside, RmCall};
use memwatch_core::stack::native::NativeFrame;
use tempfile::TempDir;

use super::super::*;
use super::version;
use crate::sources::kernel::load::{LoadOptions, may_probe};
use crate::sources::library::LibraryScan;
use crate::sources::native::{NativeFiles, NativeProcess};

/// A program with a driver library. It is killed when it is dropped.
struct Driven {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _directory: TempDir,
}

impl Driven {
    /// Starts the program. Returns `None`, with the reason on standard error, if it cannot run
    /// here.
    fn start(library_flags: &[&str]) -> Option<Self> {
        if !may_probe() {
            return None;
        }
        let directory = TempDir::with_prefix("memwatch-test-").unwrap();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/sources/kernel/attach/tests");
        let (library, program) = (directory.path().join("libcuda.so.1"), directory.path().join("program"));
        let mut compiler = Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O1", "-Wl,-z,lazy,-soname,libcuda.so.1"]).args(library_flags);
        compiler.arg("-o").arg(&library).arg(sources.join("library.c"));
        if !compiler.status().is_ok_and(|status| status.success()) {
            eprintln!("SKIPPED: there is no C compiler");
            return None;
        }
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-pthread", "-o"]).arg(&program).arg(sources.join("program.c")).arg(&library);
        assert!(compiler.status().unwrap().success());
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut driven = Self { child, input, output, _directory: directory };
        driven.run("nothing");
        Some(driven)
    }

    fn run(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
        let mut answer = String::new();
        assert_ne!(self.output.read_line(&mut answer).unwrap(), 0, "{line}");
    }

    fn driver_file(&self) -> LibraryFile {
        LibraryScan::new("/proc").scan_process(self.child.id()).files.remove(0)
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        // Fails if the program has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The kernel half attached to the program's library, once or several times.
struct StubbedLibrary {
    kernel: KernelHalf,
    ring: RingBuf<MapData>,
    coverage: LibraryCoverage,
    probes: Vec<LibraryProbes>,
}

impl StubbedLibrary {
    fn attach(driven: &Driven, classic_uprobes: bool, times: usize) -> Self {
        let options = LoadOptions { all_processes: true, ring_bytes: 1 << 20, classic_uprobes, diagnostics: false };
        let mut kernel = KernelHalf::load(options).unwrap();
        let ring = RingBuf::try_from(kernel.ebpf.take_map("RECORDS").unwrap()).unwrap();
        let file = driven.driver_file();
        let plan = plan(&file, version(), (PROBES, When::Always)).unwrap();
        let attached: Vec<_> = (0..times).map(|_| attach(&mut kernel, &file, Ok(&plan))).collect();
        let coverage = attached[0].0.clone();
        Self { kernel, ring, coverage, probes: attached.into_iter().map(|(_, probes)| probes).collect() }
    }

    /// Returns the ioctls and calls that have arrived since the last call.
    fn drain(&mut self) -> (Vec<RmCall>, Vec<CallRecord>) {
        let (mut ioctls, mut calls) = (Vec::new(), Vec::new());
        while let Some(bytes) = self.ring.next() {
            match Item::from_bytes(&bytes).unwrap() {
                Item::Rm(record) => ioctls.push(RmCall::from(&record)),
                Item::Record(RingRecord::Call(call)) => calls.push(call),
                _ => {}
            }
        }
        (ioctls, calls)
    }

    fn lost(&mut self, loss: Loss) -> u64 {
        let map = self.kernel.ebpf.map_mut("LOST_TOTAL").unwrap();
        let counts: Array<_, u64> = Array::try_from(map).unwrap();
        counts.get(&(loss as u32), 0).unwrap()
    }
}

fn requests_arrive_as_they_were_made(classic_uprobes: bool, library_flags: &[&str], times: usize) {
    let Some(mut driven) = Driven::start(library_flags) else { return };
    let mut watched = StubbedLibrary::attach(&driven, classic_uprobes, times);
    assert_eq!(watched.coverage.kernel_calls, Some(KernelCalls::Probed { stubs: 1 }));
    driven.run("alloc 1048577 2097152 0 0");
    let (ioctls, calls) = watched.drain();
    let ([ioctl], [call]) = (&ioctls[..], &calls[..]) else { panic!("one of each: {ioctls:?} {calls:?}") };
    assert_eq!((ioctl.tgid.0, ioctl.tid.0, ioctl.nr, ioctl.size), (driven.child.id(), call.tid, 0x2b, 48));
    assert_eq!((ioctl.asked_bytes, ioctl.long_param(64)), (1_048_577, 2_097_152));
    assert_eq!((ioctl.word(0), ioctl.word(8), ioctl.word(12)), (0xc1d0_0001, 0xcaf0_0000, 0x40));
    assert_eq!((ioctl.word(40), ioctl.answer, ioctl.flags, ioctl.stack != 0), (0, 0, 0, cfg!(target_arch = "x86_64")));
    assert_eq!(ioctl.inside, Some(Inside { probe: call.probe, entered_ns: call.entered_ns }));
    assert!(call.entered_ns <= ioctl.entered_ns && ioctl.entered_ns < ioctl.returned_ns);
    assert!(ioctl.returned_ns <= call.returned_ns);

    for line in ["alloc 1000 0 81 0", "alloc 1000 0 0 -1", "wrapped", "map", "request 2b 56", "request c8 72"] {
        driven.run(line);
    }
    let (ioctls, _) = watched.drain();
    let [refused, failed, wrapped, map] = &ioctls[..] else { panic!("four are kept: {ioctls:?}") };
    assert_eq!((refused.word(40), refused.answer, refused.long_param(64)), (0x51, 0, 1000));
    assert_eq!((failed.word(40), failed.answer, failed.asked_bytes), (0, -1, 1000));
    assert_eq!((wrapped.nr, wrapped.size, wrapped.flags, wrapped.word(8)), (0x29, 16, FLAG_WRAPPED, 0x5c00_0002));
    assert_eq!((map.nr, map.size, map.long(0), map.inside), (33, 0, 0x7f00_0000_0000, None));
    assert_eq!((map.long(24), map.word(32), map.word(36)), (0, 0xc1d0_0001, 0x5c00_0002));
    // Each set of probes counts a request that it cannot record.
    assert_eq!(watched.lost(Loss::RmLayout), times as u64);
    assert_eq!((watched.lost(Loss::RmUnreadable), watched.lost(Loss::RmRecordLost)), (0, 0));

    driven.run("end");
    assert_eq!((watched.drain().0.len(), watched.lost(Loss::RmRecordLost)), (0, 1));
    for probes in watched.probes.drain(..) {
        let group = driven.driver_file().identity.group();
        let links = probes.into_links(&mut watched.kernel);
        detach_links(&mut watched.kernel, group, links).unwrap();
    }
    driven.run("alloc 1 2 0 0");
    assert_eq!(watched.drain(), (Vec::new(), Vec::new()));
}

#[test]
fn ioctl_stub_probe_records_the_request_and_its_result() {
    requests_arrive_as_they_were_made(false, &["-fcf-protection=none"], 1);
}

#[test]
fn a_table_for_indirect_branch_tracking_and_classic_probes_do_as_well() {
    requests_arrive_as_they_were_made(true, &["-fcf-protection", "-Wl,-z,ibtplt"], 1);
}

#[test]
fn a_library_that_is_probed_twice_makes_one_record_of_each_request() {
    requests_arrive_as_they_were_made(false, &["-fcf-protection=none"], 2);
}

#[test]
fn a_library_without_a_stub_is_watched_but_for_its_requests() {
    let Some(mut driven) = Driven::start(&["-fno-plt"]) else { return };
    let mut watched = StubbedLibrary::attach(&driven, false, 1);
    let Some(KernelCalls::Refused { reason }) = &watched.coverage.kernel_calls else { panic!("it has no stub") };
    assert_eq!((reason.as_str(), &watched.coverage.error), ("it calls ioctl without a stub", &None));
    driven.run("alloc 1 2 0 0");
    let (ioctls, calls) = watched.drain();
    assert_eq!((ioctls.len(), calls.len()), (0, 1));
}

#[test]
fn a_request_for_video_memory_comes_with_the_stack_that_it_was_made_on() {
    let Some(mut driven) = Driven::start(&["-fcf-protection=none"]) else { return };
    let mut watched = StubbedLibrary::attach(&driven, false, 1);
    driven.run("alloc 1 2 0 0");
    driven.run("wrapped");
    let mut native = NativeProcess::new(driven.child.id());
    let mut stacks = Vec::new();
    let mut named = Vec::new();
    while let Some(bytes) = watched.ring.next() {
        match Item::from_bytes(&bytes).unwrap() {
            Item::Native(copy) => stacks.push((copy.id, native.distinguish(&mut NativeFiles::default(), &copy))),
            Item::Rm(record) => named.push((record.nr, record.stack, stacks.len())),
            Item::Record(_) | Item::Stack(_) | Item::Statistics(_) => {}
        }
    }
    let [(id, unwound)] = &stacks[..] else { panic!("one copy: {stacks:?}") };
    assert_eq!(named, [(0x2b, *id, 1), (0x29, 0, 1)], "the copy comes first");
    let frames = &unwound.stack.as_ref().unwrap().frames;
    let is_of = |NativeFrame { library, .. }: &NativeFrame, file: &str| library.ends_with(file);
    assert!(is_of(&frames[0], "/libcuda.so.1"), "the stub: {frames:?}");
    let place = |wanted: &dyn Fn(&NativeFrame) -> bool| frames.iter().position(wanted);
    let called = place(&|frame| frame.name.as_deref() == Some("cuMemAlloc_v2"));
    let program = place(&|frame| is_of(frame, "/program"));
    assert!(called.is_some() && called < program, "{frames:?}");
}
