//! What is kept of one process beside its objects: what it was refused, where its memory is mapped, and how its books stand against NVML.

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use super::decode::{Key, Lies, Violation};
use super::labels::Named;
use super::objects::Place;
use super::stacks::Stacks;
use super::trust::Standing;
use crate::input::rm::{Inside, RmCall};
use crate::ledger::recent::Recent;
use crate::words::{GpuUuid, Span, Tid};

/// How many refused allocations of a process are kept with their details; all are counted.
pub const REFUSED_KEPT: usize = 16;

/// Memory that the kernel driver did not grant, for want of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedMemory {
    /// When its ioctl returned: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
    /// The thread that asked.
    pub tid: Tid,
    /// Which GPU the device is that it was to be below of.
    pub place: Place,
    /// Where the memory was to be.
    pub lies: Lies,
    /// What was asked for, in bytes; `None` where that could not be read.
    pub asked_bytes: Option<u64>,
    /// The driver's function that it was inside of: with the thread it names that call's record.
    pub inside: Option<Inside>,
    /// What it was for.
    pub named: Named,
}

/// An object that was freed last, in case it comes back larger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FreedLast {
    pub(super) key: Key,
    pub(super) tid: Tid,
    pub(super) inside: Option<Inside>,
    pub(super) asked_bytes: Option<u64>,
    /// It was a context's.
    pub(super) is_contexts: bool,
}

/// What is kept of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Books {
    /// The first rule that one of its ioctls broke.
    pub(super) violation: Option<Violation>,
    pub(super) refused: VecDeque<RefusedMemory>,
    pub(super) refused_count: u64,
    /// Objects that were made under the name of one that lived.
    pub(super) reused: u64,
    pub(super) unknown_frees: u64,
    /// It used a client, or a parent, that it was never seen to make.
    pub(super) uses_unknown: bool,
    pub(super) freed_last: Option<FreedLast>,
    /// Mapped memory by its first address.
    pub(super) mapped: BTreeMap<u64, Key>,
    pub(super) stacks: Stacks,
    pub(super) standings: BTreeMap<GpuUuid, Standing>,
    /// Video memory by the device that it is below of; of an unknown one its number is 0.
    pub(super) live: BTreeMap<Key, Live>,
}

/// Video memory on one device of a client.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Live {
    pub(super) place: Place,
    pub(super) bytes: u64,
    recent: Recent,
    changed_ns: u64,
}

impl Books {
    /// An ioctl broke a rule.
    pub(super) fn refuse(&mut self, violation: Violation) {
        self.violation.get_or_insert(violation);
    }

    pub(super) fn note_refused(&mut self, refused: RefusedMemory) {
        self.refused_count += 1;
        if self.refused.len() == REFUSED_KEPT {
            self.refused.pop_front();
        }
        self.refused.push_back(refused);
    }

    /// Video memory came, or went.
    pub(super) fn change(&mut self, device: Key, place: &Place, call: &RmCall, change: impl FnOnce(u64) -> u64) {
        let live = self.live.entry(device).or_default();
        live.recent.note(Span { entered_ns: call.entered_ns, returned_ns: call.returned_ns }, live.bytes);
        live.bytes = change(live.bytes);
        live.changed_ns = call.returned_ns;
        live.place = place.clone();
    }

    /// Devices of clients that are gone are forgotten, once no reading that is to be judged needs them.
    pub(super) fn forget_devices(&mut self, since_ns: u64, is_there: impl Fn(u32) -> bool) {
        self.live.retain(|device, live| live.bytes > 0 || live.changed_ns >= since_ns || is_there(device.client));
    }

    /// A free of what nobody knows: of a process that is watched late, its older memory may be less now.
    pub(super) fn free_unknown(&mut self) {
        self.unknown_frees += 1;
        self.standings.values_mut().filter(|standing| standing.older_bytes() != Some(0)).for_each(Standing::miss);
    }

    /// Its video memory by place, all the while from `begin_ns` to `end_ns`; `None` where it changed meanwhile.
    pub fn held_over(&self, begin_ns: u64, end_ns: u64) -> impl Iterator<Item = (&Place, Option<u64>)> {
        self.live.values().map(move |live| (&live.place, live.recent.held_over(begin_ns, end_ns, live.bytes)))
    }

    /// Whether it has video memory, or had some lately.
    pub fn has_video_memory(&self) -> bool {
        !self.live.is_empty()
    }

    /// Its live video memory by place, in bytes.
    pub fn live(&self) -> impl Iterator<Item = (&Place, u64)> {
        self.live.values().map(|live| (&live.place, live.bytes))
    }

    /// Its standing on a GPU; `None` before the first settled reading.
    pub fn standing(&self, gpu: &GpuUuid) -> Option<&Standing> {
        self.standings.get(gpu)
    }

    /// The first rule that one of its ioctls broke; `None` where none did.
    pub const fn violation(&self) -> Option<Violation> {
        self.violation
    }

    /// The last allocations that were refused for want of memory, oldest first.
    pub fn refused(&self) -> impl Iterator<Item = &RefusedMemory> {
        self.refused.iter()
    }

    /// How many were refused.
    pub const fn refused_count(&self) -> u64 {
        self.refused_count
    }

    /// How many objects were made under the name of one that lived.
    pub const fn reused(&self) -> u64 {
        self.reused
    }

    /// Frees of objects that nobody knows: they are older than the watch, or of no class that is kept.
    pub const fn unknown_frees(&self) -> u64 {
        self.unknown_frees
    }

    /// Whether it used a client, or a device, that it was never seen to make.
    pub const fn uses_unknown(&self) -> bool {
        self.uses_unknown
    }
}
