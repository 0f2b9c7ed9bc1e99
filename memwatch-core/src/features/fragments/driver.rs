//! Shape of the memory that a process allocates from the driver directly: which of it was not
//! requested, cannot be reached or is not used.

use std::collections::BTreeMap;

use crate::attribution::process::Process;
use crate::ledger::layout::{Holes, Linear};
use crate::ledger::pool::Backed;
use crate::ledger::totals::{AllocationKind, DeviceRef, DeviceTotals};
use crate::words::Tgid;

/// Driver memory on one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OnDevice {
    /// Memory from `cuMemAlloc`.
    pub linear: Linear,
    /// Bytes of physical memory (`cuMemCreate`).
    pub physical_bytes: u64,
    /// Bytes of physical memory that are neither mapped nor bound.
    pub idle_physical_bytes: u64,
    /// Bytes used from pools.
    pub pool_bytes: u64,
    /// Bytes that the pools hold; `None` if they cannot be estimated either.
    pub pool_backed: Option<Backed>,
}

impl OnDevice {
    /// Returns the sum of two entries, for two names of one device.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        let both = |own: Backed, other: Backed| Backed {
            bytes: own.bytes.saturating_add(other.bytes),
            estimated: own.estimated || other.estimated,
        };
        Self {
            linear: self.linear.and(other.linear),
            physical_bytes: self.physical_bytes.saturating_add(other.physical_bytes),
            idle_physical_bytes: self.idle_physical_bytes.saturating_add(other.idle_physical_bytes),
            pool_bytes: self.pool_bytes.saturating_add(other.pool_bytes),
            pool_backed: self.pool_backed.zip(other.pool_backed).map(|(own, other)| both(own, other)),
        }
    }

    /// Returns the bytes that pools hold and that are not in use; `None` if they are unknown.
    pub fn unused_pool_bytes(&self) -> Option<u64> {
        self.pool_backed.map(|backed| backed.bytes.saturating_sub(self.pool_bytes))
    }

    /// Returns all unused bytes, as far as they are known.
    pub fn wasted_bytes(&self) -> u64 {
        let linear = self.linear.wasted_bytes();
        linear.saturating_add(self.idle_physical_bytes).saturating_add(self.unused_pool_bytes().unwrap_or(0))
    }

    fn held_bytes(&self) -> u64 {
        self.linear.bytes.saturating_add(self.physical_bytes).saturating_add(self.pool_bytes)
    }
}

/// Driver memory of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverShape {
    /// Reserved addresses.
    pub holes: Holes,
    /// Memory by the process's own names of devices.
    pub devices: BTreeMap<DeviceRef, OnDevice>,
}

impl DriverShape {
    /// Returns the current shape.
    pub fn of(process: &Process) -> Self {
        let ledger = &process.ledger;
        let (linear, idle) = (ledger.linear(), ledger.idle_physical());
        let device = |(device, totals): (DeviceRef, &DeviceTotals)| {
            let on_device = OnDevice {
                linear: linear.get(&device).copied().unwrap_or_default(),
                physical_bytes: totals.kind(AllocationKind::Physical).live_bytes,
                idle_physical_bytes: idle.get(&device).copied().unwrap_or(0),
                pool_bytes: totals.kind(AllocationKind::Pool).live_bytes,
                pool_backed: ledger.pool_backed(device),
            };
            (device, on_device)
        };
        Self { holes: ledger.holes(), devices: ledger.totals().devices().map(device).collect() }
    }

    fn rank(&self) -> (u64, u64) {
        let sum = |of: fn(&OnDevice) -> u64| self.devices.values().map(of).fold(0, u64::saturating_add);
        (sum(OnDevice::wasted_bytes), sum(OnDevice::held_bytes))
    }
}

/// The moment with most unused memory: `CLOCK_BOOTTIME` in nanoseconds, and the shape.
pub type WorstDriverShape = (u64, DriverShape);

/// Worst moments by process and start of observation.
#[derive(Clone, Debug, Default)]
pub struct DriverShapes {
    worst: BTreeMap<(Tgid, u64), (Calls, WorstDriverShape)>,
}

/// Activity counters of a process at the last look; if they are unchanged, so is the shape.
type Calls = (u64, u64, u64);

impl DriverShapes {
    /// Records the current shape if it is the worst so far.
    pub fn observe(&mut self, process: &Process, now_ns: u64) {
        let whole = process.ledger.totals().whole();
        let calls = (whole.allocations, whole.frees, whole.owned.live_bytes);
        let key = (process.tgid, process.observed_since_ns);
        if calls == Calls::default() || self.worst.get(&key).is_some_and(|(before, _)| *before == calls) {
            return;
        }
        let shape = DriverShape::of(process);
        match self.worst.get_mut(&key) {
            None => {
                self.worst.insert(key, (calls, (now_ns, shape)));
            }
            Some((before, worst)) => {
                *before = calls;
                if shape.rank() > worst.1.rank() {
                    *worst = (now_ns, shape);
                }
            }
        }
    }

    /// Returns the worst moment of a process.
    pub fn worst(&self, tgid: Tgid, observed_since_ns: u64) -> Option<&WorstDriverShape> {
        self.worst.get(&(tgid, observed_since_ns)).map(|(_, worst)| worst)
    }
}
