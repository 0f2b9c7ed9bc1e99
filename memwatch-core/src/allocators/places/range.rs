//! Temporary memory of a range: blocks that are allocated in it and freed before it ends.

use serde::{Deserialize, Serialize};

use super::{BlockSum, CodeAttribution, LiveBlock, at, range_index};

/// Sums of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RangeSum {
    /// Sum of all its blocks.
    pub sum: BlockSum,
    /// Bytes of blocks freed before the end of the range in which they were allocated.
    pub temporary_bytes: u64,
    /// Number of those blocks.
    pub temporary_blocks: u64,
    /// Maximum of their bytes over one run of the range.
    pub most_temporary_bytes: u64,
}

impl CodeAttribution {
    /// Counts a block freed within its range; `range_bytes` is the temporary memory of this run so
    /// far, including the block.
    pub(in crate::allocators) fn free_temporary(&mut self, block: &LiveBlock, range_bytes: u64) {
        let range = at(&mut self.device(block.ordinal).ranges, range_index(block.whose.range));
        range.temporary_bytes = range.temporary_bytes.saturating_add(block.bytes);
        range.temporary_blocks += 1;
        range.most_temporary_bytes = range.most_temporary_bytes.max(range_bytes);
    }
}
