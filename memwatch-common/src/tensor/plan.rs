//! What to copy of an event: one plan per row, packed into the attach cookie.

use super::pool_plan::PoolPlan;

/// The bits of a peek's offset that lie beside its argument.
const LOW_OFFSET: u64 = 0x3FF;
/// Where the bits of a [`BlockPlan`] begin.
const BLOCK_SHIFT: u32 = 43;

/// The bit of a [`BlockPlan::Reserved`] among those of a block plan.
const RESERVED: u64 = 1 << 19;

/// How a row's name is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Text {
    /// It has none.
    None = 0,
    /// Argument 0 is a C string.
    Argument0 = 1,
    /// Argument 1 is a reference to a `std::string`, whose first word points to its bytes in both ABIs.
    StringInArgument1 = 2,
    /// Argument 3 points to pairs of texts, as many as argument 4 says, each a length and an address: the second text of the first pair. It need not end with
    /// a 0.
    ValueInArgument3 = 3,
}

/// What to copy besides the six argument registers, packed in the attach cookie: row 16 bits, text 2, stack words 1, peek argument + 1 3, low bits
/// of the peek offset 10, Python stack 2, forgets 1, statistics 2, is return 1, thread variable 1, high bits of the offset 3, counters 1, block 2, its
/// allocator's register 3, its own 3, its offset in words 9, at a call 1, high bits of the block 2.
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of the cookie")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorPlan {
    /// How the name is read.
    pub text: Text,
    /// Also copy the two words above the return address.
    pub stack_words: bool,
    /// Also copy two words at an offset in bytes into what this argument points to.
    pub peek: Option<(u8, u16)>,
    /// Whether the Python stack is walked.
    pub stack: Walk,
    /// Argument 0 is a code object: stacks with it are sent again.
    pub forgets: bool,
    /// What it has to do with the allocator's own statistics.
    pub statistics: Statistics,
    /// What the peeked argument points to names a variable of each thread, a `tls_index` of the C library; the first word is copied from this
    /// thread's, at the peek's offset into it.
    pub thread_variable: bool,
    /// The peek is of three words; the third takes the place of argument 2. Without a peek the words count as unreadable.
    pub counters: bool,
    /// What else is read of the allocator's own books there, about the block that comes or goes.
    pub block: BlockPlan,
    /// The probe is on the instruction that calls the function: arguments on the stack begin where the stack pointer is.
    pub at_call: bool,
}

/// What is read of a caching allocator's own books about a block, where its code shows in which registers the allocator and the block are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BlockPlan {
    /// Nothing.
    #[default]
    None,
    /// A block is granted: its stream and what was asked for are read. What the offset in bytes leads to is `{size, requested, pool, address}`, and
    /// counts only where size and address are those of arguments 1 and 0.
    Granted {
        /// Where the allocator's address is.
        allocator: Held,
        /// Where the block's is.
        block: Held,
        /// Into the block.
        offset_bytes: u16,
    },
    /// A block is given back: it is read how many blocks are active and how many of them the program has. The offset in bytes leads to the counter of
    /// allocated bytes, from which argument 2 was read.
    GivenBack {
        /// Where the allocator's address is.
        allocator: Held,
        /// Into the allocator.
        offset_bytes: u16,
    },
    /// A block in argument 1 goes back into its pool after it was given back; the offset is that of [`BlockPlan::Granted`].
    Completed {
        /// Into the block.
        offset_bytes: u16,
    },
    /// An arena has granted the chunk that `rax` points to, if any: `{size, requested, number, address, …}` ([`CHUNK_WORDS`]), and has counted it. All
    /// six arguments and the peeks become those of `AddTraceMe` with [`TensorPlan::counters`].
    ChunkGranted {
        /// Where the arena's address is.
        allocator: Held,
        /// Where its counters are.
        counters: CounterPlan,
    },
    /// An arena is about to take back the chunk at the address in argument 1, and has not counted that: argument 1 moves to 3, the counters come as in
    /// [`BlockPlan::ChunkGranted`].
    ChunkFreed {
        /// Where its counters are.
        counters: CounterPlan,
    },
    /// An arena has reserved memory of its own outside its regions and has counted it, or is about to count that it gives some back. A node of its map says
    /// which: `{next, address, size}` ([`NODE_WORDS`]). Arguments and counters come as in [`BlockPlan::ChunkGranted`] and [`BlockPlan::ChunkFreed`].
    Reserved {
        /// Where the arena's address is.
        allocator: Held,
        /// Where the node's is.
        node: Held,
        /// Where its counters are; the peak is word 6 or 7.
        counters: CounterPlan,
        /// It is the former.
        is_grant: bool,
    },
    /// A buffer is made whose context argument 1 points to: that and its size, argument 2, change places, and the peeks are the context's first two words.
    BufferMade,
    /// A tensor is given its place in a buffer: argument 0 points to a `ggml_tallocr` ([`PLACE_WORDS`]), argument 1 to the tensor. All six arguments become
    /// the beginning of its name, the peeks where the buffer's memory begins and how far into it the tensor is.
    BufferTensor {
        /// Where a tensor has its name, in bytes from its beginning.
        name_bytes: u16,
    },
    /// A pool of RAPIDS' or of CuPy grants a block, or takes it back.
    Pool(PoolPlan),
}

