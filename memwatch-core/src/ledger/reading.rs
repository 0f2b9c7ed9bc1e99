//! What a ledger can be asked.

use serde::{Deserialize, Serialize};

use super::alias::{Origin, SharedObject};
use super::context::{Contexts, DeviceAnswers};
use super::pool::Backed;
use super::totals::{DeviceRef, DeviceTotals, Kind, Totals};
use super::{Allocation, FailedAllocation, ProcessLedger};
use crate::words::Ordinal;

/// An allocation of the driver, by what lies in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverSegment {
    /// Where it begins.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// Where it is.
    pub memory: Memory,
}

/// Whose memory an allocation of the driver's is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Memory {
    /// The host's.
    Host,
    /// This device's.
    Device(Ordinal),
    /// A device's: of which, is not known (attached in the middle).
    SomeDevice,
}

impl DriverSegment {
    /// The device, where it is known and there is one.
    pub const fn ordinal(&self) -> Option<Ordinal> {
        match self.memory {
            Memory::Device(ordinal) => Some(ordinal),
            Memory::Host | Memory::SomeDevice => None,
        }
    }
}

impl ProcessLedger {
    /// Current, peak and total bytes.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Whether the process was never seen to allocate, to be refused or to free anything.
    pub fn is_blank(&self) -> bool {
        let untouched = |totals: &DeviceTotals| totals.allocations == 0 && totals.failed_allocations == 0;
        untouched(self.totals.whole())
            && untouched(self.totals.host())
            && self.failures.is_empty()
            && self.unknown_frees == 0
    }

    /// The driver's allocation that an address lies in, or the mapping of physical memory, where it is a device's or the host's: managed memory may be
    /// in either.
    pub fn segment_at(&self, address: u64) -> Option<DriverSegment> {
        let holds = |(start, own): &(u64, Allocation)| address.checked_sub(*start).is_some_and(|at| at < own.bytes);
        let granted = self.addresses.own().find(holds).map(|(start, own)| (start, own.bytes, own.kind, own.device));
        let mapped = || {
            let (start, bytes, physical) = self.physical.mapping_at(address)?;
            Some((start, bytes, physical.kind, physical.device))
        };
        let (address, bytes, kind, device) = granted.or_else(mapped)?;
        let memory = match (kind, device) {
            (Kind::PinnedHost | Kind::Registered | Kind::HostPhysical, _) => Memory::Host,
            (Kind::Managed, _) => return None,
            (_, DeviceRef::Ordinal(ordinal)) => Memory::Device(ordinal),
            (_, DeviceRef::Unknown) => Memory::SomeDevice,
        };
        Some(DriverSegment { address, bytes, memory })
    }

    /// The last failed allocations, oldest first.
    pub fn failures(&self) -> impl Iterator<Item = &FailedAllocation> {
        self.failures.iter()
    }

    /// Frees of memory never seen allocated.
    pub fn unknown_frees(&self) -> u64 {
        self.unknown_frees
    }

    /// Allocations freed by a context's, an image's or the process's end.
    pub fn implicit_frees(&self) -> u64 {
        self.implicit_frees
    }

    /// What pools hold of a device, used or not; `None` where that cannot even be estimated.
    pub fn pool_backed(&self, device: DeviceRef) -> Option<Backed> {
        self.pools.backed_on(device)
    }

    /// Bytes that graphs allocate at fixed addresses when they run.
    pub fn graph_node_bytes(&self) -> u64 {
        self.graphs.node_bytes()
    }

    /// Whether graphs with allocations in them are ready to run.
    pub fn has_graph_memory(&self) -> bool {
        self.graphs.has_executables()
    }

    /// Bytes of addresses set apart without memory.
    pub fn reservation_bytes(&self) -> u64 {
        self.reservations.values().fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }

    /// Modules and libraries loaded now: code in device memory, of unknown size.
    pub fn modules(&self) -> usize {
        self.modules.len()
    }

    /// A limit of its contexts (`CUlimit`), if the program has set it.
    pub fn limit(&self, limit: u32) -> Option<u64> {
        self.contexts.limit(limit)
    }

    /// Other processes' memory that this one sees, where the owner is known: once per address or handle.
    pub fn origins(&self) -> impl Iterator<Item = Origin> {
        self.aliases.origins().chain(self.physical.origins())
    }

    /// Addresses and handles of other owners' memory, known or not.
    pub fn aliases(&self) -> usize {
        self.aliases.len() + self.physical.imported_count()
    }

    /// What is offered to others at an address, with its size in bytes.
    pub fn shared_address(&self, address: u64) -> Option<(SharedObject, u64)> {
        let bytes = self.addresses.get(address)?.own()?.bytes;
        let granted_ns = self.addresses.granted_ns(address)?;
        Some((SharedObject::Address { address, granted_ns }, bytes))
    }

    /// What is offered to others by a handle, with its size in bytes.
    pub fn shared_physical(&self, handle: u64) -> Option<(SharedObject, u64)> {
        let id = self.physical.id(handle)?;
        let physical = self.physical.get(id)?;
        let created_ns = physical.created_ns;
        physical.is_owned().then_some((SharedObject::Physical { id, created_ns }, physical.bytes))
    }

    /// Whether it still holds what it once offered.
    pub fn still_holds(&self, object: SharedObject) -> bool {
        match object {
            SharedObject::Address { address, granted_ns } => self.addresses.granted_ns(address) == Some(granted_ns),
            SharedObject::Physical { id, created_ns } => {
                self.physical.get(id).is_some_and(|physical| physical.created_ns == created_ns)
            }
        }
    }

    /// What was requested of a device by address and is live, in bytes, of `cuMemAlloc` and of pools; by address.
    pub fn requests(&self) -> Vec<(u64, u64)> {
        let own = self.addresses.own().filter(|(_, own)| matches!(own.kind, Kind::Device | Kind::Pool));
        let mut requests: Vec<_> = own.map(|(address, own)| (address, own.bytes)).collect();
        requests.sort_unstable();
        requests
    }

    /// Its contexts.
    pub const fn contexts(&self) -> &Contexts {
        &self.contexts
    }

    /// Whether it is known of every living thread that has allocated on which device it does; `None` before any has.
    pub fn knows_devices(&self) -> Option<bool> {
        self.contexts.knows_devices()
    }

    /// What the driver reported the program of one of its devices, if it ever asked.
    pub fn reported(&self, device: Ordinal) -> Option<&DeviceAnswers> {
        self.contexts.reported(device)
    }
}
