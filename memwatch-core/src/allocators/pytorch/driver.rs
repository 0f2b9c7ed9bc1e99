//! Driver calls that show segments, for allocators without a trace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Maximum number of mapped ranges remembered. Other code than the allocator may map memory, too.
const KEPT: usize = 4096;

/// A driver call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverChange {
    /// An allocation was freed.
    Freed {
        /// Start of the allocation.
        address: u64,
    },
    /// Memory was mapped.
    Mapped {
        /// Start of the memory.
        address: u64,
        /// Size in bytes.
        bytes: u64,
    },
    /// Memory was unmapped.
    Unmapped {
        /// Start of the memory.
        address: u64,
        /// Size in bytes.
        bytes: u64,
    },
}

/// Ranges mapped recently.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Mapped {
    ranges: BTreeMap<u64, u64>,
}

impl Mapped {
    pub(super) fn add(&mut self, address: u64, bytes: u64) {
        if self.ranges.len() >= KEPT {
            self.ranges.clear();
        }
        self.ranges.insert(address, bytes);
    }

    /// Takes the range that contains an address, joined with adjacent ranges.
    pub(super) fn take(&mut self, address: u64) -> Option<(u64, u64)> {
        let (&last, &bytes) = self.ranges.range(..=address).next_back().filter(|(at, size)| address - **at < **size)?;
        self.ranges.remove(&last);
        let (mut begin, mut all) = (last, bytes);
        while let Some((&before, &size)) =
            self.ranges.range(..begin).next_back().filter(|(at, size)| **at + **size == begin)
        {
            self.ranges.remove(&before);
            (begin, all) = (before, all + size);
        }
        while let Some(size) = self.ranges.remove(&(begin + all)) {
            all += size;
        }
        Some((begin, all))
    }
}
