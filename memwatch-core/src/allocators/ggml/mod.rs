//! Follows the buffers of ggml (llama.cpp and related programs). Each is one driver allocation with
//! a usage.
//!
//! Buffers of all backends pass through the same functions. Only the context object of ggml-cuda's
//! buffers (`ggml_backend_cuda_buffer_context`) begins with a device and an address. A buffer is therefore counted if the driver granted memory at that
//! address on that device. ggml keeps no list of its buffers, so those from before the attach are
//! unknown.

mod scratch;
mod sums;
mod tensors;
#[cfg(test)]
mod tests;
pub(crate) mod view;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use self::sums::BufferSums;
use self::tensors::BufferTensorMap;
use super::pytorch::DriverChange;
use super::{AllocatorNotice, BlockChange, FrameworkAllocator, ReportedTotals, TensorBlock, TensorLedger};
use crate::decode::{BufferChange, BufferTurn, BufferUsage, TensorChange, TensorEvent, TensorPlace};
use crate::ledger::{DriverSegment, SegmentLocation};
use crate::words::{Framework, Ordinal};

pub use self::sums::{DeviceBuffers, UsageSum};
pub use self::tensors::GgmlTensor;
pub use self::view::{BufferTensorView, BuffersView, DeviceBuffersView, UsageView};

/// Maximum number of buffers tracked. Programs have tens of them.
const MOST_BUFFERS: usize = 1 << 16;

/// A buffer in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Buffer {
    ordinal: Ordinal,
    address: u64,
    bytes: u64,
    usage: BufferUsage,
}

/// Reasons why the known buffers may be incomplete or wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Doubts {
    /// There may be buffers from before the attach.
    has_older: bool,
    /// Events were lost, or there are too many buffers.
    is_lossy: bool,
    /// Driver calls were lost.
    misses_driver: bool,
    /// Number of buffers freed without an event.
    out_of_step: u64,
}

/// Known buffers of a process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Buffers {
    is_watched: bool,
    /// Whether the pool for temporaries is probed.
    has_scratch: bool,
    /// Buffers by the address of their context.
    buffers: BTreeMap<u64, Buffer>,
    /// Contexts by the address of the buffer's memory.
    contexts: BTreeMap<u64, u64>,
    /// Named tensors in the buffers.
    tensors: BufferTensorMap,
    sums: BufferSums,
    /// Pieces of the pool for temporaries that were freed by the current event and are not reported
    /// yet.
    #[serde(skip)]
    gone: VecDeque<BlockChange>,
    doubts: Doubts,
    /// Driver allocation that contains the buffer of the next event.
    #[serde(skip)]
    segment: Option<DriverSegment>,
}

impl Buffers {
    /// Records that the pool for temporaries is probed.
    fn watch_scratch(&mut self) {
        self.has_scratch = true;
    }

    /// Returns whether the pool for temporaries is, or was, probed.
    pub const fn has_scratch(&self) -> bool {
        self.has_scratch
    }

    /// Returns whether ggml's functions are, or were, probed in this process.
    pub const fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Returns whether all existing buffers are known, without doubt.
    pub const fn is_exact(&self) -> bool {
        let Doubts { has_older, is_lossy, misses_driver, out_of_step } = self.doubts;
        self.is_watched && !has_older && !is_lossy && !misses_driver && out_of_step == 0
    }

    /// Returns whether there may be buffers from before the attach.
    pub const fn has_older(&self) -> bool {
        self.doubts.has_older
    }

    /// Returns the number of buffers freed without a buffer event.
    pub const fn out_of_step(&self) -> u64 {
        self.doubts.out_of_step
    }

    /// Returns the buffers by device.
    pub const fn devices(&self) -> &BTreeMap<Ordinal, DeviceBuffers> {
        self.sums.devices()
    }

    /// Adds a buffer if the driver has granted its memory.
    fn make(&mut self, event: &TensorEvent, context: u64, buffer: Buffer) -> Option<BlockChange> {
        let segment = self.segment.take()?;
        let is_there = [SegmentLocation::Device(buffer.ordinal), SegmentLocation::SomeDevice].contains(&segment.memory);
        let is_its = is_there && segment.address == buffer.address && segment.bytes >= buffer.bytes;
        if !is_its {
            return None;
        }
        self.drop_missed(context);
        if let Some(before) = self.contexts.get(&buffer.address).copied() {
            self.drop_missed(before);
        }
        if self.buffers.len() >= MOST_BUFFERS {
            self.doubts.is_lossy = true;
            return None;
        }
        self.sums.add((buffer.ordinal, buffer.usage), buffer.bytes, event.time_ns);
        self.contexts.insert(buffer.address, context);
        self.buffers.insert(context, buffer);
        Some(BlockChange::Granted(TensorBlock {
            ordinal: buffer.ordinal,
            address: buffer.address,
            block_bytes: buffer.bytes,
            requested_bytes: Some(buffer.bytes),
            cached: None,
            tid: event.tid,
            stack: event.stack,
            is_sampled: event.is_sampled,
            time_ns: event.time_ns,
        }))
    }

