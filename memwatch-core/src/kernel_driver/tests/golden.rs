//! Requests of programs on a real GPU, compared with what NVML charged them: see
//! `golden/README.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use memwatch_common::rm::{CONTROLS, class};

use crate::input::{Cores, DeviceFacts, DeviceReading, Input, NvmlState, ProcessFacts, ProcessUse, Sensors};
use crate::kernel_driver::labels::MemoryPurpose;
use crate::kernel_driver::trust::LedgerTrust;
use crate::pipeline::Pipeline;
use crate::snapshot::{Explained, ExplainedUse};
use crate::stack::native::{NativeEnd, NativeFrame, NativeRole, NativeStack};
use crate::test_calls::rm::*;
use crate::words::{GpuUuid, Tgid};

const MIB: u64 = 1 << 20;
/// Time of the first request of a log, and of memwatch's attach before it.
const BEGIN_NS: u64 = 200_000_000_000;
const ATTACHED_NS: u64 = 100_000_000_000;
const GPU: [u8; 16] = [0xaa; 16];
const A: u32 = 1001;

struct GoldenRow<'a>(Vec<&'a str>);

impl<'a> GoldenRow<'a> {
    fn time_ns(&self) -> u64 {
        let us: i64 = self.0[0].parse().expect("microseconds");
        BEGIN_NS.checked_add_signed(us * 1000).expect("it is after the attach")
    }

    fn tgid(&self) -> u32 {
        if self.0[1] == "B" { A + 1 } else { A }
    }

    fn event(&self) -> &'a str {
        self.0[3]
    }

    fn api(&self) -> &'a str {
        self.0[4]
    }

    fn hex(&self, column: usize) -> u32 {
        u32::from_str_radix(self.0[column], 16).unwrap_or(0)
    }

    fn bytes(&self, column: usize) -> u64 {
        self.0[column].parse().unwrap_or(0)
    }

    /// Returns a word of the last column.
    fn extra(&self, name: &str) -> &'a str {
        self.0[18].split(' ').find_map(|word| word.strip_prefix(name)).expect("it is there")
    }

    fn address(&self) -> u64 {
        u64::from_str_radix(self.extra("va="), 16).expect("an address")
    }

    /// Returns the requests of the row, leaving out requests that the kernel half does not record.
    fn requests(&self) -> Vec<Rm> {
        let (times, step) = (self.bytes(19), self.hex(20));
        let one = |time| self.request(self.hex(10) + u32::try_from(time).expect("few") * step);
        (0..times).filter_map(one).collect()
    }

    fn request(&self, object: u32) -> Option<Rm> {
        let (client, parent, number) = (self.hex(8), self.hex(9), self.hex(7));
        let names = (client, parent, object);
        let rm = match self.event() {
            "ALLOC" => {
                let class = class(number)?;
                // A failed allocation has the attributes of its request.
                let sizes = (self.bytes(11), self.bytes(12));
                let rm = if class.is_memory {
                    memory(NEWEST, names, number, sizes, self.hex(14)).param(8, self.hex(16))
                } else {
                    made(NEWEST, names, number)
                };
                rm.refused(NEWEST, self.hex(17))
            }
            "ALLOCMEM" => pinned(names, self.bytes(12)),
            "FREE" => free(client, object),
            "DUP" => {
                let (from, source) = self.extra("from=").split_once(':')?;
                let hex = |text| u32::from_str_radix(text, 16).expect("a number");
                duplicate(names, (hex(from), hex(source)))
            }
            "CTRL" => {
                CONTROLS.iter().find(|(control, _)| *control == number)?;
                if number == 0x205 {
                    Rm::new(0x2a, 32).word(0, client).word(8, number)
                } else {
                    named(client, object, GPU)
                }
            }
            "MAP_EXTERNAL" => mapped((client, object), self.address(), self.extra("len=").parse().expect("bytes")),
            "UVM_FREE" => unmapped(34, self.address(), 0),
            "UNMAP_EXTERNAL" => unmapped(66, self.address(), 0),
            _ => return None,
        };
        Some(rm.process(self.tgid()))
    }

    /// Returns the recorded stack: the driver, its function, and the libraries below.
    fn stack(&self) -> NativeStack {
        let frame = |library: &str, name: Option<&str>| {
            let name: Option<Arc<str>> = name.map(Into::into);
            let library = format!("/usr/lib/{library}").into();
            NativeFrame { function: name.clone(), name, library, address: 1, role: NativeRole::Code }
        };
        let mut frames = vec![frame("libcuda.so.1", None)];
        if self.api() != "?" {
            frames.push(frame("libcuda.so.1", Some(self.api())));
            frames.extend(self.0[5].split('<').map(|module| frame(&format!("{module}.so"), None)));
        }
        NativeStack { frames, end: NativeEnd::CopyEnds }
    }
}

