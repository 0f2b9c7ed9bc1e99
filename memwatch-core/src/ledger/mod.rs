//! The ledger: what each process holds, call by call.
//!
//! Invariants (property-tested against a naive model in `ledger/tests/properties.rs`):
//! 1. `live` is the sum of the requested bytes of live allocations, never negative; `peak >= live`; `total >= peak`.
//! 2. An allocation counts from its return, a free from its entry: a free that entered before the address's present tenant was
//!    granted belongs to the tenant before it ([`tenants`]). A failed free frees nothing.
//! 3. A free of an address never seen is an unknown free: memory older than our attach.
//! 4. Exit, exec, context destroy and primary-context reset free what CUDA's rules say, and are counted as implicit.
//! 5. The same calls give the same numbers.
//!
//! One limit: records come in the order of their returns, so while a free is still running in one thread, an allocation of another
//! thread is added before the freed bytes are taken away. A peak may then exceed the true one by the bytes of the frees in flight.

pub mod activity;
pub mod context;
pub mod recent;
pub mod tenants;
pub mod totals;
pub mod virtual_memory;

use std::collections::VecDeque;

use memwatch_common::probes::LinearKind;

use crate::decode::{Action, Call, Location};
use crate::words::{ContextHandle, Ordinal, Span, Tid};

use activity::{Activity, CallRate};
use context::{Contexts, TornDown};
use tenants::{Release, Tenants};
use totals::{DeviceRef, Kind, Totals};
use virtual_memory::{HandleRelease, Physical, VirtualMemory};

/// How many failed allocations of a process are kept with their details; all are counted.
pub const FAILURES_KEPT: usize = 16;

/// A grant at an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allocation {
    bytes: u64,
    context: Option<ContextHandle>,
    device: DeviceRef,
    kind: Kind,
}

/// An allocation the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedAllocation {
    /// When it returned: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The function.
    pub symbol: &'static str,
    /// What it asked for, in bytes.
    pub requested_bytes: u64,
    /// `CUresult`; 2 is out of memory.
    pub status: i32,
    /// The device it asked on; `None` for host memory.
    pub device: Option<DeviceRef>,
}

/// What one process holds.
#[derive(Clone, Debug, Default)]
pub struct ProcessLedger {
    /// Grants with an address: device, managed, pool and pinned host memory share one address space, and one free function.
    addresses: Tenants<Allocation>,
    arrays: Tenants<Allocation>,
    registered: Tenants<u64>,
    physical: VirtualMemory,
    contexts: Contexts,
    totals: Totals,
    activity: Activity,
    failures: VecDeque<FailedAllocation>,
    unknown_frees: u64,
    implicit_frees: u64,
}

impl ProcessLedger {
    /// A ledger of a process; `from_start` says that no call before the first one given to it was missed.
    pub fn new(from_start: bool) -> Self {
        Self { contexts: Contexts::new(from_start), ..Self::default() }
    }

    /// Takes one call into account.
    pub fn apply(&mut self, call: &Call) {
        if call.status != 0 {
            self.apply_failure(call);
            return;
        }
        match call.action {
            Action::Allocate { kind, address, bytes } => self.allocate(call, linear_kind(kind), address, bytes),
            Action::AllocateFromPool { address, bytes, pool: _ } => self.allocate(call, Kind::Pool, address, bytes),
            Action::Free { address } | Action::FreeHost { address } => self.free(call, address),
            Action::RegisterHost { address, bytes } => self.register(call, address, bytes),
            Action::UnregisterHost { address } => self.unregister(call, address),
            Action::CreateArray { handle, estimated_bytes } => self.create_array(call, handle, estimated_bytes),
            Action::DestroyArray { handle } => self.destroy_array(call, handle),
            Action::CreatePhysical { handle, bytes, location } => self.create_physical(call, handle, bytes, location),
            // Another process's memory: nothing of this process's own, and nothing to undo.
            Action::OpenAlias { .. } | Action::CloseAlias { .. } => {}
            Action::ReleasePhysical { .. }
            | Action::RetainPhysical { .. }
            | Action::ImportPhysical { .. }
            | Action::Map { .. }
            | Action::Unmap { .. } => self.apply_virtual_memory(call),
            _ => self.apply_context(call),
        }
    }

