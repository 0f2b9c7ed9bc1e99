//! Capture of framework allocators and of the code around them: the probe table, the capture plan
//! and the records.
//!
//! These probes are attached per process.

pub mod draw;
mod operator;
mod plan;
mod pool_plan;
mod pools;
mod rows;
mod table;

pub use operator::{LONGEST_OPERATOR_BYTES, OperatorPlan, chunk_key};
pub use plan::{
    ACTIVE_TO_BYTES_WORDS, ALLOCATION_TO_BYTES_WORDS, BLOCK_OFFSETS, BLOCK_WORDS, BlockPlan, CHUNK_FREED,
    CHUNK_GRANTED, CHUNK_OF_STREAM, CHUNK_STREAM_WORD, CHUNK_WORDS, COUNTER_WORDS, CounterPlan, EventName,
    HoldingRegister, IN_USE_WORD, NODE_WORDS, ONLY_LISTED, PLACE_WORDS, PRIVATE_POOL, StatisticsRole, TensorPlan, Walk,
};
pub use pool_plan::{CHUNK_MEMORY_BYTES, MEMORY_ADDRESS_BYTES, PoolPlan, PoolShape, WEAK_OBJECT_BYTES};
pub use pools::VERSION;
pub use rows::{TENSOR_PROBES, tensor_probe};
pub use table::{FrameworkLibrary, ProbePoint, Purpose, TensorMeaning, TensorProbe};

use crate::record::words::RecordKind;

/// The event happened where the probed function returned; `extra[0]` is the return value.
pub const FLAG_RETURN: u8 = 1;
/// Stack words or peeked words could not be read; they are 0.
pub const FLAG_EXTRA_UNREADABLE: u8 = 2;
/// The Python stack should have been walked, but the budget of the process was used up.
pub const FLAG_STACK_OVER_BUDGET: u8 = 4;
/// The Python stack should have been walked, but its memory could not be read or the interpreter's
/// structures were not as expected.
pub const FLAG_STACK_UNREADABLE: u8 = 8;
/// The thread does not run Python.
pub const FLAG_NO_PYTHON: u8 = 16;
/// The thread's stack should have been copied for its native frames, but was skipped to keep the
/// program fast.
pub const FLAG_COPY_OVER_BUDGET: u8 = 32;
/// The thread's stack should have been copied for its native frames, but the ring buffer was too
/// full.
pub const FLAG_COPY_LOST: u8 = 64;
/// Stacks are taken by bytes and the block is small. Without another flag and without a stack, the
/// block was not sampled ([`draw`]).
pub const FLAG_BY_DRAW: u8 = 128;

/// An event at a probed framework function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TensorRecord {
    /// [`RecordKind::Tensor`].
    pub kind: u8,
    /// `FLAG_*` bits.
    pub flags: u8,
    /// Row of the table ([`TensorProbe::id`]).
    pub probe: u16,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Always zero.
    pub reserved: u32,
    /// Time of the event: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The six integer argument registers at entry; zeros at a return. With
    /// [`TensorPlan::counters`], argument 2 is the third peeked word.
    pub args: [u64; 6],
    /// Stack words, peeked words, or the return value and zero.
    pub extra: [u64; 2],
    /// The Python stack: the [`StackRecord::id`] of an earlier record of this process. With
    /// [`FLAG_NO_PYTHON`], the [`crate::native::NativeRecord::id`] of one. 0 for none.
    pub stack: u64,
}

/// Bytes of a [`TextRecord`]'s text.
pub const TEXT_BYTES: usize = 72;

/// The text of the [`TextRecord`] is the end of a longer one.
pub const FLAG_TEXT_CUT: u8 = 4;

/// A framework event with a name; otherwise like a [`TensorRecord`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TextRecord {
    /// [`crate::tensor::EventName`].
    pub kind: u8,
    /// [`FLAG_EXTRA_UNREADABLE`] if the text could not be read, or [`FLAG_TEXT_CUT`].
    pub flags: u8,
    /// Row of the table ([`TensorProbe::id`]).
    pub probe: u16,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// With an operator's name, the [`chunk_key`] of the operator's chunk; otherwise 0.
    pub chunk: u32,
    /// Time of the event: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The text up to its zero byte, truncated to this size.
    pub text: [u8; TEXT_BYTES],
}

