//! Decodes records of the probes on frameworks' allocators into events.

pub(super) mod block;

use memwatch_common::record::RingRecord;
use memwatch_common::tensor::{
    FLAG_BY_DRAW, FLAG_EXTRA_UNREADABLE, FLAG_NO_PYTHON, FLAG_STACK_OVER_BUDGET, FLAG_STACK_UNREADABLE, TensorMeaning,
    TensorRecord, TextRecord, tensor_probe,
};
use serde::{Deserialize, Serialize};

use self::block::BlockReport;
use super::buffer::BufferChange;
use super::chunk::{ArenaChunkReport, ChunkGoes, ChunkNamed};
use super::low_u32;
use super::node::NodeWords;
use super::pool::PoolChange;
use crate::words::{Ordinal, Tgid, Tid};

/// `c10::DeviceType::CUDA` (c10/core/DeviceType.h).
const CUDA: u8 = 1;

/// An event in or around a caching allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEvent {
    /// Process of the event.
    pub tgid: Tgid,
    /// Thread of the event.
    pub tid: Tid,
    /// Time of the event: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Stack of the thread, if requested.
    pub stack: StackRef,
    /// Whether a small block's stack was taken by sampling, so that it represents other blocks.
    pub is_sampled: bool,
    /// Change described by the event.
    pub what: TensorChange,
}

#[cfg(test)]
impl TensorEvent {
    /// Creates an event of a block that was not sampled.
    pub(crate) const fn made(whose: (Tgid, Tid), time_ns: u64, stack: StackRef, what: TensorChange) -> Self {
        Self { tgid: whose.0, tid: whose.1, time_ns, stack, is_sampled: false, what }
    }
}

/// Stack of an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StackRef {
    /// The stack was not requested.
    #[default]
    NotAsked,
    /// The thread runs no Python.
    NoPython,
    /// The thread runs no Python; its native stack has this identifier within the process.
    Native(u64),
    /// The Python stack with this identifier within the process.
    Known(u64),
    /// The stack was not taken, to limit the overhead.
    OverBudget,
    /// The stack could not be read.
    Unreadable,
    /// The block is small and was not sampled.
    NotDrawn,
}

impl StackRef {
    /// Replaces the identifier of a native stack.
    #[must_use]
    pub fn renumbered(self, number: impl FnOnce(u64) -> u64) -> Self {
        match self {
            Self::Native(id) => Self::Native(number(id)),
            other => other,
        }
    }
}

impl StackRef {
    /// Returns whether the thread runs no Python.
    pub const fn is_without_python(self) -> bool {
        matches!(self, Self::NoPython | Self::Native(_))
    }
}

