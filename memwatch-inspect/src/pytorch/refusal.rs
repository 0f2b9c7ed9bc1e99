//! Reasons why an allocator's state cannot be read.

/// Reason why the allocator state of a process cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadRefusal {
    /// The process has PyTorch but no allocator yet.
    #[error("the process has not initialized CUDA and holds no device memory")]
    NotInitialized,
    /// The process uses `cudaMallocAsync`, a pluggable allocator, or an unknown one.
    #[error("its allocator is {0}, which is not supported")]
    Other(Box<str>),
    /// This part of the memory cannot be read.
    #[error("cannot read {0}: the process exited, or reading it is not permitted")]
    Unreadable(&'static str),
    /// This part does not have a known layout.
    #[error("this build of PyTorch is not recognized: {0}")]
    NotRecognized(&'static str),
    /// The allocator was running during the reading.
    #[error("the allocator was running during the reading")]
    Busy,
    /// The data is contradictory.
    #[error("the allocator state is inconsistent: {0}")]
    Contradiction(ReadContradiction),
    /// The time budget was spent.
    #[error("reading the allocator state took too long")]
    TooSlow,
    /// There is more data than the limit per process.
    #[error("the allocator state exceeds the size limit of a reading")]
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
    #[error("the size of the set of active blocks differs from its own count")]
    ActiveSet,
    /// A tree of free blocks has another size than it counts.
    #[error("the size of a tree of free blocks differs from its own count")]
    Tree,
    /// A block's neighbour does not link back to it.
    #[error("a block's neighbour does not link back to it")]
    Links,
    /// A block does not begin at the end of the previous one.
    #[error("there are gaps between blocks")]
    Gaps,
    /// A flag is neither 0 nor 1.
    #[error("a flag of a block is neither 0 nor 1")]
    Flags,
    /// A block's pool does not belong to the allocator.
    #[error("a block's pool does not belong to the allocator")]
    Pool,
    /// Two segments share addresses.
    #[error("segments overlap")]
    Overlap,
    /// A sum over the blocks differs from the allocator's total.
    #[error("{what}: the blocks add up to {read}, but the allocator counts {counted}")]
    Sum {
        /// Name of the sum, with its unit: bytes or blocks.
        what: &'static str,
        /// Sum over the blocks, in bytes or blocks.
        read: u64,
        /// Total of the allocator, in bytes or blocks.
        counted: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contradiction_of_block_counts_is_not_printed_as_bytes() {
        let text = ReadContradiction::Sum { what: "active blocks", read: 7, counted: 8 }.to_string();
        assert!(text.contains("active blocks") && !text.contains("bytes"), "{text}");
    }
}
