//! Combines the allocators of all frameworks in a process: dispatches events, and sums the totals
//! of each device.

use std::collections::BTreeMap;

use memwatch_common::tensor::{Purpose, TENSOR_PROBES};
use serde::{Deserialize, Serialize};

use super::bfc::Arenas;
use super::framework::{AllocatorNotice, FrameworkAllocator};
use super::ggml::Buffers;
use super::pools::MemoryPools;
use super::pytorch::{Allocators, DriverChange};
use super::{BlockChange, ReportedTotals, TensorLedger};
use crate::decode::{BufferTurn, TensorChange, TensorEvent, TraceAction};
use crate::ledger::DriverSegment;
use crate::words::{Framework, Ordinal};

/// Allocators of one process: PyTorch's by device, arenas and pools by address, buffers by context.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Frameworks {
    /// PyTorch's allocators.
    pub(super) pytorch: Allocators,
    /// Arenas of JAX, TensorFlow and ONNX Runtime.
    pub(super) bfc: Arenas,
    /// Buffers of ggml.
    pub(super) ggml: Buffers,
    /// Pools of RAPIDS and CuPy.
    pub(super) pools: MemoryPools,
    /// Whether all driver allocations are known, as last noted by the allocators; `None` if they
    /// have to note it with the next event.
    #[serde(skip)]
    noted_driver: Option<bool>,
    /// The toy framework of the tests.
    #[cfg(test)]
    #[serde(skip)]
    pub(super) toy: super::tests::ToyPool,
}

/// An allocation that a framework's allocator refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Framework of the allocator; `None` if unknown.
    pub framework: Option<Framework>,
    /// Device of the allocation.
    pub ordinal: Ordinal,
    /// Requested size in bytes, as rounded by the allocator.
    pub wanted_bytes: u64,
}

/// Returns the address at which this event shows an allocator using memory that may be a pool's.
/// Pools of RAPIDS and CuPy track that themselves.
const fn begins_at(event: &TensorEvent) -> Option<u64> {
    match &event.what {
        TensorChange::Traced(traced)
            if matches!(traced.action, TraceAction::SegmentAlloc | TraceAction::SegmentMap) =>
        {
            Some(traced.address)
        }
        TensorChange::Reported { address, block_bytes, .. } if *block_bytes > 0 => Some(*address),
        TensorChange::Chunk(chunk) if chunk.is_grant => Some(chunk.address),
        TensorChange::Buffer(change) => match change.turn {
            BufferTurn::Made { address, .. } => Some(address),
            BufferTurn::Grows { .. } => Some(change.context),
            BufferTurn::Labelled(_) | BufferTurn::Holds(_) | BufferTurn::Goes | BufferTurn::Shrinks { .. } => None,
        },
        _ => None,
    }
}

/// Returns whether any function of PyTorch's allocators is probed, given the missing table rows.
pub fn is_pytorch_probed(missing: &[u16]) -> bool {
    let is_its = |purpose| matches!(purpose, Purpose::Allocator | Purpose::AllocatorCalls | Purpose::AllocatorReports);
    let mut rows = TENSOR_PROBES.iter().filter(|row| is_its(row.purpose));
    rows.any(|row| !missing.contains(&row.id))
}

impl Frameworks {
    /// Returns the allocators that report no totals of a device in their events.
    fn others(&self) -> impl Iterator<Item = &dyn FrameworkAllocator> {
        let all: [&dyn FrameworkAllocator; _] = [
            &self.bfc,
            &self.ggml,
            &self.pools,
            #[cfg(test)]
            &self.toy,
        ];
        all.into_iter()
    }

    fn others_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut dyn FrameworkAllocator> {
        let all: [&mut dyn FrameworkAllocator; _] = [
            &mut self.bfc,
            &mut self.ggml,
            &mut self.pools,
            #[cfg(test)]
            &mut self.toy,
        ];
        all.into_iter()
    }

    /// Returns the allocator that an event belongs to.
    fn owner_of(&mut self, change: &TensorChange) -> &mut dyn FrameworkAllocator {
        match change {
            #[cfg(test)]
            _ if self.toy.is_watched() => &mut self.toy,
            TensorChange::Chunk(_) | TensorChange::ChunkGoes(_) | TensorChange::ArenaFails { .. } => &mut self.bfc,
            TensorChange::Buffer(_) => &mut self.ggml,
            TensorChange::Pool(_) => &mut self.pools,
            _ => &mut self.pytorch,
        }
    }

    fn note(&mut self, notice: AllocatorNotice) {
        self.pytorch.note(notice);
        self.others_mut().for_each(|other| other.note(notice));
    }

    fn other_totals(&self) -> impl Iterator<Item = (Ordinal, ReportedTotals)> {
        self.others().flat_map(FrameworkAllocator::reported)
    }

    /// Starts PyTorch only, if any of its functions is probed. The others start with their first
    /// event, or when their functions are probed.
    pub(super) fn begin(&mut self, from_start: bool, missing: &[u16]) {
        if is_pytorch_probed(missing) {
            self.pytorch.begin(from_start, missing);
        }
    }

