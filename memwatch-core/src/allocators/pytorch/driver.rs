//! What the driver's calls report of segments, where the allocator does not trace.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// So many mapped ranges are remembered at most: others than the allocator may map memory, too.
const KEPT: usize = 4096;

/// A call of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverChange {
    /// Memory that one call had granted is free.
    Freed {
        /// Where it began.
        address: u64,
    },
    /// Memory is mapped.
    Mapped {
        /// Where it begins.
        address: u64,
        /// Its size.
        bytes: u64,
    },
    /// Memory is mapped no more.
    Unmapped {
        /// Where it began.
        address: u64,
        /// Its size.
        bytes: u64,
    },
}

/// Ranges that were mapped lately.
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

    /// The range around an address with the ones that it goes on from, and the ones that go on from it.
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