/// Change in or around an allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TensorChange {
    /// The allocator of a device has granted (above 0) or taken back (below 0) a block; with its totals after the
    /// change.
    Reported {
        /// Device of the allocator.
        ordinal: Ordinal,
        /// Address of the block.
        address: u64,
        /// Size as rounded by the allocator, bytes; negative for a free.
        block_bytes: i64,
        /// Bytes in use by the program: `allocated_bytes.all.current`.
        allocated_bytes: u64,
        /// Bytes reserved from the driver: `reserved_bytes.all.current`.
        reserved_bytes: u64,
    },
    /// An allocation is about to fail.
    OutOfMemory {
        /// Device of the allocator.
        ordinal: Ordinal,
        /// Requested size, rounded, bytes.
        wanted_bytes: u64,
        /// As in [`TensorChange::Reported`].
        allocated_bytes: u64,
        /// As in [`TensorChange::Reported`].
        reserved_bytes: u64,
    },
    /// An entry of the allocator's own trace, made while it holds its lock.
    Traced(Traced),
    /// `malloc` was entered; no memory has been granted yet.
    Requested {
        /// Address of the allocator.
        allocator: u64,
        /// Arguments 1 and 2; which of them is the size in bytes depends on the version.
        words: [u64; 2],
    },
    /// The allocator requests a segment from the driver.
    SegmentWanted {
        /// Address of the allocator.
        allocator: u64,
        /// Whether this is a retry, after the allocator has freed its cached memory.
        is_retry: bool,
    },
    /// The allocator waits until no stream uses freed blocks.
    Synchronized {
        /// Address of the allocator.
        allocator: u64,
    },
    /// A block returns to its pool.
    BlockFreed {
        /// Address of the allocator.
        allocator: u64,
        /// Address of the block; `None` if it could not be read.
        address: Option<u64>,
    },
    /// The program has reset the peaks to the present values.
    PeaksReset {
        /// Device of the allocator.
        ordinal: Ordinal,
    },
    /// The program has reset the accumulated totals to 0.
    AccumulatedReset {
        /// Device of the allocator.
        ordinal: Ordinal,
    },
    /// A `record_function` range with this name begins in the thread.
    RangeBegins(Box<str>),
    /// The innermost `record_function` range of the thread ends.
    RangeEnds,
    /// An NVTX range of this name is pushed in the thread.
    NvtxPush(Box<str>),
    /// The innermost NVTX range of the thread is popped.
    NvtxPop,
    /// A node of the backward graph begins to run in the thread.
    NodeBegins {
        /// Words of the node, one of which is its sequence number; `None` if they could not be read.
        words: Option<NodeWords>,
    },
    /// The thread has assigned this sequence number to the graph node under construction.
    SequenceNumber(u64),
    /// Capture of the CUDA graph at this address begins.
    CaptureBegins(u64),
    /// Capture of the CUDA graph at this address ends; may be reported twice.
    CaptureEnds(u64),
    /// The code object at this address was destroyed.
    CodeGoes(u64),
    /// An arena of JAX, TensorFlow or ONNX Runtime has granted or taken back a chunk.
    Chunk(ArenaChunkReport),
    /// Operator of an arena's chunk that was granted just before, or is granted next, in this thread.
    ChunkNamed(ChunkNamed),
    /// An arena is about to take back a chunk, of which only the address is known.
    ChunkGoes(ChunkGoes),
    /// A block was granted or freed, reported by one probe. [`BlockReport::events`] splits it into the events above.
    Block(BlockReport),
    /// ggml creates, labels or frees a buffer.
    Buffer(BufferChange),
    /// A pool of RAPIDS or CuPy grants or takes back a block, is created or destroyed.
    Pool(PoolChange),
    /// An arena cannot satisfy a request.
    ArenaFails {
        /// Address of the arena.
        allocator: u64,
        /// Requested size, rounded, bytes.
        wanted_bytes: u64,
    },
}

impl TensorChange {
    /// Returns whether an allocator failed to satisfy a request.
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::ArenaFails { .. })
    }

    /// Returns the size of a block that an allocator has granted, as rounded by the allocator; `None` for any other
    /// event.
    pub fn granted_bytes(&self) -> Option<u64> {
        match self {
            Self::Reported { block_bytes, .. } => u64::try_from(*block_bytes).ok().filter(|bytes| *bytes > 0),
            Self::Chunk(chunk) => chunk.is_grant.then_some(chunk.bytes),
            _ => None,
        }
    }

    /// Returns whether the event is from another framework's allocator than PyTorch's. Such events contain no totals of
    /// a device.
    pub const fn is_of_others(&self) -> bool {
        matches!(self, Self::Chunk(_) | Self::ChunkGoes(_) | Self::Buffer(_) | Self::Pool(_) | Self::ArenaFails { .. })
    }
}

/// An entry of the allocator's own trace (`record_trace` of c10/cuda/CUDACachingAllocator.cpp).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// The allocator of one device: the `this` of its methods.
    pub allocator: u64,
    /// Action of the entry.
    pub action: TraceAction,
    /// Address; for [`TraceAction::OutOfMemory`] the free bytes of the device.
    pub address: u64,
    /// Bytes: the requested size of an allocation, the size of a segment.
    pub bytes: u64,
    /// Stream of the action.
    pub stream: u64,
    /// Device; versions before 2.4 give none (and do not trace unless they record).
    pub ordinal: Ordinal,
    /// Private pool; (0, 0) for the default pools. Given by 2.8 and later; meaningless words in earlier versions.
    pub pool: Option<(u64, u64)>,
    /// Whether the requested size is unknown and `bytes` is the rounded size.
    pub is_rounded: bool,
}

