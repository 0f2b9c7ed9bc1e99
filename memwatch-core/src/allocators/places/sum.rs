//! Counters of the blocks with one attribution.

use serde::{Deserialize, Serialize};

/// Sum of the blocks with one attribution on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BlockSum {
    /// Bytes of the live blocks.
    pub live_bytes: u64,
    /// Peak of the live bytes.
    pub peak_bytes: u64,
    /// Bytes allocated since the attach.
    pub total_bytes: u64,
    /// Blocks allocated since the attach.
    pub allocations: u64,
    /// Blocks freed since the attach.
    pub frees: u64,
    /// Freed blocks with a known time of allocation.
    aged: u64,
    /// Total lifetime of those freed blocks, nanoseconds.
    pub lifetime_ns: u128,
    /// Longest lifetime of those freed blocks, nanoseconds.
    pub longest_ns: u64,
    /// Live bytes at the device's last peak before `epoch`.
    at_peak_bytes: u64,
    /// Number of device peaks accounted for.
    epoch: u64,
}

impl BlockSum {
    /// Adds a block, on a device that has had `epoch` peaks.
    pub(crate) fn grant(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.total_bytes = self.total_bytes.saturating_add(bytes);
        self.allocations += 1;
    }

    /// Adds memory from before the attach or from untraced times.
    pub(crate) fn adopt(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    /// Removes a block; `age_ns` is its lifetime, if known.
    pub(crate) fn free(&mut self, bytes: u64, age_ns: Option<u64>, epoch: u64) {
        self.see(epoch);
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        self.frees += 1;
        if let Some(age_ns) = age_ns {
            self.aged += 1;
            self.lifetime_ns += u128::from(age_ns);
            self.longest_ns = self.longest_ns.max(age_ns);
        }
    }

    /// Removes memory that was counted by mistake.
    pub(super) fn forget(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
    }

    /// Adds a block that existed all the time.
    pub(super) fn join(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        for count in [&mut self.live_bytes, &mut self.peak_bytes, &mut self.at_peak_bytes] {
            *count = count.saturating_add(bytes);
        }
    }

    /// Removes a block that never belonged here.
    pub(super) fn leave(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        for count in [&mut self.live_bytes, &mut self.peak_bytes, &mut self.at_peak_bytes] {
            *count = count.saturating_sub(bytes);
        }
    }

    /// Updates `at_peak_bytes` before a change: at the peaks since the last change, the live bytes
    /// were the current ones.
    fn see(&mut self, epoch: u64) {
        if self.epoch < epoch {
            self.at_peak_bytes = self.live_bytes;
            self.epoch = epoch;
        }
    }

    /// Returns the live bytes at the device's peak.
    pub fn at_peak_bytes(&self, epoch: u64) -> u64 {
        if self.epoch < epoch { self.live_bytes } else { self.at_peak_bytes }
    }

    /// Resets the peak to the live bytes.
    pub(super) fn reset_peak(&mut self) {
        self.peak_bytes = self.live_bytes;
    }

    /// Returns the mean lifetime of freed blocks in nanoseconds; `None` if no block with a known
    /// time of allocation has been freed.
    pub fn mean_lifetime_ns(&self) -> Option<u64> {
        let mean = self.lifetime_ns.checked_div(u128::from(self.aged))?;
        Some(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// Returns the mean lifetime in nanoseconds if blocks are replaced, which means that at least a
    /// quarter of them has been freed; `None` otherwise.
    pub fn turnover_ns(&self) -> Option<u64> {
        self.mean_lifetime_ns().filter(|_| self.frees.saturating_mul(4) >= self.allocations)
    }

    /// Returns whether the sum ever had a block.
    pub const fn is_used(&self) -> bool {
        self.allocations > 0 || self.peak_bytes > 0 || self.frees > 0
    }
}
