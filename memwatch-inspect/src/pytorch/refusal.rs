//! Why books are not read.

/// Why the books of a process are not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// It has PyTorch, and no allocator yet.
    #[error("CUDA is not initialized in it: it holds nothing")]
    NotInitialized,
    /// It uses `cudaMallocAsync`, a pluggable allocator, or one that is not known.
    #[error("its allocator is {0}, which keeps other books")]
    Other(Box<str>),
    /// This is not in its memory.
    #[error("{0} cannot be read: the process has gone, or may not be read")]
    Unreadable(&'static str),
    /// This is not laid out in any way that is known.
    #[error("this build of PyTorch is not recognized: {0}")]
    NotRecognized(&'static str),
    /// The allocator worked while its books were read.
    #[error("the allocator worked while it was read")]
    Busy,
    /// What was read contradicts itself.
    #[error("what was read contradicts itself: {0}")]
    Contradiction(Contradiction),
    /// The time was over.
    #[error("its books were not read in the time that a reading may take")]
    TooSlow,
    /// There is more than is read of one process.
    #[error("it has more blocks than are read of one process")]
    TooLarge,
}

impl Refusal {
    /// Whether another try may do better: the allocator was at work.
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Busy | Self::Contradiction(_) | Self::NotRecognized(_))
    }
}

/// What does not hold in a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Contradiction {
    /// The set of active blocks.
    #[error("the set of active blocks has not as many as it counts")]
    ActiveSet,
    /// A tree of free blocks.
    #[error("a tree of free blocks has not as many as it counts")]
    Tree,
    /// A block is not its neighbour's neighbour.
    #[error("a block is not linked back by its neighbour")]
    Links,
    /// A block does not begin where the one before ends.
    #[error("blocks leave gaps")]
    Gaps,
    /// A flag is neither 0 nor 1.
    #[error("a flag of a block is neither 0 nor 1")]
    Flags,
    /// A block's pool is none of the allocator's.
    #[error("a block's pool is none of the allocator's")]
    Pool,
    /// Two segments share addresses.
    #[error("segments overlap")]
    Overlap,
    /// The blocks' sum is not the allocator's.
    #[error("blocks of {read} bytes in all are read, and the allocator counts {counted}: {what}")]
    Sum {
        /// Of what.
        what: &'static str,
        /// As the blocks say, in bytes or blocks.
        read: u64,
        /// As the allocator says.
        counted: u64,
    },
}
