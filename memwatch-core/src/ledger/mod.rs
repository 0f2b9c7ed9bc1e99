//! The ledger: live memory of each process, updated call by call.
//!
//! Invariants (property-tested against a naive model in `ledger/tests/properties.rs`):
//! 1. `live` is the sum of the requested bytes of live allocations, never negative; `peak >= live`; `total >= peak`.
//! 2. An allocation counts from its return, a free from its entry: a free that entered before the current allocation of
//!    the address was granted belongs to the previous allocation ([`tenants`]). A failed free frees nothing.
//! 3. A free of an address never seen allocated is an unknown free: the memory is older than the attach.
//! 4. Exit, exec, context destruction and primary-context reset free what CUDA's rules say. These frees are counted as
//!    implicit.
//! 5. The same calls give the same numbers.
//!
//! Limitation: records arrive in the order of their returns. While one thread is still in a free, an allocation in
//! another thread can be added before the freed bytes are subtracted. A reported peak can therefore exceed the true
//! peak by the bytes of the frees in flight.

pub mod activity;
mod addresses;
pub mod alias;
mod anchor;
pub mod bound;
pub mod context;
mod current;
mod grants;
pub mod graph;
pub mod layout;
pub mod pool;
mod prefetch;
mod prefetch_tenant;
mod reading;
pub mod recent;
pub mod refusals;
pub mod table;
pub mod tenants;
pub mod totals;
pub mod virtual_memory;

use std::collections::VecDeque;

use memwatch_common::meaning::{LinearKind, PoolRole};
use serde::{Deserialize, Serialize};

use crate::decode::{Action, Call, Location};
use crate::words::{CallSpan, OUT_OF_MEMORY, Ordinal, Symbol, Tid, by_name};

use activity::{Activity, CallRate};
use addresses::LiveAddresses;
use alias::{Aliases, SharedOrigin};
use bound::Bound;
use context::{Contexts, TornDown};
use grants::Allocation;
use graph::{CudaGraphs, NodeGrant, StreamKey};
use pool::StreamPools;
pub use reading::{DriverSegment, SegmentLocation};
use refusals::{FrameworkReading, OpenRequest, RETRY_NS};
use tenants::Tenants;
use totals::{AllocationKind, DeviceRef, Totals};
use virtual_memory::{HandleRelease, MulticastPart, Physical, VirtualMemory};

/// Failed allocations kept with their details per process; all are counted.
pub const FAILURES_KEPT: usize = 16;

/// Statuses that do not concern memory. On `CUDA_ERROR_INVALID_CONTEXT` the CUDA runtime makes a context current and
/// retries. PyTorch and NCCL use `CUDA_ERROR_NOT_PERMITTED` and `CUDA_ERROR_NOT_SUPPORTED` to find out which kinds of
/// memory exist (cuda.h; seen with PyTorch 2.11 on an H100, docs/gpu-runs).
const UNRELATED: [i32; 3] = [201, 800, 801];

/// An allocation the driver refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedAllocation {
    /// Return time of the call: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Driver function called.
    #[serde(with = "by_name::symbol")]
    pub symbol: Symbol,
    /// Requested size, bytes.
    pub requested_bytes: u64,
    /// `CUresult`; 2 is out of memory.
    pub status: i32,
    /// Device of the request; `None` for host memory.
    pub device: Option<DeviceRef>,
    /// Whether the same thread retried and the retry succeeded.
    pub is_retried: bool,
}

/// An address whose allocation ended without a free that names it, or that belongs to a graph and never had an
/// allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndedAddress {
    /// The address.
    pub address: u64,
    /// Only grants up to this time are meant, not later grants at the same address: `CLOCK_BOOTTIME`, nanoseconds.
    pub until_ns: u64,
}

