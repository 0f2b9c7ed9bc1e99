//! Follows the arenas of JAX and TensorFlow (`tsl::BFCAllocator`) and of ONNX Runtime (`BFCArena`,
//! derived from it): chunks in a few large driver allocations.
//!
//! Each event carries the arena's own counters, taken under its lock. They equal
//! `device.memory_stats()` and are checked against the sum of the events each time. The driver
//! allocation that contains a chunk's address gives its device. This excludes arenas in host
//! memory.

mod arena;
mod ledger;
#[cfg(test)]
mod tests;
pub(crate) mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

pub use self::arena::{BfcArena, Home};
pub use self::view::ArenaView;
use super::pytorch::DriverChange;
use super::{AllocatorNotice, BlockChange, FrameworkAllocator, ReportedTotals, TensorBlock};
use crate::decode::{ArenaChunkReport, ChunkGoes, TensorChange, TensorEvent};
use crate::input::arenas::{ArenaChunk, ArenaReading, ArenaReadings};
use crate::ledger::{DriverSegment, SegmentLocation};
use crate::words::{Framework, Ordinal};

/// Maximum number of arenas. Processes have a handful of them, so more are implausible.
const MOST_ARENAS: usize = 256;
/// Maximum number of segments remembered. A dropped one is looked up again.
const MOST_SEGMENTS: usize = 4096;

/// Chunks of an arena from before the attach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OlderChunks {
    /// Device of the arena.
    pub(super) ordinal: Ordinal,
    /// Chunks that no event showed.
    pub(super) chunks: Vec<ArenaChunk>,
}

/// Arenas of a process, by address.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Arenas {
    arenas: BTreeMap<u64, BfcArena>,
    segments: BTreeMap<u64, DriverSegment>,
    /// All driver allocations of the process were seen, so an address in none of them is not on a
    /// device.
    sees_driver: bool,
    /// Events are not traced; the state is that of the last reading.
    is_stopped: bool,
}

impl Arenas {
    /// Returns the arenas by address.
    pub const fn arenas(&self) -> &BTreeMap<u64, BfcArena> {
        &self.arenas
    }

    /// Returns the bytes an arena reserved from the driver, as far as its chunks show.
    pub fn segment_bytes(&self, arena: &BfcArena) -> u64 {
        let holds = |segment: &&DriverSegment| {
            let end = segment.address.saturating_add(segment.bytes);
            segment.ordinal() == arena.home().ordinal() && arena.has_chunk_between(segment.address, end)
        };
        self.segments.values().filter(holds).map(|segment| segment.bytes).sum()
    }

    /// Returns whether the place of this chunk is known without asking the driver's ledger.
    pub fn knows_place(&self, chunk: &ArenaChunkReport) -> bool {
        let is_host = self.arenas.get(&chunk.allocator).is_some_and(|arena| arena.home == Home::Host);
        is_host || self.segment_at(chunk.address).is_some()
    }

    /// Learns the driver allocation that contains a chunk. One with an unknown device is ignored.
    pub fn learn_segment(&mut self, segment: DriverSegment) {
        if segment.memory == SegmentLocation::SomeDevice {
            return;
        }
        if self.segments.len() >= MOST_SEGMENTS {
            self.segments.clear();
        }
        self.segments.insert(segment.address, segment);
    }

    fn segment_at(&self, address: u64) -> Option<&DriverSegment> {
        let (start, segment) = self.segments.range(..=address).next_back()?;
        (address - start < segment.bytes).then_some(segment)
    }

    /// Returns where a chunk of an arena is.
    fn home_of(&self, address: u64, before: Home) -> Home {
        match (self.segment_at(address).map(|segment| segment.memory), before) {
            (_, Home::Host) | (Some(SegmentLocation::Host), _) => Home::Host,
            (Some(SegmentLocation::Device(ordinal)), _) => Home::Device(ordinal),
            (None, Home::Unknown) if self.sees_driver => Home::Host,
            (None | Some(SegmentLocation::SomeDevice), before) => before,
        }
    }

