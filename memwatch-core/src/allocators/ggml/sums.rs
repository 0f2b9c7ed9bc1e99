//! Sums of the buffers on each device, by usage.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::super::ReportedTotals;
use crate::decode::BufferUsage;
use crate::words::Ordinal;

/// Sum of the buffers with one usage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageSum {
    /// Number of buffers.
    pub buffers: u64,
    /// Total size in bytes.
    pub bytes: u64,
}

/// Sums of the buffers on one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceBuffers {
    usages: BTreeMap<BufferUsage, UsageSum>,
    bytes: u64,
    peak_bytes: u64,
    made: u64,
    time_ns: u64,
}

impl DeviceBuffers {
    /// Returns the sums by usage. Usages without buffers are absent.
    pub const fn usages(&self) -> &BTreeMap<BufferUsage, UsageSum> {
        &self.usages
    }

    /// Returns the bytes of all buffers.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the peak of the bytes.
    pub const fn peak_bytes(&self) -> u64 {
        self.peak_bytes
    }

    /// Returns the number of buffers.
    pub fn buffers(&self) -> u64 {
        self.usages.values().map(|sum| sum.buffers).sum()
    }

    /// Returns the number of buffers created so far.
    pub const fn made(&self) -> u64 {
        self.made
    }

    fn put(&mut self, usage: BufferUsage, bytes: u64) {
        let sum = self.usages.entry(usage).or_default();
        sum.buffers += 1;
        sum.bytes = sum.bytes.saturating_add(bytes);
        self.bytes = self.bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.bytes);
    }

    fn take(&mut self, usage: BufferUsage, bytes: u64) {
        if let Some(sum) = self.usages.get_mut(&usage) {
            sum.buffers = sum.buffers.saturating_sub(1);
            sum.bytes = sum.bytes.saturating_sub(bytes);
            self.bytes = self.bytes.saturating_sub(bytes);
        }
        self.usages.retain(|_, sum| sum.buffers > 0);
    }
}

/// Sums by device.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct BufferSums(BTreeMap<Ordinal, DeviceBuffers>);

impl BufferSums {
    pub(super) const fn devices(&self) -> &BTreeMap<Ordinal, DeviceBuffers> {
        &self.0
    }

    pub(super) fn add(&mut self, (ordinal, usage): (Ordinal, BufferUsage), bytes: u64, time_ns: u64) {
        let device = self.0.entry(ordinal).or_default();
        device.put(usage, bytes);
        device.made += 1;
        device.time_ns = device.time_ns.max(time_ns);
    }

    pub(super) fn remove(&mut self, (ordinal, usage): (Ordinal, BufferUsage), bytes: u64, time_ns: u64) {
        if let Some(device) = self.0.get_mut(&ordinal) {
            device.take(usage, bytes);
            device.time_ns = device.time_ns.max(time_ns);
        }
    }

    /// Moves a buffer's bytes to another usage.
    pub(super) fn relabel(&mut self, ordinal: Ordinal, (before, usage): (BufferUsage, BufferUsage), bytes: u64) {
        if let Some(device) = self.0.get_mut(&ordinal) {
            let peak_bytes = device.peak_bytes;
            device.take(before, bytes);
            device.put(usage, bytes);
            device.peak_bytes = peak_bytes;
        }
    }

    /// Returns the totals as for a caching allocator without a cache, since each buffer is one
    /// driver allocation.
    pub(super) fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        let of = |device: &DeviceBuffers| ReportedTotals {
            allocated_bytes: device.bytes,
            reserved_bytes: device.bytes,
            time_ns: device.time_ns,
        };
        self.0.iter().map(|(ordinal, device)| (*ordinal, of(device))).collect()
    }

    pub(super) fn begin_peaks(&mut self) {
        self.0.values_mut().for_each(|device| device.peak_bytes = device.bytes);
    }
}