/// Memory state of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProcessLedger {
    /// Allocations with an address: device, managed, pool and pinned host memory, which share one free function.
    addresses: LiveAddresses,
    arrays: Tenants<Allocation>,
    registered: Tenants<u64>,
    /// Reserved virtual addresses without memory: bytes by address.
    reservations: Tenants<u64>,
    modules: Tenants<()>,
    physical: VirtualMemory,
    pools: StreamPools,
    graphs: CudaGraphs,
    aliases: Aliases,
    contexts: Contexts,
    totals: Totals,
    activity: Activity,
    changed_ns: u64,
    failures: VecDeque<FailedAllocation>,
    unknown_frees: u64,
    implicit_frees: u64,
    /// Calls that may have torn a context down.
    teardowns: u64,
    bound: Bound,
    /// Addresses ended since the last [`Self::take_unnamed`].
    #[serde(skip)]
    unnamed: Vec<EndedAddress>,
}

impl ProcessLedger {
    /// Creates an empty ledger. `from_start` means that no call before the first applied one was missed.
    pub fn new(from_start: bool) -> Self {
        Self { contexts: Contexts::new(from_start), pools: StreamPools::new(from_start), ..Self::default() }
    }

    /// Applies one call.
    pub fn apply(&mut self, call: &Call) {
        self.apply_import(call, None);
    }

    /// Applies one call. `origin` names the owner of memory imported from another process.
    pub fn apply_import(&mut self, call: &Call, origin: Option<SharedOrigin>) {
        let before_bytes = self.totals.whole().owned.live_bytes;
        self.apply_any(call, origin);
        if self.totals.whole().owned.live_bytes != before_bytes {
            self.changed_ns = self.changed_ns.max(call.returned_ns);
        }
    }

    /// Time of the last call that changed the live GPU bytes: `CLOCK_BOOTTIME`, nanoseconds; 0 if there is none.
    pub const fn changed_ns(&self) -> u64 {
        self.changed_ns
    }

    fn apply_any(&mut self, call: &Call, origin: Option<SharedOrigin>) {
        if call.status != 0 {
            self.apply_failure(call);
            return;
        }
        self.spend_room(&call.action);
        if call.action.is_in_context() {
            self.contexts.allocates(call.tid);
        }
        if let Some(bytes) = call.action.requested_bytes()
            && self.totals.count_grant(call.tid, bytes)
        {
            self.mark_retried(call.returned_ns, bytes);
        }
        match call.action {
            Action::Allocate { .. }
            | Action::AllocateFromPool { .. }
            | Action::Free { .. }
            | Action::FreeHost { .. }
            | Action::FreeAsync { .. }
            | Action::RegisterHost { .. }
            | Action::UnregisterHost { .. }
            | Action::CreateArray { .. }
            | Action::DestroyArray { .. } => self.apply_grant(call),
            Action::CreatePhysical { handle, bytes, location } => self.create_physical(call, handle, bytes, location),
            Action::OpenAlias { address, .. } => self.aliases.open(address, origin),
            Action::CloseAlias { address } => {
                if !self.aliases.close(address) {
                    self.unknown_frees += 1;
                }
            }
            Action::ImportAddress { address, .. } => self.import_address(call, address, origin),
            Action::ReserveAddresses { address, bytes } => {
                self.reservations.grant(address, call.returned_ns, bytes);
            }
            Action::FreeAddresses { address, .. } => {
                self.reservations.release(address, call.entered_ns);
            }
            Action::LoadModule { module } => {
                self.modules.grant(module, call.returned_ns, ());
            }
            Action::UnloadModule { module } => {
                self.modules.release(module, call.entered_ns);
            }
            _ => {
                self.apply_virtual_memory(call, origin);
                self.apply_pool(call);
                self.apply_graph(call);
                self.apply_context(call);
            }
        }
    }