    /// Applies the free of a chunk given by its address only. Returns `None` if the chunk is
    /// unknown or the last reading covers the event.
    fn apply_going(&mut self, event: &TensorEvent, goes: &ChunkGoes) -> Option<BlockChange> {
        let arena = self.arenas.get_mut(&goes.allocator)?;
        if arena.has_in_allocator_state(event.time_ns) {
            return None;
        }
        let chunk = arena.going(goes)?;
        self.apply_chunk(event, &chunk)
    }

    fn apply_chunk(&mut self, event: &TensorEvent, chunk: &ArenaChunkReport) -> Option<BlockChange> {
        if self.arenas.len() >= MOST_ARENAS && !self.arenas.contains_key(&chunk.allocator) {
            return None;
        }
        let before = self.arenas.get(&chunk.allocator).map_or(Home::Unknown, |arena| arena.home);
        let home = self.home_of(chunk.address, before);
        let arena = self.arenas.entry(chunk.allocator).or_insert_with(|| BfcArena::met_with(chunk));
        arena.home = home;
        let is_past = arena.has_in_allocator_state(event.time_ns);
        if is_past && !(chunk.is_grant && arena.holds(chunk)) {
            return None;
        }
        let freed_bytes = if is_past { None } else { arena.apply(chunk) };
        arena.time_ns = arena.time_ns.max(event.time_ns);
        if home == Home::Host {
            arena.drop_chunks();
        }
        let ordinal = home.ordinal()?;
        if !chunk.is_grant {
            let block_bytes = freed_bytes.unwrap_or(chunk.bytes);
            return Some(BlockChange::Freed { ordinal, address: chunk.address, block_bytes });
        }
        Some(BlockChange::Granted(TensorBlock {
            ordinal,
            address: chunk.address,
            block_bytes: chunk.bytes,
            requested_bytes: Some(chunk.requested_bytes),
            cached: None,
            tid: event.tid,
            stack: event.stack,
            is_sampled: event.is_sampled,
            time_ns: event.time_ns,
        }))
    }

    /// Learns the state of arenas as read from memory, except those with an event since the reading
    /// began. Returns the chunks from before the attach.
    pub(super) fn learn_arenas(&mut self, allocator_state: &ArenaReadings) -> Vec<OlderChunks> {
        allocator_state.arenas.iter().filter_map(|book| self.learn_arena(book, allocator_state)).collect()
    }

    fn learn_arena(&mut self, book: &ArenaReading, allocator_state: &ArenaReadings) -> Option<OlderChunks> {
        let known = self.arenas.get(&book.allocator);
        let is_late = known.is_some_and(|arena| arena.time_ns >= allocator_state.began_ns);
        if is_late || (known.is_none() && self.arenas.len() >= MOST_ARENAS) {
            return None;
        }
        let before = known.map_or(Home::Unknown, |arena| arena.home);
        let first = book.regions.first().map(|(address, _)| *address);
        let home = first.map_or(before, |address| self.home_of(address, before));
        let home = if home == Home::Unknown { named_home(book) } else { home };
        if let Home::Named(ordinal) = home {
            for &(address, bytes) in &book.regions {
                self.learn_segment(DriverSegment { address, bytes, memory: SegmentLocation::Device(ordinal) });
            }
        }
        let arena = self.arenas.entry(book.allocator).or_default();
        arena.home = home;
        let chunks = arena.learn(book, allocator_state.time_ns);
        if home == Home::Host {
            arena.drop_chunks();
        }
        Some(OlderChunks { ordinal: home.ordinal()?, chunks })
    }

    /// Returns the known chunks on a device, bytes by address.
    pub(super) fn chunks_on(&self, ordinal: Ordinal) -> BTreeMap<u64, u64> {
        let here = self.arenas.values().filter(|arena| arena.home.ordinal() == Some(ordinal));
        here.flat_map(BfcArena::chunks).collect()
    }

    /// Returns whether events are not traced.
    pub const fn is_stopped(&self) -> bool {
        self.is_stopped
    }

