//! Capture plan of a framework probe: one plan per table row, packed into the attach cookie.

use super::pool_plan::PoolPlan;

/// Bits of the peek offset that are stored next to the peek argument.
const LOW_OFFSET: u64 = 0x3FF;
/// Position of the [`BlockPlan`] bits in the cookie.
const BLOCK_SHIFT: u32 = 43;

/// Bit that marks a [`BlockPlan::Reserved`] within the block plan bits.
const RESERVED: u64 = 1 << 19;

/// How the name of an event is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum EventName {
    /// The event has no name.
    None = 0,
    /// Argument 0 is a C string.
    Argument0 = 1,
    /// Argument 1 is a reference to a `std::string`. Its first word points to the bytes in both
    /// ABIs.
    StringInArgument1 = 2,
    /// Argument 3 points to pairs of texts, each a length and an address; argument 4 is the number
    /// of pairs. The name is the second text of the first pair. It need not end with a 0.
    ValueInArgument3 = 3,
}

/// What to copy besides the six argument registers, packed into the attach cookie.
///
/// Fields from the low end, in bits: row 16, text 2, stack words 1, peek argument + 1 3, low bits
/// of the peek offset 10, Python stack 2, forgets 1, statistics 2, is return 1, thread variable 1,
/// high bits of the peek offset 3, counters 1, block kind 2, allocator register 3, block register
/// 3, block offset in words 9, at a call 1, high bits of the block kind 2.
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of the cookie")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// How the name is read.
    pub text: EventName,
    /// Copies the two words above the return address.
    pub stack_words: bool,
    /// Copies two words at this offset in bytes into the struct that this argument points to.
    pub peek: Option<(u8, u16)>,
    /// When the Python stack is walked.
    pub stack: Walk,
    /// Argument 0 is a code object that goes away: stacks that contain it are sent again.
    pub forgets: bool,
    /// Role of the event in reading the allocator's own statistics.
    pub statistics: StatisticsRole,
    /// The peeked argument points to a `tls_index` of the C library, which names a thread-local
    /// variable. The first word is copied from this thread's variable, at the peek offset into it.
    pub thread_variable: bool,
    /// Copies three words at the peek; the third replaces argument 2. Without a peek, the words
    /// count as unreadable.
    pub counters: bool,
    /// What to read from the allocator's state about the block that is allocated or freed.
    pub block: BlockPlan,
    /// The probe is on the call instruction, so stack arguments begin at the stack pointer.
    pub at_call: bool,
}

