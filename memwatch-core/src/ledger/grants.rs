//! Grants and frees of memory that has an address or handle of its own and is freed by one call.

use memwatch_common::meaning::LinearKind;
use serde::{Deserialize, Serialize};

use crate::decode::{Action, Call};
use crate::words::{CallSpan, ContextHandle};

use super::alias::SharedOrigin;
use super::graph::{NodeGrant, StreamKey};
use super::pool::PoolId;
use super::tenants::ReleaseOutcome;
use super::totals::{AllocationKind, DeviceRef};
use super::{EndedAddress, ProcessLedger};

/// An allocation at an address. Kept small, because millions may be live.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Allocation {
    pub(super) bytes: u64,
    /// Context handle; 0 if unknown.
    pub(super) context: u64,
    pub(super) device: DeviceRef,
    pub(super) pool: Option<PoolId>,
    pub(super) kind: AllocationKind,
}

impl Allocation {
    /// Creates an allocation with an unknown context.
    pub(super) const fn adopted(bytes: u64, device: DeviceRef, kind: AllocationKind, pool: Option<PoolId>) -> Self {
        Self { bytes, context: 0, device, pool, kind }
    }

    /// Returns the context that the allocation ends with, if known.
    pub(super) fn context(&self) -> Option<ContextHandle> {
        (self.context != 0).then_some(ContextHandle(self.context))
    }
}

/// Owner of the memory at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Tenancy {
    /// The process's own memory.
    Own(Allocation),
    /// Memory of another owner, which the process frees with the same call as its own.
    Foreign,
}

impl Tenancy {
    /// The allocation, if it is the process's own.
    pub(super) const fn own(&self) -> Option<&Allocation> {
        match self {
            Self::Own(allocation) => Some(allocation),
            Self::Foreign => None,
        }
    }
}

impl ProcessLedger {
    pub(super) fn apply_grant(&mut self, call: &Call) {
        match call.action {
            Action::Allocate { kind, address, bytes } => {
                let (kind, device) = (linear_kind(kind), self.contexts.device_of(call.tid));
                self.grant(call, address, self.allocation(call, kind, bytes, device));
            }
            Action::AllocateFromPool { .. } => self.allocate_from_pool(call),
            Action::Free { address } | Action::FreeHost { address } => self.free(call, address),
            Action::FreeAsync { address, stream } => {
                let stream = StreamKey::new(stream, call.tid);
                if self.graphs.is_capturing(stream) {
                    self.graphs.capture_free(stream, address);
                } else {
                    self.free(call, address);
                }
            }
            Action::RegisterHost { address, bytes } => self.register(call, address, bytes),
            Action::UnregisterHost { address } => self.unregister(call, address),
            Action::CreateArray { handle, estimated_bytes } => self.create_array(call, handle, estimated_bytes),
            Action::DestroyArray { handle } => self.destroy_array(call, handle),
            _ => {}
        }
    }

    fn allocation(&self, call: &Call, kind: AllocationKind, bytes: u64, device: DeviceRef) -> Allocation {
        let context = self.contexts.owner(call.tid).map_or(0, |context| context.0);
        let device = if kind.is_host() { DeviceRef::Unknown } else { device };
        Allocation { bytes, context, device, pool: None, kind }
    }

    fn grant(&mut self, call: &Call, address: u64, allocation: Allocation) {
        // The driver grants nothing at address 0: the request was for no bytes.
        if address == 0 {
            return;
        }
        self.move_in(call.span(), address, Tenancy::Own(allocation));
        if let Some(pool) = allocation.pool {
            self.pools.take(pool, allocation.bytes);
        }
        self.totals.allocate(allocation.device, allocation.kind, allocation.bytes, call.span());
    }

    /// Adds another owner's memory at an address that is freed like an own one.
    pub(super) fn import_address(&mut self, call: &Call, address: u64, origin: Option<SharedOrigin>) {
        self.move_in(call.span(), address, Tenancy::Foreign);
        self.aliases.open(address, origin);
    }

    fn move_in(&mut self, span: CallSpan, address: u64, tenancy: Tenancy) {
        // A graph's allocation still recorded here has been freed, by a record that has yet to
        // arrive.
        self.addresses.await_frees(address, u32::from(self.graphs.is_outstanding(address)));
        if let Some(change) = self.graphs.evict(address) {
            self.totals.hold_for_graphs(change.device, change.before_bytes, change.after_bytes);
        }
        if let Some(previous) = self.addresses.grant(address, span.returned_ns, tenancy) {
            self.move_out(span, address, previous);
        }
    }

