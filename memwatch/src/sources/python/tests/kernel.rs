//! The kernel half's stack walk in real interpreters: probed at a read, it finds the frames that
//! the interpreters have printed.

use std::fs::File;
use std::num::NonZeroU32;
use std::path::PathBuf;

use aya::maps::{MapData, RingBuf};
use memwatch_common::record::{Item, RingRecord};
use memwatch_common::tensor::{STACK_FRAMES, TENSOR_PROBES, Walk};
use memwatch_core::stack::PythonStack;
use object::ReadCache;

use super::interpreters::{StoppingScript, VERSIONS, interpreter};
use super::{PythonProcess, expected, script, shown};
use crate::frameworks::points::TensorPoint;
use crate::frameworks::probes::{attach, set_layout};
use crate::sources::kernel::load::{KernelHalf, LoadOptions, may_probe};
use crate::sources::kernel::resolve::SymbolTable;

/// The kernel half, which walks the stack of every thread that reads a file.
struct Walker {
    _kernel: KernelHalf,
    ring: RingBuf<MapData>,
    python: PythonProcess,
    stacks: std::collections::BTreeMap<u64, PythonStack>,
}

impl Walker {
    fn start(tgid: u32) -> Self {
        let options =
            LoadOptions { all_processes: true, ring_bytes: 4 << 20, classic_uprobes: false, diagnostics: false };
        let mut kernel = KernelHalf::load(options).unwrap();
        let ring = RingBuf::try_from(kernel.ebpf.take_map("RECORDS").unwrap()).unwrap();
        let python = PythonProcess::attach(tgid).unwrap().expect("it is Python");
        set_layout(&mut kernel, tgid, &python.layout()).unwrap();
        let path = c_library(tgid);
        let cache = ReadCache::new(File::open(&path).unwrap());
        let file_offset = SymbolTable::parse(&cache).unwrap().function("read").unwrap().file_offset;
        let row = TENSOR_PROBES.iter().find(|row| row.plan.stack == Walk::Always).unwrap();
        let scope = NonZeroU32::new(tgid).unwrap();
        attach(&mut kernel, &path, scope, &[TensorPoint::new(row, file_offset)]).unwrap();
        Self { _kernel: kernel, ring, python, stacks: std::collections::BTreeMap::new() }
    }

    /// Returns the stack of a thread's last read, or `None` if it has not read since the last call.
    fn last(&mut self, tid: u32) -> Option<(PythonStack, u8)> {
        let mut last = None;
        // No event reports freed code objects here.
        self.python.resolver.forget_all();
        while let Some(bytes) = self.ring.next() {
            match Item::from_bytes(&bytes).unwrap() {
                Item::Stack(stack) => {
                    let resolved = self.python.resolve(&stack);
                    self.stacks.insert(stack.record.id, resolved);
                }
                Item::Record(RingRecord::Tensor(event)) if event.tid == tid => {
                    last = Some((self.stacks.get(&event.stack).cloned().unwrap_or_default(), event.flags));
                }
                _ => {}
            }
        }
        last
    }
}

/// Returns the C library that a process has mapped.
fn c_library(tgid: u32) -> PathBuf {
    let maps = std::fs::read_to_string(format!("/proc/{tgid}/maps")).unwrap();
    let is_c = |line: &&str| line.split_ascii_whitespace().nth(5).is_some_and(|path| path.ends_with("/libc.so.6"));
    let line = maps.lines().find(is_c).expect("it uses glibc");
    let range = line.split_ascii_whitespace().next().expect("a line begins with a range");
    PathBuf::from(format!("/proc/{tgid}/map_files/{range}"))
}

#[test]
fn the_kernel_half_walks_the_frames_that_python_says() {
    if !may_probe() {
        return;
    }
    for version in VERSIONS {
        let Some(interpreter) = interpreter(version) else { continue };
        let mut script = StoppingScript::run(&interpreter, &script("places.py"), None);
        let mut walker: Option<Walker> = None;
        let mut places = 0;
        while let Some(place) = script.place() {
            if place.name.starts_with("thread") {
                continue;
            }
            script.wait_for_stop(place.tid);
            match &mut walker {
                // The thread has already entered its read.
                None => walker = Some(Walker::start(script.tgid())),
                Some(walker) => {
                    let name = format!("{version}: {}", place.name);
                    let (stack, flags) = walker.last(place.tid).expect("it reads");
                    assert_eq!((shown(&stack), flags), (expected(&place), 0), "{name}");
                    assert_eq!(stack.truncated, place.frames.len() > STACK_FRAMES, "{name}");
                    places += 1;
                }
            }
            script.go_on();
        }
        assert!(places >= 20, "{version}: only {places} places");
    }
}