    fn apply_virtual_memory(&mut self, call: &Call, origin: Option<SharedOrigin>) {
        let CallSpan { entered_ns, returned_ns } = call.span();
        let freed = match call.action {
            Action::ReleasePhysical { handle } => {
                let mut freed = match self.physical.release(handle, entered_ns) {
                    HandleRelease::Freed(freed) => vec![freed],
                    HandleRelease::Held => Vec::new(),
                    HandleRelease::Unknown => {
                        self.unknown_frees += 1;
                        Vec::new()
                    }
                };
                freed.extend(self.physical.drop_bindings_of_the_gone());
                freed
            }
            Action::RetainPhysical { handle, address } => {
                self.physical.retain(handle, address, returned_ns).into_iter().collect()
            }
            Action::ImportPhysical { handle, .. } => {
                self.physical.create(handle, returned_ns, Physical::imported(origin)).into_iter().collect()
            }
            Action::CreateMulticast { handle } => {
                self.physical.create(handle, returned_ns, Physical::foreign()).into_iter().collect()
            }
            Action::BindMulticast { object, device, offset_bytes, handle, bytes } => {
                self.physical.bind(object, MulticastPart { device, offset_bytes, bytes }, handle, returned_ns);
                Vec::new()
            }
            Action::UnbindMulticast { object, device, offset_bytes, bytes } => {
                self.physical.unbind(object, MulticastPart { device: Some(device), offset_bytes, bytes }, entered_ns)
            }
            Action::Map { address, bytes, handle } => self.physical.map(address, bytes, handle, returned_ns),
            Action::Unmap { address, bytes } => {
                let mut freed = self.physical.unmap(address, bytes, entered_ns);
                freed.extend(self.physical.drop_bindings_of_the_gone());
                freed
            }
            _ => return,
        };
        for freed in freed {
            self.drop_physical(freed, call.span());
        }
    }

    fn apply_pool(&mut self, call: &Call) {
        let device = self.contexts.device_of(call.tid);
        match call.action {
            Action::CreatePool { pool, place } => self.pools.create(pool, place, device),
            Action::DestroyPool { pool } => self.pools.destroy(pool),
            Action::TrimPool { pool, keep_bytes } => self.pools.trim(pool, keep_bytes),
            Action::SetPoolAttribute { pool, attribute, value } => {
                self.pools.set_attribute(pool, attribute, value, device);
            }
            Action::PoolAttribute { pool, attribute, value } => {
                self.pools.learn_attribute(pool, attribute, value, device);
            }
            Action::SetPool { site, pool } => self.pools.set_current(site, pool),
            Action::LearnPool { site, pool, role } => match role {
                PoolRole::Default => self.pools.learn_default(site, pool),
                PoolRole::Current => self.pools.learn_current(site, pool),
            },
            Action::ImportPool { pool } => self.pools.import(pool),
            _ => {}
        }
    }

    fn apply_graph(&mut self, call: &Call) {
        let device = self.contexts.device_of(call.tid);
        let changes = match call.action {
            Action::AddAllocationNode { graph, address, bytes, device: own } => {
                let device = own.map_or(device, DeviceRef::Ordinal);
                let before = self.graphs.evict(address);
                self.give_to_graph(call.span(), address);
                let grant = NodeGrant { address, bytes, granted_ns: call.returned_ns };
                self.graphs.add_allocation(graph, grant, device);
                before.into_iter().collect()
            }
            Action::AddFreeNode { address, .. } => {
                self.graphs.add_free(address);
                Vec::new()
            }
            Action::BeginCapture { stream } => {
                let device = self.contexts.device_of_stream(stream, call.tid);
                self.graphs.begin_capture(StreamKey::new(stream, call.tid), device);
                Vec::new()
            }
            Action::EndCapture { stream, graph } => {
                self.graphs.end_capture(StreamKey::new(stream, call.tid), graph);
                Vec::new()
            }
            Action::InstantiateGraph { executable, graph } => {
                self.graphs.instantiate(executable, graph, call.entered_ns);
                Vec::new()
            }
            Action::LaunchGraph { executable } => self.graphs.launch(executable).into_iter().collect(),
            Action::DestroyExecutable { executable } => {
                self.graphs.destroy_executable(executable).into_iter().collect()
            }
            Action::DestroyGraph { graph } => self.graphs.destroy(graph).into_iter().collect(),
            Action::TrimGraphs { device } => self.graphs.trim(DeviceRef::Ordinal(device)),
            _ => return,
        };
        for change in changes {
            self.totals.hold_for_graphs(change.device, change.before_bytes, change.after_bytes);
        }
    }

