//! The table: one row per probed function around a framework's allocator.
//!
//! Symbols are beginnings of mangled names, since signatures change from version to version; presence and registers were checked in the wheels of
//! PyTorch 2.1.2, 2.4.1, 2.6.0, 2.8.0 and 2.15.0 for x86-64.

use super::plan::{BlockPlan, Statistics, TensorPlan, Text, Walk};

/// The library a row's function is in, by the name of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameworkLibrary {
    /// `libc10.so`: what the allocator reports to a profiler. Exported.
    C10,
    /// `libc10_cuda.so`: the caching allocator. Local symbols: only where it is not stripped.
    C10Cuda,
    /// `libtorch_cpu.so`: the autograd engine and ranges.
    TorchCpu,
    /// `libtorch_cuda.so`: graphs.
    TorchCuda,
    /// `libtorch_python.so`: NVTX ranges.
    TorchPython,
    /// `xla_cuda_plugin.so`: XLA's plug-in for JAX. Local symbols: only where it is not stripped.
    Xla,
    /// `libtensorflow_framework.so`. Exported.
    TensorFlow,
    /// `onnxruntime_pybind11_state….so` of the Python package, and `libonnxruntime.so` of others. No symbols: functions are found by the class.
    OnnxRuntime,
    /// `libggml-base.so` of llama.cpp and its kin: what all backends' buffers pass. Exported.
    GgmlBase,
    /// `libpython3.x.so` or the interpreter's executable. The function has no symbol there: it is where a type object says.
    Python,
}

/// What a row is for: rows are put in by these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Blocks and segments of the caching allocator.
    Allocator,
    /// The same with one probe for a block that comes and one for a block that goes, where the allocator's code shows where to put them.
    AllocatorCalls,
    /// What the allocator reports of each block, where its code does not show that.
    AllocatorReports,
    /// Its trace of all that it does, where its code does not show that.
    AllocatorTrace,
    /// The same as long as it is not known that the allocator reports its own trace, which says all that these do.
    AllocatorUntilTrace,
    /// The same where the allocator reports its own trace only while it is recorded (before PyTorch 2.4).
    AllocatorWithoutTrace,
    /// Chunks of the arenas of XLA, TensorFlow and ONNX Runtime.
    Arena,
    /// Buffers of ggml.
    Buffers,
    /// Forward, backward, optimizer, and what the program calls a range.
    Stages,
    /// Which node of the backward graph belongs to which module.
    Layers,
    /// Python's code objects.
    Python,
}

/// Where in a function a row is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    /// At its entry.
    Entry,
    /// On instructions that call it, or come right behind such a call: which, and what is read there, its callers' code shows. An exception never meets
    /// such a probe on its way.
    Calls,
    /// Where it asks for the thread's variable that it counts in: the number is not given yet, and the same as at the return, which costs many
    /// times as much. At its return where its code is not as expected: only of a function through which no exception is thrown.
    Count,
}

