//! What is captured of frameworks' allocators and of what runs around them: the table, the plan and the records.
//!
//! Everything here is probed in one process at a time.

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
    CHUNK_GRANTED, CHUNK_OF_STREAM, CHUNK_STREAM_WORD, CHUNK_WORDS, COUNTER_WORDS, CounterPlan, Held, IN_USE_WORD,
    NODE_WORDS, ONLY_LISTED, PLACE_WORDS, PRIVATE_POOL, Statistics, TensorPlan, Text, Walk,
};
pub use pool_plan::{CHUNK_MEMORY_BYTES, MEMORY_ADDRESS_BYTES, PoolPlan, PoolShape, WEAK_OBJECT_BYTES};
pub use pools::VERSION;
pub use rows::{TENSOR_PROBES, tensor_probe};
pub use table::{FrameworkLibrary, Point, Purpose, TensorMeaning, TensorProbe};

use crate::record::words::RecordKind;

/// The event happened where the probed function returned; `extra[0]` is the return value.
pub const FLAG_RETURN: u8 = 1;
/// Stack words or peeked words could not be read; they are 0.
pub const FLAG_EXTRA_UNREADABLE: u8 = 2;
/// The Python stack was to be walked and was not: the budget of the process was used up.
pub const FLAG_STACK_OVER_BUDGET: u8 = 4;
/// The Python stack was to be walked and could not be: memory that could not be read, or the interpreter's structures are not as expected.
pub const FLAG_STACK_UNREADABLE: u8 = 8;
/// The thread runs no Python.
pub const FLAG_NO_PYTHON: u8 = 16;
/// The thread's stack was to be copied for its native frames and was not, to keep the program fast.
pub const FLAG_COPY_OVER_BUDGET: u8 = 32;
/// It was to be copied and was not: the ring buffer was filling.
pub const FLAG_COPY_LOST: u8 = 64;
/// Stacks are taken by bytes, and the block is small: without another flag and without a stack it was not drawn ([`draw`]).
pub const FLAG_BY_DRAW: u8 = 128;

/// One event at a probed function around the caching allocator.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct TensorRecord {
    /// [`RecordKind::Tensor`].
    pub kind: u8,
    /// `FLAG_*` bits.
    pub flags: u8,
    /// The row of the table ([`TensorProbe::id`]).
    pub probe: u16,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Always zero.
    pub reserved: u32,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The six integer argument registers at entry; at a return zeros. With [`TensorPlan::counters`] argument 2 is the third word that was peeked at.
    pub args: [u64; 6],
    /// Stack words, peeked words, or the return value and zero.
    pub extra: [u64; 2],
    /// The Python stack: the [`StackRecord::id`] of a record that came before, in this process; with [`FLAG_NO_PYTHON`] the
    /// [`crate::native::NativeRecord::id`] of one; 0 for none.
    pub stack: u64,
}

/// Bytes of a [`TextRecord`]'s text.
pub const TEXT_BYTES: usize = 72;

/// A [`TextRecord`]'s text is the end of a longer one.
pub const FLAG_TEXT_CUT: u8 = 4;

/// A [`TensorRecord`] whose event has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct TextRecord {
    /// [`RecordKind::Text`].
    pub kind: u8,
    /// [`FLAG_EXTRA_UNREADABLE`] where the text could not be read, or [`FLAG_TEXT_CUT`].
    pub flags: u8,
    /// The row of the table.
    pub probe: u16,
    /// Thread id in the initial pid namespace.
    pub tid: u32,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Of an operator's name the [`chunk_key`] of what it is for; otherwise 0.
    pub chunk: u32,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The text up to its zero, or as much of it as there is room for.
    pub text: [u8; TEXT_BYTES],
}

impl TextRecord {
    /// The text without what ends it. Bytes of a stranger: it may be no UTF-8.
    pub fn text(&self) -> &[u8] {
        self.text.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// How many frames of a Python stack are copied at most, innermost first.
pub const STACK_FRAMES: usize = 128;
/// There were more frames than [`STACK_FRAMES`]; the outermost are missing.
pub const FLAG_STACK_TRUNCATED: u8 = 1;

/// The front of a Python stack that was not sent before: `frames` of [`StackFrame`] follow it, innermost first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StackRecord {
    /// [`RecordKind::Stack`].
    pub kind: u8,
    /// [`FLAG_STACK_TRUNCATED`].
    pub flags: u8,
    /// How many frames follow.
    pub frames: u16,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// Which stack of the process this is; never 0.
    pub id: u64,
    /// A bit for each frame, the lowest for the innermost: set where the interpreter's loop was entered for it, so that beneath it lies a call of the
    /// machine's. Without, the frame was called within the loop that its caller runs in.
    pub entries: [u64; STACK_FRAMES / 64],
}

/// A frame of a Python stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct StackFrame {
    /// Address of the code object (tag bits already taken off).
    pub code: u64,
    /// The interpreter's instruction pointer or index in the code, as its version keeps it ([`crate::python::PythonLayout`]).
    pub instruction: u64,
    /// The first local variable, an object's address, where the code is one of [`crate::python::PythonLayout::module_codes`]; otherwise 0.
    pub object: u64,
}

/// Words of the allocator's statistics that are copied: from [`STATISTICS_OFFSET_BYTES`] into it on.
pub const STATISTICS_WORDS: usize = 144;
/// Where `DeviceStats` begins in a `DeviceCachingAllocator`, in bytes (the same in 2.1.2 to 2.15.0).
pub const STATISTICS_OFFSET_BYTES: u64 = 0x28;

/// The allocator's own statistics at an event that offers them ([`Statistics::Offered`]), when they were asked for; it comes right after that
/// event's record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct StatisticsRecord {
    /// [`RecordKind::Statistics`].
    pub kind: u8,
    /// [`FLAG_EXTRA_UNREADABLE`] where they could not be read.
    pub flags: u8,
    /// Always zero.
    pub reserved: u16,
    /// Process id in the initial pid namespace.
    pub tgid: u32,
    /// The allocator of one device: the `this` of its methods.
    pub allocator: u64,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The words.
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
