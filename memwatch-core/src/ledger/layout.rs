//! Layout of allocations in the driver's memory, as far as addresses show it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::ProcessLedger;
use super::totals::{AllocationKind, DeviceRef};

/// Granule in which the driver maps memory, bytes: the value of `cuMemGetAllocationGranularity` on
/// all known GPUs. That it also backs `cuMemAlloc` is not documented.
pub const GRANULE_BYTES: u64 = 2 << 20;
/// Largest request of `cuMemAlloc` that shares granules with others, bytes.
pub const SHARING_BYTES: u64 = 1 << 20;

/// Live memory of `cuMemAlloc` and `cuMemAllocPitch`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Linear {
    /// Number of requests.
    pub allocations: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Number of requests that share granules with others.
    pub small_allocations: u64,
    /// Bytes requested by those small requests.
    pub small_bytes: u64,
    /// Bytes of all granules that contain a request: the least that the driver needs for them.
    pub granule_bytes: u64,
}

impl Linear {
    /// Adds up the values of two device references that mean the same device.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            allocations: self.allocations + other.allocations,
            bytes: self.bytes.saturating_add(other.bytes),
            small_allocations: self.small_allocations + other.small_allocations,
            small_bytes: self.small_bytes.saturating_add(other.small_bytes),
            granule_bytes: self.granule_bytes.saturating_add(other.granule_bytes),
        }
    }

    /// Returns the bytes in granules that were not requested.
    pub const fn wasted_bytes(&self) -> u64 {
        self.granule_bytes.saturating_sub(self.bytes)
    }
}

/// Reserved addresses without memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holes {
    /// Reserved addresses, bytes.
    pub reserved_bytes: u64,
    /// Reserved addresses without memory, bytes.
    pub hole_bytes: u64,
    /// Number of ranges without memory.
    pub holes: u64,
    /// Size of the largest range without memory, bytes.
    pub largest_hole_bytes: u64,
}

impl ProcessLedger {
    /// Returns the layout of `cuMemAlloc` memory in the driver's granules, by device.
    pub fn linear(&self) -> BTreeMap<DeviceRef, Linear> {
        let mut ranges: BTreeMap<DeviceRef, Vec<(u64, u64)>> = BTreeMap::new();
        let mut all: BTreeMap<DeviceRef, Linear> = BTreeMap::new();
        for (address, own) in
            self.addresses.own().filter(|(_, own)| own.kind == AllocationKind::Device && own.bytes > 0)
        {
            let linear = all.entry(own.device).or_default();
            let is_small = own.bytes <= SHARING_BYTES;
            linear.allocations += 1;
            linear.bytes = linear.bytes.saturating_add(own.bytes);
            linear.small_allocations += u64::from(is_small);
            linear.small_bytes += if is_small { own.bytes } else { 0 };
            let last = address.saturating_add(own.bytes - 1);
            ranges.entry(own.device).or_default().push((address / GRANULE_BYTES, last / GRANULE_BYTES));
        }
        for (device, mut ranges) in ranges {
            ranges.sort_unstable();
            // First granule not counted yet.
            let mut next = 0;
            let mut granules = 0_u64;
            for (first, last) in ranges {
                granules += (last + 1).saturating_sub(first.max(next));
                next = next.max(last + 1);
            }
            all.entry(device).or_default().granule_bytes = granules.saturating_mul(GRANULE_BYTES);
        }
        all
    }

    /// Returns physical memory that is neither mapped nor bound, so that no kernel can access it,
    /// by device.
    pub fn idle_physical(&self) -> BTreeMap<DeviceRef, u64> {
        let mut all = BTreeMap::new();
        for physical in self.physical.owned().filter(|physical| physical.kind == AllocationKind::Physical) {
            let idle = all.entry(physical.device).or_insert(0_u64);
            *idle = idle.saturating_add(if physical.is_mapped() { 0 } else { physical.bytes });
        }
        all
    }

    /// Returns the reserved addresses that have no memory.
    pub fn holes(&self) -> Holes {
        let mut holes = Holes::default();
        for (begin, bytes) in self.reservations.iter() {
            let end = begin.saturating_add(*bytes);
            holes.reserved_bytes = holes.reserved_bytes.saturating_add(*bytes);
            let mut at = begin;
            for (from, to) in self.physical.mapped_between(begin, end).chain([(end, end)]) {
                let hole_bytes = from.saturating_sub(at);
                holes.hole_bytes = holes.hole_bytes.saturating_add(hole_bytes);
                holes.holes += u64::from(hole_bytes > 0);
                holes.largest_hole_bytes = holes.largest_hole_bytes.max(hole_bytes);
                at = at.max(to);
            }
        }
        holes
    }
}

#[cfg(test)]
#[path = "tests/layout.rs"]
mod tests;