/// `TraceEntry::Action`, in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceAction {
    /// A block is granted.
    Alloc,
    /// A free was requested.
    FreeRequested,
    /// No stream uses the block any longer.
    FreeCompleted,
    /// A segment was allocated with `cudaMalloc`.
    SegmentAlloc,
    /// A segment was freed with `cudaFree`.
    SegmentFree,
    /// Memory is mapped into an expandable segment.
    SegmentMap,
    /// Memory is unmapped from an expandable segment.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// An allocation fails.
    OutOfMemory,
    /// An action of a later version.
    Other(u32),
}

impl TraceAction {
    /// Returns whether the action concerns a block or a segment.
    pub const fn is_of_memory(self) -> bool {
        !matches!(self, Self::Snapshot | Self::OutOfMemory | Self::Other(_))
    }

    const fn from_number(number: u32) -> Self {
        match number {
            0 => Self::Alloc,
            1 => Self::FreeRequested,
            2 => Self::FreeCompleted,
            3 => Self::SegmentAlloc,
            4 => Self::SegmentFree,
            5 => Self::SegmentMap,
            6 => Self::SegmentUnmap,
            7 => Self::Snapshot,
            8 => Self::OutOfMemory,
            other => Self::Other(other),
        }
    }
}

/// Decodes an event; `None` for a record of an unknown row, or of a device that is not a GPU.
pub fn decode_tensor(record: &RingRecord) -> Option<TensorEvent> {
    match record {
        RingRecord::Tensor(tensor) => Some(TensorEvent {
            tgid: Tgid(tensor.tgid),
            tid: Tid(tensor.tid),
            time_ns: tensor.time_ns,
            stack: stack_of(tensor),
            is_sampled: tensor.flags & FLAG_BY_DRAW != 0 && stack_of(tensor) != StackRef::NotDrawn,
            what: change_of(tensor)?,
        }),
        RingRecord::Text(text) => Some(TensorEvent {
            tgid: Tgid(text.tgid),
            tid: Tid(text.tid),
            time_ns: text.time_ns,
            stack: StackRef::NotAsked,
            is_sampled: false,
            what: named(text)?,
        }),
        RingRecord::Call(_) | RingRecord::Process(_) => None,
    }
}

fn stack_of(record: &TensorRecord) -> StackRef {
    let has = |flag| record.flags & flag != 0;
    match record.stack {
        _ if has(FLAG_STACK_OVER_BUDGET) => StackRef::OverBudget,
        _ if has(FLAG_STACK_UNREADABLE) => StackRef::Unreadable,
        0 if has(FLAG_NO_PYTHON) => StackRef::NoPython,
        id if has(FLAG_NO_PYTHON) => StackRef::Native(id),
        0 if has(FLAG_BY_DRAW) => StackRef::NotDrawn,
        0 => StackRef::NotAsked,
        id => StackRef::Known(id),
    }
}

fn named(record: &TextRecord) -> Option<TensorChange> {
    let text = String::from_utf8_lossy(record.text()).into();
    match tensor_probe(record.probe)?.meaning {
        TensorMeaning::RangeBegins => Some(TensorChange::RangeBegins(text)),
        TensorMeaning::NvtxPush => Some(TensorChange::NvtxPush(text)),
        TensorMeaning::ChunkNamed => ChunkNamed::of(record).map(TensorChange::ChunkNamed),
        _ => None,
    }
}