/// Where an arena counts: in words of 8 bytes from an offset on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterPlan {
    /// Into the arena: its number of allocations; [`IN_USE_WORD`] words behind it the bytes in use.
    pub offset_bytes: u16,
    /// How many words behind that the most bytes in use are, below [`COUNTER_WORDS`].
    pub peak_word: u8,
}

/// The bytes in use among the counters of `onnxruntime::AllocatorStats` (onnxruntime/core/framework/allocator_stats.h, 1.23 to 1.31).
pub const IN_USE_WORD: u8 = 4;
/// Words that an arena counts in, as far as one may be read.
pub const COUNTER_WORDS: usize = 8;
/// Words of a chunk that are read: size, requested size, number, address, and up to its stream (`BFCArena::Chunk`,
/// onnxruntime/core/framework/bfc_arena.h, 1.23 to 1.31).
pub const CHUNK_WORDS: usize = 8;
/// Which of them is the stream that it was granted for; 0 for none.
pub const CHUNK_STREAM_WORD: usize = 7;
/// Words of a node that are read (`std::unordered_map<void *, size_t>` of libstdc++, whose hashes are not kept: `reserved_chunks_` in the same).
pub const NODE_WORDS: usize = 3;
/// Words of a `ggml_tallocr` that are read: buffer, base, alignment, offset (ggml/include/ggml-alloc.h).
pub const PLACE_WORDS: usize = 4;
/// Beside [`CHUNK_GRANTED`]: the chunk was granted for a stream.
pub const CHUNK_OF_STREAM: u64 = 1 << 32;

/// How far before the counter of allocated bytes that of active blocks is, in words, and that of blocks that the program has: three `Stat` of four words
/// in each of `allocation`, `segment`, `active`, `inactive_split` (`DeviceStats` in c10/core/CachingDeviceAllocator.h, the same in 2.1 to 2.15).
pub const ACTIVE_TO_BYTES_WORDS: usize = 24;
/// See [`ACTIVE_TO_BYTES_WORDS`].
pub const ALLOCATION_TO_BYTES_WORDS: usize = 48;

/// Words of a block that are read at once. It goes on for eight words and more behind its address (`Block` in c10/cuda/CUDACachingAllocator.cpp, the
/// same in 2.6 to 2.15), so that these are all its own where it has its size in the fourth or a later one.
pub const BLOCK_WORDS: u16 = 16;
/// Where a block may have its size for that, in bytes: behind its device and its stream, with three words to follow.
pub const BLOCK_OFFSETS: core::ops::RangeInclusive<u16> = 32..=(BLOCK_WORDS - 4) * 8;

/// In argument 4 of a granted block, beside its device: it is of a private pool.
pub const PRIVATE_POOL: u64 = 1 << 16;

/// A register that keeps an address from before a call to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Held {
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

impl Held {
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
            Self::None => (0, Held::Rax, 0, 0),
            Self::Granted { allocator, block, offset_bytes } => (1, allocator, block as u64, offset_bytes),
            Self::GivenBack { allocator, offset_bytes } => (2, allocator, 0, offset_bytes),
            Self::Completed { offset_bytes } => (3, Held::Rax, 0, offset_bytes),
            Self::ChunkGranted { allocator, counters } => {
                (4, allocator, counters.peak_word as u64 & 7, counters.offset_bytes)
            }
            Self::ChunkFreed { counters } => (5, Held::Rax, counters.peak_word as u64 & 7, counters.offset_bytes),
            Self::BufferMade => (6, Held::Rax, 0, 0),
            Self::BufferTensor { name_bytes } => (6, Held::Rbx, 0, name_bytes),
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
        let (allocator, block) = (Held::of_number(bits >> 2), Held::of_number(bits >> 5));
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
            6 if matches!(allocator, Held::Rax) => Self::BufferMade,
            6 => Self::BufferTensor { name_bytes: offset_bytes },
            7 => Self::Pool(PoolPlan::of_bits(bits >> 5 & 7 | (bits >> 2 & 1) << 3, offset_bytes)),
            _ => Self::None,
        }
    }

    /// What a cookie says. The kernel half asks this where it acts on it: a plan that is carried from one place to another has fields without a value,
    /// which the kernel's verifier refuses.
    #[inline(always)]
    pub const fn of_cookie(cookie: u64) -> Self {
        Self::of_bits(cookie >> BLOCK_SHIFT)
    }

    /// Whether a cookie has a plan other than [`Self::None`].
    #[inline(always)]
    pub const fn is_in(cookie: u64) -> bool {
        cookie >> BLOCK_SHIFT & (RESERVED | 1 << 18 | 3) != 0
    }

    /// Whether blocks of this plan are of a caching allocator.
    const fn is_cached(self) -> bool {
        matches!(self, Self::Granted { .. } | Self::GivenBack { .. } | Self::Completed { .. })
    }

    /// Whether with a cookie's plan the allocator's address comes in the second peek: with those of a caching allocator.
    #[inline(always)]
    pub const fn names_allocator_in(cookie: u64) -> bool {
        cookie >> BLOCK_SHIFT & 3 != 0 && cookie >> BLOCK_SHIFT & (RESERVED | 1 << 18) == 0
    }
}

