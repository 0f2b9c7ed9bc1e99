//! Why a program's memory grows, or did not suffice.

use serde::{Deserialize, Serialize};

/// A kind of cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CauseKind {
    /// Many autograd graphs are retained, each by its own tensor.
    GraphsKept,
    /// One tensor whose autograd graph grows.
    RunningSum,
    /// A container grows without bound.
    Unbounded,
    /// More elements are added to a container than removed.
    QueueBacksUp,
    /// A cache retains arguments of calls.
    CacheByArgument,
    /// An exception or its traceback retains stack frames.
    ExceptionKept,
    /// Unreachable reference cycles.
    Cycle,
    /// The history of a notebook.
    Notebook,
    /// Many instances of one module class.
    Instances,
    /// Copies of the parameters.
    StateCopies,
    /// Parameters of 16 bits with copies of 32 bits.
    TwoPrecisions,
    /// Views retain storages that are much larger.
    ViewKeepsStorage,
    /// A tensor is repeatedly replaced by a longer one.
    LongerTensor,
    /// Tensors of a call site stay, with an unknown retainer.
    LineKeeps,
    /// Tensors grow, and no call site or name explains it yet.
    NoPlaceYet,
    /// Free memory that other streams cannot use.
    StreamCache,
    /// Free memory in private pools.
    PrivatePools,
    /// Free memory grows, and no request fits it.
    CacheGrows,
    /// Pinned host memory grows.
    PinnedGrows,
    /// Driver memory outside of the frameworks' allocators grows.
    OutsideGrows,
    /// The optimizer state did not fit at the first step.
    OptimizerState,
    /// The weights alone did not fit before the first step.
    WeightsAlone,
    /// Activations take most of the memory.
    Activations,
    /// Free memory is fragmented.
    Fragmentation,
    /// Other processes use the memory.
    OtherProcesses,
    /// The request is larger than the GPU's memory.
    LargerThanGpu,
    /// The allocator has a limit below the GPU's memory.
    OwnLimit,
    /// Forward passes build graphs without a backward pass.
    NoBackward,
    /// Forked children of an exited process keep its memory.
    ForkedKeep,
    /// Memory freed by its owner that another process has opened.
    IpcKept,
    /// Freed blocks wait for other streams.
    RecordStream,
    /// Buckets of `DistributedDataParallel` besides the gradients.
    DdpBuckets,
    /// Workspaces of cuBLAS, one per stream and thread.
    Workspaces,
    /// States of several optimizers for the same parameters.
    OldOptimizers,
    /// Requests of an inference server wait for blocks of its KV cache.
    KvCacheFull,
    /// The KV cache of an inference server is much larger than its requests needed.
    KvCacheTooLarge,
}