/// What to read from a caching allocator's state about a block. Used if the allocator's code shows
/// which registers hold the allocator and the block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockPlan {
    /// Reads nothing.
    #[default]
    None,
    /// A block is granted: reads its stream and its requested size. The words at the offset are
    /// `{size, requested, pool, address}`; they count only if size and address equal arguments 1
    /// and 0.
    Granted {
        /// Register with the allocator's address.
        allocator: HoldingRegister,
        /// Register with the block's address.
        block: HoldingRegister,
        /// Offset into the block, in bytes.
        offset_bytes: u16,
    },
    /// A block is given back: reads the number of active blocks and the number of blocks that the
    /// program holds. The offset leads to the counter of allocated bytes, from which argument 2 was
    /// read.
    GivenBack {
        /// Register with the allocator's address.
        allocator: HoldingRegister,
        /// Offset into the allocator, in bytes.
        offset_bytes: u16,
    },
    /// The block in argument 1 returns to its pool after it was given back. The offset is that of
    /// [`BlockPlan::Granted`].
    Completed {
        /// Offset into the block, in bytes.
        offset_bytes: u16,
    },
    /// An arena has granted and counted the chunk that `rax` points to, if `rax` is not null:
    /// `{size, requested, number, address, …}` ([`CHUNK_WORDS`]). All six arguments and the peeks
    /// become those of `AddTraceMe` with [`TensorPlan::counters`].
    ChunkGranted {
        /// Register with the arena's address.
        allocator: HoldingRegister,
        /// Location of the arena's counters.
        counters: CounterPlan,
    },
    /// An arena is about to take back the chunk at the address in argument 1 and has not counted
    /// that yet. Argument 1 moves to 3; the counters come as in [`BlockPlan::ChunkGranted`].
    ChunkFreed {
        /// Location of the arena's counters.
        counters: CounterPlan,
    },
    /// An arena has reserved and counted memory outside its regions, or is about to count that it
    /// gives some back. A node of its map describes the memory: `{next, address, size}`
    /// ([`NODE_WORDS`]). Arguments and counters come as in [`BlockPlan::ChunkGranted`] and
    /// [`BlockPlan::ChunkFreed`].
    Reserved {
        /// Register with the arena's address.
        allocator: HoldingRegister,
        /// Register with the node's address.
        node: HoldingRegister,
        /// Location of the arena's counters; the peak is word 6 or 7.
        counters: CounterPlan,
        /// The arena reserved memory, rather than giving it back.
        is_grant: bool,
    },
    /// A buffer is made; argument 1 points to its context. The context and the size, argument 2,
    /// swap places; the peeks are the first two words of the context.
    BufferMade,
    /// A tensor is placed in a buffer: argument 0 points to a `ggml_tallocr` ([`PLACE_WORDS`]),
    /// argument 1 to the tensor. All six arguments become the beginning of the tensor's name; the
    /// peeks become the start of the buffer's memory and the tensor's offset into it.
    BufferTensor {
        /// Offset of the name in a tensor, in bytes.
        name_bytes: u16,
    },
    /// A pool of RMM or CuPy grants a block, or takes it back.
    Pool(PoolPlan),
}

/// Location of an arena's counters, which are words of 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterPlan {
    /// Offset into the arena of its number of allocations; the bytes in use are [`IN_USE_WORD`]
    /// words after it.
    pub offset_bytes: u16,
    /// Distance from there to the peak of the bytes in use, in words; below [`COUNTER_WORDS`].
    pub peak_word: u8,
}

/// Index of the bytes in use among the counters of `onnxruntime::AllocatorStats`
/// (onnxruntime/core/framework/allocator_stats.h, 1.23 to 1.31).
pub const IN_USE_WORD: u8 = 4;
/// Number of an arena's counter words that may be read.
pub const COUNTER_WORDS: usize = 8;
/// Words of a chunk that are read: size, requested size, number, address, and the rest up to its
/// stream (`BFCArena::Chunk`, onnxruntime/core/framework/bfc_arena.h, 1.23 to 1.31).
pub const CHUNK_WORDS: usize = 8;
/// Index of the word with the stream that the chunk was granted for; that word is 0 for no stream.
pub const CHUNK_STREAM_WORD: usize = 7;
/// Words of a map node that are read: a node of libstdc++'s `std::unordered_map<void *, size_t>`,
/// which does not store hashes (`reserved_chunks_` in bfc_arena.h).
pub const NODE_WORDS: usize = 3;
/// Words of a `ggml_tallocr` that are read: buffer, base, alignment, offset
/// (ggml/include/ggml-alloc.h).
pub const PLACE_WORDS: usize = 4;
/// Set next to [`CHUNK_GRANTED`] if the chunk was granted for a stream.
pub const CHUNK_OF_STREAM: u64 = 1 << 32;

/// Distance from the counter of active blocks to the counter of allocated bytes behind it, in
/// words. `allocation`, `segment`, `active` and `inactive_split` are three `Stat` of four words
/// each (`DeviceStats` in c10/core/CachingDeviceAllocator.h, the same in 2.1 to 2.15).
pub const ACTIVE_TO_BYTES_WORDS: usize = 24;
/// Distance from the counter of blocks that the program holds to the counter of allocated bytes, in
/// words. See [`ACTIVE_TO_BYTES_WORDS`].
pub const ALLOCATION_TO_BYTES_WORDS: usize = 48;