    pub(super) fn move_out(&mut self, span: CallSpan, address: u64, tenancy: Tenancy) {
        match tenancy {
            Tenancy::Own(own) => {
                if let Some(pool) = own.pool {
                    self.pools.give_back(pool, own.bytes);
                }
                self.totals.free(own.device, own.kind, own.bytes, span);
            }
            Tenancy::Foreign => {
                self.aliases.close(address);
            }
        }
    }

    /// Gives an address to a graph: the allocation recorded there has ended.
    pub(super) fn give_to_graph(&mut self, span: CallSpan, address: u64) {
        if let Some(previous) = self.addresses.displace(address) {
            self.move_out(span, address, previous);
        }
    }

    fn allocate_from_pool(&mut self, call: &Call) {
        let Action::AllocateFromPool { address, bytes, pool, stream } = call.action else { return };
        let key = StreamKey::new(stream, call.tid);
        if self.graphs.is_capturing(key) {
            self.give_to_graph(call.span(), address);
            self.graphs.capture_allocation(key, NodeGrant { address, bytes, granted_ns: call.returned_ns });
            // The kernel half has recorded this address as an allocation, because it does not know
            // about graphs.
            self.unnamed.push(EndedAddress { address, until_ns: call.returned_ns });
            return;
        }
        let device = self.contexts.device_of_stream(stream, call.tid);
        let pool = self.pools.of(pool, device);
        match self.pools.kept(pool, device) {
            Some((kind, device)) => {
                let allocation = Allocation { pool: Some(pool), ..self.allocation(call, kind, bytes, device) };
                self.grant(call, address, allocation);
            }
            None => self.import_address(call, address, None),
        }
    }

    fn free(&mut self, call: &Call, address: u64) {
        // `cuMemFree(0)` is a no-op that succeeds.
        if address == 0 {
            return;
        }
        if self.graphs.is_freed(address, call.entered_ns) {
            if let Some(change) = self.graphs.free(address) {
                self.totals.hold_for_graphs(change.device, change.before_bytes, change.after_bytes);
            }
            return;
        }
        match self.addresses.release(address, call.entered_ns) {
            ReleaseOutcome::Freed(freed) => self.move_out(call.span(), address, freed),
            ReleaseOutcome::PreviousTenant => {}
            ReleaseOutcome::Unknown => self.unknown_frees += 1,
        }
    }

    fn register(&mut self, call: &Call, address: u64, bytes: u64) {
        if let Some(previous) = self.registered.grant(address, call.returned_ns, bytes) {
            self.totals.free(DeviceRef::Unknown, AllocationKind::Registered, previous, call.span());
        }
        self.totals.allocate(DeviceRef::Unknown, AllocationKind::Registered, bytes, call.span());
    }

    fn unregister(&mut self, call: &Call, address: u64) {
        match self.registered.release(address, call.entered_ns) {
            ReleaseOutcome::Freed(bytes) => {
                self.totals.free(DeviceRef::Unknown, AllocationKind::Registered, bytes, call.span());
            }
            ReleaseOutcome::PreviousTenant => {}
            ReleaseOutcome::Unknown => self.unknown_frees += 1,
        }
    }

    fn create_array(&mut self, call: &Call, handle: u64, bytes: u64) {
        let array = self.allocation(call, AllocationKind::Array, bytes, self.contexts.device_of(call.tid));
        if let Some(previous) = self.arrays.grant(handle, call.returned_ns, array) {
            self.totals.free(previous.device, AllocationKind::Array, previous.bytes, call.span());
        }
        self.totals.allocate(array.device, AllocationKind::Array, bytes, call.span());
    }

    fn destroy_array(&mut self, call: &Call, handle: u64) {
        match self.arrays.release(handle, call.entered_ns) {
            ReleaseOutcome::Freed(array) => {
                self.totals.free(array.device, AllocationKind::Array, array.bytes, call.span());
            }
            ReleaseOutcome::PreviousTenant => {}
            ReleaseOutcome::Unknown => self.unknown_frees += 1,
        }
    }
}

pub(super) const fn linear_kind(kind: LinearKind) -> AllocationKind {
    match kind {
        LinearKind::Device => AllocationKind::Device,
        LinearKind::Managed => AllocationKind::Managed,
        LinearKind::PinnedHost => AllocationKind::PinnedHost,
    }
}
