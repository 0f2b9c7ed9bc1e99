//! Row type of the table of framework probes: where a function is, what it is for, and what its
//! arguments mean.

use super::plan::TensorPlan;

/// Library that contains a row's function, named after its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FrameworkLibrary {
    /// `libc10.so`: the allocator's reports to a profiler. Exported.
    C10,
    /// `libc10_cuda.so`: the caching allocator. Local symbols, so only if the library is not
    /// stripped.
    C10Cuda,
    /// `libtorch_cpu.so`: the autograd engine and ranges.
    TorchCpu,
    /// `libtorch_cuda.so`: graphs.
    TorchCuda,
    /// `libtorch_python.so`: NVTX ranges.
    TorchPython,
    /// `xla_cuda_plugin.so`: XLA's plug-in for JAX. Local symbols, so only if the library is not
    /// stripped.
    Xla,
    /// `libtensorflow_framework.so`. Exported.
    TensorFlow,
    /// `onnxruntime_pybind11_state….so` of the Python package, and `libonnxruntime.so` elsewhere.
    /// No symbols: functions are found by their class.
    OnnxRuntime,
    /// `libggml-base.so` of llama.cpp and related projects: buffer functions that all backends
    /// call. Exported.
    GgmlBase,
    /// `libggml-cuda.so` of llama.cpp and related projects: functions of the CUDA backend.
    /// Exported.
    GgmlCuda,
    /// `librmm.so`, RAPIDS' memory manager. Exported, with the version in a namespace.
    Rmm,
    /// `cupy/cuda/memory….so`. Local symbols.
    CuPy,
    /// `libpython3.x.so` or the interpreter's executable. The function has no symbol there; a type
    /// object points to it.
    Python,
}

/// Purpose of a row: rows are attached by purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Purpose {
    /// Blocks and segments of the caching allocator.
    Allocator,
    /// Blocks of the caching allocator, with one probe per allocation and one per free. Used if the
    /// allocator's code shows where to put them.
    AllocatorCalls,
    /// The allocator's report of each block. Used if its code does not show the places of
    /// [`Self::AllocatorCalls`].
    AllocatorReports,
    /// The allocator's trace of everything it does. Used if its code does not show the places of
    /// [`Self::AllocatorCalls`].
    AllocatorTrace,
    /// Single events of the caching allocator. Used until the allocator is known to report its own
    /// trace, which covers all of them.
    AllocatorUntilTrace,
    /// Single events of the caching allocator. Used if the allocator reports its own trace only
    /// while it is recorded (before PyTorch 2.4).
    AllocatorWithoutTrace,
    /// Chunks of the arenas of XLA, TensorFlow and ONNX Runtime.
    Arena,
    /// Buffers of ggml.
    Buffers,
    /// Blocks of the pools of RAPIDS and CuPy.
    Pools,
    /// Forward, backward and optimizer phases, and the program's own ranges.
    Phases,
    /// Mapping from nodes of the backward graph to modules.
    Modules,
    /// The operator that a chunk is for.
    Operators,
    /// Python's code objects.
    Python,
}

/// Where in a function a row is probed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbePoint {
    /// On the function's entry.
    Entry,
    /// On the instructions that call the function, or right behind such a call. The callers' code
    /// shows which instructions, and what is read there. Exceptions do not unwind through such a
    /// probe.
    Calls,
    /// On each return instruction of the function. Exceptions do not pass return instructions.
    Answers,
    /// Where the function looks up its thread-local counter. The number is not assigned yet there
    /// but equals the one at the return, where a probe costs many times as much. If the code is not
    /// as expected, the probe is put on the return; only used for a function through which no
    /// exception is thrown.
    Count,
}