/// Words of a block that are read at once. A block continues for at least eight words after its
/// address (`Block` in c10/cuda/CUDACachingAllocator.cpp, the same in 2.6 to 2.15), so all 16
/// belong to it if its size is at byte 32 or later.
pub const BLOCK_WORDS: u16 = 16;
/// Offsets at which a block may have its size, in bytes: after its device and stream, and with
/// three more words within [`BLOCK_WORDS`].
pub const BLOCK_OFFSETS: core::ops::RangeInclusive<u16> = 32..=(BLOCK_WORDS - 4) * 8;

/// Set in argument 4 of a granted block, above the device number, if the block is in a private
/// pool.
pub const PRIVATE_POOL: u64 = 1 << 16;

/// Register that holds an address which was loaded before the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HoldingRegister {
    /// `rax`.
    Rax = 0,
    /// `rbx`.
    Rbx = 1,
    /// `rbp`.
    Rbp = 2,
    /// `r12`.
    R12 = 3,
    /// `r13`.
    R13 = 4,
    /// `r14`.
    R14 = 5,
    /// `r15`.
    R15 = 6,
}

impl HoldingRegister {
    #[inline(always)]
    const fn of_number(number: u64) -> Self {
        match number & 7 {
            1 => Self::Rbx,
            2 => Self::Rbp,
            3 => Self::R12,
            4 => Self::R13,
            5 => Self::R14,
            6 => Self::R15,
            _ => Self::Rax,
        }
    }
}

impl BlockPlan {
    const fn bits(self) -> u64 {
        let (kind, allocator, block, offset_bytes) = match self {
            Self::None => (0, HoldingRegister::Rax, 0, 0),
            Self::Granted { allocator, block, offset_bytes } => (1, allocator, block as u64, offset_bytes),
            Self::GivenBack { allocator, offset_bytes } => (2, allocator, 0, offset_bytes),
            Self::Completed { offset_bytes } => (3, HoldingRegister::Rax, 0, offset_bytes),
            Self::ChunkGranted { allocator, counters } => {
                (4, allocator, counters.peak_word as u64 & 7, counters.offset_bytes)
            }
            Self::ChunkFreed { counters } => {
                (5, HoldingRegister::Rax, counters.peak_word as u64 & 7, counters.offset_bytes)
            }
            Self::BufferMade => (6, HoldingRegister::Rax, 0, 0),
            Self::BufferTensor { name_bytes } => (6, HoldingRegister::Rbx, 0, name_bytes),
            Self::Reserved { allocator, node, counters, is_grant } => {
                return RESERVED
                    | is_grant as u64
                    | (counters.peak_word as u64 & 1) << 1
                    | (allocator as u64) << 2
                    | (node as u64) << 5
                    | ((counters.offset_bytes as u64 / 8) & 0x1FF) << 8;
            }
            Self::Pool(plan) => {
                let (shape, counter_bytes) = plan.bits();
                return 3
                    | (shape >> 3 & 1) << 2
                    | (shape & 7) << 5
                    | ((counter_bytes as u64 / 8) & 0x1FF) << 8
                    | 1 << 18;
            }
        };
        kind & 3 | (allocator as u64) << 2 | block << 5 | ((offset_bytes as u64 / 8) & 0x1FF) << 8 | (kind >> 2) << 18
    }

    #[inline(always)]
    const fn of_bits(bits: u64) -> Self {
        let (allocator, block) = (HoldingRegister::of_number(bits >> 2), HoldingRegister::of_number(bits >> 5));
        let offset_bytes = (bits >> 8 & 0x1FF) as u16 * 8;
        if bits & RESERVED != 0 {
            let counters = CounterPlan { offset_bytes, peak_word: 6 | (bits >> 1 & 1) as u8 };
            return Self::Reserved { allocator, node: block, counters, is_grant: bits & 1 == 1 };
        }
        let counters = CounterPlan { offset_bytes, peak_word: (bits >> 5 & 7) as u8 };
        match bits & 3 | (bits >> 18 & 1) << 2 {
            1 => Self::Granted { allocator, block, offset_bytes },
            2 => Self::GivenBack { allocator, offset_bytes },
            3 => Self::Completed { offset_bytes },
            4 => Self::ChunkGranted { allocator, counters },
            5 => Self::ChunkFreed { counters },
            6 if matches!(allocator, HoldingRegister::Rax) => Self::BufferMade,
            6 => Self::BufferTensor { name_bytes: offset_bytes },
            7 => Self::Pool(PoolPlan::of_bits(bits >> 5 & 7 | (bits >> 2 & 1) << 3, offset_bytes)),
            _ => Self::None,
        }
    }

