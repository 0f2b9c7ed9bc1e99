//! The memory of a process with a time limit. Readers check how much of the time is used and return
//! partial results in time.

use std::time::{Duration, Instant};

use memwatch_inspect::memory::MemoryAccess;

use super::AddressSpace;

/// An address space with a time limit.
#[derive(Debug)]
pub(crate) struct TimedSpace<'s> {
    space: &'s AddressSpace,
    began: Instant,
    most: Duration,
}

impl AddressSpace {
    /// Limits readings to `most` from now on.
    pub(crate) fn within(&self, most: Duration) -> TimedSpace<'_> {
        TimedSpace { space: self, began: Instant::now(), most }
    }
}

impl MemoryAccess for TimedSpace<'_> {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        self.space.fill(address, into)
    }

    fn spent(&self) -> u32 {
        let most = self.most.as_micros().max(1);
        u32::try_from(self.began.elapsed().as_micros().saturating_mul(1000) / most).unwrap_or(u32::MAX)
    }
}