/// What a row means: the order of its arguments is known to `decode` alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorMeaning {
    /// `reportMemoryUsageToProfiler(ptr, ±block bytes, allocated, reserved, device)`: under the allocator's lock, after all its numbers are.
    Reported,
    /// `reportOutOfMemoryToProfiler(bytes, allocated, reserved, device)`.
    ReportedOutOfMemory,
    /// `record_trace(this, action, address, bytes, stream, device, …)`, and the pool's id on the stack: under the same lock.
    Traced,
    /// The call of `reportMemoryUsageToProfiler` by which a block is granted: the arguments of [`Self::Reported`], but for argument 5, the stream; the
    /// peeks are what was asked for, in bytes, and the allocator.
    Granted,
    /// The call of it by which a block is given back: argument 5 is how many blocks streams still use that were given back; the second peek the
    /// allocator.
    GivenBack,
    /// A call of `free_block` for a block that was given back before, since a stream still used it: arguments are the allocator, the block's address
    /// and size, what was asked for, its stream and the device.
    Completed,
    /// A call of `record_trace` about segments, snapshots and failures; the arguments of [`Self::Traced`].
    TracedRarely,
    /// `DeviceCachingAllocator::malloc`: before the lock. The requested bytes are argument 1 or 2, by version.
    Requested,
    /// `alloc_block(this, …, is_retry, …)`: one call per attempt to get a segment.
    SegmentWanted,
    /// `synchronize_and_free_events(this, …)`.
    Synchronized,
    /// `free_block(this, Block*, …)`: the block's address is the peek.
    BlockFreed,
    /// `NativeCachingAllocator::resetPeakStats(this, device)`.
    PeaksReset,
    /// `NativeCachingAllocator::resetAccumulatedStats(this, device)`.
    AccumulatedReset,
    /// A `record_function` range begins; its name comes as text.
    RangeBegins,
    /// The innermost such range of some thread ends.
    RangeEnds,
    /// An NVTX range is pushed; its name comes as text.
    NvtxPush,
    /// The innermost NVTX range of the thread is popped.
    NvtxPop,
    /// `Engine::evaluate_function(this, task, Node*, …)`: a node of the backward graph begins to run in this thread. The peeks are the words 16 and
    /// 24 bytes into the node: one of them is its sequence number, by version.
    ///
    /// Never at its return: an allocation that fails throws through this function, and a return probe in the way of an exception ends the program
    /// (the unwinder finds the trampoline where the return address was, and calls `std::terminate`).
    BackwardNode,
    /// `sequence_number::get_and_increment()` returns this number: the next node of the graph that this thread builds.
    SequenceNumber,
    /// `CUDAGraph::capture_begin(this, …)`: a CUDA graph begins to be captured.
    CaptureBegins,
    /// `CUDAGraph::capture_end(this)`, or its first part alone (`capture_end_pre`, in PyTorch 2.15, where Python calls the parts): it is captured.
    CaptureEnds,
    /// `tsl::BFCAllocator::AddTraceMe(this, {length, text}, chunk, requested bytes, chunk bytes)`: under the allocator's lock, after its statistics
    /// are. The same in the builds of June 2024 to October 2026.
    Chunk,
    /// `onnxruntime::BFCArena` has found a chunk for a request, or none: the arguments and peeks of [`Self::Chunk`].
    ArenaChunk,
    /// It takes one back: argument 0 is the arena, 3 the address; 2 and the peeks are what it had counted before.
    ArenaChunkFreed,
    /// `ggml_backend_buffer_init(type, interface, context, bytes)`: a buffer of some backend is made, whose memory is there. Argument 1 is its size in bytes and
    /// 2 its context; the peeks are the context's first words: of CUDA's backend the device's number (the lower half), and where the memory begins
    /// (`ggml_backend_cuda_buffer_context` in ggml/src/ggml-cuda/ggml-cuda.cu).
    BufferMade,
    /// `ggml_backend_buffer_set_usage(buffer, usage)`: what it is for; the first peek is its context.
    BufferLabelled,
    /// `ggml_backend_buffer_free(buffer)`: before its memory is given back; the first peek is its context.
    BufferGoes,
    /// The code object in argument 0 goes; its address may become another's.
    CodeGoes,
}

impl TensorMeaning {
    /// Which bits of the six argument registers show something; what stands in the others is whatever the caller left there.
    pub const fn argument_bits(self) -> [u64; 6] {
        const ALL: u64 = u64::MAX;
        match self {
            // The last is a packed `c10::Device`.
            Self::Reported => [ALL, ALL, ALL, ALL, 0xffff, 0],
            Self::Granted => [ALL, ALL, ALL, ALL, 0xffff | super::PRIVATE_POOL, ALL],
            Self::GivenBack => [ALL, ALL, ALL, ALL, 0xffff, ALL],
            Self::Completed => [ALL, ALL, ALL, ALL, ALL, 0xff],
            Self::ReportedOutOfMemory => [ALL, ALL, ALL, 0xffff, 0, 0],
            Self::Traced | Self::TracedRarely => [ALL, 0xffff_ffff, ALL, ALL, ALL, 0xff],
            Self::Requested => [ALL, ALL, ALL, 0, 0, 0],
            Self::Chunk | Self::ArenaChunk => [ALL; 6],
            Self::ArenaChunkFreed => [ALL, 0, ALL, ALL, 0, 0],
            Self::BufferMade => [0, ALL, ALL, 0, 0, 0],
            Self::BufferLabelled => [0, 0xffff_ffff, 0, 0, 0, 0],
            Self::SegmentWanted => [ALL, 0, 0xff, 0, 0, 0],
            Self::PeaksReset | Self::AccumulatedReset => [0, 0xff, 0, 0, 0, 0],
            Self::Synchronized | Self::BlockFreed | Self::CaptureBegins | Self::CaptureEnds | Self::CodeGoes => {
                [ALL, 0, 0, 0, 0, 0]
            }
            Self::RangeBegins
            | Self::RangeEnds
            | Self::NvtxPush
            | Self::NvtxPop
            | Self::BackwardNode
            | Self::BufferGoes
            | Self::SequenceNumber => [0; 6],
        }
    }