    /// Unpacks the block plan of a cookie. The kernel half calls this where it acts on the plan,
    /// instead of passing the plan on: a passed plan has uninitialised fields, which the kernel's
    /// verifier refuses.
    #[inline(always)]
    pub const fn of_cookie(cookie: u64) -> Self {
        Self::of_bits(cookie >> BLOCK_SHIFT)
    }

    /// Whether a cookie has a plan other than [`Self::None`].
    #[inline(always)]
    pub const fn is_in(cookie: u64) -> bool {
        cookie >> BLOCK_SHIFT & (RESERVED | 1 << 18 | 3) != 0
    }

    /// Whether the blocks of this plan belong to a caching allocator.
    const fn is_cached(self) -> bool {
        matches!(self, Self::Granted { .. } | Self::GivenBack { .. } | Self::Completed { .. })
    }

    /// Whether the second peek is the allocator's address under this cookie's plan: true for the
    /// plans of a caching allocator.
    #[inline(always)]
    pub const fn names_allocator_in(cookie: u64) -> bool {
        cookie >> BLOCK_SHIFT & 3 != 0 && cookie >> BLOCK_SHIFT & (RESERVED | 1 << 18) == 0
    }
}

/// Role of an event in reading the allocator's own statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum StatisticsRole {
    /// None.
    None = 0,
    /// Argument 0 is the allocator of this thread's next [`Self::Offered`] event.
    Announced = 1,
    /// The statistics may be read: the lock is held and they are consistent.
    Offered = 2,
}

/// Cookie flag: the probe is attached to all processes, because this kernel cannot attach it to
/// one. Only events of processes in the kernel half's list are wanted.
pub const ONLY_LISTED: u64 = 1 << 63;

/// When the Python stack is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Walk {
    /// Never.
    Never = 0,
    /// At every event.
    Always = 1,
    /// If argument 1 as a signed number is above 0: at allocations, not at frees.
    Grants = 2,
    /// If the lower half of argument 1 is [`CHUNK_GRANTED`]: at allocations, not at frees.
    Chunks = 3,
}

/// Argument 1 of `tsl::BFCAllocator::AddTraceMe` at an allocation: the length of "MemoryAllocation"
/// (xla/tsl/framework/bfc_allocator.cc).
pub const CHUNK_GRANTED: u64 = 16;
/// Argument 1 of the same function at a free: the length of "MemoryDeallocation".
pub const CHUNK_FREED: u64 = 18;

impl TensorPlan {
    /// Copies the registers only.
    pub const fn registers() -> Self {
        Self {
            text: EventName::None,
            stack_words: false,
            peek: None,
            stack: Walk::Never,
            forgets: false,
            statistics: StatisticsRole::None,
            thread_variable: false,
            counters: false,
            block: BlockPlan::None,
            at_call: false,
        }
    }

    /// Puts the probe on the call instruction and adds what to read about the block.
    #[must_use]
    pub const fn at_call(mut self, block: BlockPlan) -> Self {
        self.at_call = true;
        self.block = block;
        self
    }

    /// Whether the short BPF program for single allocations and frees handles this plan: a block of
    /// a caching allocator, or a chunk that an arena reports and counts.
    pub const fn is_of_events(self) -> bool {
        self.block.is_cached()
            || matches!((self.block, self.stack, self.peek), (BlockPlan::None, Walk::Chunks, Some((0, _))) if self.counters)
    }

    /// Copies three words of the object in argument 0, at an offset in bytes below 8192.
    #[must_use]
    pub const fn counters_at(mut self, offset_bytes: u16) -> Self {
        self.peek = Some((0, offset_bytes));
        self.counters = true;
        self
    }