fn rows(text: &str) -> Vec<GoldenRow<'_>> {
    text.lines().skip(1).map(|line| GoldenRow(line.split('\t').collect())).collect()
}

/// Returns the function in flight. If the stack was too deep to show it, this is the function of
/// the requests before and after.
fn function<'a>(rows: &[GoldenRow<'a>], place: usize) -> &'a str {
    let named = |row: &&GoldenRow<'a>| !matches!(row.api(), "-" | "?") && row.event() != "MARK";
    let before = rows[..place].iter().rev().find(named).map(GoldenRow::api);
    let after = rows[place..].iter().find(named).map(GoldenRow::api);
    match rows[place].api() {
        "?" if before == after => before.unwrap_or("?"),
        own => own,
    }
}

struct Play {
    pipeline: Pipeline,
    /// Bytes that NVML charged beyond the recorded requests, by mark.
    differences: BTreeMap<String, i64>,
    marks: usize,
}

impl Play {
    fn begin(version: &str) -> Self {
        let mut pipeline = Pipeline::new(false);
        pipeline.step(Input::Attached { time_ns: ATTACHED_NS });
        pipeline.step(Input::KernelDriver { version: Some(version.to_owned()) });
        for tgid in [A, A + 1] {
            let facts = ProcessFacts { tgid, start_ns: ATTACHED_NS + 1, ..ProcessFacts::default() };
            pipeline.step(Input::Process(facts));
        }
        Self { pipeline, differences: BTreeMap::new(), marks: 0 }
    }

    fn seen_bytes(&self, tgid: u32) -> u64 {
        let ledger = self.pipeline.state.kernel_driver.ledger_of(Tgid(tgid));
        ledger.map_or(0, |ledger| ledger.live().map(|(_, bytes)| bytes).sum())
    }

    fn mark(&mut self, row: &GoldenRow<'_>) {
        let (used_bytes, time_ns) = (row.bytes(12), row.time_ns());
        if used_bytes == 0 && self.seen_bytes(A) > 0 {
            self.pipeline.step(Input::ProcessEnded { tgid: Tgid(A), time_ns });
        }
        self.marks += 1;
        let beyond = used_bytes.cast_signed() - self.seen_bytes(A).cast_signed();
        if beyond != 0 {
            self.differences.insert(row.api().to_owned(), beyond);
        }
        self.pipeline.step(Input::Devices(reading(time_ns, used_bytes, row.extra("device_used=").parse().ok())));
        self.pipeline.step(Input::Tick { time_ns: time_ns + 1 });
    }

    fn explain(&self) -> Explained {
        self.pipeline.state.explain(Tgid(A)).expect("its requests were seen")
    }

    fn on_gpu(&self) -> ExplainedUse {
        let explained = self.explain();
        let [on_gpu] = <[_; 1]>::try_from(explained.gpus).expect("it is on one GPU");
        on_gpu
    }

    /// Returns the bytes with this label in MiB, optionally of one owner.
    fn mib(&self, label: MemoryPurpose, owner: Option<&str>) -> u64 {
        let parts = self.on_gpu().parts;
        let fits =
            parts.iter().filter(|part| part.label == label && (owner.is_none() || part.owner.as_deref() == owner));
        fits.map(|part| part.bytes).sum::<u64>() / MIB
    }
}