    /// Whether it is determined by the arguments: where not, the probe may be where they have gone.
    pub const fn has_arguments(self) -> bool {
        !matches!(self, Self::RangeEnds | Self::NvtxPop)
    }
}

/// One probed function around the caching allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorProbe {
    /// Stable number: the low 16 bits of the attach cookie, and [`TensorRecord::probe`].
    pub id: u16,
    /// Where the function is.
    pub library: FrameworkLibrary,
    /// What its mangled name begins with; empty where it has no symbol.
    pub symbol: &'static str,
    /// What it ends with, where there are others that begin so.
    pub ending: &'static str,
    /// Where it is probed.
    pub point: Point,
    /// What to capture.
    pub plan: TensorPlan,
    /// What the captured words mean.
    pub meaning: TensorMeaning,
    /// What it is for.
    pub purpose: Purpose,
}

const fn row(
    id: u16,
    (library, purpose): (FrameworkLibrary, Purpose),
    symbol: &'static str,
    meaning: TensorMeaning,
    plan: TensorPlan,
) -> TensorProbe {
    TensorProbe { id, library, symbol, ending: "", point: Point::Entry, plan, meaning, purpose }
}

/// `tsl::BFCAllocator::AddTraceMe`: all that an arena grants or takes back passes it. An exception may pass its callers, so that nothing here is probed
/// where it returns.
const fn arena(id: u16, library: FrameworkLibrary) -> TensorProbe {
    let plan = REGISTERS.walk(Walk::Chunks).counters();
    let mut probe =
        row(id, (library, Purpose::Arena), "_ZN3tsl12BFCAllocator10AddTraceMeE", TensorMeaning::Chunk, plan);
    probe.ending = "EPKvll";
    probe
}

/// A function of ggml's C interface, by its whole name: others begin so. Exceptions pass none of them that memwatch knows of; all the same nothing is probed
/// where it returns.
const fn ggml(id: u16, symbol: &'static str, meaning: TensorMeaning, plan: TensorPlan) -> TensorProbe {
    let mut probe = row(id, (FrameworkLibrary::GgmlBase, Purpose::Buffers), symbol, meaning, plan);
    probe.ending = symbol;
    probe
}

const ONNX: (FrameworkLibrary, Purpose) = (FrameworkLibrary::OnnxRuntime, Purpose::Arena);

const fn at(point: Point, mut probe: TensorProbe) -> TensorProbe {
    probe.point = point;
    probe
}

macro_rules! device_allocator {
    ($rest:literal) => {
        concat!("_ZN3c104cuda20CUDACachingAllocator6Native22DeviceCachingAllocator", $rest)
    };
}

const REGISTERS: TensorPlan = TensorPlan::registers();
const REPORTS: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10, Purpose::AllocatorReports);
const FAILURES: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10, Purpose::Allocator);
const TRACE: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::AllocatorTrace);
const CALLS: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::AllocatorCalls);
const ALLOCATOR: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::Allocator);
const UNTIL_TRACE: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::AllocatorUntilTrace);
const WITHOUT_TRACE: (FrameworkLibrary, Purpose) = (FrameworkLibrary::C10Cuda, Purpose::AllocatorWithoutTrace);
const STAGES: (FrameworkLibrary, Purpose) = (FrameworkLibrary::TorchCpu, Purpose::Stages);
const LAYERS: (FrameworkLibrary, Purpose) = (FrameworkLibrary::TorchCpu, Purpose::Layers);
const GRAPHS: (FrameworkLibrary, Purpose) = (FrameworkLibrary::TorchCuda, Purpose::Stages);
const NVTX: (FrameworkLibrary, Purpose) = (FrameworkLibrary::TorchPython, Purpose::Stages);
const PYTHON: (FrameworkLibrary, Purpose) = (FrameworkLibrary::Python, Purpose::Python);