/// Meaning of a row. Only `decode` knows the order of the arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TensorMeaning {
    /// `reportMemoryUsageToProfiler(ptr, ±block bytes, allocated, reserved, device)`: called under
    /// the allocator's lock, after all counters are updated.
    Reported,
    /// `reportOutOfMemoryToProfiler(bytes, allocated, reserved, device)`.
    ReportedOutOfMemory,
    /// `record_trace(this, action, address, bytes, stream, device, …)`, with the pool's id on the
    /// stack: called under the allocator's lock.
    Traced,
    /// Call of `reportMemoryUsageToProfiler` for a granted block. The arguments are those of
    /// [`Self::Reported`], except argument 5, the stream. The peeks are the requested bytes and the
    /// allocator.
    Granted,
    /// Call of `reportMemoryUsageToProfiler` for a block that is given back. Argument 5 is the
    /// number of blocks that were given back and are still used by streams; the second peek is the
    /// allocator.
    GivenBack,
    /// Call of `free_block` for a block that was given back earlier, while a stream still used it.
    /// Arguments: allocator, block address, block size, requested size, stream, device.
    Completed,
    /// Call of `record_trace` about segments, snapshots and failures; the arguments are those of
    /// [`Self::Traced`].
    TracedRarely,
    /// `DeviceCachingAllocator::malloc`, before it takes the lock. The requested bytes are argument
    /// 1 or 2, depending on the version.
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
    /// A `record_function` range begins; its name comes as text. Also XLA's range around an
    /// execution, `ScopedAllocationTrace("xla.execute", {{"executable", "jit_step"}})`: its name is
    /// the executable's (read in the plug-in of jax 0.12.0.1).
    RangeBegins,
    /// The innermost range of [`Self::RangeBegins`] on some thread ends.
    RangeEnds,
    /// An NVTX range is pushed; its name comes as text.
    NvtxPush,
    /// The innermost NVTX range of the thread is popped.
    NvtxPop,
    /// `Engine::evaluate_function(this, task, Node*, …)`: a node of the backward graph begins to
    /// run in this thread. The peeks are the words 16 and 24 bytes into the node; one of them is
    /// its sequence number, depending on the version.
    ///
    /// Never probed at its return: a failing allocation throws through this function, and a return
    /// probe ends the program (the unwinder finds the trampoline instead of the return address and
    /// calls `std::terminate`).
    BackwardNode,
    /// `sequence_number::get_and_increment()` returns this number, which the next graph node that
    /// this thread builds gets.
    SequenceNumber,
    /// `CUDAGraph::capture_begin(this, …)`: the capture of a CUDA graph begins.
    CaptureBegins,
    /// `CUDAGraph::capture_end(this)`, or only its first part (`capture_end_pre` in PyTorch 2.15,
    /// where Python calls the parts): the capture ends.
    CaptureEnds,
    /// `tsl::BFCAllocator::AddTraceMe(this, {length, text}, chunk, requested bytes, chunk bytes)`:
    /// called under the allocator's lock, after its statistics are updated. The same in the builds
    /// of June 2024 to October 2026.
    Chunk,
    /// `AddTraceMe` as seen by a separate BPF program: the name of the operator that runs in the
    /// thread comes as text, with the [`super::chunk_key`] of the chunk. Only for granted chunks;
    /// the order of the two records is not fixed. No record comes if no operator has a name
    /// (`tsl::profiler::ScopedMemoryDebugAnnotation` in
    /// xla/tsl/profiler/lib/scoped_memory_debug_annotation.h).
    ChunkNamed,
    /// `onnxruntime::BFCArena` has found a chunk for a request, or none. Arguments and peeks are
    /// those of [`Self::Chunk`].
    ArenaChunk,
    /// `onnxruntime::BFCArena` takes a chunk back. Argument 0 is the arena, 3 the address; 2 and
    /// the peeks are the counters before the free.
    ArenaChunkFreed,
    /// `tsl::BFCAllocator::DumpMemoryLog(this, rounded bytes)`: the arena cannot satisfy a request,
    /// and the request fails (`AllocateRawInternal` in xla/tsl/framework/bfc_allocator.cc).
    ArenaFails,
    /// `ggml_backend_buffer_init(type, interface, context, bytes)`: a backend makes a buffer; its
    /// memory is already allocated. Argument 1 is its size in bytes and 2 its context. The peeks
    /// are the context's first words; for the CUDA backend these are the device number (lower half)
    /// and the address of the memory (`ggml_backend_cuda_buffer_context` in
    /// ggml/src/ggml-cuda/ggml-cuda.cu).
    BufferMade,
    /// `ggml_backend_buffer_set_usage(buffer, usage)`: sets the purpose of a buffer; the first peek
    /// is its context.
    BufferLabelled,
    /// `ggml_tallocr_alloc(place, tensor)`: a named tensor is about to be placed in a buffer. This
    /// happens while a model is loaded, not while a graph computes. Arguments and peeks are those
    /// of [`super::BlockPlan::BufferTensor`].
    BufferTensor,
    /// `ggml_backend_buffer_free(buffer)`: a buffer is about to give back its memory; the first
    /// peek is its context.
    BufferGoes,
    /// `cuMemSetAccess(address, bytes, access, …)`, called by `ggml_cuda_pool_vmm::alloc`: the
    /// scratch pool for graph computation has mapped more memory. The first peek is the location of
    /// the access: the kind of location, and in its upper half the device number (`CUmemAccessDesc`
    /// in cuda.h).
    ScratchGrows,
    /// `cuMemUnmap(address, bytes)`, called by `ggml_cuda_pool_vmm::~ggml_cuda_pool_vmm`: the
    /// scratch pool is about to give back all its memory.
    ScratchGoes,
    /// An empty pool is made: argument 0.
    PoolBegins,
    /// The pool in argument 0 gives all its memory back.
    PoolEnds,
    /// A pool grants a block and has counted it. Arguments and peeks are those of
    /// [`super::PoolPlan`].
    PoolGranted,
    /// A pool takes a block back and has not counted that yet. Arguments and peeks are those of
    /// [`super::PoolPlan`].
    PoolFreed,
    /// A block is requested from a pool, and its address is not known yet: arguments 0 and 1 of
    /// [`super::PoolPlan`]. The request may throw.
    PoolWanted,
    /// The block of this thread's last [`Self::PoolWanted`] is at the address in argument 2.
    PoolAnswered,
    /// The code object in argument 0 is freed; another code object may get its address.
    CodeGoes,
}

