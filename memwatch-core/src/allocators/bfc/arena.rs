//! A single arena: the chunks allocated from it and its own counters.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decode::{ArenaChunkReport, ChunkGoes};
use crate::input::arenas::{ArenaChunk, ArenaCounters, ArenaReading};
use crate::words::{Framework, Name, Ordinal};

/// Location of an arena's memory, from the driver allocation that contains its first chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Home {
    /// No chunk was in memory that the driver was seen to grant.
    #[default]
    Unknown,
    /// In device memory.
    Device(Ordinal),
    /// In device memory according to the arena's name; the driver granted it before the attach.
    Named(Ordinal),
    /// In host memory, so its chunks are on no GPU.
    Host,
}

impl Home {
    /// Returns the device, if the memory is on one.
    pub const fn ordinal(self) -> Option<Ordinal> {
        match self {
            Self::Device(ordinal) | Self::Named(ordinal) => Some(ordinal),
            Self::Unknown | Self::Host => None,
        }
    }
}

/// A chunk that the program holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LiveChunk {
    pub(super) bytes: u64,
    requested_bytes: u64,
    /// It was allocated before the arena's first chunk for a stream.
    is_early: bool,
}

/// Chunks allocated before an arena's first chunk for a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Early {
    bytes: u64,
    /// A chunk for a stream was allocated.
    is_over: bool,
    /// The arena was seen from its first chunk on, and no event was lost.
    is_known: bool,
}

/// A `tsl::BFCAllocator` of a process, or a `BFCArena` of ONNX Runtime.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct BfcArena {
    pub(super) framework: Option<Framework>,
    pub(super) name: Option<Name>,
    pub(super) home: Home,
    counters: Option<ArenaCounters>,
    chunks: BTreeMap<u64, LiveChunk>,
    known_bytes: u64,
    requested_bytes: u64,
    /// Size of the largest chunk seen.
    largest_bytes: u64,
    is_largest_known: bool,
    early: Early,
    out_of_step: u64,
    is_lossy: bool,
    /// Time of the latest event or reading.
    pub(super) time_ns: u64,
    /// Time of the last reading of the arena's state, which covers all events before it.
    allocator_state_ns: u64,
}

impl BfcArena {
    /// Creates an arena from its first event. Nothing was missed if that is its first allocation.
    pub(super) fn met_with(chunk: &ArenaChunkReport) -> Self {
        let is_first = chunk.counters.is_some_and(|now| chunk.is_grant && now.num_allocs == 1);
        Self {
            framework: Some(chunk.framework),
            is_largest_known: is_first,
            early: Early { is_known: is_first, ..Early::default() },
            ..Self::default()
        }
    }

    /// Returns the framework; `None` in a recording without it.
    pub const fn framework(&self) -> Option<Framework> {
        self.framework
    }

    /// Returns the bytes held since before the first request for a stream. For ONNX Runtime these
    /// are the model weights, as far as they were loaded before the first run. `None` if such
    /// requests are not distinguished, or an earlier chunk was not seen.
    pub fn early_bytes(&self) -> Option<u64> {
        let is_known = self.framework == Some(Framework::OnnxRuntime) && self.early.is_known && self.is_exact();
        is_known.then_some(self.early.bytes)
    }

    /// Returns the framework's name for the arena; `None` before its memory was read.
    pub const fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// Returns where the arena's memory is.
    pub const fn home(&self) -> Home {
        self.home
    }

    /// Returns the arena's own counters as of its last event or reading; `None` if this build does
    /// not show them.
    pub const fn counters(&self) -> Option<ArenaCounters> {
        self.counters
    }

    /// Returns the bytes of the chunks known individually.
    pub const fn known_bytes(&self) -> u64 {
        self.known_bytes
    }