    /// Returns the tensors in a device's buffers that were placed since the attach.
    pub fn tensors_on(&self, ordinal: Ordinal) -> impl Iterator<Item = GgmlTensor<'_>> {
        let here = self.buffers.iter().filter(move |(_, buffer)| buffer.ordinal == ordinal);
        here.flat_map(|(context, buffer)| self.tensors.of(*context, buffer.bytes, buffer.usage))
    }

    /// Places a tensor. A KV cache has no usage label and is recognised by its tensors.
    fn hold(&mut self, place: TensorPlace) {
        let Some(context) = self.contexts.get(&place.base).copied() else { return };
        self.tensors.put(context, place);
        if self.buffers.get(&context).is_some_and(|buffer| buffer.usage == BufferUsage::Other) {
            self.label(context, BufferUsage::Other);
        }
    }

    fn label(&mut self, context: u64, usage: BufferUsage) {
        let is_cache = usage == BufferUsage::Other && self.tensors.are_of_cache(context);
        let usage = if is_cache { BufferUsage::KvCache } else { usage };
        if let Some(buffer) = self.buffers.get_mut(&context) {
            self.sums.relabel(buffer.ordinal, (buffer.usage, usage), buffer.bytes);
            buffer.usage = usage;
        }
    }

    fn release(&mut self, context: u64, time_ns: u64) -> Option<Buffer> {
        let buffer = self.buffers.remove(&context)?;
        self.contexts.remove(&buffer.address);
        self.tensors.drop_of(context);
        self.sums.remove((buffer.ordinal, buffer.usage), buffer.bytes, time_ns);
        Some(buffer)
    }

    fn miss_start(&mut self) {
        self.doubts.has_older = true;
    }

    /// Forgets the buffers, since changes are not seen from here on.
    fn forget(&mut self) {
        let Self { is_watched, has_scratch, .. } = *self;
        *self = Self { is_watched, has_scratch, doubts: Doubts { has_older: true, ..self.doubts }, ..Self::default() };
    }

    /// Removes a buffer that must have been freed without an event.
    fn drop_missed(&mut self, context: u64) {
        self.doubts.out_of_step += u64::from(self.release(context, 0).is_some());
    }
}

impl TensorLedger {
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
}

impl FrameworkAllocator for Buffers {
    fn watch(&mut self, framework: Framework, from_start: bool) -> bool {
        let is_new = framework == Framework::Ggml && !self.is_watched;
        if is_new {
            self.is_watched = true;
            self.doubts.has_older |= !from_start;
        }
        is_new
    }

    fn note(&mut self, notice: AllocatorNotice) {
        match notice {
            AllocatorNotice::StartMissed => self.miss_start(),
            AllocatorNotice::DriverKnown(all) => self.doubts.misses_driver = !all,
            AllocatorNotice::EventsLost => self.doubts.is_lossy = true,
            AllocatorNotice::Stopped => self.forget(),
            AllocatorNotice::Resumed => {}
            AllocatorNotice::PeaksBegin(_) => self.sums.begin_peaks(),
        }
    }

    fn place(&mut self, event: &TensorEvent, segment_at: &dyn Fn(u64) -> Option<DriverSegment>) {
        let TensorChange::Buffer(BufferChange { context, turn }) = event.what else { return };
        match turn {
            BufferTurn::Made { address, .. } => self.segment = segment_at(address),
            BufferTurn::Grows { .. } => self.segment = segment_at(context),
            _ => {}
        }
    }

    fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange> {
        let TensorChange::Buffer(BufferChange { context, turn }) = event.what else { return None };
        match turn {
            BufferTurn::Made { bytes, ordinal, address } => {
                self.make(event, context, Buffer { ordinal, address, bytes, usage: BufferUsage::Other })
            }
            BufferTurn::Labelled(usage) => {
                self.label(context, usage);
                None
            }
            BufferTurn::Holds(place) => {
                self.hold(place);
                None
            }
            BufferTurn::Goes => {
                let Buffer { ordinal, address, bytes, .. } = self.release(context, event.time_ns)?;
                Some(BlockChange::Freed { ordinal, address, block_bytes: bytes })
            }
            BufferTurn::Grows { bytes, ordinal } => self.grow(event, (context, bytes), ordinal),
            BufferTurn::Shrinks { bytes } => {
                self.shrink((context, bytes), event.time_ns);
                None
            }
        }
    }

    fn also(&mut self) -> Option<BlockChange> {
        self.gone.pop_front()
    }

    /// Drops the buffers in freed memory. ggml frees a buffer before its memory, so the free of any
    /// left here was missed.
    fn driver(&mut self, change: DriverChange) {
        let gone = match change {
            DriverChange::Freed { address } => address..address.saturating_add(1),
            DriverChange::Unmapped { address, bytes } => address..address.saturating_add(bytes),
            DriverChange::Mapped { .. } => return,
        };
        let missed: Vec<u64> = self.contexts.range(gone).map(|(_, context)| *context).collect();
        for context in missed {
            self.drop_missed(context);
        }
    }

    fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        self.sums.reported()
    }

    fn blocks_on(&self, ordinal: Ordinal) -> BTreeMap<u64, u64> {
        let here = self.buffers.values().filter(|buffer| buffer.ordinal == ordinal);
        here.map(|buffer| (buffer.address, buffer.bytes)).collect()
    }
}
