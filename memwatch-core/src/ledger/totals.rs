//! Current, peak and total bytes, per device and kind.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::recent::Recent;
use super::refusals::{FrameworkReading, OpenRequest, Refusals};
use crate::words::{CallSpan, Ordinal, Tid};

/// Kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum AllocationKind {
    /// `cuMemAlloc`, `cuMemAllocPitch`.
    Device,
    /// Stream-ordered memory: the bytes in use; the pool may hold more.
    Pool,
    /// Physical memory of `cuMemCreate` on a device.
    Physical,
    /// Arrays; bytes are estimated from the shape.
    Array,
    /// Memory of CUDA graphs for their allocations: estimated, and not part of any GPU's total.
    Graph,
    /// Managed memory. Its pages may be anywhere, so it is not part of any GPU's total.
    Managed,
    /// Page-locked host memory allocated by the driver.
    PinnedHost,
    /// Page-locked host memory allocated by the program.
    Registered,
    /// Physical memory of `cuMemCreate` on the host.
    HostPhysical,
}

impl AllocationKind {
    /// All kinds, in screen order.
    pub const ALL: [Self; 9] = [
        Self::Device,
        Self::Pool,
        Self::Physical,
        Self::Array,
        Self::Graph,
        Self::Managed,
        Self::PinnedHost,
        Self::Registered,
        Self::HostPhysical,
    ];

    /// Returns whether the bytes are certainly on the device; such bytes make up a GPU's live
    /// bytes.
    pub const fn is_owned_device_memory(self) -> bool {
        matches!(self, Self::Device | Self::Pool | Self::Physical | Self::Array)
    }

    /// Returns whether the bytes are host memory, which is not part of any GPU's total.
    pub const fn is_host(self) -> bool {
        matches!(self, Self::PinnedHost | Self::Registered | Self::HostPhysical)
    }
}

/// A device as identified by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum DeviceRef {
    /// The thread's context is not known (late attach), or the memory is on no device.
    Unknown,
    /// Device ordinal of the process.
    Ordinal(Ordinal),
}

/// Current, peak and cumulative bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ByteCounter {
    /// Requested bytes of live allocations.
    pub live_bytes: u64,
    /// Largest `live_bytes` since the attach or the last reset of peaks.
    pub peak_bytes: u64,
    /// Requested bytes of all allocations so far.
    pub total_bytes: u64,
    /// Number of allocations so far, including allocations without an observed call.
    pub allocations: u64,
    /// Number of freed allocations, explicitly or implicitly.
    pub frees: u64,
}

impl ByteCounter {
    fn allocate(&mut self, bytes: u64) {
        self.allocations += 1;
        self.add(bytes);
    }

    fn free(&mut self, bytes: u64) {
        self.frees += 1;
        self.take(bytes);
    }

    fn add(&mut self, bytes: u64) {
        self.live_bytes = self.live_bytes.saturating_add(bytes);
        self.peak_bytes = self.peak_bytes.max(self.live_bytes);
        self.total_bytes = self.total_bytes.saturating_add(bytes);
    }

    fn end(&mut self) {
        self.live_bytes = 0;
        self.frees = self.allocations;
    }

    fn reset_peak(&mut self) {
        self.peak_bytes = self.live_bytes;
    }

    fn take(&mut self, bytes: u64) {
        debug_assert!(self.live_bytes >= bytes, "only what was added is ever taken");
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
    }
}

/// The totals of one device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceTotals {
    /// Device, pool, physical and array memory together.
    pub owned: ByteCounter,
    /// Counters by kind, in the order of [`AllocationKind::ALL`].
    kinds: [ByteCounter; AllocationKind::ALL.len()],
    /// Successful allocations.
    pub allocations: u64,
    /// Explicit frees.
    pub frees: u64,
    /// Allocations the driver refused.
    pub failed_allocations: u64,
}

impl DeviceTotals {
    /// Returns the counter of one kind.
    pub const fn kind(&self, kind: AllocationKind) -> &ByteCounter {
        &self.kinds[kind as usize]
    }