    fn apply_context(&mut self, call: &Call) {
        let (tid, contexts) = (call.tid, &mut self.contexts);
        self.teardowns += u64::from(matches!(
            call.action,
            Action::ReleasePrimary { .. }
                | Action::ResetPrimary { .. }
                | Action::DestroyContext { .. }
                | Action::DestroyGreen { .. }
        ));
        let torn_down = match call.action {
            Action::ReleasePrimary { device } => contexts.release_primary(device),
            Action::ResetPrimary { device } => Some(contexts.reset_primary(device)),
            Action::DestroyContext { context } => Some(contexts.destroy(tid, context)),
            Action::DestroyGreen { green } => contexts.destroy_green(green),
            action => {
                match action {
                    Action::RetainPrimary { context, device } => contexts.retain_primary(context, device),
                    Action::CreateContext { context, device } => contexts.create(tid, context, device),
                    Action::SetContext { context } => contexts.set_current(tid, context),
                    Action::PushContext { context } => contexts.push(tid, context),
                    Action::PopContext => contexts.pop(tid),
                    Action::CurrentContext { context } => contexts.learn_current(tid, context),
                    Action::CurrentDevice { device } => contexts.learn_device(tid, device),
                    Action::CreateGreen { green, device } => contexts.create_green(green, device),
                    Action::ContextOfGreen { context, green } => contexts.view_green(context, green),
                    Action::SetLimit { limit, value } => contexts.set_limit(limit, value),
                    Action::CreateStream { stream } => contexts.create_stream(tid, stream),
                    Action::DeviceUuid { device, uuid } => contexts.learn_uuid(device, uuid),
                    Action::DeviceBusId { device, bus_id } => contexts.learn_bus_id(device, bus_id),
                    _ => {}
                }
                None
            }
        };
        if let Some(torn_down) = torn_down {
            self.tear_down(torn_down, call);
        }
    }

    /// Marks recent out-of-memory failures of this size as retried.
    fn mark_retried(&mut self, now_ns: u64, bytes: u64) {
        let is_one = |one: &&mut FailedAllocation| {
            one.requested_bytes == bytes
                && now_ns.saturating_sub(one.time_ns) <= RETRY_NS
                && one.status == OUT_OF_MEMORY
        };
        self.failures.iter_mut().filter(is_one).for_each(|one| one.is_retried = true);
    }

    /// Records a refused allocation. Other failed calls change nothing, but a failed end of capture ends the capture.
    fn apply_failure(&mut self, call: &Call) {
        if let Action::EndCapture { stream, .. } = call.action {
            self.graphs.end_capture(StreamKey::new(stream, call.tid), 0);
        }
        let requested_bytes = call.action.requested_bytes().filter(|_| !UNRELATED.contains(&call.status));
        let Some(requested_bytes) = requested_bytes else { return };
        let device = match call.action {
            Action::CreatePhysical { location: Location::Device(ordinal), .. } => Some(DeviceRef::Ordinal(ordinal)),
            Action::CreatePhysical { location: Location::Host, .. }
            | Action::Allocate { kind: LinearKind::PinnedHost, .. } => None,
            Action::AllocateFromPool { stream, .. } => Some(self.contexts.device_of_stream(stream, call.tid)),
            _ => Some(self.contexts.device_of(call.tid)),
        };
        let request = OpenRequest { tid: call.tid, bytes: requested_bytes, time_ns: call.returned_ns };
        self.totals.count_failure(device, call.status, request);
        if self.failures.len() == FAILURES_KEPT {
            self.failures.pop_front();
        }
        self.failures.push_back(FailedAllocation {
            time_ns: call.returned_ns,
            symbol: call.symbol,
            requested_bytes,
            status: call.status,
            device,
            is_retried: false,
        });
    }

    fn create_physical(&mut self, call: &Call, handle: u64, bytes: u64, location: Location) {
        let physical = match location {
            Location::Device(ordinal) => Physical::owned(bytes, DeviceRef::Ordinal(ordinal), AllocationKind::Physical),
            Location::Host => Physical::owned(bytes, DeviceRef::Unknown, AllocationKind::HostPhysical),
            Location::Unknown => Physical::owned(bytes, self.contexts.device_of(call.tid), AllocationKind::Physical),
        };
        if let Some(freed) = self.physical.create(handle, call.returned_ns, physical) {
            self.drop_physical(freed, call.span());
        }
        self.totals.allocate(physical.device, physical.kind, bytes, call.span());
    }

