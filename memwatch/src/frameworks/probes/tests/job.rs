//! A Python with PyTorch on the simulated GPU that runs the lines it is sent, and the kernel half
//! attached to it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use aya::maps::{Array, HashMap, MapData, RingBuf};
use memwatch_common::loss::Loss;
use memwatch_common::record::{Item, RingRecord};
use memwatch_common::tensor::{FrameworkLibrary, Purpose, TENSOR_PROBES};
use serde_json::Value;
use tempfile::TempDir;

use super::SentEvents;
use crate::frameworks::points::{TensorPoint, points};
use crate::frameworks::probes::{
    CodeOfProcess, TensorProbes, attach, attach_to, detach, forget, set_layout, set_window_frames, walk_state,
    want_statistics,
};
use crate::frameworks::pytorch::allocator_points;
use crate::sources::kernel::load::{KernelHalf, LoadOptions, may_probe};
use crate::sources::kernel::site::KernelVersion;
use crate::sources::python::PythonProcess;

const PRELUDE: &str = r"
import sys, json, ctypes, time, threading
import torch
held = []
model = None
def leaf(n): return torch.empty(n, dtype=torch.uint8, device='cuda')
def middle(n): return leaf(n)
def twice():
    for _ in range(2):
        held.append(middle(70000))
        print('=1', flush=True)
        sys.stdin.readline()
def train(steps):
    global model
    if model is None:
        layers = [torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)]
        model = torch.nn.Sequential(*layers).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.empty(32, 64, device='cuda')).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
for line in sys.stdin:
    out = None
    exec(line, globals())
    print('=' + json.dumps(out), flush=True)
";

/// The Python process. It is killed when it is dropped.
pub(crate) struct PythonJob {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    _directory: TempDir,
}

impl PythonJob {
    /// Starts Python. Returns `None`, with the reason on standard error, if it cannot run here.
    pub(crate) fn start(version: &str) -> Option<Self> {
        if !may_probe() {
            return None;
        }
        let target = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
        let environment = target.join(format!("torch/torch-{version}.0"));
        let driver = target.join("gpusim/cmp/lib");
        if !environment.join("runtime/.complete").exists() || !driver.exists() {
            return skip(&format!("PyTorch {version} is not installed: cargo xtask test integration does that"));
        }
        let directory = TempDir::with_prefix("memwatch-test-").unwrap();
        let libraries = std::env::join_paths([driver, environment.join("runtime")]).unwrap();
        let mut command = Command::new(environment.join("venv/bin/python"));
        command.args(["-u", "-c", PRELUDE]).env("LD_LIBRARY_PATH", libraries).env("PYTHONWARNINGS", "ignore");
        command.env("GPUSIM_LEDGER", directory.path().join("ledger"));
        match version {
            "2.8" => command.env("GPUSIM_DRIVER_VERSION", "12080"),
            _ => command.env("GPUSIM_DRIVER_VERSION", "13020").env("GPUSIM_CUDNN_VERSION", "92600"),
        };
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        Some(Self { child, input, output, _directory: directory })
    }

    pub(crate) fn tgid(&self) -> u32 {
        self.child.id()
    }

    /// Runs one line and returns the value of `out`.
    pub(crate) fn ask(&mut self, line: &str) -> Value {
        writeln!(self.input, "{line}").unwrap();
        loop {
            let mut answer = String::new();
            assert_ne!(self.output.read_line(&mut answer).unwrap(), 0, "Python has ended");
            if let Some(json) = answer.strip_prefix('=') {
                return serde_json::from_str(json).unwrap();
            }
        }
    }

    pub(crate) fn number(&mut self, expression: &str) -> u64 {
        self.ask(&format!("out = {expression}")).as_u64().unwrap()
    }