    fn allocate(&mut self, kind: AllocationKind, bytes: u64) {
        self.allocations += 1;
        self.adopt(kind, bytes);
    }

    fn adopt(&mut self, kind: AllocationKind, bytes: u64) {
        self.kinds[kind as usize].allocate(bytes);
        if kind.is_owned_device_memory() {
            self.owned.allocate(bytes);
        }
    }

    fn free(&mut self, kind: AllocationKind, bytes: u64) {
        self.kinds[kind as usize].free(bytes);
        if kind.is_owned_device_memory() {
            self.owned.free(bytes);
        }
    }

    /// Frees everything at once.
    fn end(&mut self) {
        self.owned.end();
        self.kinds.iter_mut().for_each(ByteCounter::end);
    }

    /// Resets all peaks to the live bytes.
    fn reset_peaks(&mut self) {
        self.owned.reset_peak();
        self.kinds.iter_mut().for_each(ByteCounter::reset_peak);
    }

    /// Merges the totals of two device references that mean the same device. The peak is then an
    /// upper bound, because the two need not have peaked at the same time.
    #[must_use]
    pub fn merged(mut self, other: &Self) -> Self {
        let join = |own: &mut ByteCounter, other: &ByteCounter| {
            own.live_bytes = own.live_bytes.saturating_add(other.live_bytes);
            own.peak_bytes = own.peak_bytes.saturating_add(other.peak_bytes);
            own.total_bytes = own.total_bytes.saturating_add(other.total_bytes);
            own.allocations += other.allocations;
            own.frees += other.frees;
        };
        join(&mut self.owned, &other.owned);
        for (own, other) in self.kinds.iter_mut().zip(&other.kinds) {
            join(own, other);
        }
        self.allocations += other.allocations;
        self.frees += other.frees;
        self.failed_allocations += other.failed_allocations;
        self
    }
}

/// State of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct DeviceState {
    totals: DeviceTotals,
    /// Recent changes of [`DeviceTotals::owned`].
    recent: Recent,
    refusals: Refusals,
}

/// The totals of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Sum over all devices. If the process uses only one device, this peak is the exact peak of
    /// that device.
    whole: DeviceTotals,
    devices: BTreeMap<DeviceRef, DeviceState>,
    host: DeviceTotals,
    /// Whether a refused request has no outcome yet.
    awaits_retry: bool,
}

impl Totals {
    /// Returns the size of the per-device state, expressed as entries of other tables.
    pub(super) fn listed(&self) -> usize {
        const ENTRIES: usize = size_of::<DeviceState>() / 32;
        self.devices.len().saturating_sub(1) * ENTRIES
    }

    pub(super) fn allocate(&mut self, device: DeviceRef, kind: AllocationKind, bytes: u64, span: CallSpan) {
        if kind.is_host() {
            self.host.allocate(kind, bytes);
        } else {
            self.changing(device, kind, span).allocate(kind, bytes);
            self.whole.allocate(kind, bytes);
        }
    }

    /// Adds an allocation without an observed call.
    pub(super) fn adopt(&mut self, device: DeviceRef, kind: AllocationKind, bytes: u64, span: CallSpan) {
        if kind.is_host() {
            self.host.adopt(kind, bytes);
        } else {
            self.changing(device, kind, span).adopt(kind, bytes);
            self.whole.adopt(kind, bytes);
        }
    }

    /// Subtracts an allocation freed by a call.
    pub(super) fn free(&mut self, device: DeviceRef, kind: AllocationKind, bytes: u64, span: CallSpan) {
        if kind.is_host() {
            self.host.frees += 1;
        } else {
            self.devices.entry(device).or_default().totals.frees += 1;
            self.whole.frees += 1;
        }
        self.free_implicitly(device, kind, bytes, span);
    }

    pub(super) fn free_implicitly(&mut self, device: DeviceRef, kind: AllocationKind, bytes: u64, span: CallSpan) {
        if kind.is_host() {
            self.host.free(kind, bytes);
        } else {
            self.changing(device, kind, span).free(kind, bytes);
            self.whole.free(kind, bytes);
        }
    }

