//! What is counted of each place.

use serde::{Deserialize, Serialize};

/// Blocks of one place on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    /// Bytes of its live blocks.
    pub live_bytes: u64,
    /// The most there were.
    pub peak_bytes: u64,
    /// Bytes of all its blocks since the attach.
    pub total_bytes: u64,
    /// Their number.
    pub allocations: u64,
    /// How many of them were freed.
    pub frees: u64,
    /// Of those the number whose beginning was seen.
    aged: u64,
    /// How long those had lived, in all; nanoseconds.
    pub lifetime_ns: u128,
    /// The longest of that.
    pub longest_ns: u64,
    /// Live bytes at the device's last peak before `epoch`.
    at_peak_bytes: u64,
    /// How many peaks of the device it has seen.
    epoch: u64,
}

impl Sum {
    /// A block more, of a device that has had `epoch` peaks.
    pub(crate) fn grant(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.total_bytes = self.total_bytes.saturating_add(bytes);
        self.allocations += 1;
    }

    /// Memory that was there before it was watched.
    pub(crate) fn adopt(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
    }

    /// A block less; `age_ns` is how long it lived, where that is known.
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

    /// Memory that was taken for there by mistake.
    pub(super) fn forget(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
    }

    /// A block that was there all the time is known to belong here.
    pub(super) fn join(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        for count in [&mut self.live_bytes, &mut self.peak_bytes, &mut self.at_peak_bytes] {
            *count = count.saturating_add(bytes);
        }
    }

    /// A block that was there all the time is known to belong elsewhere.
    pub(super) fn leave(&mut self, bytes: u64, epoch: u64) {
        self.see(epoch);
        for count in [&mut self.live_bytes, &mut self.peak_bytes, &mut self.at_peak_bytes] {
            *count = count.saturating_sub(bytes);
        }
    }

    /// Before it changes: what it had at the peaks since its last change is what it has now.
    fn see(&mut self, epoch: u64) {
        if self.epoch < epoch {
            self.at_peak_bytes = self.live_bytes;
            self.epoch = epoch;
        }
    }

    /// Its live bytes when the device's were highest.
    pub fn at_peak_bytes(&self, epoch: u64) -> u64 {
        if self.epoch < epoch { self.live_bytes } else { self.at_peak_bytes }
    }

    /// Peaks begin again at what is live.
    pub(super) fn reset_peak(&mut self) {
        self.peak_bytes = self.live_bytes;
    }

    /// How long its freed blocks had lived on average, nanoseconds; `None` where none was freed whose beginning was seen.
    pub fn mean_lifetime_ns(&self) -> Option<u64> {
        let mean = self.lifetime_ns.checked_div(u128::from(self.aged))?;
        Some(u64::try_from(mean).unwrap_or(u64::MAX))
    }

    /// How long its blocks live, nanoseconds, where they are replaced: a quarter of them has been freed; `None` where more is kept.
    pub fn turnover_ns(&self) -> Option<u64> {
        self.mean_lifetime_ns().filter(|_| self.frees.saturating_mul(4) >= self.allocations)
    }

    /// Whether it ever had anything.
    pub const fn is_used(&self) -> bool {
        self.allocations > 0 || self.peak_bytes > 0 || self.frees > 0
    }
}