    /// Kills the process.
    pub(crate) fn end(&mut self) {
        // Fails if the process has already exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Returns the mapped file with this name.
    fn mapped(&self, name: &str) -> Option<PathBuf> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.tgid())).unwrap();
        let path = maps.lines().filter_map(|line| line.split_ascii_whitespace().nth(5)).find(|path| {
            let file = path.rsplit('/').next().unwrap_or_default();
            file == name
        })?;
        Some(PathBuf::from(path))
    }
}

impl Drop for PythonJob {
    fn drop(&mut self) {
        self.end();
    }
}

/// All libraries with rows that are probed in any training process.
pub(crate) const LIBRARIES: [(FrameworkLibrary, &str); 3] = [
    (FrameworkLibrary::C10, "libc10.so"),
    (FrameworkLibrary::C10Cuda, "libc10_cuda.so"),
    (FrameworkLibrary::TorchCpu, "libtorch_cpu.so"),
];

/// The kernel half attached to one job. Everything is released when this is dropped.
pub(crate) struct ProbedJob {
    kernel: KernelHalf,
    ring: RingBuf<MapData>,
    probes: Vec<TensorProbes>,
    code_goes: bool,
}

impl ProbedJob {
    /// Attaches the rows of these libraries.
    pub(crate) fn attach(
        job: &PythonJob,
        (classic_uprobes, ring_bytes): (bool, u32),
        libraries: &[(FrameworkLibrary, &str)],
    ) -> Self {
        let options = LoadOptions { all_processes: true, ring_bytes, classic_uprobes, diagnostics: false };
        let mut kernel = KernelHalf::load(options).unwrap();
        let ring = RingBuf::try_from(kernel.ebpf.take_map("RECORDS").unwrap()).unwrap();
        let version = running_kernel();
        let tgid = NonZeroU32::new(job.tgid()).unwrap();
        let mut probes = Vec::new();
        for &(library, name) in libraries {
            let path = job.mapped(name).expect("PyTorch has loaded its libraries");
            let mut points = points(&File::open(&path).unwrap(), library, version).unwrap();
            points.retain(|point| point.row.purpose != Purpose::AllocatorCalls);
            assert!(!points.is_empty());
            probes.push(attach(&mut kernel, &path, tgid, &points).unwrap());
        }
        Self { kernel, ring, probes, code_goes: false }
    }

    /// Attaches the probes that show everything about a block with one probe, in addition to those
    /// attached.
    pub(crate) fn attach_calls(&mut self, job: &PythonJob) -> TensorProbes {
        let path = job.mapped("libc10_cuda.so").expect("PyTorch has loaded its libraries");
        let mut points =
            allocator_points(&File::open(&path).unwrap(), FrameworkLibrary::C10Cuda, running_kernel()).unwrap();
        points.retain(|point| point.row.purpose == Purpose::AllocatorCalls);
        attach(&mut self.kernel, &path, NonZeroU32::new(job.tgid()).unwrap(), &points).unwrap()
    }

    pub(crate) fn take_out(&mut self, probes: TensorProbes) {
        detach(&mut self.kernel, probes).unwrap();
    }

    pub(crate) fn want_statistics(&mut self, job: &PythonJob) {
        want_statistics(&mut self.kernel, job.tgid()).unwrap();
    }

    pub(crate) fn set_window_frames(&mut self, frames: u32) {
        set_window_frames(&mut self.kernel, NonZeroU32::new(frames).unwrap()).unwrap();
    }

    pub(crate) fn left_out(&mut self, job: &PythonJob) -> u64 {
        walk_state(&mut self.kernel, job.tgid()).unwrap().left_out
    }

    /// Sets the layout of the job's interpreter and probes the deallocation of code objects.
    pub(crate) fn set_layout(&mut self, job: &PythonJob, module_codes: &[u64]) {
        let python = PythonProcess::attach(job.tgid()).unwrap().expect("it is Python");
        let mut layout = python.layout();
        layout.module_codes[..module_codes.len()].copy_from_slice(module_codes);
        set_layout(&mut self.kernel, job.tgid(), &layout).unwrap();
        if self.code_goes {
            return;
        }
        let place = python.code_dealloc().expect("it is known where code objects go");
        let row = TENSOR_PROBES.iter().find(|row| row.plan.forgets).unwrap();
        let point = TensorPoint::new(row, place.file_offset);
        let tgid = NonZeroU32::new(job.tgid()).unwrap();
        self.probes.push(attach(&mut self.kernel, &place.path(), tgid, &[point]).unwrap());
        self.code_goes = true;
    }