    /// Copies a word of the thread-local variable that argument 0 names, at an offset in bytes
    /// below 1024.
    #[must_use]
    pub const fn of_thread(mut self, offset_bytes: u16) -> Self {
        self.peek = Some((0, offset_bytes));
        self.thread_variable = true;
        self
    }

    /// Adds what to read about the block at the function's entry.
    pub(super) const fn block(mut self, block: BlockPlan) -> Self {
        self.block = block;
        self
    }

    /// Sets the offset of the name in a tensor of this build, in bytes: whole words below 4096.
    #[must_use]
    pub const fn tensor_name_at(self, name_bytes: u16) -> Self {
        self.block(BlockPlan::BufferTensor { name_bytes })
    }

    pub(super) const fn text(mut self, text: EventName) -> Self {
        self.text = text;
        self
    }

    pub(super) const fn stack_words(mut self) -> Self {
        self.stack_words = true;
        self
    }

    pub(super) const fn peek(mut self, argument: u8, offset_bytes: u16) -> Self {
        self.peek = Some((argument, offset_bytes));
        self
    }

    pub(super) const fn walk(mut self, walk: Walk) -> Self {
        self.stack = walk;
        self
    }

    pub(super) const fn counters(mut self) -> Self {
        self.counters = true;
        self
    }

    pub(super) const fn forgets(mut self) -> Self {
        self.forgets = true;
        self
    }

    pub(super) const fn statistics(mut self, statistics: StatisticsRole) -> Self {
        self.statistics = statistics;
        self
    }

    /// Packs a row's id and plan into the attach cookie of its entry probe, or of its return probe.
    pub const fn cookie(self, row: u16, is_return: bool) -> u64 {
        let (argument, offset_bytes) = match self.peek {
            Some((argument, offset_bytes)) => (argument + 1, offset_bytes),
            None => (0, 0),
        };
        (row as u64)
            | (self.text as u64) << 16
            | (self.stack_words as u64) << 18
            | (argument as u64) << 19
            | (offset_bytes as u64 & LOW_OFFSET) << 22
            | (self.stack as u64) << 32
            | (self.forgets as u64) << 34
            | (self.statistics as u64) << 35
            | (is_return as u64) << 37
            | (self.thread_variable as u64) << 38
            | (offset_bytes as u64 >> 10 & 7) << 39
            | (self.counters as u64) << 42
            | self.block.bits() << BLOCK_SHIFT
            | (self.at_call as u64) << 60
    }

    /// Returns the row's id, its plan, and whether the cookie is the return probe's.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "every field is masked to its width")]
    pub const fn from_cookie(cookie: u64) -> (u16, Self, bool) {
        let text = match (cookie >> 16) & 3 {
            1 => EventName::Argument0,
            2 => EventName::StringInArgument1,
            3 => EventName::ValueInArgument3,
            _ => EventName::None,
        };
        let stack = match (cookie >> 32) & 3 {
            1 => Walk::Always,
            2 => Walk::Grants,
            3 => Walk::Chunks,
            _ => Walk::Never,
        };
        let statistics = match (cookie >> 35) & 3 {
            1 => StatisticsRole::Announced,
            2 => StatisticsRole::Offered,
            _ => StatisticsRole::None,
        };
        let peek = match (cookie >> 19) & 7 {
            0 => None,
            argument => Some((argument as u8 - 1, ((cookie >> 22) & LOW_OFFSET | ((cookie >> 39) & 7) << 10) as u16)),
        };
        let plan = Self {
            text,
            stack_words: (cookie >> 18) & 1 == 1,
            peek,
            stack,
            forgets: (cookie >> 34) & 1 == 1,
            statistics,
            thread_variable: (cookie >> 38) & 1 == 1,
            counters: (cookie >> 42) & 1 == 1,
            block: BlockPlan::of_bits(cookie >> BLOCK_SHIFT),
            at_call: (cookie >> 60) & 1 == 1,
        };
        ((cookie & 0xFFFF) as u16, plan, (cookie >> 37) & 1 == 1)
    }
}
