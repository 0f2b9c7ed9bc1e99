//! Combines the allocators of all frameworks in a process: dispatches events, and sums the totals
//! of each device.

use std::collections::BTreeMap;

use memwatch_common::tensor::{Purpose, TENSOR_PROBES};
use serde::{Deserialize, Serialize};

use super::bfc::Arenas;
use super::ggml::Buffers;
use super::pools::MemoryPools;
use super::pytorch::{Allocators, DriverChange, StatisticsWords};
use super::threads::Phase;
use super::{BlockChange, FrameworkAllocator, ReportedTotals, TensorLedger};
use crate::decode::{BufferTurn, TensorChange, TensorEvent, TraceAction};
use crate::input::allocator_state::{DeviceAllocatorState, DeviceNumbers, StateBlock};
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

impl Frameworks {
    fn others(&self) -> impl Iterator<Item = (Ordinal, ReportedTotals)> {
        self.bfc.reported().into_iter().chain(self.ggml.reported()).chain(self.pools.reported())
    }
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

impl FrameworkAllocator for Frameworks {
    /// Starts PyTorch only, if any of its functions is probed. Arenas start with their first event,
    /// and ggml's buffers when their functions are probed.
    fn begin(&mut self, from_start: bool, missing: &[u16]) {
        if is_pytorch_probed(missing) {
            self.pytorch.begin(from_start, missing);
        }
    }

    fn miss_start(&mut self) {
        self.pytorch.miss_start();
        self.bfc.miss_start();
        self.ggml.miss_start();
        self.pools.miss_start();
    }

    fn see_driver(&mut self, all: bool) {
        self.bfc.see_driver(all);
        self.ggml.see_driver(all);
        self.pools.see_driver(all);
    }

    fn place(&mut self, event: &TensorEvent, segment_at: &dyn Fn(u64) -> Option<DriverSegment>) {
        self.bfc.place(event, segment_at);
        self.ggml.place(event, segment_at);
        self.pools.place(event, segment_at);
    }

    fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange> {
        if !self.pools.pools().is_empty()
            && let Some(address) = begins_at(event)
        {
            self.pools.divide(address);
        }
        match event.what {
            TensorChange::Chunk(_) | TensorChange::ChunkGoes(_) | TensorChange::ArenaFails { .. } => {
                self.bfc.apply(event)
            }
            TensorChange::Buffer(_) => self.ggml.apply(event),
            TensorChange::Pool(_) => self.pools.apply(event),
            _ => self.pytorch.apply(event),
        }
    }

    fn also(&mut self) -> Option<BlockChange> {
        self.pools.also().or_else(|| self.ggml.also())
    }

    fn beside(&self, ordinal: Ordinal) -> (u64, u64) {
        let here = self.others().filter(|(own, _)| *own == ordinal);
        here.fold((0, 0), |(allocated, reserved), (_, more)| {
            (u64::saturating_add(allocated, more.allocated_bytes), u64::saturating_add(reserved, more.reserved_bytes))
        })
    }

    fn blocks_beside(&self, ordinal: Ordinal) -> BTreeMap<u64, u64> {
        let arenas = self.bfc.chunks_on(ordinal).into_iter();
        arenas.chain(self.ggml.blocks_on(ordinal)).chain(self.pools.blocks_on(ordinal)).collect()
    }

    fn skip(&mut self, event: &TensorEvent) {
        self.pytorch.skip(event);
    }

    fn driver(&mut self, change: DriverChange) {
        self.pytorch.driver(change);
        self.bfc.driver(change);
        self.ggml.driver(change);
        self.pools.driver(change);
    }

    fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        let mut all = self.pytorch.reported();
        for (ordinal, more) in self.others() {
            let sum = all.entry(ordinal).or_default();
            sum.allocated_bytes = sum.allocated_bytes.saturating_add(more.allocated_bytes);
            sum.reserved_bytes = sum.reserved_bytes.saturating_add(more.reserved_bytes);
            sum.time_ns = sum.time_ns.max(more.time_ns);
        }
        all
    }

