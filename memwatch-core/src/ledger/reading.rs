//! Queries of a ledger.

use serde::{Deserialize, Serialize};

use super::alias::{SharedObject, SharedOrigin};
use super::context::{Contexts, DeviceAnswers};
use super::pool::Backed;
use super::totals::{AllocationKind, DeviceRef, DeviceTotals, Totals};
use super::{Allocation, FailedAllocation, ProcessLedger};
use crate::words::Ordinal;

/// A driver allocation that contains an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverSegment {
    /// Start address.
    pub address: u64,
    /// Size, bytes.
    pub bytes: u64,
    /// Location of the memory.
    pub memory: SegmentLocation,
}

/// Location of a driver allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SegmentLocation {
    /// Host memory.
    Host,
    /// Memory of this device.
    Device(Ordinal),
    /// Memory of an unknown device (late attach).
    SomeDevice,
}

impl DriverSegment {
    /// Returns the device, if the memory is on a known one.
    pub const fn ordinal(&self) -> Option<Ordinal> {
        match self.memory {
            SegmentLocation::Device(ordinal) => Some(ordinal),
            SegmentLocation::Host | SegmentLocation::SomeDevice => None,
        }
    }
}

impl ProcessLedger {
    /// Current, peak and total bytes.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Returns whether the process was never seen to allocate, to be refused or to free anything.
    pub fn is_blank(&self) -> bool {
        let untouched = |totals: &DeviceTotals| totals.allocations == 0 && totals.failed_allocations == 0;
        untouched(self.totals.whole())
            && untouched(self.totals.host())
            && self.failures.is_empty()
            && self.unknown_frees == 0
    }

    /// Returns the driver allocation or mapping of physical memory that contains an address; `None`
    /// for managed memory, which may be on a device or the host.
    pub fn segment_at(&self, address: u64) -> Option<DriverSegment> {
        let holds = |(start, own): &(u64, Allocation)| address.checked_sub(*start).is_some_and(|at| at < own.bytes);
        let granted = self.addresses.own().find(holds).map(|(start, own)| (start, own.bytes, own.kind, own.device));
        let mapped = || {
            let (start, bytes, physical) = self.physical.mapping_at(address)?;
            Some((start, bytes, physical.kind, physical.device))
        };
        let (address, bytes, kind, device) = granted.or_else(mapped)?;
        let memory = match (kind, device) {
            (AllocationKind::PinnedHost | AllocationKind::Registered | AllocationKind::HostPhysical, _) => {
                SegmentLocation::Host
            }
            (AllocationKind::Managed, _) => return None,
            (_, DeviceRef::Ordinal(ordinal)) => SegmentLocation::Device(ordinal),
            (_, DeviceRef::Unknown) => SegmentLocation::SomeDevice,
        };
        Some(DriverSegment { address, bytes, memory })
    }

    /// Most recent failed allocations, oldest first.
    pub fn failures(&self) -> impl Iterator<Item = &FailedAllocation> {
        self.failures.iter()
    }

    /// Number of frees of memory never seen allocated.
    pub fn unknown_frees(&self) -> u64 {
        self.unknown_frees
    }

    /// Number of allocations freed by the end of a context, an image or the process.
    pub fn implicit_frees(&self) -> u64 {
        self.implicit_frees
    }

    /// Returns the bytes that pools reserve on a device, used or not; `None` if they cannot be
    /// estimated.
    pub fn pool_backed(&self, device: DeviceRef) -> Option<Backed> {
        self.pools.backed_on(device)
    }

    /// Bytes that graphs allocate at fixed addresses when they run.
    pub fn graph_node_bytes(&self) -> u64 {
        self.graphs.node_bytes()
    }

    /// Returns whether instantiated graphs with allocations exist.
    pub fn has_graph_memory(&self) -> bool {
        self.graphs.has_executables()
    }

    /// Bytes of reserved addresses, with or without memory.
    pub fn reservation_bytes(&self) -> u64 {
        self.reservations.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Number of loaded modules and libraries: code in device memory, of unknown size.
    pub fn modules(&self) -> usize {
        self.modules.len()
    }

    /// Returns a limit of its contexts (`CUlimit`), if the program has set it.
    pub fn limit(&self, limit: u32) -> Option<u64> {
        self.contexts.limit(limit)
    }

    /// Iterates over other processes' memory that this process uses, if the owner is known: once
    /// per address or handle.
    pub fn origins(&self) -> impl Iterator<Item = SharedOrigin> {
        self.aliases.origins().chain(self.physical.origins())
    }

    /// Number of addresses and handles of other owners' memory, with known or unknown owner.
    pub fn aliases(&self) -> usize {
        self.aliases.len() + self.physical.imported_count()
    }

    /// Returns the object offered to other processes at an address, with its size in bytes.
    pub fn shared_address(&self, address: u64) -> Option<(SharedObject, u64)> {
        let bytes = self.addresses.get(address)?.own()?.bytes;
        let granted_ns = self.addresses.granted_ns(address)?;
        Some((SharedObject::Address { address, granted_ns }, bytes))
    }

    /// Returns the object offered to other processes by a handle, with its size in bytes.
    pub fn shared_physical(&self, handle: u64) -> Option<(SharedObject, u64)> {
        let id = self.physical.id(handle)?;
        let physical = self.physical.get(id)?;
        let created_ns = physical.created_ns;
        physical.is_owned().then_some((SharedObject::Physical { id, created_ns }, physical.bytes))
    }

    /// Returns whether the process still has an object that it offered.
    pub fn still_holds(&self, object: SharedObject) -> bool {
        match object {
            SharedObject::Address { address, granted_ns } => self.addresses.granted_ns(address) == Some(granted_ns),
            SharedObject::Physical { id, created_ns } => {
                self.physical.get(id).is_some_and(|physical| physical.created_ns == created_ns)
            }
        }
    }

    /// Returns address and size of every live allocation of `cuMemAlloc` and of pools, in address
    /// order.
    pub fn requests(&self) -> Vec<(u64, u64)> {
        let own =
            self.addresses.own().filter(|(_, own)| matches!(own.kind, AllocationKind::Device | AllocationKind::Pool));
        let mut requests: Vec<_> = own.map(|(address, own)| (address, own.bytes)).collect();
        requests.sort_unstable();
        requests
    }

    /// Contexts of the process.
    pub const fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    /// Returns whether the device is known for every live thread that has allocated; `None` if none
    /// has allocated so far.
    pub fn knows_devices(&self) -> Option<bool> {
        self.contexts.knows_devices()
    }

    /// Returns the driver's answers about a device, if the program has queried it.
    pub fn reported(&self, device: Ordinal) -> Option<&DeviceAnswers> {
        self.contexts.reported(device)
    }
}