fn reading(time_ns: u64, used_bytes: u64, device_bytes: Option<u64>) -> DeviceReading {
    let entry = ProcessUse { tgid: Tgid(A), used_bytes: Some(used_bytes), mps_client: false };
    let device = DeviceFacts {
        uuid: GpuUuid::from_bytes(GPU),
        nvml_index: 0,
        name: "NVIDIA H100".to_owned(),
        pci_bus_id: None,
        mig: None,
        total_bytes: Some(80 << 30),
        used_bytes: device_bytes,
        processes: Some(if used_bytes > 0 { vec![entry] } else { Vec::new() }),
        cores: Some(Cores { count: 132 * 128, capability: (9, 0) }),
        sensors: Sensors::default(),
    };
    DeviceReading { begin_ns: time_ns, end_ns: time_ns, state: NvmlState::Ok, devices: vec![device] }
}

/// Plays a log up to this mark.
fn play_until(text: &str, last: &str) -> Play {
    let mut play = Play::begin("580.159.04");
    let rows = rows(text);
    let mut stacks = 0;
    for (place, row) in rows.iter().enumerate() {
        if row.event() == "MARK" {
            play.mark(row);
            if row.api() == last {
                break;
            }
            continue;
        }
        for (count, rm) in (0..).zip(row.requests()) {
            let entered_ns = row.time_ns() + count;
            let mut rm = rm.at(entered_ns, entered_ns + 1);
            if row.api() != "-" {
                stacks += 1;
                play.pipeline.step(Input::NativeStack { tgid: Tgid(row.tgid()), id: stacks, stack: row.stack() });
                rm = rm.inside(function(&rows, place), entered_ns - 1).stack(stacks);
            }
            play.pipeline.step(rm.input());
        }
    }
    // The last reading is judged after the requests in flight have returned.
    let time_ns = rows.last().map_or(BEGIN_NS, GoldenRow::time_ns) + 1_000_000_000;
    play.pipeline.step(Input::Tick { time_ns });
    play
}

fn play(text: &str) -> Play {
    play_until(text, "")
}

const STEPS: &str = include_str!("golden/steps.tsv");
const LOGS: [(&str, &str, usize); 11] = [
    ("steps", STEPS, 39),
    ("gpt2", include_str!("golden/gpt2.tsv"), 8),
    ("gpt2exp", include_str!("golden/gpt2exp.tsv"), 10),
    ("gpt2async", include_str!("golden/gpt2async.tsv"), 11),
    ("nccl", include_str!("golden/nccl.tsv"), 9),
    ("jax", include_str!("golden/jax.tsv"), 8),
    ("cupy", include_str!("golden/cupy.tsv"), 5),
    ("graph", include_str!("golden/graph.tsv"), 7),
    ("managed", include_str!("golden/managed.tsv"), 5),
    ("compile", include_str!("golden/compile.tsv"), 11),
    ("ipc", include_str!("golden/ipc.tsv"), 4),
];

#[test]
fn rm_video_memory_sum_equals_nvml_at_every_quiet_mark() {
    for (name, text, marks) in LOGS {
        let play = play(text);
        let in_flight: BTreeMap<String, i64> = match name {
            "cupy" => [("s2".to_owned(), -(8 << 20))].into(),
            "gpt2async" => [("s5".to_owned(), -(32 << 20))].into(),
            _ => BTreeMap::new(),
        };
        assert_eq!((play.differences, play.marks), (in_flight, marks), "{name}");
    }
}

fn adds_up(on_gpu: &ExplainedUse) {
    assert_eq!(on_gpu.parts.iter().map(|part| part.bytes).sum::<u64>(), on_gpu.live_bytes);
    let columns = on_gpu.columns;
    let sum = columns.requested_bytes + columns.slack_bytes + columns.rounding_bytes;
    assert_eq!(sum + columns.unplaced_bytes + columns.driver_bytes, on_gpu.live_bytes);
}