    /// Sets only the layout of the job's interpreter.
    pub(crate) fn set_layout_alone(&mut self, job: &PythonJob) {
        let python = PythonProcess::attach(job.tgid()).unwrap().expect("it is Python");
        set_layout(&mut self.kernel, job.tgid(), &python.layout()).unwrap();
    }

    /// Detaches all probes and attaches the rows of one library in all processes.
    pub(crate) fn attach_to_all(&mut self, job: &PythonJob, (library, name): (FrameworkLibrary, &str)) {
        self.detach(job);
        let path = job.mapped(name).expect("PyTorch has loaded its libraries");
        let points = points(&File::open(&path).unwrap(), library, running_kernel()).unwrap();
        let tgid = NonZeroU32::new(job.tgid()).unwrap();
        self.probes.push(attach_to(&mut self.kernel, &path, (tgid, false), &points).unwrap());
    }

    /// Makes the kernel half forget the job. Its probes stay attached.
    pub(crate) fn forget(&mut self, job: &PythonJob) {
        forget(&mut self.kernel, job.tgid()).unwrap();
    }

    /// Returns the number of lost records of this kind.
    pub(crate) fn lost(&mut self, loss: Loss) -> u64 {
        let map = self.kernel.ebpf.map_mut("LOST_TOTAL").unwrap();
        let counts: Array<_, u64> = Array::try_from(map).unwrap();
        counts.get(&(loss as u32), 0).unwrap()
    }

    /// Detaches all probes and makes the kernel half forget the job.
    pub(crate) fn detach(&mut self, job: &PythonJob) {
        for probes in self.probes.drain(..) {
            detach(&mut self.kernel, probes).unwrap();
        }
        forget(&mut self.kernel, job.tgid()).unwrap();
    }

    /// Returns the number of entries that the kernel half has for a process.
    pub(crate) fn known(&mut self, tgid: u32) -> usize {
        let map = self.kernel.ebpf.map_mut("KNOWN_CODE").unwrap();
        let codes: HashMap<_, CodeOfProcess, u32> = HashMap::try_from(map).unwrap();
        let codes = codes.keys().filter(|code| code.as_ref().unwrap().tgid == u64::from(tgid)).count();
        codes + usize::from(self.is_walked(tgid))
    }

    /// Returns whether stacks are walked in a process.
    pub(crate) fn is_walked(&mut self, tgid: u32) -> bool {
        walk_state(&mut self.kernel, tgid).is_some()
    }

    /// Returns everything that arrived since the last call.
    pub(crate) fn drain(&mut self) -> SentEvents {
        let mut sent = SentEvents::default();
        while let Some(bytes) = self.ring.next() {
            match Item::from_bytes(&bytes).unwrap() {
                Item::Record(RingRecord::Tensor(event)) => sent.events.push(event),
                Item::Record(RingRecord::Text(text)) => {
                    sent.texts.push(String::from_utf8_lossy(text.text()).into_owned());
                }
                Item::Record(_) | Item::Native(_) | Item::Rm(_) => {}
                Item::Stack(stack) => {
                    let before = sent.stacks.insert(stack.record.id, stack.frames().collect());
                    assert_eq!(before, None, "a stack is sent once");
                }
                Item::Statistics(statistics) => {
                    sent.statistics.push((statistics.allocator, sent.events.len(), statistics.words().to_vec()));
                }
            }
        }
        sent
    }
}

fn running_kernel() -> KernelVersion {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    KernelVersion::from_release(&release).unwrap()
}

fn skip<T>(reason: &str) -> Option<T> {
    eprintln!("SKIPPED: {reason}");
    None
}
