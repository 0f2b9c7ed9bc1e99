//! Records of the probes on frameworks' allocators become events.

pub(super) mod block;

use memwatch_common::record::Record;
use memwatch_common::tensor::{
    FLAG_BY_DRAW, FLAG_EXTRA_UNREADABLE, FLAG_NO_PYTHON, FLAG_STACK_OVER_BUDGET, FLAG_STACK_UNREADABLE, TensorMeaning,
    TensorRecord, TextRecord, tensor_probe,
};
use serde::{Deserialize, Serialize};

use self::block::BlockReport;
use super::buffer::BufferChange;
use super::chunk::{Chunk, ChunkGoes, ChunkNamed};
use super::low_u32;
use super::node::NodeWords;
use super::pool::PoolChange;
use crate::words::{Ordinal, Tgid, Tid};

/// `c10::DeviceType::CUDA` (c10/core/DeviceType.h).
const CUDA: u8 = 1;

/// Something that happened in or around a caching allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorEvent {
    /// The process.
    pub tgid: Tgid,
    /// The thread.
    pub tid: Tid,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Where in the program, if that was asked.
    pub stack: StackRef,
    /// Of a small block that has its stack by a draw: it stands for others.
    pub is_drawn: bool,
    /// What.
    pub what: TensorChange,
}

#[cfg(test)]
impl TensorEvent {
    /// Of a block that has its stack, or has none, for itself.
    pub(crate) const fn made(whose: (Tgid, Tid), time_ns: u64, stack: StackRef, what: TensorChange) -> Self {
        Self { tgid: whose.0, tid: whose.1, time_ns, stack, is_drawn: false, what }
    }
}

/// Which stack an event has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StackRef {
    /// It was not asked.
    #[default]
    NotAsked,
    /// The thread runs no Python.
    NoPython,
    /// The same, and its native stack is the one with this number, in its process.
    Native(u64),
    /// The one with this number, in its process.
    Known(u64),
    /// It was left out to keep the program fast.
    OverBudget,
    /// It could not be read.
    Unreadable,
    /// The block is small, and was not drawn.
    NotDrawn,
}

impl StackRef {
    /// The same, a native stack under another number.
    #[must_use]
    pub fn renumbered(self, number: impl FnOnce(u64) -> u64) -> Self {
        match self {
            Self::Native(id) => Self::Native(number(id)),
            other => other,
        }
    }
}

