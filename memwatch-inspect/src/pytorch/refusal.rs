//! Reasons why an allocator's state cannot be read.

/// Reason why the allocator state of a process cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadRefusal {
    /// The process has PyTorch but no allocator yet.
    #[error("CUDA is not initialized in it: it holds nothing")]
    NotInitialized,
    /// The process uses `cudaMallocAsync`, a pluggable allocator, or an unknown one.
    #[error("its allocator is {0}, which keeps other books")]
    Other(Box<str>),
    /// This part of the memory cannot be read.
    #[error("{0} cannot be read: the process has gone, or may not be read")]
    Unreadable(&'static str),
    /// This part does not have a known layout.
    #[error("this build of PyTorch is not recognized: {0}")]
    NotRecognized(&'static str),
    /// The allocator was running during the reading.
    #[error("the allocator worked while it was read")]
    Busy,
    /// The data is contradictory.
    #[error("what was read contradicts itself: {0}")]
    Contradiction(ReadContradiction),
    /// The time budget was spent.
    #[error("its books were not read in the time that a reading may take")]
    TooSlow,
    /// There is more data than the limit per process.
    #[error("it has more blocks than are read of one process")]
    TooLarge,
}

impl ReadRefusal {
    /// Returns whether another attempt may succeed because the allocator was running.
    pub const fn is_passing(&self) -> bool {
        matches!(self, Self::Busy | Self::Contradiction(_) | Self::NotRecognized(_))
    }
}

/// A contradiction in a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadContradiction {
    /// The set of active blocks has another size than it counts.
    #[error("the set of active blocks has not as many as it counts")]
    ActiveSet,
    /// A tree of free blocks has another size than it counts.
    #[error("a tree of free blocks has not as many as it counts")]
    Tree,
    /// A block's neighbour does not link back to it.
    #[error("a block is not linked back by its neighbour")]
    Links,
    /// A block does not begin at the end of the previous one.
    #[error("blocks leave gaps")]
    Gaps,
    /// A flag is neither 0 nor 1.
    #[error("a flag of a block is neither 0 nor 1")]
    Flags,
    /// A block's pool does not belong to the allocator.
    #[error("a block's pool is none of the allocator's")]
    Pool,
    /// Two segments share addresses.
    #[error("segments overlap")]
    Overlap,
    /// A sum over the blocks differs from the allocator's total.
    #[error("blocks of {read} bytes in all are read, and the allocator counts {counted}: {what}")]
    Sum {
        /// Name of the sum.
        what: &'static str,
        /// Sum over the blocks, in bytes or blocks.
        read: u64,
        /// Total of the allocator, in bytes or blocks.
        counted: u64,
    },
}
