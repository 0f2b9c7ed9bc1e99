//! The buffers of ggml (llama.cpp and its kin): each is one allocation of the driver's, which ggml gives a use.
//!
//! All backends' buffers pass the same functions, and a context's first words are a device and an address in CUDA's alone: so a buffer counts where the
//! driver has granted memory at that address, on that device. ggml keeps no list of its buffers: older ones than the watch are not known.

mod scratch;
mod sums;
mod tensors;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use serde::{Deserialize, Serialize};

use self::sums::Sums;
use self::tensors::Tensors;
use super::pytorch::DriverChange;
use super::{Block, BlockChange, FrameworkAllocator, Reported};
use crate::decode::{BufferChange, BufferTurn, BufferUsage, TensorChange, TensorEvent, TensorPlace};
use crate::ledger::{DriverSegment, Memory};
use crate::words::Ordinal;

pub use self::sums::{DeviceBuffers, UsageSum};
pub use self::tensors::NamedTensor;

/// Programs have tens of buffers; what makes more than this is not followed further.
const MOST_BUFFERS: usize = 1 << 16;

/// A buffer in a device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Buffer {
    ordinal: Ordinal,
    address: u64,
    bytes: u64,
    usage: BufferUsage,
}

/// Why not all buffers are known, or not surely.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Doubts {
    /// There may be ones from before the watch.
    has_older: bool,
    /// Events did not arrive, or too many buffers are there.
    is_lossy: bool,
    /// Calls of the driver did not arrive.
    misses_driver: bool,
    /// So many were given back without an event of theirs.
    out_of_step: u64,
}

/// All buffers of a process that are known.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Buffers {
    is_watched: bool,
    /// By the address of their context.
    buffers: BTreeMap<u64, Buffer>,
    /// Contexts by the device and the address of what they have.
    contexts: BTreeMap<u64, u64>,
    /// What lies in them, by name.
    tensors: Tensors,
    sums: Sums,
    /// Pieces of the pool for temporaries that went with the event now taken in, and are yet to be reported.
    #[serde(skip)]
    gone: VecDeque<BlockChange>,
    doubts: Doubts,
    /// Where the memory of the buffer lies that the event now to be taken in is about.
    #[serde(skip)]
    segment: Option<DriverSegment>,
}

impl Buffers {
    /// Its functions are probed from now on; `from_start` where the driver had granted nothing before.
    pub(super) fn watch(&mut self, from_start: bool) {
        if !self.is_watched {
            self.is_watched = true;
            self.doubts.has_older |= !from_start;
        }
    }

    /// Whether its functions are, or were, probed in this process.
    pub const fn is_watched(&self) -> bool {
        self.is_watched
    }

    /// Whether all buffers that there are must be known, and what is known of them is sure.
    pub const fn is_exact(&self) -> bool {
        let Doubts { has_older, is_lossy, misses_driver, out_of_step } = self.doubts;
        self.is_watched && !has_older && !is_lossy && !misses_driver && out_of_step == 0
    }

    /// Whether there may be buffers from before the watch.
    pub const fn has_older(&self) -> bool {
        self.doubts.has_older
    }

    /// How many buffers' memory was given back without an event of theirs.
    pub const fn out_of_step(&self) -> u64 {
        self.doubts.out_of_step
    }

    /// What each device has.
    pub const fn devices(&self) -> &BTreeMap<Ordinal, DeviceBuffers> {
        self.sums.devices()
    }

    /// Takes in a buffer, where the driver has granted its memory.
    fn make(&mut self, event: &TensorEvent, context: u64, buffer: Buffer) -> Option<BlockChange> {
        let segment = self.segment.take()?;
        let is_there = [Memory::Device(buffer.ordinal), Memory::SomeDevice].contains(&segment.memory);
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
        Some(BlockChange::Granted(Block {
            ordinal: buffer.ordinal,
            address: buffer.address,
            block_bytes: buffer.bytes,
            requested_bytes: Some(buffer.bytes),
            cached: None,
            tid: event.tid,
            stack: event.stack,
            is_drawn: event.is_drawn,
            time_ns: event.time_ns,
        }))
    }

    /// The buffers on a device: address and bytes.
    pub(super) fn blocks_on(&self, ordinal: Ordinal) -> impl Iterator<Item = (u64, u64)> {
        let here = self.buffers.values().filter(move |buffer| buffer.ordinal == ordinal);
        here.map(|buffer| (buffer.address, buffer.bytes))
    }

    /// The tensors in the buffers of a device that were given their places since memwatch watches.
    pub fn tensors_on(&self, ordinal: Ordinal) -> impl Iterator<Item = NamedTensor<'_>> {
        let here = self.buffers.iter().filter(move |(_, buffer)| buffer.ordinal == ordinal);
        here.flat_map(|(context, buffer)| self.tensors.of(*context, buffer.bytes, buffer.usage))
    }

    /// A cache has no label: what lies in it says what it is.
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

    /// One that must have gone without an event.
    fn drop_missed(&mut self, context: u64) {
        self.doubts.out_of_step += u64::from(self.release(context, 0).is_some());
    }
}

impl FrameworkAllocator for Buffers {
    fn begin(&mut self, from_start: bool, _missing: &[u16]) {
        self.watch(from_start);
    }

    fn miss_start(&mut self) {
        self.doubts.has_older = true;
    }

    fn see_driver(&mut self, all: bool) {
        self.doubts.misses_driver = !all;
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

    /// Its memory goes after the buffer: one that is still there was missed.
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

    fn reported(&self) -> BTreeMap<Ordinal, Reported> {
        self.sums.reported()
    }

    /// What comes and goes meanwhile is not seen.
    fn stop(&mut self) {
        let is_watched = self.is_watched;
        *self = Self { is_watched, doubts: Doubts { has_older: true, ..self.doubts }, ..Self::default() };
    }

    fn resume(&mut self) {}

    fn lose(&mut self) {
        self.doubts.is_lossy = true;
    }

    fn begin_own_peaks(&mut self, _now_ns: u64) {
        self.sums.begin_peaks();
    }
}