fn change_of(record: &TensorRecord) -> Option<TensorChange> {
    let [first, second, third, fourth, fifth, _] = record.args;
    let readable = record.flags & FLAG_EXTRA_UNREADABLE == 0;
    Some(match tensor_probe(record.probe)?.meaning {
        TensorMeaning::Reported => TensorChange::Reported {
            ordinal: gpu(fifth)?,
            address: first,
            block_bytes: second.cast_signed(),
            allocated_bytes: third,
            reserved_bytes: fourth,
        },
        TensorMeaning::ReportedOutOfMemory => TensorChange::OutOfMemory {
            ordinal: gpu(fourth)?,
            wanted_bytes: first,
            allocated_bytes: second,
            reserved_bytes: third,
        },
        TensorMeaning::Granted | TensorMeaning::GivenBack | TensorMeaning::Completed => {
            TensorChange::Block(BlockReport::of(record, tensor_probe(record.probe)?.meaning)?)
        }
        TensorMeaning::Traced | TensorMeaning::TracedRarely => TensorChange::Traced(traced(record, readable)),
        TensorMeaning::Requested => TensorChange::Requested { allocator: first, words: [second, third] },
        TensorMeaning::SegmentWanted => {
            TensorChange::SegmentWanted { allocator: first, is_retry: low_byte(third) != 0 }
        }
        TensorMeaning::Synchronized => TensorChange::Synchronized { allocator: first },
        TensorMeaning::BlockFreed => {
            TensorChange::BlockFreed { allocator: first, address: readable.then_some(record.extra[0]) }
        }
        TensorMeaning::PeaksReset => TensorChange::PeaksReset { ordinal: device_index(second) },
        TensorMeaning::AccumulatedReset => TensorChange::AccumulatedReset { ordinal: device_index(second) },
        TensorMeaning::RangeEnds => TensorChange::RangeEnds,
        TensorMeaning::NvtxPop => TensorChange::NvtxPop,
        TensorMeaning::BackwardNode => TensorChange::NodeBegins { words: readable.then_some(NodeWords(record.extra)) },
        TensorMeaning::SequenceNumber => TensorChange::SequenceNumber(readable.then_some(record.extra[0])?),
        TensorMeaning::CaptureBegins => TensorChange::CaptureBegins(first),
        TensorMeaning::CaptureEnds => TensorChange::CaptureEnds(first),
        TensorMeaning::CodeGoes => TensorChange::CodeGoes(first),
        TensorMeaning::Chunk | TensorMeaning::ArenaChunk => {
            TensorChange::Chunk(ArenaChunkReport::of(record, readable)?)
        }
        TensorMeaning::ArenaFails => TensorChange::ArenaFails { allocator: first, wanted_bytes: second },
        TensorMeaning::ArenaChunkFreed => TensorChange::ChunkGoes(ChunkGoes::of(record, readable)?),
        meaning @ (TensorMeaning::BufferMade
        | TensorMeaning::BufferLabelled
        | TensorMeaning::BufferTensor
        | TensorMeaning::BufferGoes
        | TensorMeaning::ScratchGrows
        | TensorMeaning::ScratchGoes) => TensorChange::Buffer(BufferChange::of(record, meaning).filter(|_| readable)?),
        TensorMeaning::PoolBegins
        | TensorMeaning::PoolEnds
        | TensorMeaning::PoolGranted
        | TensorMeaning::PoolFreed
        | TensorMeaning::PoolWanted
        | TensorMeaning::PoolAnswered => TensorChange::Pool(PoolChange::of(record, readable)?),
        TensorMeaning::RangeBegins | TensorMeaning::NvtxPush | TensorMeaning::ChunkNamed => return None,
    })
}

fn traced(record: &TensorRecord, readable: bool) -> Traced {
    let [allocator, action, address, bytes, stream, device] = record.args;
    let [pool_low, pool_high] = record.extra;
    Traced {
        allocator,
        action: TraceAction::from_number(low_u32(action)),
        address,
        bytes,
        stream,
        ordinal: device_index(device),
        pool: readable.then_some((pool_low, pool_high)),
        is_rounded: false,
    }
}

/// A `c10::DeviceIndex`: a signed byte.
pub(super) fn device_index(register: u64) -> Ordinal {
    Ordinal(i32::from(low_byte(register).cast_signed()))
}

/// Decodes a packed `c10::Device`: its type in the low byte, its index in the next; other bits are undefined. `None` if
/// not a GPU.
pub(super) fn gpu(register: u64) -> Option<Ordinal> {
    let [kind, index, ..] = register.to_le_bytes();
    (kind == CUDA).then(|| Ordinal(i32::from(index.cast_signed())))
}

const fn low_byte(word: u64) -> u8 {
    let [byte, ..] = word.to_le_bytes();
    byte
}

#[cfg(test)]
mod tests;