    /// Returns the bytes the program requested in those chunks.
    pub const fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }

    /// Returns the size of the largest chunk so far in bytes; `None` if an earlier one may have
    /// been larger.
    pub fn largest_bytes(&self) -> Option<u64> {
        self.is_largest_known.then_some(self.largest_bytes)
    }

    /// Returns how often the counters disagreed with the events.
    pub const fn out_of_step(&self) -> u64 {
        self.out_of_step
    }

    /// Returns whether the counters are plausible: none contradicted an event.
    pub const fn is_believed(&self) -> bool {
        self.counters.is_some() && self.out_of_step == 0
    }

    /// Returns whether the counters are plausible, no event was lost, and all chunks they count are
    /// known.
    pub fn is_exact(&self) -> bool {
        self.is_believed() && !self.is_lossy && self.counters.is_some_and(|now| now.bytes_in_use == self.known_bytes)
    }

    /// Returns whether the last reading covers an event of this time. A grant it covers is still
    /// used if the chunk exists, for its stack.
    pub(super) fn has_in_allocator_state(&self, time_ns: u64) -> bool {
        time_ns <= self.allocator_state_ns
    }

    /// Returns whether the program holds this chunk.
    pub(super) fn holds(&self, chunk: &ArenaChunkReport) -> bool {
        self.chunks.get(&chunk.address).is_some_and(|held| held.bytes == chunk.bytes)
    }

    /// Applies an event's counters and chunk. Returns the allocated size of a freed chunk in bytes.
    pub(super) fn apply(&mut self, chunk: &ArenaChunkReport) -> Option<u64> {
        let is_expected = match (self.counters, chunk.counters) {
            (Some(before), Some(now)) => self.is_lossy || follows(before, now, chunk),
            _ => true,
        };
        self.out_of_step += u64::from(!is_expected);
        self.is_lossy = false;
        self.counters = chunk.counters.or(self.counters);
        if chunk.is_grant {
            self.largest_bytes = self.largest_bytes.max(chunk.bytes);
            self.early.is_over |= chunk.is_of_stream;
            let is_early = !self.early.is_over;
            self.hold(
                chunk.address,
                LiveChunk { bytes: chunk.bytes, requested_bytes: chunk.requested_bytes, is_early },
            );
            return None;
        }
        self.release(chunk.address)
    }

    /// Completes the free of a chunk given by its address only, if the chunk is known. For an
    /// unknown one, only the counters from before the event are kept, and they include the chunk
    /// from here on.
    pub(super) fn going(&mut self, goes: &ChunkGoes) -> Option<ArenaChunkReport> {
        let Some(held) = self.chunks.get(&goes.address) else {
            self.counters = goes.before.or(self.counters);
            (self.is_lossy, self.early.is_known) = (true, false);
            return None;
        };
        let after = |before: ArenaCounters| {
            let bytes_in_use = before.bytes_in_use.saturating_sub(held.bytes);
            ArenaCounters { bytes_in_use, ..before }
        };
        Some(ArenaChunkReport {
            allocator: goes.allocator,
            framework: goes.framework,
            is_grant: false,
            is_of_stream: false,
            address: goes.address,
            requested_bytes: held.requested_bytes,
            bytes: held.bytes,
            counters: goes.before.map(after),
        })
    }

    fn hold(&mut self, address: u64, held: LiveChunk) {
        self.release(address);
        self.chunks.insert(address, held);
        self.known_bytes = self.known_bytes.saturating_add(held.bytes);
        self.requested_bytes = self.requested_bytes.saturating_add(held.requested_bytes);
        self.early.bytes = self.early.bytes.saturating_add(if held.is_early { held.bytes } else { 0 });
    }

    fn release(&mut self, address: u64) -> Option<u64> {
        let held = self.chunks.remove(&address)?;
        self.known_bytes = self.known_bytes.saturating_sub(held.bytes);
        self.requested_bytes = self.requested_bytes.saturating_sub(held.requested_bytes);
        self.early.bytes = self.early.bytes.saturating_sub(if held.is_early { held.bytes } else { 0 });
        Some(held.bytes)
    }

    /// Applies a reading of the arena's state and returns the chunks that no event showed.
    pub(super) fn learn(&mut self, book: &ArenaReading, time_ns: u64) -> Vec<ArenaChunk> {
        self.name = Some(book.name.clone());
        self.framework = self.framework.or(book.framework);
        self.counters = Some(book.counters);
        self.largest_bytes = book.largest_alloc_bytes;
        self.is_largest_known = true;
        (self.time_ns, self.allocator_state_ns) = (time_ns, time_ns);
        if !book.is_whole() {
            return Vec::new();
        }
        let older = book.chunks.iter().filter(|chunk| !self.chunks.contains_key(&chunk.address)).copied().collect();
        let before = std::mem::take(&mut self.chunks);
        (self.known_bytes, self.requested_bytes, self.early.bytes) = (0, 0, 0);
        for chunk in &book.chunks {
            let is_early = before.get(&chunk.address).is_some_and(|held| held.is_early && held.bytes == chunk.bytes);
            self.hold(
                chunk.address,
                LiveChunk { bytes: chunk.bytes, requested_bytes: chunk.requested_bytes, is_early },
            );
        }
        self.is_lossy = false;
        self.out_of_step = 0;
        older
    }

    /// Returns the chunks, bytes by address.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (u64, u64)> {
        self.chunks.iter().map(|(address, held)| (*address, held.bytes))
    }

    /// Returns whether a chunk begins in this range of addresses.
    pub(super) fn has_chunk_between(&self, begin: u64, end: u64) -> bool {
        self.chunks.range(begin..end).next().is_some()
    }

    /// Drops the chunks of an arena in host memory.
    pub(super) fn drop_chunks(&mut self) {
        self.chunks.clear();
        (self.known_bytes, self.requested_bytes, self.early.bytes) = (0, 0, 0);
    }

    /// Records that events were lost, so the next counters may differ from what is known.
    pub(super) fn lose(&mut self) {
        self.is_lossy = true;
        self.is_largest_known = false;
        self.early.is_known = false;
    }
}

/// Returns whether the counters after an event equal those before it plus the event. `ClearStats`
/// may have restarted the count and the peak in between.
fn follows(before: ArenaCounters, now: ArenaCounters, chunk: &ArenaChunkReport) -> bool {
    let granted = u64::from(chunk.is_grant);
    let in_use = if chunk.is_grant {
        before.bytes_in_use.checked_add(chunk.bytes)
    } else {
        before.bytes_in_use.checked_sub(chunk.bytes)
    };
    let peak_bytes = |before_bytes: u64| before_bytes.max(if chunk.is_grant { now.bytes_in_use } else { 0 });
    let is_counted_on = now.num_allocs == before.num_allocs.saturating_add(granted)
        && now.peak_bytes_in_use == peak_bytes(before.peak_bytes_in_use);
    let is_begun_again = now.num_allocs == granted && now.peak_bytes_in_use == peak_bytes(before.bytes_in_use);
    in_use == Some(now.bytes_in_use) && (is_counted_on || is_begun_again)
}