    /// Updates the memory held for graphs on a device, which no call allocates or frees.
    pub(super) fn hold_for_graphs(&mut self, device: DeviceRef, before_bytes: u64, after_bytes: u64) {
        for totals in [&mut self.devices.entry(device).or_default().totals, &mut self.whole] {
            let counter = &mut totals.kinds[AllocationKind::Graph as usize];
            match after_bytes.checked_sub(before_bytes) {
                Some(more_bytes) => counter.add(more_bytes),
                None => counter.take(before_bytes - after_bytes),
            }
        }
    }

    fn changing(&mut self, device: DeviceRef, kind: AllocationKind, span: CallSpan) -> &mut DeviceTotals {
        let part = self.devices.entry(device).or_default();
        if kind.is_owned_device_memory() {
            part.recent.note(span, part.totals.owned.live_bytes);
        }
        &mut part.totals
    }

    /// Counts a refused allocation on a device, or of host memory if `device` is `None`.
    pub(super) fn count_failure(&mut self, device: Option<DeviceRef>, status: i32, request: OpenRequest) {
        if let Some(device) = device {
            self.whole.failed_allocations += 1;
            let part = self.devices.entry(device).or_default();
            part.totals.failed_allocations += 1;
            part.refusals.count(status, request);
            self.awaits_retry |= part.refusals.has_open();
        } else {
            self.host.failed_allocations += 1;
        }
    }

    /// Matches a successful allocation against refused requests. Returns true if it is the retry of
    /// one.
    pub(super) fn count_grant(&mut self, tid: Tid, bytes: u64) -> bool {
        let is_retry = self.awaits_retry && self.devices.values_mut().any(|part| part.refusals.grant(tid, bytes));
        if is_retry {
            self.awaits_retry = self.devices.values().any(|part| part.refusals.has_open());
        }
        is_retry
    }

    /// Counts refused requests that were not retried in time as failed.
    pub(super) fn settle_refusals(&mut self, now_ns: u64) {
        if self.awaits_retry {
            self.devices.values_mut().for_each(|part| part.refusals.settle(now_ns));
            self.awaits_retry = self.devices.values().any(|part| part.refusals.has_open());
        }
    }

    pub(super) fn read_framework(&mut self, ordinal: Ordinal, reading: FrameworkReading) {
        self.devices.entry(DeviceRef::Ordinal(ordinal)).or_default().refusals.read(reading);
    }

    pub(super) fn reset_peaks(&mut self) {
        self.whole.reset_peaks();
        self.host.reset_peaks();
        self.devices.values_mut().for_each(|part| part.totals.reset_peaks());
    }

    pub(super) fn end(&mut self, time_ns: u64) {
        self.settle_refusals(u64::MAX);
        self.whole.end();
        self.host.end();
        for part in self.devices.values_mut() {
            part.recent.note(CallSpan { entered_ns: time_ns, returned_ns: time_ns }, part.totals.owned.live_bytes);
            part.totals.end();
        }
    }

    /// Totals of all devices together.
    pub fn whole(&self) -> &DeviceTotals {
        &self.whole
    }

    /// Host memory: pinned, registered and host-located physical.
    pub fn host(&self) -> &DeviceTotals {
        &self.host
    }

    /// Totals of each device that the process has used, in order.
    pub fn devices(&self) -> impl Iterator<Item = (DeviceRef, &DeviceTotals)> {
        self.devices.iter().map(|(device, part)| (*device, &part.totals))
    }

    /// Allocations that the driver refused on a device.
    pub fn refusals(&self, device: DeviceRef) -> Option<&Refusals> {
        self.devices.get(&device).map(|part| &part.refusals)
    }

    /// Returns the live bytes ([`DeviceTotals::owned`]) on a device throughout a recent interval;
    /// `None` if a call changed them during the interval or the interval is too old.
    pub fn held_over(&self, device: DeviceRef, begin_ns: u64, end_ns: u64) -> Option<u64> {
        let Some(part) = self.devices.get(&device) else { return Some(0) };
        part.recent.held_over(begin_ns, end_ns, part.totals.owned.live_bytes)
    }
}