#[test]
fn rm_labels_sum_to_the_nvml_charge_with_nothing_unexplained() {
    for (name, text, _) in LOGS.into_iter().filter(|(name, ..)| !matches!(*name, "steps" | "ipc")) {
        let on_gpu = play(text).on_gpu();
        assert_eq!((on_gpu.trust, on_gpu.difference_bytes), (LedgerTrust::Trusted, Some(0)), "{name}");
        assert_eq!((on_gpu.used_bytes, on_gpu.older_bytes), (Some(on_gpu.live_bytes), Some(0)), "{name}");
        assert_eq!(on_gpu.uuid, Some(GpuUuid::from_bytes(GPU)), "{name}");
        adds_up(&on_gpu);
    }
}

#[test]
fn a_context_is_a_context_until_a_kernel_needs_more_local_memory() {
    let made = play_until(STEPS, "ctx_retain");
    assert_eq!((made.mib(MemoryPurpose::Context, None), made.on_gpu().live_bytes), (518, 518 * MIB));
    assert_eq!(made.on_gpu().parts.len(), 1);

    let kernel = play_until(STEPS, "torch_first_kernel");
    assert_eq!(kernel.mib(MemoryPurpose::Context, None), 104, "414 of 518 MiB were freed");
    assert_eq!(kernel.mib(MemoryPurpose::LocalMemory, None), 504, "and given again");
    let parts = kernel.on_gpu().parts;
    let per_thread: Vec<_> = parts.iter().filter_map(|part| Some((part.label, part.bytes_per_thread?))).collect();
    assert_eq!(per_thread, [(MemoryPurpose::LocalMemory, 1952)]);
    assert_eq!(
        (kernel.mib(MemoryPurpose::Code, Some("PyTorch")), kernel.mib(MemoryPurpose::Requested, Some("PyTorch"))),
        (2, 20)
    );
    assert_eq!(
        (kernel.mib(MemoryPurpose::Stream, Some("libffi.so")), kernel.mib(MemoryPurpose::Requested, Some("libffi.so"))),
        (4, 2)
    );
    assert_eq!(kernel.on_gpu().live_bytes, 636 * MIB);
    adds_up(&kernel.on_gpu());
}

#[test]
fn rm_training_log_remainder_is_labelled_by_owner() {
    let end = play_until(STEPS, "end");
    let parts = [
        (MemoryPurpose::Context, None, 104),
        (MemoryPurpose::LocalMemory, None, 504),
        (MemoryPurpose::Stream, Some("PyTorch"), 70),
        (MemoryPurpose::Stream, Some("cuDNN"), 8),
        (MemoryPurpose::Stream, Some("libffi.so"), 4),
        (MemoryPurpose::Code, Some("cuBLAS"), 2),
        (MemoryPurpose::Code, Some("PyTorch"), 2),
        (MemoryPurpose::Requested, Some("cuBLAS"), 128),
        (MemoryPurpose::Requested, Some("PyTorch"), 134),
        (MemoryPurpose::Requested, Some("libffi.so"), 2),
    ];
    for (label, owner, mib) in parts {
        assert_eq!(end.mib(label, owner), mib, "{label:?} {owner:?}");
    }
    assert_eq!(parts.iter().map(|(.., mib)| mib).sum::<u64>(), 958);
    assert_eq!((end.on_gpu().live_bytes, end.on_gpu().trust), (958 * MIB, LedgerTrust::Trusted));
    let pieces = end.on_gpu().pieces;
    assert_eq!(pieces.iter().map(|piece| piece.granted_bytes * piece.objects).sum::<u64>(), 958 * MIB, "{pieces:#?}");
    let local = &pieces[0];
    assert_eq!(
        (local.label, local.asked_bytes, local.granted_bytes),
        (MemoryPurpose::LocalMemory, Some(527_695_872), 504 * MIB)
    );
}