impl StackRef {
    /// Whether the thread runs no Python.
    pub const fn is_without_python(self) -> bool {
        matches!(self, Self::NoPython | Self::Native(_))
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TensorChange {
    /// The allocator of a device has granted (above 0) or taken back (below 0) a block, and has these totals now.
    Reported {
        /// The device.
        ordinal: Ordinal,
        /// The block.
        address: u64,
        /// Its size as the allocator rounded it, in bytes; negative where it was freed.
        block_bytes: i64,
        /// What the program has now, in bytes: `allocated_bytes.all.current`.
        allocated_bytes: u64,
        /// What the allocator has of the driver now, in bytes: `reserved_bytes.all.current`.
        reserved_bytes: u64,
    },
    /// An allocation is about to fail.
    OutOfMemory {
        /// The device.
        ordinal: Ordinal,
        /// What was wanted, rounded, in bytes.
        wanted_bytes: u64,
        /// As in [`TensorChange::Reported`].
        allocated_bytes: u64,
        /// As in [`TensorChange::Reported`].
        reserved_bytes: u64,
    },
    /// A line of the allocator's own trace, within its lock.
    Traced(Traced),
    /// `malloc` was entered; nothing is granted yet.
    Requested {
        /// The allocator.
        allocator: u64,
        /// Arguments 1 and 2: one of them is the size in bytes, by version.
        words: [u64; 2],
    },
    /// The allocator tries to get a segment.
    SegmentWanted {
        /// The allocator.
        allocator: u64,
        /// After it has freed what it could.
        is_retry: bool,
    },
    /// The allocator waits for all streams to be done with blocks.
    Synchronized {
        /// The allocator.
        allocator: u64,
    },
    /// A block goes back into its pool.
    BlockFreed {
        /// The allocator.
        allocator: u64,
        /// The block's address; `None` where it could not be read.
        address: Option<u64>,
    },
    /// The program has set the peaks to what it has now.
    PeaksReset {
        /// The device.
        ordinal: Ordinal,
    },
    /// The program has set the totals to 0.
    AccumulatedReset {
        /// The device.
        ordinal: Ordinal,
    },
    /// A `record_function` range of this name begins in the thread.
    RangeBegins(Box<str>),
    /// The innermost one ends.
    RangeEnds,
    /// An NVTX range of this name is pushed in the thread.
    NvtxPush(Box<str>),
    /// The innermost one is popped.
    NvtxPop,
    /// A node of the backward graph begins to run in the thread.
    NodeBegins {
        /// Where its sequence number is, if they could be read.
        words: Option<NodeWords>,
    },
    /// The thread has given this number to the node of the graph that it builds now.
    SequenceNumber(u64),
    /// The CUDA graph at this address is captured from here on.
    CaptureBegins(u64),
    /// Until here; may be reported twice.
    CaptureEnds(u64),
    /// The code object at this address is no more.
    CodeGoes(u64),
    /// An arena of JAX, TensorFlow or ONNX Runtime has granted or taken back a chunk.
    Chunk(Chunk),
    /// Which operator a chunk of an arena is for: one that has come just before, or comes next in this thread.
    ChunkNamed(ChunkNamed),
    /// An arena is about to take back a chunk, of which only the address is known.
    ChunkGoes(ChunkGoes),
    /// All about a block that came or went, from one probe: [`BlockReport::events`] says what that is of the above.
    Block(BlockReport),
    /// ggml makes, labels or gives back a buffer.
    Buffer(BufferChange),
    /// A pool of RAPIDS or CuPy grants a block, takes one back, begins or ends.
    Pool(PoolChange),
    /// An arena has no room for a request.
    ArenaFails {
        /// The arena.
        allocator: u64,
        /// What was wanted, rounded, in bytes.
        wanted_bytes: u64,
    },
}

impl TensorChange {
    /// Whether an allocator has no memory for a request.
    pub const fn is_failure(&self) -> bool {
        matches!(self, Self::OutOfMemory { .. } | Self::ArenaFails { .. })
    }

    /// Whether another framework's allocator than PyTorch's reports it: none of those has the totals of a device in its events.
    pub const fn is_of_others(&self) -> bool {
        matches!(self, Self::Chunk(_) | Self::ChunkGoes(_) | Self::Buffer(_) | Self::Pool(_) | Self::ArenaFails { .. })
    }
}

/// A line of the allocator's own trace (`record_trace` of c10/cuda/CUDACachingAllocator.cpp).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    /// The allocator of one device: the `this` of its methods.
    pub allocator: u64,
    /// What it did.
    pub action: TraceAction,
    /// Where; for [`TraceAction::OutOfMemory`] the free bytes of the device.
    pub address: u64,
    /// How much, in bytes: of an allocation what was requested, of a segment its size.
    pub bytes: u64,
    /// On which stream.
    pub stream: u64,
    /// On which device; versions before 2.4 give none (and do not trace unless they record).
    pub ordinal: Ordinal,
    /// The private pool; (0, 0) for the usual ones. Given by 2.8 and later; words without meaning before.
    pub pool: Option<(u64, u64)>,
    /// What was requested is not known: `bytes` is what it was rounded to.
    pub is_rounded: bool,
}

/// `TraceEntry::Action`, in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceAction {
    /// A block is granted.
    Alloc,
    /// A free was asked for.
    FreeRequested,
    /// No stream uses the block any more.
    FreeCompleted,
    /// `cudaMalloc`.
    SegmentAlloc,
    /// `cudaFree`.
    SegmentFree,
    /// Memory is mapped into an expandable segment.
    SegmentMap,
    /// And unmapped.
    SegmentUnmap,
    /// A snapshot was taken.
    Snapshot,
    /// An allocation fails.
    OutOfMemory,
    /// Whatever a later version has.
    Other(u32),
}