/// What an event has to do with the allocator's own statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Statistics {
    /// Nothing.
    None = 0,
    /// Argument 0 is the allocator that this thread's next offer is of.
    Announced = 1,
    /// They may be read: the lock is held and they are consistent.
    Offered = 2,
}

/// In a cookie: the probe was attached to all processes, since this kernel cannot attach it to one; only events of processes in the kernel half's
/// list are wanted.
pub const ONLY_LISTED: u64 = 1 << 63;

/// When the Python stack is walked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Walk {
    /// Never.
    Never = 0,
    /// At every event.
    Always = 1,
    /// Where argument 1 as a signed number is above 0: at allocations, not at frees.
    Grants = 2,
    /// Where the lower half of argument 1 is [`CHUNK_GRANTED`]: at allocations, not at frees.
    Chunks = 3,
}

/// Argument 1 of `tsl::BFCAllocator::AddTraceMe` at an allocation: the length of "MemoryAllocation" (xla/tsl/framework/bfc_allocator.cc).
pub const CHUNK_GRANTED: u64 = 16;
/// And where it takes one back: the length of "MemoryDeallocation".
pub const CHUNK_FREED: u64 = 18;

impl TensorPlan {
    /// Registers only.
    pub const fn registers() -> Self {
        Self {
            text: Text::None,
            stack_words: false,
            peek: None,
            stack: Walk::Never,
            forgets: false,
            statistics: Statistics::None,
            thread_variable: false,
            counters: false,
            block: BlockPlan::None,
            at_call: false,
        }
    }

    /// On the instruction that calls the function, with what is read about the block.
    #[must_use]
    pub const fn at_call(mut self, block: BlockPlan) -> Self {
        self.at_call = true;
        self.block = block;
        self
    }

    /// Whether it is served by the short program of what comes and goes with each event: a block of a caching allocator, or a chunk that an arena reports
    /// and counts.
    pub const fn is_of_events(self) -> bool {
        self.block.is_cached()
            || matches!((self.block, self.stack, self.peek), (BlockPlan::None, Walk::Chunks, Some((0, _))) if self.counters)
    }

    /// With the three words of the object in argument 0 that lie at an offset in bytes below 8192.
    #[must_use]
    pub const fn counters_at(mut self, offset_bytes: u16) -> Self {
        self.peek = Some((0, offset_bytes));
        self.counters = true;
        self
    }

    /// With a word of the thread's own variable that argument 0 names, at an offset in bytes below 1024.
    #[must_use]
    pub const fn of_thread(mut self, offset_bytes: u16) -> Self {
        self.peek = Some((0, offset_bytes));
        self.thread_variable = true;
        self
    }

    /// At the function's entry, with what is read there.
    pub(super) const fn block(mut self, block: BlockPlan) -> Self {
        self.block = block;
        self
    }

    /// The same, once it is known where a tensor of this build has its name: in bytes, whole words below 4096.
    #[must_use]
    pub const fn tensor_name_at(self, name_bytes: u16) -> Self {
        self.block(BlockPlan::BufferTensor { name_bytes })
    }

    pub(super) const fn text(mut self, text: Text) -> Self {
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

    pub(super) const fn statistics(mut self, statistics: Statistics) -> Self {
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

    /// The row's id, its plan, and whether it is the return probe's.
    #[inline(always)]
    #[expect(clippy::cast_possible_truncation, reason = "every field is masked to its width")]
    pub const fn from_cookie(cookie: u64) -> (u16, Self, bool) {
        let text = match (cookie >> 16) & 3 {
            1 => Text::Argument0,
            2 => Text::StringInArgument1,
            3 => Text::ValueInArgument3,
            _ => Text::None,
        };
        let stack = match (cookie >> 32) & 3 {
            1 => Walk::Always,
            2 => Walk::Grants,
            3 => Walk::Chunks,
            _ => Walk::Never,
        };
        let statistics = match (cookie >> 35) & 3 {
            1 => Statistics::Announced,
            2 => Statistics::Offered,
            _ => Statistics::None,
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