    /// Records that a framework's functions are probed. Returns whether they were not before.
    fn watch(&mut self, framework: Framework, from_start: bool) -> bool {
        self.others_mut().any(|other| other.watch(framework, from_start))
    }

    /// Records an earlier allocation: allocators first seen from here on may have older blocks.
    pub(super) fn miss_start(&mut self) {
        self.note(AllocatorNotice::StartMissed);
    }

    /// Records whether all driver allocations of the process are known. Called for each event.
    fn see_driver(&mut self, all: bool) {
        if self.noted_driver != Some(all) {
            self.noted_driver = Some(all);
            self.note(AllocatorNotice::DriverKnown(all));
        }
    }

    fn place(&mut self, event: &TensorEvent, segment_at: &dyn Fn(u64) -> Option<DriverSegment>) {
        self.owner_of(&event.what).place(event, segment_at);
    }

    /// Applies one event and returns the resulting block change.
    pub(super) fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange> {
        if !self.pools.pools().is_empty()
            && let Some(address) = begins_at(event)
        {
            self.pools.divide(address);
        }
        self.owner_of(&event.what).apply(event)
    }

    /// Returns a further block change caused by the last event, to be applied before its own. Call
    /// until it returns `None`.
    pub(super) fn also(&mut self) -> Option<BlockChange> {
        self.others_mut().rev().find_map(FrameworkAllocator::also)
    }

    /// Returns the allocated and reserved bytes on a device of the allocators that report no totals
    /// in their events.
    pub(super) fn beside(&self, ordinal: Ordinal) -> (u64, u64) {
        let here = self.other_totals().filter(|(own, _)| *own == ordinal);
        here.fold((0, 0), |(allocated, reserved), (_, more)| {
            (u64::saturating_add(allocated, more.allocated_bytes), u64::saturating_add(reserved, more.reserved_bytes))
        })
    }

    /// Returns the individually known blocks, on a device, of the allocators that report no totals
    /// in their events: size in bytes by address.
    pub(super) fn blocks_beside(&self, ordinal: Ordinal) -> BTreeMap<u64, u64> {
        self.others().flat_map(|other| other.blocks_on(ordinal)).collect()
    }

    /// Applies a driver call that may allocate or free a segment.
    pub(super) fn driver(&mut self, change: DriverChange) {
        self.pytorch.driver(change);
        self.others_mut().for_each(|other| other.driver(change));
    }

    /// Returns the totals by device, as the allocators last reported them.
    pub(super) fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        let mut all = self.pytorch.reported();
        for (ordinal, more) in self.other_totals() {
            let sum = all.entry(ordinal).or_default();
            sum.allocated_bytes = sum.allocated_bytes.saturating_add(more.allocated_bytes);
            sum.reserved_bytes = sum.reserved_bytes.saturating_add(more.reserved_bytes);
            sum.time_ns = sum.time_ns.max(more.time_ns);
        }
        all
    }

    /// Stops following events.
    pub(super) fn stop(&mut self) {
        self.note(AllocatorNotice::Stopped);
        // An allocator may forget it when it stops.
        self.noted_driver = None;
    }

    /// Follows events again. Those in between were missed.
    pub(super) fn resume(&mut self) {
        self.note(AllocatorNotice::Resumed);
    }

    /// Records that events were lost.
    pub(super) fn lose(&mut self) {
        self.note(AllocatorNotice::EventsLost);
    }

    /// Resets the peaks of all devices, in memwatch's counters only.
    pub(super) fn begin_own_peaks(&mut self, now_ns: u64) {
        self.note(AllocatorNotice::PeaksBegin(now_ns));
    }
}

impl TensorLedger {
    /// Records whether all driver allocations of the process are known.
    pub fn see_driver(&mut self, all: bool) {
        self.allocators.see_driver(all);
    }

    /// Prepares an event before `apply`. `segment_at` returns the driver allocation that contains
    /// an address.
    pub fn place(&mut self, event: &TensorEvent, segment_at: &dyn Fn(u64) -> Option<DriverSegment>) {
        self.allocators.place(event, segment_at);
    }

    /// Records that a framework's functions are probed. `from_start` is set if the driver had
    /// granted nothing before. Returns whether they were not probed before.
    pub fn watch(&mut self, framework: Framework, from_start: bool) -> bool {
        self.allocators.watch(framework, from_start)
    }

    /// Returns the allocation that failed with this event; `None` for any other event.
    pub fn refused_by(&self, event: &TensorEvent) -> Option<Refused> {
        match event.what {
            TensorChange::OutOfMemory { ordinal, wanted_bytes, .. } => {
                Some(Refused { framework: Some(Framework::PyTorch), ordinal, wanted_bytes })
            }
            TensorChange::ArenaFails { allocator, wanted_bytes } => {
                let arena = self.allocators.bfc.arenas().get(&allocator)?;
                Some(Refused { framework: arena.framework(), ordinal: arena.home().ordinal()?, wanted_bytes })
            }
            _ => None,
        }
    }

    /// Splits an event of a single probe into the trace and report events it stands for; `None` for
    /// other events.
    pub fn split(&mut self, event: &TensorEvent) -> Option<[Option<TensorEvent>; 3]> {
        self.allocators.pytorch.split(event)
    }
}
