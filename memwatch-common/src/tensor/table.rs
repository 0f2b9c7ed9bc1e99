//! What a row of the table of probed functions is made of: where a function is, what it is for, and what its arguments mean.

use super::plan::TensorPlan;

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
    /// `libggml-cuda.so` of the same: what only CUDA's backend has. Exported.
    GgmlCuda,
    /// `librmm.so`, RAPIDS' memory manager. Exported, with the version in a namespace.
    Rmm,
    /// `cupy/cuda/memory….so`. Local symbols.
    CuPy,
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
    /// Blocks of the pools of RAPIDS and CuPy.
    Pools,
    /// Forward, backward, optimizer, and what the program calls a range.
    Stages,
    /// Which node of the backward graph belongs to which module.
    Layers,
    /// Which operator a chunk is for.
    Operators,
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
    /// On each of its instructions that return. An exception meets none of them.
    Answers,
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
    /// A `record_function` range begins; its name comes as text. So does that of XLA's range around an execution,
    /// `ScopedAllocationTrace("xla.execute", {{"executable", "jit_step"}})`: the executable's (read in the plug-in of jax 0.12.0.1).
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
    /// The same function, from a program of its own: the operator that runs in the thread, whose name comes as text with the [`super::chunk_key`] of the chunk.
    /// Only where one is granted; which of the two records comes first is not fixed. No record comes where no operator has a name
    /// (`tsl::profiler::ScopedMemoryDebugAnnotation` in xla/tsl/profiler/lib/scoped_memory_debug_annotation.h).
    ChunkNamed,
    /// `onnxruntime::BFCArena` has found a chunk for a request, or none: the arguments and peeks of [`Self::Chunk`].
    ArenaChunk,
    /// It takes one back: argument 0 is the arena, 3 the address; 2 and the peeks are what it had counted before.
    ArenaChunkFreed,
    /// `tsl::BFCAllocator::DumpMemoryLog(this, rounded bytes)`: the arena has no room for a request, and its caller gets none
    /// (`AllocateRawInternal` in xla/tsl/framework/bfc_allocator.cc).
    ArenaFails,
    /// `ggml_backend_buffer_init(type, interface, context, bytes)`: a buffer of some backend is made, whose memory is there. Argument 1 is its size in bytes and
    /// 2 its context; the peeks are the context's first words: of CUDA's backend the device's number (the lower half), and where the memory begins
    /// (`ggml_backend_cuda_buffer_context` in ggml/src/ggml-cuda/ggml-cuda.cu).
    BufferMade,
    /// `ggml_backend_buffer_set_usage(buffer, usage)`: what it is for; the first peek is its context.
    BufferLabelled,
    /// `ggml_tallocr_alloc(place, tensor)`: a tensor with a name is about to be given its place in a buffer, which happens while a model is loaded and not
    /// where a graph computes. Arguments and peeks are those of [`super::BlockPlan::BufferTensor`].
    BufferTensor,
    /// `ggml_backend_buffer_free(buffer)`: before its memory is given back; the first peek is its context.
    BufferGoes,
    /// `cuMemSetAccess(address, bytes, access, …)`, called by `ggml_cuda_pool_vmm::alloc`: the pool for what a graph computes with for a moment has mapped more
    /// memory there. The first peek is what the access is for: the kind of place, and in its upper half the device's number (`CUmemAccessDesc` in cuda.h).
    ScratchGrows,
    /// `cuMemUnmap(address, bytes)`, called by `ggml_cuda_pool_vmm::~ggml_cuda_pool_vmm`: it is about to give all its memory back.
    ScratchGoes,
    /// A pool is made, and has nothing yet: argument 0.
    PoolBegins,
    /// The pool in argument 0 gives all its memory back.
    PoolEnds,
    /// A pool grants a block: arguments and peeks as in [`super::PoolPlan`]; the pool has counted it.
    PoolGranted,
    /// It takes one back; likewise, and it has not counted that.
    PoolFreed,
    /// A pool is asked for a block, of which it does not know yet where it is: arguments 0 and 1 of [`super::PoolPlan`]. It may throw.
    PoolWanted,
    /// It answers that this thread's last [`Self::PoolWanted`] is at the address in argument 2.
    PoolAnswered,
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
            Self::Chunk | Self::ArenaChunk | Self::BufferTensor => [ALL; 6],
            Self::ArenaChunkFreed => [ALL, 0, ALL, ALL, 0, 0],
            Self::BufferMade => [0, ALL, ALL, 0, 0, 0],
            Self::PoolGranted | Self::PoolFreed => [ALL, ALL, ALL, 0xffff_ffff, 0, 0],
            Self::PoolWanted | Self::ArenaFails | Self::ScratchGrows | Self::ScratchGoes => [ALL, ALL, 0, 0, 0, 0],
            Self::PoolAnswered => [0, 0, ALL, 0, 0, 0],
            Self::BufferLabelled => [0, 0xffff_ffff, 0, 0, 0, 0],
            Self::SegmentWanted => [ALL, 0, 0xff, 0, 0, 0],
            Self::PeaksReset | Self::AccumulatedReset => [0, 0xff, 0, 0, 0, 0],
            Self::Synchronized
            | Self::BlockFreed
            | Self::CaptureBegins
            | Self::CaptureEnds
            | Self::PoolBegins
            | Self::PoolEnds
            | Self::CodeGoes => [ALL, 0, 0, 0, 0, 0],
            Self::RangeBegins
            | Self::RangeEnds
            | Self::NvtxPush
            | Self::NvtxPop
            | Self::BackwardNode
            | Self::ChunkNamed
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
    /// What its mangled name begins with, where [`super::VERSION`] stands for a version's namespace; empty where it has no symbol.
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

impl TensorProbe {
    /// Whether programs pass it so rarely that a probe there costs nothing: it stays in place at every level.
    ///
    /// The ranges of `record_function` are among them, since PyTorch itself opens a few in each step of an optimizer; those of XLA are not: they are around each
    /// execution.
    pub const fn is_rare(&self) -> bool {
        match self.meaning {
            TensorMeaning::ReportedOutOfMemory
            | TensorMeaning::TracedRarely
            | TensorMeaning::PeaksReset
            | TensorMeaning::AccumulatedReset
            | TensorMeaning::ArenaFails => true,
            TensorMeaning::RangeBegins | TensorMeaning::RangeEnds => {
                matches!(self.library, FrameworkLibrary::TorchCpu)
            }
            _ => false,
        }
    }
}