    fn drop_physical(&mut self, freed: Physical, span: CallSpan) {
        if freed.is_owned() {
            self.totals.free(freed.device, freed.kind, freed.bytes, span);
        }
    }

    /// Frees what ends with a context: linear, managed, pinned and array memory, no pool and no physical memory
    /// (cuda.h).
    fn tear_down(&mut self, torn_down: TornDown, call: &Call) {
        let contexts = &self.contexts;
        let dies = |allocation: &Allocation| {
            let known = allocation
                .context()
                .filter(|context| contexts.is_known(*context) || torn_down.context == Some(*context));
            let in_context = known.map_or(torn_down.takes_unknown, |own| torn_down.context == Some(own));
            in_context && allocation.pool.is_none()
        };
        let until_ns = call.entered_ns;
        let gone = self.addresses.drain_own(until_ns, dies);
        self.unnamed.extend(gone.iter().map(|(address, _)| EndedAddress { address: *address, until_ns }));
        let arrays = self.arrays.drain_where(until_ns, dies);
        for (_, allocation) in gone.iter().chain(&arrays) {
            self.implicit_frees += 1;
            self.totals.free_implicitly(allocation.device, allocation.kind, allocation.bytes, call.span());
        }
    }

    /// Frees everything: the process exited or its image was replaced.
    pub fn end(&mut self, time_ns: u64) {
        let others = self.arrays.len() + self.registered.len() + self.physical.owned_count();
        self.implicit_frees += self.addresses.own_count() + u64::try_from(others).unwrap_or(u64::MAX);
        self.totals.end(time_ns);
        self.unnamed.extend(self.addresses.keys().map(|address| EndedAddress { address, until_ns: u64::MAX }));
        self.contexts.end();
        // Every call after an exec is seen.
        let empty = Self::new(true);
        *self = Self {
            totals: std::mem::take(&mut self.totals),
            contexts: std::mem::take(&mut self.contexts),
            activity: self.activity,
            failures: std::mem::take(&mut self.failures),
            unknown_frees: self.unknown_frees,
            implicit_frees: self.implicit_frees,
            bound: self.bound,
            unnamed: std::mem::take(&mut self.unnamed),
            ..empty
        };
    }

    /// Takes the addresses that ended without a naming free since the last call.
    pub fn take_unnamed(&mut self) -> Vec<EndedAddress> {
        std::mem::take(&mut self.unnamed)
    }

    /// Forgets device identities: the next image may see other devices under the same ordinals.
    pub fn forget_devices(&mut self) {
        self.contexts.forget_devices();
    }

    /// Sets whether the calls that change a thread's context are traced.
    pub fn see_context_changes(&mut self, seen: bool) {
        self.contexts.see_changes(seen);
    }

    /// Resets all peaks to the live bytes.
    pub fn reset_peaks(&mut self) {
        self.totals.reset_peaks();
    }

    /// Forgets an exited thread: its thread id may be reused in another context.
    pub fn end_thread(&mut self, tid: Tid) {
        self.contexts.forget_thread(tid);
    }

    /// Advances the clock to `time_ns` (`CLOCK_BOOTTIME`, nanoseconds). Call rates are measured between ticks.
    pub fn tick(&mut self, time_ns: u64) {
        self.activity.tick(time_ns, self.totals.whole());
        self.totals.settle_refusals(time_ns);
    }

    /// Records the counters of a framework's allocator on a device.
    pub fn read_framework(&mut self, ordinal: Ordinal, reading: FrameworkReading) {
        self.totals.read_framework(ordinal, reading);
    }

    /// Calls per second between the last two ticks; `None` before the second.
    pub fn rate(&self) -> Option<CallRate> {
        self.activity.rate()
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
#[path = "tests/properties.rs"]
mod property_tests;

#[cfg(test)]
#[path = "tests/lossy_properties.rs"]
mod lossy_property_tests;