/// The table. Ids are stable: they stand in recordings, and a removed row keeps its number.
pub const TENSOR_PROBES: &[TensorProbe] = &[
    row(
        1,
        REPORTS,
        "_ZN3c1027reportMemoryUsageToProfilerE",
        TensorMeaning::Reported,
        REGISTERS.walk(Walk::Grants).statistics(Statistics::Offered),
    ),
    row(
        2,
        FAILURES,
        "_ZN3c1027reportOutOfMemoryToProfilerE",
        TensorMeaning::ReportedOutOfMemory,
        REGISTERS.walk(Walk::Always).statistics(Statistics::Offered),
    ),
    row(
        3,
        TRACE,
        device_allocator!("12record_traceE"),
        TensorMeaning::Traced,
        REGISTERS.stack_words().statistics(Statistics::Announced),
    ),
    row(
        4,
        UNTIL_TRACE,
        device_allocator!("6mallocE"),
        TensorMeaning::Requested,
        REGISTERS.statistics(Statistics::Announced),
    ),
    row(5, ALLOCATOR, device_allocator!("11alloc_blockE"), TensorMeaning::SegmentWanted, REGISTERS),
    row(6, ALLOCATOR, device_allocator!("27synchronize_and_free_eventsE"), TensorMeaning::Synchronized, REGISTERS),
    row(
        7,
        WITHOUT_TRACE,
        device_allocator!("10free_blockE"),
        TensorMeaning::BlockFreed,
        REGISTERS.peek(1, 0x48).statistics(Statistics::Announced),
    ),
    row(
        8,
        ALLOCATOR,
        "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator14resetPeakStatsE",
        TensorMeaning::PeaksReset,
        REGISTERS,
    ),
    row(
        9,
        ALLOCATOR,
        "_ZN3c104cuda20CUDACachingAllocator6Native22NativeCachingAllocator21resetAccumulatedStatsE",
        TensorMeaning::AccumulatedReset,
        REGISTERS,
    ),
    at(
        Point::Calls,
        row(
            10,
            CALLS,
            "_ZN3c1027reportMemoryUsageToProfilerE",
            TensorMeaning::Granted,
            REGISTERS.walk(Walk::Grants).statistics(Statistics::Offered),
        ),
    ),
    at(
        Point::Calls,
        row(
            11,
            CALLS,
            "_ZN3c1027reportMemoryUsageToProfilerE",
            TensorMeaning::GivenBack,
            REGISTERS.statistics(Statistics::Offered),
        ),
    ),
    at(Point::Calls, row(12, CALLS, device_allocator!("10free_blockE"), TensorMeaning::Completed, REGISTERS)),
    at(
        Point::Calls,
        row(13, CALLS, device_allocator!("12record_traceE"), TensorMeaning::TracedRarely, REGISTERS.stack_words()),
    ),
    row(
        20,
        STAGES,
        "_ZN5torch8autograd8profiler25record_function_enter_newE",
        TensorMeaning::RangeBegins,
        REGISTERS.text(Text::StringInArgument1),
    ),
    row(21, STAGES, "_ZN5torch8autograd8profilerL24record_function_exit_newE", TensorMeaning::RangeEnds, REGISTERS),
    row(
        22,
        STAGES,
        "_ZN5torch8autograd6Engine17evaluate_functionE",
        TensorMeaning::BackwardNode,
        REGISTERS.peek(2, 16),
    ),
    at(
        Point::Count,
        row(
            23,
            LAYERS,
            "_ZN2at15sequence_number17get_and_incrementEv",
            TensorMeaning::SequenceNumber,
            REGISTERS.walk(Walk::Always),
        ),
    ),
    row(24, GRAPHS, "_ZN2at4cuda9CUDAGraph13capture_beginE", TensorMeaning::CaptureBegins, REGISTERS),
    row(25, GRAPHS, "_ZN2at4cuda9CUDAGraph11capture_endE", TensorMeaning::CaptureEnds, REGISTERS),
    row(28, GRAPHS, "_ZN2at4cuda9CUDAGraph15capture_end_preE", TensorMeaning::CaptureEnds, REGISTERS),
    row(26, NVTX, "nvtxRangePushA", TensorMeaning::NvtxPush, REGISTERS.text(Text::Argument0)),
    row(27, NVTX, "nvtxRangePop", TensorMeaning::NvtxPop, REGISTERS),
    arena(60, FrameworkLibrary::Xla),
    arena(61, FrameworkLibrary::TensorFlow),
    at(Point::Calls, row(62, ONNX, "", TensorMeaning::ArenaChunk, REGISTERS.walk(Walk::Chunks))),
    at(Point::Calls, row(63, ONNX, "", TensorMeaning::ArenaChunkFreed, REGISTERS)),
    ggml(
        64,
        "ggml_backend_buffer_init",
        TensorMeaning::BufferMade,
        REGISTERS.walk(Walk::Grants).block(BlockPlan::BufferMade),
    ),
    ggml(65, "ggml_backend_buffer_set_usage", TensorMeaning::BufferLabelled, REGISTERS.counters()),
    ggml(66, "ggml_backend_buffer_free", TensorMeaning::BufferGoes, REGISTERS.counters()),
    row(40, PYTHON, "", TensorMeaning::CodeGoes, REGISTERS.forgets()),
];