impl TraceAction {
    /// Whether it is about a block or a segment.
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

/// Reads an event; `None` for a record of no row, or of another device than a GPU.
pub fn decode_tensor(record: &Record) -> Option<TensorEvent> {
    match record {
        Record::Tensor(tensor) => Some(TensorEvent {
            tgid: Tgid(tensor.tgid),
            tid: Tid(tensor.tid),
            time_ns: tensor.time_ns,
            stack: stack_of(tensor),
            is_drawn: tensor.flags & FLAG_BY_DRAW != 0 && stack_of(tensor) != StackRef::NotDrawn,
            what: change_of(tensor)?,
        }),
        Record::Text(text) => Some(TensorEvent {
            tgid: Tgid(text.tgid),
            tid: Tid(text.tid),
            time_ns: text.time_ns,
            stack: StackRef::NotAsked,
            is_drawn: false,
            what: named(text)?,
        }),
        Record::Call(_) | Record::Process(_) => None,
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
        TensorMeaning::Chunk | TensorMeaning::ArenaChunk => TensorChange::Chunk(Chunk::of(record, readable)?),
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

/// The device behind a packed `c10::Device`: its type in the low byte, its index in the next; the rest is undefined. `None` for no GPU.
pub(super) fn gpu(register: u64) -> Option<Ordinal> {
    let [kind, index, ..] = register.to_le_bytes();
    (kind == CUDA).then(|| Ordinal(i32::from(index.cast_signed())))
}

const fn low_byte(word: u64) -> u8 {
    let [byte, ..] = word.to_le_bytes();
    byte
}

#[cfg(test)]
mod tests {
    use memwatch_common::record::Record;
    use memwatch_common::tensor::{
        FLAG_BY_DRAW, FLAG_EXTRA_UNREADABLE, FLAG_NO_PYTHON, FLAG_STACK_OVER_BUDGET, TENSOR_PROBES, TensorRecord,
    };

    use super::{NodeWords, StackRef, TensorChange, TraceAction, decode_tensor};
    use crate::words::Ordinal;

    #[test]
    fn what_stands_in_the_other_bits_of_registers_changes_nothing() {
        for row in TENSOR_PROBES {
            let bits = row.meaning.argument_bits();
            for (fill, device) in [(0, 0x0001), (u64::MAX, 0x0301), (0x5a5a_5a5a_5a5a_5a5a, 0xff01)] {
                let mut args = [fill; 6];
                // A GPU's, where a device is packed: another is no event.
                args.iter_mut()
                    .zip(bits)
                    .filter(|(_, bits)| *bits == 0xffff)
                    .for_each(|(word, _)| *word = fill << 16 | device);
                let reported: [u64; 6] = std::array::from_fn(|index| args[index] & bits[index]);
                let event = |args| decode_tensor(&Record::Tensor(record(row.id, args, [3, 4])));
                assert_eq!(event(args), event(reported), "row {}: {args:x?}", row.id);
            }
        }
    }

    fn record(probe: u16, args: [u64; 6], extra: [u64; 2]) -> TensorRecord {
        TensorRecord { kind: 3, probe, tgid: 7, tid: 8, time_ns: 9, args, extra, ..TensorRecord::default() }
    }

    fn change(record: TensorRecord) -> Option<TensorChange> {
        decode_tensor(&Record::Tensor(record)).map(|event| event.what)
    }

    #[test]
    fn a_free_is_reported_as_negative_bytes_and_only_the_device_bits_of_its_register_count() {
        let freed = change(record(1, [0x7000, 512_u64.wrapping_neg(), 1024, 4096, 0xdead_0101, 0], [0, 0]));
        let Some(TensorChange::Reported { ordinal, block_bytes, allocated_bytes, .. }) = freed else {
            panic!("{freed:?}")
        };
        assert_eq!((ordinal, block_bytes, allocated_bytes), (Ordinal(1), -512, 1024));
    }

    #[test]
    fn memory_of_the_host_is_no_event() {
        assert_eq!(change(record(1, [0x7000, 512, 512, 512, 0, 0], [0, 0])), None);
    }

    #[test]
    fn the_trace_has_its_action_device_and_pool() {
        let Some(TensorChange::Traced(traced)) = change(record(3, [1, 0xff_0000_0005, 0x10, 20, 0, 0xff02], [3, 4]))
        else {
            panic!("a trace must be read")
        };
        assert_eq!(traced.action, TraceAction::SegmentMap);
        assert_eq!((traced.ordinal, traced.pool), (Ordinal(2), Some((3, 4))));
    }

    #[test]
    fn a_node_has_the_words_that_could_be_read() {
        let node = |flags| change(TensorRecord { flags, ..record(22, [0; 6], [12, 3]) });
        assert_eq!(node(0), Some(TensorChange::NodeBegins { words: Some(NodeWords([12, 3])) }));
        assert_eq!(node(FLAG_EXTRA_UNREADABLE), Some(TensorChange::NodeBegins { words: None }));
    }

    #[test]
    fn why_a_stack_is_missing_is_kept() {
        let event = |flags, stack| {
            let record = TensorRecord { flags, stack, ..record(21, [0; 6], [0; 2]) };
            decode_tensor(&Record::Tensor(record)).map(|event| event.stack)
        };
        assert_eq!(event(0, 0), Some(StackRef::NotAsked));
        assert_eq!(event(0, 5), Some(StackRef::Known(5)));
        assert_eq!(event(FLAG_NO_PYTHON, 0), Some(StackRef::NoPython));
        assert_eq!(event(FLAG_NO_PYTHON, 5), Some(StackRef::Native(5)));
        assert_eq!(event(FLAG_BY_DRAW, 0), Some(StackRef::NotDrawn));
    }

    #[test]
    fn a_small_block_that_was_drawn_stands_for_others_whatever_became_of_its_stack() {
        let is_drawn = |flags, stack| {
            let record = TensorRecord { flags, stack, ..record(21, [0; 6], [0; 2]) };
            decode_tensor(&Record::Tensor(record)).expect("an event").is_drawn
        };
        let fates = [(0, 5), (FLAG_NO_PYTHON, 0), (FLAG_NO_PYTHON, 5), (FLAG_STACK_OVER_BUDGET, 0)];
        assert!(fates.into_iter().all(|(flags, stack)| is_drawn(flags | FLAG_BY_DRAW, stack)));
        assert!(!fates.into_iter().any(|(flags, stack)| is_drawn(flags, stack)) && !is_drawn(FLAG_BY_DRAW, 0));
    }
}