impl TensorMeaning {
    /// Returns the meaningful bits of each of the six argument registers. The other bits hold
    /// whatever the caller left there.
    pub const fn argument_bits(self) -> [u64; 6] {
        const ALL: u64 = u64::MAX;
        match self {
            // Argument 4 is a packed `c10::Device`.
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

    /// Whether the arguments determine the event. If not, the probe may be at a place where they
    /// are no longer in their registers.
    pub const fn has_arguments(self) -> bool {
        !matches!(self, Self::RangeEnds | Self::NvtxPop)
    }
}

/// A probed function of a framework.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorProbe {
    /// Stable number: the low 16 bits of the attach cookie, and [`super::TensorRecord::probe`].
    pub id: u16,
    /// Library that contains the function.
    pub library: FrameworkLibrary,
    /// Beginning of its mangled name, with [`super::VERSION`] in place of a version's namespace;
    /// empty if the function has no symbol.
    pub symbol: &'static str,
    /// End of its mangled name, if other symbols have the same beginning.
    pub ending: &'static str,
    /// Where in the function it is probed.
    pub point: ProbePoint,
    /// What to capture.
    pub plan: TensorPlan,
    /// What the captured words mean.
    pub meaning: TensorMeaning,
    /// Purpose of the row.
    pub purpose: Purpose,
}

impl TensorProbe {
    /// Whether programs call the function so rarely that a probe costs nothing: the probe stays
    /// attached at every level.
    ///
    /// The ranges of `record_function` are rare, since PyTorch itself opens only a few in each
    /// optimizer step. The ranges of XLA are not: there is one around each execution.
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