impl TextRecord {
    /// Returns the text without its terminating zero. The program wrote these bytes, so they may
    /// not be UTF-8.
    pub fn text(&self) -> &[u8] {
        self.text.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// Maximum number of frames that are copied of a Python stack, innermost first.
pub const STACK_FRAMES: usize = 128;
/// There were more frames than [`STACK_FRAMES`]; the outermost are missing.
pub const FLAG_STACK_TRUNCATED: u8 = 1;

/// Header of a Python stack that was not sent before. `frames` of [`StackFrame`] follow, innermost
/// first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StackRecord {
    /// [`RecordKind::Stack`].
    pub kind: u8,
    /// [`FLAG_STACK_TRUNCATED`].
    pub flags: u8,
    /// Number of frames that follow.
    pub frames: u16,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Identifies the stack within its process; never 0.
    pub id: u64,
    /// One bit per frame, the lowest for the innermost. Set if the interpreter's loop was entered
    /// for the frame, so that a native call is below it. Clear if the frame was called within its
    /// caller's loop.
    pub entries: [u64; STACK_FRAMES / 64],
}

/// A frame of a Python stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StackFrame {
    /// Address of the code object (tag bits already taken off).
    pub code: u64,
    /// The interpreter's instruction pointer or index in the code, depending on its version
    /// ([`crate::python::PythonLayout`]).
    pub instruction: u64,
    /// Address of the object in the first local variable, if the code is one of
    /// [`crate::python::PythonLayout::module_codes`]; otherwise 0.
    pub object: u64,
}

/// Number of words of the allocator's statistics that are copied, from [`STATISTICS_OFFSET_BYTES`]
/// on.
pub const STATISTICS_WORDS: usize = 144;
/// Offset of `DeviceStats` in a `DeviceCachingAllocator`, in bytes (the same in 2.1.2 to 2.15.0).
pub const STATISTICS_OFFSET_BYTES: u64 = 0x28;

/// The allocator's own statistics at an event that offers them ([`StatisticsRole::Offered`]), sent on
/// request. The record follows that event's record directly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct StatisticsRecord {
    /// [`crate::tensor::StatisticsRole`].
    pub kind: u8,
    /// [`FLAG_EXTRA_UNREADABLE`] if the statistics could not be read.
    pub flags: u8,
    /// Always zero.
    pub reserved: u16,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// The allocator of one device: the `this` of its methods.
    pub allocator: u64,
    /// Time of the event: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The statistics, undecoded.
    pub words: [u64; STATISTICS_WORDS],
}

/// Size of a [`TensorRecord`] in the ring, in bytes.
pub const TENSOR_RECORD_BYTES: usize = 96;
/// Size of a [`TextRecord`] in the ring, in bytes.
pub const TEXT_RECORD_BYTES: usize = 96;
/// Size of a [`StackRecord`] in the ring without its frames, in bytes.
pub const STACK_RECORD_BYTES: usize = 32;
/// Size of a [`StackFrame`] in the ring, in bytes.
pub const STACK_FRAME_BYTES: usize = 24;
/// Size of a [`StatisticsRecord`] in the ring, in bytes.
pub const STATISTICS_RECORD_BYTES: usize = 24 + 8 * STATISTICS_WORDS;

const _: () = assert!(size_of::<TensorRecord>() == TENSOR_RECORD_BYTES);
const _: () = assert!(size_of::<TextRecord>() == TEXT_RECORD_BYTES);
const _: () = assert!(size_of::<StackRecord>() == STACK_RECORD_BYTES);
const _: () = assert!(size_of::<StackFrame>() == STACK_FRAME_BYTES);
const _: () = assert!(size_of::<StatisticsRecord>() == STATISTICS_RECORD_BYTES);
const _: () = assert!(RecordKind::Tensor as u8 == 3);