/// The row with this id.
pub fn tensor_probe(id: u16) -> Option<&'static TensorProbe> {
    TENSOR_PROBES.iter().find(|probe| probe.id == id)
}

#[cfg(test)]
mod tests {
    use super::super::plan::{BlockPlan, CounterPlan, Held};
    use super::{Point, TENSOR_PROBES, TensorPlan, Walk};

    #[test]
    fn every_row_survives_its_cookie() {
        for probe in TENSOR_PROBES {
            for is_return in [false, true] {
                assert_eq!(
                    TensorPlan::from_cookie(probe.plan.cookie(probe.id, is_return)),
                    (probe.id, probe.plan, is_return)
                );
            }
        }
        let (allocator, block) = (Held::R13, Held::R15);
        let counters = CounterPlan { offset_bytes: 0x560, peak_word: 7 };
        for block in [
            BlockPlan::ChunkGranted { allocator: Held::Rbx, counters },
            BlockPlan::ChunkFreed { counters: CounterPlan { peak_word: 6, ..counters } },
            BlockPlan::BufferMade,
            BlockPlan::Granted { allocator, block, offset_bytes: 0x38 },
            BlockPlan::GivenBack { allocator, offset_bytes: 0x208 },
            BlockPlan::Completed { offset_bytes: 0xff8 },
        ] {
            let at_call = TensorPlan::registers().walk(Walk::Grants).at_call(block);
            let cookie = at_call.cookie(10, false);
            assert_eq!(TensorPlan::from_cookie(cookie), (10, at_call, false));
            assert!(BlockPlan::of_cookie(cookie) == block && BlockPlan::is_in(cookie));
        }
        assert!(!BlockPlan::is_in(TensorPlan::registers().cookie(10, true)));
        let of_thread = TensorPlan::registers().walk(Walk::Always).of_thread(1023);
        assert_eq!(TensorPlan::from_cookie(of_thread.cookie(23, false)), (23, of_thread, false));
        for offset_bytes in [0, 0x3ff, 0x400, 0x5b0, 8191] {
            let counters = TensorPlan::registers().walk(Walk::Chunks).counters_at(offset_bytes);
            assert_eq!(TensorPlan::from_cookie(counters.cookie(60, false)), (60, counters, false));
        }
    }

    #[test]
    fn ids_are_unique_and_a_return_has_nothing_to_read_from_registers() {
        for (index, probe) in TENSOR_PROBES.iter().enumerate() {
            assert!(TENSOR_PROBES[..index].iter().all(|other| other.id != probe.id), "{}", probe.symbol);
            if probe.point == Point::Count {
                let plan = TensorPlan { stack: Walk::Never, ..probe.plan };
                assert_eq!(plan, TensorPlan::registers(), "{}", probe.symbol);
                assert!(probe.plan.stack != Walk::Grants, "{}", probe.symbol);
            }
        }
    }
}