    fn learn_counters(&mut self, allocator: u64, time_ns: u64, words: &StatisticsWords) -> bool {
        self.pytorch.learn_counters(allocator, time_ns, words)
    }

    fn learn_allocator_state(&mut self, allocator_state: &DeviceAllocatorState, time_ns: u64) -> bool {
        self.pytorch.learn_allocator_state(allocator_state, time_ns)
    }

    fn learn_numbers(&mut self, numbers: &DeviceNumbers, time_ns: u64) -> bool {
        self.pytorch.learn_numbers(numbers, time_ns)
    }

    fn counted_bytes(&self) -> BTreeMap<Ordinal, u64> {
        self.pytorch.counted_bytes()
    }

    fn stop(&mut self) {
        self.pytorch.stop();
        self.bfc.stop();
        self.ggml.stop();
        self.pools.stop();
    }

    fn resume(&mut self) {
        self.pytorch.resume();
        self.bfc.resume();
        self.ggml.resume();
        self.pools.resume();
    }

    fn wants_allocator_state(&self) -> bool {
        self.pytorch.wants_allocator_state()
    }

    fn adopt_older(&mut self, ordinal: Ordinal, blocks: &[StateBlock]) -> Vec<StateBlock> {
        self.pytorch.adopt_older(ordinal, blocks)
    }

    fn wants_blocks(&self) -> bool {
        self.pytorch.wants_blocks()
    }

    fn wants_counters(&self) -> bool {
        self.pytorch.wants_counters()
    }

    fn lose(&mut self) {
        self.pytorch.lose();
        self.bfc.lose();
        self.ggml.lose();
        self.pools.lose();
    }

    fn begin_own_peaks(&mut self, now_ns: u64) {
        self.pytorch.begin_own_peaks(now_ns);
        self.ggml.begin_own_peaks(now_ns);
        self.pools.begin_own_peaks(now_ns);
    }

    fn keep_history(&mut self, limit: usize) {
        self.pytorch.keep_history(limit);
    }

    fn note_phase(&mut self, ordinal: Ordinal, phase: Phase) {
        self.pytorch.note_phase(ordinal, phase);
    }
}

impl<A: FrameworkAllocator> TensorLedger<A> {
    /// Records whether all driver allocations of the process are known.
    pub fn see_driver(&mut self, all: bool) {
        self.allocators.see_driver(all);
    }

    /// Prepares an event before `apply`. `segment_at` returns the driver allocation that contains
    /// an address.
    pub fn place(&mut self, event: &TensorEvent, segment_at: &dyn Fn(u64) -> Option<DriverSegment>) {
        self.allocators.place(event, segment_at);
    }
}

impl TensorLedger {
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

    /// Records that ggml's functions are probed. `from_start` is set if the driver had granted
    /// nothing before.
    pub fn watch_buffers(&mut self, from_start: bool) {
        self.allocators.ggml.watch(from_start);
    }

    /// Records that ggml's pool for temporaries is probed.
    pub fn watch_scratch(&mut self) {
        self.allocators.ggml.watch_scratch();
    }

    /// Records that ggml may have allocated before its functions were probed.
    pub fn miss_buffers(&mut self) {
        self.allocators.ggml.miss_start();
    }

    /// Returns ggml's buffers.
    pub const fn buffers(&self) -> &Buffers {
        &self.allocators.ggml
    }

    /// Records that the functions of RAPIDS or CuPy are probed. `from_start` is set if the driver
    /// had granted nothing before.
    pub fn watch_pools(&mut self, framework: Framework, from_start: bool) {
        self.allocators.pools.watch(framework, from_start);
    }

    /// Returns the pools of RAPIDS and CuPy.
    pub const fn pools(&self) -> &MemoryPools {
        &self.allocators.pools
    }

    /// Splits an event of a single probe into the trace and report events it stands for; `None` for
    /// other events.
    pub fn split(&mut self, event: &TensorEvent) -> Option<[Option<TensorEvent>; 3]> {
        self.allocators.pytorch.split(event)
    }
}