#[test]
fn libraries_and_pools_have_their_names() {
    let nccl = play(LOGS[4].1);
    assert_eq!(
        (nccl.mib(MemoryPurpose::Requested, Some("NCCL")), nccl.mib(MemoryPurpose::Code, Some("NCCL"))),
        (388, 102)
    );
    assert_eq!(nccl.mib(MemoryPurpose::Driver, None), 2, "one stack was too deep to show who asked");
    let jax = play_until(LOGS[5].1, "s61");
    assert_eq!(
        (jax.mib(MemoryPurpose::Requested, Some("JAX")), jax.mib(MemoryPurpose::Requested, Some("cuBLAS"))),
        (8108, 64)
    );
    assert_eq!((jax.mib(MemoryPurpose::Stream, Some("cuDNN")), jax.mib(MemoryPurpose::Stream, Some("JAX"))), (18, 12));
    let pools = play(LOGS[3].1);
    assert_eq!(pools.mib(MemoryPurpose::Pool, Some("PyTorch")), pools.mib(MemoryPurpose::Pool, None));
    assert!(pools.mib(MemoryPurpose::Pool, None) > 20_000);
}

#[test]
fn host_memory_is_in_columns_of_its_own() {
    let host = play_until(STEPS, "ctx_retain").explain().host;
    // 78.0 MiB per context: four times 2 MiB are the process's own pages.
    assert_eq!(host.pinned_bytes, 8 * MIB);
    assert_eq!(host.driver_bytes, 70 * MIB - 4096);
    let with_64 = play_until(STEPS, "host_alloc_64M").explain().host;
    assert_eq!(with_64.pinned_bytes, 72 * MIB);
}

#[test]
fn rm_refused_allocations_keep_their_size_function_and_owner() {
    let explained = play(LOGS[9].1).explain();
    assert_eq!((explained.refused.len(), explained.refused_count), (4, 4));
    for refused in &explained.refused {
        assert_eq!((refused.asked_bytes, refused.owner.as_deref()), (Some(128 * MIB), Some("PyTorch")));
        assert_eq!((refused.function.as_deref(), refused.label), (Some("cuMemAlloc_v2"), MemoryPurpose::Requested));
        assert!(refused.inside.is_some_and(|inside| inside.entered_ns < refused.time_ns));
        assert_eq!(refused.uuid, explained.gpus[0].uuid, "of the GPU that the device is");
        assert!(refused.uuid.is_some());
    }
}

#[test]
fn rm_imported_memory_is_inherited_when_its_exporter_ends() {
    // State before the importer released the memory.
    let (before, _) = LOGS[10].1.split_once("\n8677983").expect("it is there");
    let mut play = play(before);
    let (a, b) = (play.seen_bytes(A), play.seen_bytes(A + 1));
    let imported = play.pipeline.state.explain(Tgid(A + 1)).expect("it is there");
    assert_eq!((imported.imported, b), (1, 518 * MIB));
    assert_eq!(a, 866 * MIB, "the context, code, 256 MiB and 90 for a kernel's local memory");
    play.pipeline.step(Input::ProcessEnded { tgid: Tgid(A), time_ns: 2 * BEGIN_NS });
    assert_eq!(play.seen_bytes(A + 1), (518 + 256) * MIB);
    let inherited = play.pipeline.state.explain(Tgid(A + 1)).expect("it is there");
    let parts = &inherited.gpus[0].parts;
    let part = parts.iter().find(|part| part.label == MemoryPurpose::Inherited).expect("it has it now");
    assert_eq!((part.bytes, part.left_by), (256 * MIB, Some(Tgid(A))));
    assert!(parts.iter().all(|part| part.left_by.is_none() || part.label == MemoryPurpose::Inherited));
    assert_eq!(inherited.imported, 0);
}

#[test]
fn rm_unknown_driver_version_explains_nothing_even_if_sums_match() {
    let mut play = play_until(STEPS, "end");
    play.pipeline.step(Input::KernelDriver { version: Some("600.10.01".to_owned()) });
    for second in 1..4 {
        play.pipeline.step(Input::Devices(reading(2 * BEGIN_NS + second * 2_000_000_000, 958 * MIB, None)));
    }
    let on_gpu = play.on_gpu();
    assert_eq!((on_gpu.trust, on_gpu.difference_bytes), (LedgerTrust::Unknown, Some(0)));
    assert_eq!(
        play.pipeline.state.process(Tgid(A)).expect("it lives").explained_on(Some(&GpuUuid::from_bytes(GPU))),
        None
    );
}