    /// Returns the addresses of a framework's arenas that have chunks not known individually, or no
    /// name; all of them if events are not traced.
    pub fn wanted_allocator_state(&self, framework: Framework) -> Vec<u64> {
        let is_known = |arena: &BfcArena| !self.is_stopped && arena.is_exact() && arena.name.is_some();
        let is_its = |arena: &BfcArena| arena.framework.is_none_or(|own| own == framework);
        let lacks = |arena: &BfcArena| arena.home != Home::Host && is_its(arena) && !is_known(arena);
        self.arenas.iter().filter(|(_, arena)| lacks(arena)).map(|(address, _)| *address).collect()
    }
}

/// Returns the place of an arena by its name.
///
/// XLA and TensorFlow name only the arena of a device `GPU_0_bfc` (xla/pjrt/gpu/gpu_helpers.cc,
/// tensorflow/core/common_runtime/gpu). ONNX Runtime names that of any GPU `Cuda` and stores the
/// device number separately (onnxruntime/core/framework/allocator.h).
fn named_home(book: &ArenaReading) -> Home {
    let device = if book.framework == Some(Framework::OnnxRuntime) {
        book.device.filter(|_| &*book.name == "Cuda")
    } else {
        let number = book.name.strip_prefix("GPU_").and_then(|rest| rest.strip_suffix("_bfc"));
        number.and_then(|number| number.parse().ok())
    };
    device.map_or(Home::Host, |number| Home::Named(Ordinal(number)))
}

impl Arenas {
    fn lose(&mut self) {
        self.arenas.values_mut().for_each(BfcArena::lose);
    }
}

impl FrameworkAllocator for Arenas {
    /// A missed start does not matter: an arena starts with its first event, and only missed driver
    /// calls make its place uncertain.
    fn note(&mut self, notice: AllocatorNotice) {
        match notice {
            AllocatorNotice::StartMissed | AllocatorNotice::PeaksBegin(_) => {}
            AllocatorNotice::DriverKnown(all) => self.sees_driver = all,
            AllocatorNotice::EventsLost => self.lose(),
            AllocatorNotice::Stopped => {
                self.is_stopped = true;
                self.lose();
            }
            AllocatorNotice::Resumed => {
                self.is_stopped = false;
                self.lose();
            }
        }
    }

    fn place(&mut self, event: &TensorEvent, segment_at: &dyn Fn(u64) -> Option<DriverSegment>) {
        if let TensorChange::Chunk(chunk) = &event.what
            && !self.knows_place(chunk)
            && let Some(segment) = segment_at(chunk.address)
        {
            self.learn_segment(segment);
        }
    }

    fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange> {
        match &event.what {
            TensorChange::Chunk(chunk) => self.apply_chunk(event, chunk),
            TensorChange::ChunkGoes(goes) => self.apply_going(event, goes),
            TensorChange::ArenaFails { allocator, wanted_bytes } => {
                let ordinal = self.arenas.get(allocator)?.home.ordinal()?;
                Some(BlockChange::Refused { ordinal, wanted_bytes: *wanted_bytes })
            }
            _ => None,
        }
    }

    fn driver(&mut self, change: DriverChange) {
        match change {
            DriverChange::Freed { address } => drop(self.segments.remove(&address)),
            DriverChange::Unmapped { address, bytes } => {
                let gone = address..address.saturating_add(bytes);
                self.segments.retain(|start, _| !gone.contains(start));
            }
            DriverChange::Mapped { .. } => {}
        }
    }

    fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        let mut all: BTreeMap<Ordinal, ReportedTotals> = BTreeMap::new();
        for arena in self.arenas.values().filter(|arena| arena.is_believed()) {
            let (Some(ordinal), Some(counters)) = (arena.home.ordinal(), arena.counters()) else { continue };
            let sum = all.entry(ordinal).or_default();
            sum.allocated_bytes = sum.allocated_bytes.saturating_add(counters.bytes_in_use);
            sum.reserved_bytes = sum.reserved_bytes.saturating_add(self.segment_bytes(arena));
            sum.time_ns = sum.time_ns.max(arena.time_ns);
        }
        all
    }

    fn blocks_on(&self, ordinal: Ordinal) -> BTreeMap<u64, u64> {
        self.chunks_on(ordinal)
    }
}
