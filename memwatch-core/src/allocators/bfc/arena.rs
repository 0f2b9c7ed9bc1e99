//! One arena: the chunks that the program has of it, and what it counts itself.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::decode::{Chunk, ChunkGoes};
use crate::input::arenas::{ArenaBook, ArenaChunk, ArenaCounters};
use crate::words::{Framework, Name, Ordinal};

/// Where an arena's memory is: that of the driver's segment which holds its first chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Home {
    /// No chunk of it lay in memory that the driver was seen to grant.
    #[default]
    Unknown,
    /// In a device's.
    Device(Ordinal),
    /// In a device's by the arena's own name: the driver granted it before the watch.
    Named(Ordinal),
    /// In the host's: its chunks are no GPU's.
    Host,
}

impl Home {
    /// The device, if it is in one's memory.
    pub const fn ordinal(self) -> Option<Ordinal> {
        match self {
            Self::Device(ordinal) | Self::Named(ordinal) => Some(ordinal),
            Self::Unknown | Self::Host => None,
        }
    }
}

/// A chunk that the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    pub(super) bytes: u64,
    requested_bytes: u64,
    /// It came before the arena's first chunk for a stream.
    is_early: bool,
}

/// Chunks that came before an arena's first for a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Early {
    bytes: u64,
    /// There was one for a stream.
    is_over: bool,
    /// The arena was met with its first chunk, and no event is missing.
    is_known: bool,
}

/// A `tsl::BFCAllocator` of a process, or a `BFCArena` of ONNX Runtime.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Arena {
    pub(super) framework: Option<Framework>,
    pub(super) name: Option<Name>,
    pub(super) home: Home,
    counters: Option<ArenaCounters>,
    chunks: BTreeMap<u64, Held>,
    known_bytes: u64,
    requested_bytes: u64,
    /// The largest chunk that was seen; of all, where nothing is missing.
    largest_bytes: u64,
    is_largest_known: bool,
    early: Early,
    out_of_step: u64,
    is_lossy: bool,
    /// The latest of its events and readings.
    pub(super) time_ns: u64,
    /// When its own books were read last: what came before is in them.
    books_ns: u64,
}

impl Arena {
    /// First heard of with this event: nothing of it is missing where this is its first allocation.
    pub(super) fn met_with(chunk: &Chunk) -> Self {
        let is_first = chunk.counters.is_some_and(|now| chunk.is_grant && now.num_allocs == 1);
        Self {
            framework: Some(chunk.framework),
            is_largest_known: is_first,
            early: Early { is_known: is_first, ..Early::default() },
            ..Self::default()
        }
    }

    /// Whose it is; `None` where a recording does not say.
    pub const fn framework(&self) -> Option<Framework> {
        self.framework
    }

    /// Bytes that the program has had since before its first request for a stream: of ONNX Runtime the weights of its models, as far as they were loaded
    /// before the first run. `None` where such requests are not distinguished from others, or an earlier chunk was not seen.
    pub fn early_bytes(&self) -> Option<u64> {
        let is_known = self.framework == Some(Framework::OnnxRuntime) && self.early.is_known && self.is_exact();
        is_known.then_some(self.early.bytes)
    }

    /// What the framework calls it; `None` before its memory was read.
    pub const fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// Where its memory is.
    pub const fn home(&self) -> Home {
        self.home
    }

    /// What it counts itself, as of its last event or reading; `None` where this build does not show it.
    pub const fn counters(&self) -> Option<ArenaCounters> {
        self.counters
    }

    /// The sum of the chunks that are known one by one, in bytes.
    pub const fn known_bytes(&self) -> u64 {
        self.known_bytes
    }

    /// What the program asked for in those, in bytes.
    pub const fn requested_bytes(&self) -> u64 {
        self.requested_bytes
    }

    /// Its largest chunk so far, in bytes; `None` where an earlier one may have been larger.
    pub fn largest_bytes(&self) -> Option<u64> {
        self.is_largest_known.then_some(self.largest_bytes)
    }

    /// How often its own counters were not what its events add up to.
    pub const fn out_of_step(&self) -> u64 {
        self.out_of_step
    }