    fn apply_virtual_memory(&mut self, call: &Call) {
        let Span { entered_ns, returned_ns } = call.span();
        let freed = match call.action {
            Action::ReleasePhysical { handle } => match self.physical.release(handle, entered_ns) {
                HandleRelease::Freed(freed) => vec![freed],
                HandleRelease::Held => Vec::new(),
                HandleRelease::Unknown => {
                    self.unknown_frees += 1;
                    Vec::new()
                }
            },
            Action::RetainPhysical { handle, address } => {
                self.physical.retain(handle, address, returned_ns).into_iter().collect()
            }
            Action::ImportPhysical { handle } => {
                self.physical.create(handle, returned_ns, Physical::foreign()).into_iter().collect()
            }
            Action::Map { address, bytes, handle } => self.physical.map(address, bytes, handle, returned_ns),
            Action::Unmap { address, bytes } => self.physical.unmap(address, bytes, entered_ns),
            _ => Vec::new(),
        };
        for freed in freed {
            self.drop_physical(freed, call.span());
        }
    }

    fn apply_context(&mut self, call: &Call) {
        let torn_down = match call.action {
            Action::RetainPrimary { context, device } => {
                self.contexts.retain_primary(context, device);
                None
            }
            Action::CreateContext { context, device } => {
                self.contexts.create(call.tid, context, device);
                None
            }
            Action::SetContext { context } => {
                self.contexts.set_current(call.tid, context);
                None
            }
            Action::PushContext { context } => {
                self.contexts.push(call.tid, context);
                None
            }
            Action::PopContext => {
                self.contexts.pop(call.tid);
                None
            }
            Action::DeviceUuid { device, uuid } => {
                self.contexts.learn_uuid(device, uuid);
                None
            }
            Action::ReleasePrimary { device } => self.contexts.release_primary(device),
            Action::ResetPrimary { device } => Some(self.contexts.reset_primary(device)),
            Action::DestroyContext { context } => Some(self.contexts.destroy(call.tid, context)),
            _ => None,
        };
        if let Some(torn_down) = torn_down {
            self.tear_down(torn_down, call);
        }
    }

    /// A refused allocation is kept; any other failed call changed nothing.
    fn apply_failure(&mut self, call: &Call) {
        let Some(requested_bytes) = call.action.requested_bytes() else { return };
        let device = match call.action {
            Action::CreatePhysical { location: Location::Device(ordinal), .. } => Some(DeviceRef::Ordinal(ordinal)),
            Action::CreatePhysical { location: Location::Host, .. }
            | Action::Allocate { kind: LinearKind::PinnedHost, .. } => None,
            _ => Some(self.contexts.device_of(call.tid)),
        };
        self.totals.count_failure(device);
        if self.failures.len() == FAILURES_KEPT {
            self.failures.pop_front();
        }
        self.failures.push_back(FailedAllocation {
            time_ns: call.returned_ns,
            symbol: call.symbol,
            requested_bytes,
            status: call.status,
            device,
        });
    }

    fn allocate(&mut self, call: &Call, kind: Kind, address: u64, bytes: u64) {
        // The driver grants nothing at address 0: that was a request of no bytes.
        if address == 0 {
            return;
        }
        let allocation = self.allocation(call.tid, kind, bytes);
        if let Some(previous) = self.addresses.grant(address, call.returned_ns, allocation) {
            self.totals.free(previous.device, previous.kind, previous.bytes, call.span());
        }
        self.totals.allocate(allocation.device, kind, bytes, call.span());
    }

    fn free(&mut self, call: &Call, address: u64) {
        // cuMemFree(0) is a no-op that succeeds.
        if address == 0 {
            return;
        }
        match self.addresses.release(address, call.entered_ns) {
            Release::Freed(freed) => self.totals.free(freed.device, freed.kind, freed.bytes, call.span()),
            Release::PreviousTenant => {}
            Release::Unknown => self.unknown_frees += 1,
        }
    }

    fn register(&mut self, call: &Call, address: u64, bytes: u64) {
        if let Some(previous) = self.registered.grant(address, call.returned_ns, bytes) {
            self.totals.free(DeviceRef::Unknown, Kind::Registered, previous, call.span());
        }
        self.totals.allocate(DeviceRef::Unknown, Kind::Registered, bytes, call.span());
    }

    fn unregister(&mut self, call: &Call, address: u64) {
        match self.registered.release(address, call.entered_ns) {
            Release::Freed(bytes) => {
                self.totals.free(DeviceRef::Unknown, Kind::Registered, bytes, call.span());
            }
            Release::PreviousTenant => {}
            Release::Unknown => self.unknown_frees += 1,
        }
    }

