//! Of what a range allocates, what is gone before it ends: its temporary memory.

use serde::{Deserialize, Serialize};

use super::{LiveBlock, Places, Sum, at, phase_index};

/// A phase's sums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseSum {
    /// In all.
    pub sum: Sum,
    /// Bytes of its blocks that were freed before the range ended in which they were allocated.
    pub temporary_bytes: u64,
    /// Their number.
    pub temporary_blocks: u64,
    /// The most that there was of them from a beginning of the range to its end, in bytes.
    pub most_temporary_bytes: u64,
}

impl Places {
    /// A block was freed within its range; `range_bytes` is what has come and gone since that was opened, with this block.
    pub(in crate::allocators) fn free_temporary(&mut self, block: &LiveBlock, range_bytes: u64) {
        let phase = at(&mut self.device(block.ordinal).phases, phase_index(block.whose.phase));
        phase.temporary_bytes = phase.temporary_bytes.saturating_add(block.bytes);
        phase.temporary_blocks += 1;
        phase.most_temporary_bytes = phase.most_temporary_bytes.max(range_bytes);
    }
}