    /// Whether its counters are believed: none of them contradicted an event.
    pub const fn is_believed(&self) -> bool {
        self.counters.is_some() && self.out_of_step == 0
    }

    /// Whether its counters are believed, none of its events is missing, and all chunks behind the counters are known.
    pub fn is_exact(&self) -> bool {
        self.is_believed() && !self.is_lossy && self.counters.is_some_and(|now| now.bytes_in_use == self.known_bytes)
    }

    /// Whether an event is older than the books that were read last, which have it already; such a grant is still news where its chunk is there.
    pub(super) fn has_in_books(&self, time_ns: u64) -> bool {
        time_ns <= self.books_ns
    }

    /// Whether the program has this chunk.
    pub(super) fn holds(&self, chunk: &Chunk) -> bool {
        self.chunks.get(&chunk.address).is_some_and(|held| held.bytes == chunk.bytes)
    }

    /// Takes an event's counters and chunk; returns the bytes of what was freed, as they were granted.
    pub(super) fn apply(&mut self, chunk: &Chunk) -> Option<u64> {
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
            self.hold(chunk.address, Held { bytes: chunk.bytes, requested_bytes: chunk.requested_bytes, is_early });
            return None;
        }
        self.release(chunk.address)
    }

    /// What an event is that names a chunk by its address alone, where that chunk is known. Of another one the counters before are all that is learnt, and
    /// what it had is missing in them from now on.
    pub(super) fn going(&mut self, goes: &ChunkGoes) -> Option<Chunk> {
        let Some(held) = self.chunks.get(&goes.address) else {
            self.counters = goes.before.or(self.counters);
            (self.is_lossy, self.early.is_known) = (true, false);
            return None;
        };
        let after = |before: ArenaCounters| {
            let bytes_in_use = before.bytes_in_use.saturating_sub(held.bytes);
            ArenaCounters { bytes_in_use, ..before }
        };
        Some(Chunk {
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

    fn hold(&mut self, address: u64, held: Held) {
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

    /// Goes by its own books from now on; says which chunks no event had shown.
    pub(super) fn learn(&mut self, book: &ArenaBook, time_ns: u64) -> Vec<ArenaChunk> {
        self.name = Some(book.name.clone());
        self.framework = self.framework.or(book.framework);
        self.counters = Some(book.counters);
        self.largest_bytes = book.largest_alloc_bytes;
        self.is_largest_known = true;
        (self.time_ns, self.books_ns) = (time_ns, time_ns);
        if !book.is_whole() {
            return Vec::new();
        }
        let older = book.chunks.iter().filter(|chunk| !self.chunks.contains_key(&chunk.address)).copied().collect();
        let before = std::mem::take(&mut self.chunks);
        (self.known_bytes, self.requested_bytes, self.early.bytes) = (0, 0, 0);
        for chunk in &book.chunks {
            let is_early = before.get(&chunk.address).is_some_and(|held| held.is_early && held.bytes == chunk.bytes);
            self.hold(chunk.address, Held { bytes: chunk.bytes, requested_bytes: chunk.requested_bytes, is_early });
        }
        self.is_lossy = false;
        self.out_of_step = 0;
        older
    }

    /// Its chunks by address, in bytes.
    pub(super) fn chunks(&self) -> impl Iterator<Item = (u64, u64)> {
        self.chunks.iter().map(|(address, held)| (*address, held.bytes))
    }

    /// Whether a chunk of it begins in this range of addresses.
    pub(super) fn has_chunk_between(&self, begin: u64, end: u64) -> bool {
        self.chunks.range(begin..end).next().is_some()
    }

    /// Its chunks are no GPU's: they are not kept.
    pub(super) fn drop_chunks(&mut self) {
        self.chunks.clear();
        (self.known_bytes, self.requested_bytes, self.early.bytes) = (0, 0, 0);
    }

    /// Events did not arrive: the next one may differ from what is known.
    pub(super) fn lose(&mut self) {
        self.is_lossy = true;
        self.is_largest_known = false;
        self.early.is_known = false;
    }
}

/// Whether the counters after an event are those before it and the event; `ClearStats` may have begun the count and the peak again in between.
fn follows(before: ArenaCounters, now: ArenaCounters, chunk: &Chunk) -> bool {
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