    fn create_array(&mut self, call: &Call, handle: u64, bytes: u64) {
        let array = self.allocation(call.tid, Kind::Array, bytes);
        if let Some(previous) = self.arrays.grant(handle, call.returned_ns, array) {
            self.totals.free(previous.device, Kind::Array, previous.bytes, call.span());
        }
        self.totals.allocate(array.device, Kind::Array, bytes, call.span());
    }

    fn destroy_array(&mut self, call: &Call, handle: u64) {
        match self.arrays.release(handle, call.entered_ns) {
            Release::Freed(array) => self.totals.free(array.device, Kind::Array, array.bytes, call.span()),
            Release::PreviousTenant => {}
            Release::Unknown => self.unknown_frees += 1,
        }
    }

    fn create_physical(&mut self, call: &Call, handle: u64, bytes: u64, location: Location) {
        let physical = match location {
            Location::Device(ordinal) => Physical::owned(bytes, DeviceRef::Ordinal(ordinal), Kind::Physical),
            Location::Host => Physical::owned(bytes, DeviceRef::Unknown, Kind::HostPhysical),
            Location::Unknown => Physical::owned(bytes, self.contexts.device_of(call.tid), Kind::Physical),
        };
        if let Some(freed) = self.physical.create(handle, call.returned_ns, physical) {
            self.drop_physical(freed, call.span());
        }
        self.totals.allocate(physical.device, physical.kind, bytes, call.span());
    }

    fn drop_physical(&mut self, freed: Physical, span: Span) {
        if freed.is_owned() {
            self.totals.free(freed.device, freed.kind, freed.bytes, span);
        }
    }

    fn allocation(&self, tid: Tid, kind: Kind, bytes: u64) -> Allocation {
        let device = if kind.is_host() { DeviceRef::Unknown } else { self.contexts.device_of(tid) };
        Allocation { bytes, context: self.contexts.current(tid), device, kind }
    }

    /// Frees what dies with a context: linear, managed, pinned and array memory, but no pool and no physical memory (cuda.h).
    fn tear_down(&mut self, torn_down: TornDown, call: &Call) {
        let contexts = &self.contexts;
        let dies = |allocation: &Allocation| {
            let known =
                allocation.context.filter(|context| contexts.is_known(*context) || torn_down.context == Some(*context));
            let in_context = known.map_or(torn_down.takes_unknown, |own| torn_down.context == Some(own));
            in_context && allocation.kind != Kind::Pool
        };
        let mut gone = self.addresses.drain_where(call.entered_ns, dies);
        gone.extend(self.arrays.drain_where(call.entered_ns, dies));
        for allocation in gone {
            self.implicit_frees += 1;
            self.totals.free_implicitly(allocation.device, allocation.kind, allocation.bytes, call.span());
        }
    }

    /// The process is gone, or its image was replaced: everything is freed.
    pub fn end(&mut self, time_ns: u64) {
        let gone = self.addresses.len() + self.arrays.len() + self.registered.len() + self.physical.owned_count();
        self.implicit_frees += u64::try_from(gone).unwrap_or(u64::MAX);
        self.addresses = Tenants::default();
        self.arrays = Tenants::default();
        self.registered = Tenants::default();
        self.physical = VirtualMemory::default();
        // What comes after an exec is seen from its start.
        self.contexts = Contexts::new(true);
        self.totals.end(time_ns);
    }

    /// Time has come to `time_ns`, `CLOCK_BOOTTIME`, nanoseconds: rates are per the time between ticks.
    pub fn tick(&mut self, time_ns: u64) {
        self.activity.tick(time_ns, self.totals.whole());
    }

    /// Calls per second between the last two ticks; `None` before the second.
    pub fn rate(&self) -> Option<CallRate> {
        self.activity.rate()
    }

    /// Current, peak and total bytes.
    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    /// Whether the process was never seen to allocate, to be refused or to free anything.
    pub fn is_blank(&self) -> bool {
        let untouched = |totals: &totals::DeviceTotals| totals.allocations == 0 && totals.failed_allocations == 0;
        untouched(self.totals.whole())
            && untouched(self.totals.host())
            && self.failures.is_empty()
            && self.unknown_frees == 0
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

    /// The UUID of one of the process's devices, if the program ever asked the driver for it.
    pub fn uuid_of(&self, device: Ordinal) -> Option<[u8; 16]> {
        self.contexts.uuid_of(device)
    }
}

fn linear_kind(kind: LinearKind) -> Kind {
    match kind {
        LinearKind::Device => Kind::Device,
        LinearKind::Managed => Kind::Managed,
        LinearKind::PinnedHost => Kind::PinnedHost,
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "tests/properties.rs"]
mod property_tests;
