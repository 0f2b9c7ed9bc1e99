//! State of one process in the kernel-driver ledger besides its objects: refused requests, mapped
//! memory, and agreement with NVML.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::decode::{Lies, ObjectKey, RmViolation};
use super::labels::AttributedPurpose;
use super::objects::DriverDevice;
use super::stacks::CallerTable;
use super::trust::NvmlAgreement;
use crate::input::rm::{Inside, RmCall};
use crate::ledger::recent::Recent;
use crate::words::{CallSpan, GpuUuid, Tid};

/// Refused allocations kept with their details per process; all are counted.
pub const REFUSED_KEPT: usize = 16;

/// A request that the kernel driver refused for lack of memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedMemory {
    /// Return time of the ioctl: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// Requesting thread.
    pub tid: Tid,
    /// GPU of the intended parent device.
    pub place: DriverDevice,
    /// Requested location.
    pub lies: Lies,
    /// Requested size, bytes; `None` if it could not be read.
    pub asked_bytes: Option<u64>,
    /// Driver function that issued the ioctl. Together with the thread it identifies the record of
    /// that call.
    pub inside: Option<Inside>,
    /// Purpose of the memory.
    pub named: AttributedPurpose,
}

/// The last freed object, in case the driver allocates it again with a larger size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FreedLast {
    pub(super) key: ObjectKey,
    pub(super) tid: Tid,
    pub(super) inside: Option<Inside>,
    pub(super) asked_bytes: Option<u64>,
    /// Whether the object belonged to a context.
    pub(super) is_contexts: bool,
}

/// State of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DriverLedger {
    /// First rule broken by one of its ioctls.
    pub(super) violation: Option<RmViolation>,
    pub(super) refused: VecDeque<RefusedMemory>,
    pub(super) refused_count: u64,
    /// Objects created under the key of a live object.
    pub(super) reused: u64,
    pub(super) unknown_frees: u64,
    /// Whether the process used a client or parent that it was never seen to create.
    pub(super) uses_unknown: bool,
    pub(super) freed_last: Option<FreedLast>,
    /// Mapped memory by its first address.
    pub(super) mapped: BTreeMap<u64, ObjectKey>,
    pub(super) stacks: CallerTable,
    pub(super) standings: BTreeMap<GpuUuid, NvmlAgreement>,
    /// Video memory by its device; the object number is 0 for an unknown device.
    pub(super) live: BTreeMap<ObjectKey, LiveVideoMemory>,
}

/// Video memory on one device of a client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct LiveVideoMemory {
    pub(super) place: DriverDevice,
    pub(super) bytes: u64,
    recent: Recent,
    changed_ns: u64,
}

impl DriverLedger {
    /// Records that an ioctl broke a rule.
    pub(super) fn refuse(&mut self, violation: RmViolation) {
        self.violation.get_or_insert(violation);
    }

    pub(super) fn note_refused(&mut self, refused: RefusedMemory) {
        self.refused_count += 1;
        if self.refused.len() == REFUSED_KEPT {
            self.refused.pop_front();
        }
        self.refused.push_back(refused);
    }

    /// Changes the video memory of a device.
    pub(super) fn change(
        &mut self,
        device: ObjectKey,
        place: &DriverDevice,
        call: &RmCall,
        change: impl FnOnce(u64) -> u64,
    ) {
        let live = self.live.entry(device).or_default();
        live.recent.note(CallSpan { entered_ns: call.entered_ns, returned_ns: call.returned_ns }, live.bytes);
        live.bytes = change(live.bytes);
        live.changed_ns = call.returned_ns;
        live.place = place.clone();
    }

    /// Forgets devices of freed clients once no pending reading needs them.
    pub(super) fn forget_devices(&mut self, since_ns: u64, is_there: impl Fn(u32) -> bool) {
        self.live.retain(|device, live| live.bytes > 0 || live.changed_ns >= since_ns || is_there(device.client));
    }

    /// Counts a free of an unknown object. After a late attach, the memory older than the attach
    /// may have shrunk.
    pub(super) fn free_unknown(&mut self) {
        self.unknown_frees += 1;
        self.standings.values_mut().filter(|standing| standing.older_bytes() != Some(0)).for_each(NvmlAgreement::miss);
    }

    /// Iterates over the video memory by place, throughout `begin_ns` to `end_ns`; `None` if it
    /// changed in the interval.
    pub fn held_over(&self, begin_ns: u64, end_ns: u64) -> impl Iterator<Item = (&DriverDevice, Option<u64>)> {
        self.live.values().map(move |live| (&live.place, live.recent.held_over(begin_ns, end_ns, live.bytes)))
    }

    /// Returns whether the process has video memory, or had some recently.
    pub fn has_video_memory(&self) -> bool {
        !self.live.is_empty()
    }

    /// Iterates over the live video memory by place, in bytes.
    pub fn live(&self) -> impl Iterator<Item = (&DriverDevice, u64)> {
        self.live.values().map(|live| (&live.place, live.bytes))
    }

    /// Returns the agreement with NVML on a GPU; `None` before the first settled reading.
    pub fn standing(&self, gpu: &GpuUuid) -> Option<&NvmlAgreement> {
        self.standings.get(gpu)
    }

    /// First rule broken by one of its ioctls, if any.
    pub const fn violation(&self) -> Option<RmViolation> {
        self.violation
    }

    /// Most recent allocations refused for lack of memory, oldest first.
    pub fn refused(&self) -> impl Iterator<Item = &RefusedMemory> {
        self.refused.iter()
    }

    /// Number of refused allocations.
    pub const fn refused_count(&self) -> u64 {
        self.refused_count
    }

    /// Number of objects created under the key of a live object.
    pub const fn reused(&self) -> u64 {
        self.reused
    }

    /// Number of frees of unknown objects: older than the attach, or of a class that is not
    /// tracked.
    pub const fn unknown_frees(&self) -> u64 {
        self.unknown_frees
    }

    /// Whether the process used a client or device that it was never seen to create.
    pub const fn uses_unknown(&self) -> bool {
        self.uses_unknown
    }
}
