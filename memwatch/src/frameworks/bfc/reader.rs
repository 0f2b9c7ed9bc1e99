//! Reads the arenas' own state from a process's memory. Nothing is stopped, attached or written.
//!
//! An arena begins with the address of its class's vtable, for which the process's heap is searched
//! once. TensorFlow's arenas are of a class of their own and are found by their events only. A
//! reading counts only if the arena's counters are the same before and after it and its chunks add
//! up to them.

use std::io;

use memchr::memmem::Finder;
use memwatch_common::tensor::NODE_WORDS;
use memwatch_core::input::arenas::{ArenaChunk, ArenaCounters, ArenaReading, ArenaReadings};
use memwatch_core::words::{Framework, Name, Tgid};
use memwatch_inspect::memory::MemoryAccess;

use super::layout::{ArenaLayout, ChunkLayout};
use crate::printable::printable;
use crate::sources::address_space::AddressSpace;
use crate::sources::clock::boottime_ns;

/// Distance from the beginning of a vtable to the address that objects hold: the offset to the
/// whole object and the type come first (Itanium C++ ABI, 2.5.2).
const BEFORE_FUNCTIONS: u64 = 16;
/// Bytes of a heap that are searched at once, and in all.
const PIECE_BYTES: usize = 1 << 20;
const MOST_HEAP_BYTES: u64 = 4 << 30;
/// Limits of what is read. A process has a handful of arenas with short names, and a large program
/// some thousand chunks.
const MOST_ARENAS: usize = 64;
const MOST_NAME_BYTES: u64 = 64;
const MOST_CHUNKS: u64 = 1 << 20;
const MOST_REGIONS: u64 = 4096;
const MOST_RESERVED: usize = 1 << 16;
/// Offset of the first node in a map; the number of nodes follows (`std::unordered_map` of
/// libstdc++).
const FIRST_NODE_BYTES: u64 = 16;
/// Possible sizes of a region, of which the first three words are read: beginning, size and end.
const REGION_BYTES: [u64; 5] = [0x38, 0x30, 0x28, 0x40, 0x48];
/// Word of an `OrtDevice` for a GPU's own memory with NVIDIA as the vendor, and the 16 bits of the
/// device number (onnxruntime/core/framework/ortdevice.h, 1.31).
const OWN_MEMORY_OF_GPU: u64 = 0x10de_0000_0001;
const NUMBER_OF_DEVICE: u64 = 0xffff_0000;
/// Offsets in a chunk, the same in all three frameworks: size, requested size, number (-1 if the
/// chunk is free) and address.
const CHUNK_WORDS: [usize; 4] = [0, 8, 0x10, 0x18];

/// Reader of one process's arenas.
#[derive(Debug)]
pub(crate) struct ArenaReader {
    tgid: u32,
    framework: Framework,
    space: AddressSpace,
    layout: ArenaLayout,
    /// Vtable addresses as the process's objects hold them.
    tables: Vec<u64>,
}

impl ArenaReader {
    /// Opens the memory of a process whose framework has this arena layout. `is_library` checks
    /// whether a mapping's path is that of the framework's library.
    ///
    /// # Errors
    /// The process has exited or is not readable.
    pub(crate) fn open(
        tgid: u32,
        (framework, layout): (Framework, ArenaLayout),
        is_library: impl Fn(Framework, &[u8]) -> bool,
    ) -> io::Result<Self> {
        let space = AddressSpace::open(tgid)?;
        let mut of_library = space.mappings().iter().filter(|mapping| is_library(framework, &mapping.path));
        let base = of_library.find(|mapping| mapping.offset == 0).map(|mapping| mapping.start);
        let table = |table: u64| base?.checked_add(table)?.checked_add(BEFORE_FUNCTIONS);
        let tables = layout.tables.into_iter().flatten().filter_map(table).collect();
        Ok(Self { tgid, framework, space, layout, tables })
    }

    /// Searches the heap for arenas, for a program that created them before it was traced.
    pub(crate) fn search(&self) -> Vec<u64> {
        let words: Vec<[u8; 8]> = self.tables.iter().map(|table| table.to_le_bytes()).collect();
        let finders: Vec<Finder<'_>> = words.iter().map(Finder::new).collect();
        let mut found = Vec::new();
        for heap in self.space.mappings().iter().filter(|mapping| mapping.path == b"[heap]") {
            let end = heap.end.min(heap.start.saturating_add(MOST_HEAP_BYTES));
            let mut at = heap.start;
            while at < end && found.len() < MOST_ARENAS {
                let length = (PIECE_BYTES as u64).min(end - at);
                if let Some(piece) = self.space.bytes(at, length, PIECE_BYTES) {
                    // Pieces begin at page boundaries and objects at word boundaries, so no address
                    // is split.
                    let objects = finders.iter().flat_map(|finder| finder.find_iter(&piece));
                    let objects = objects.filter(|offset| offset % 8 == 0);
                    found.extend(objects.map(|offset| at + offset as u64));
                }
                at += length;
            }
        }
        found.truncate(MOST_ARENAS);
        found
    }

    /// Reads these arenas, except any that changed during the reading.
    pub(crate) fn read(&self, arenas: &[u64]) -> ArenaReadings {
        let began_ns = boottime_ns();
        let arenas = arenas.iter().filter_map(|arena| self.arena(*arena)).collect();
        ArenaReadings { tgid: Tgid(self.tgid), began_ns, time_ns: boottime_ns(), arenas }
    }

    fn arena(&self, allocator: u64) -> Option<ArenaReading> {
        let before = self.counters(allocator)?;
        let name = self.name(allocator)?;
        let parts = self.layout.chunks.and_then(|layout| self.chunks(allocator, layout));
        let (regions, chunks) = parts.unwrap_or_default();
        let after = self.counters(allocator)?;
        let (counters, largest_alloc_bytes) = before;
        (before == after).then(|| ArenaReading {
            allocator,
            framework: Some(self.framework),
            name,
            device: self.device(allocator),
            counters,
            largest_alloc_bytes,
            regions,
            chunks,
        })
    }

    fn counters(&self, allocator: u64) -> Option<(ArenaCounters, u64)> {
        let layout = self.layout.counters?;
        let at = allocator.checked_add(layout.offset_bytes.into())?;
        let last = layout.words.into_iter().max().unwrap_or(0);
        let words = self.space.words(at, usize::from(last) + 1)?;
        let [num_allocs, bytes_in_use, peak_bytes_in_use, largest] =
            layout.words.map(|word| words.get(usize::from(word)).copied());
        let (num_allocs, bytes_in_use) = (num_allocs?, bytes_in_use?);
        let (peak_bytes_in_use, largest) = (peak_bytes_in_use?, largest?);
        let is_possible = bytes_in_use <= peak_bytes_in_use && largest <= peak_bytes_in_use;
        is_possible.then_some((ArenaCounters { num_allocs, bytes_in_use, peak_bytes_in_use }, largest))
    }

    fn name(&self, allocator: u64) -> Option<Name> {
        let at = allocator.checked_add(u64::from(self.layout.name?))?;
        let [text, length] = self.space.words(at, 2)?.try_into().ok()?;
        let bytes = self.space.bytes(text, length, usize::try_from(MOST_NAME_BYTES).ok()?)?;
        let name = printable(&String::from_utf8_lossy(&bytes)).into_owned();
        (!name.is_empty()).then(|| name.into())
    }

    /// Returns the arena's device number, if the arena is in a GPU's memory.
    fn device(&self, allocator: u64) -> Option<i32> {
        let at = allocator.checked_add(self.layout.device?.into())?;
        let word = *self.space.words(at, 1)?.first()?;
        let is_gpus = word & !NUMBER_OF_DEVICE == OWN_MEMORY_OF_GPU;
        is_gpus.then(|| i32::try_from((word & NUMBER_OF_DEVICE) >> 16).ok()).flatten()
    }

    fn chunks(&self, allocator: u64, layout: ChunkLayout) -> Option<RegionsAndChunks> {
        let regions = self.vector(allocator, layout.regions, MOST_REGIONS << 6)?;
        let mut regions = REGION_BYTES.into_iter().find_map(|stride| regions_of(&regions, stride))?;
        let bytes = self.vector(allocator, layout.chunks, MOST_CHUNKS.checked_mul(u64::from(layout.stride))?)?;
        let stride = usize::try_from(layout.stride).ok()?;
        let chunks = bytes.chunks_exact(stride).filter_map(|chunk| {
            let [bytes, requested_bytes, number, address] = CHUNK_WORDS.map(|at| word(chunk, at));
            (number? != u64::MAX).then_some(ArenaChunk {
                address: address?,
                bytes: bytes?,
                requested_bytes: requested_bytes?,
            })
        });
        let lies_in = |chunk: &ArenaChunk| {
            let end = chunk.address.checked_add(chunk.bytes);
            regions.iter().any(|(start, bytes)| chunk.address >= *start && end.is_some_and(|end| end <= start + bytes))
        };
        // A chunk that was merged with its neighbour keeps its entry, without an address.
        let mut chunks: Vec<ArenaChunk> = chunks.filter(lies_in).collect();
        let reserved = self.layout.reserved.map_or(Some(Vec::new()), |map| self.reserved(allocator, map))?;
        regions.extend(reserved.iter().map(|chunk| (chunk.address, chunk.bytes)));
        chunks.extend(reserved);
        Some((regions, chunks))
    }

    /// Reads the arena's memory outside its regions: the nodes of a map, each with the address of
    /// the next.
    fn reserved(&self, allocator: u64, map: u32) -> Option<Vec<ArenaChunk>> {
        let at = allocator.checked_add(u64::from(map))?.checked_add(FIRST_NODE_BYTES)?;
        let [mut node, count] = self.space.words(at, 2)?.try_into().ok()?;
        let mut chunks = Vec::new();
        while node != 0 && chunks.len() < MOST_RESERVED {
            let [next, address, bytes] = self.space.words(node, NODE_WORDS)?.try_into().ok()?;
            chunks.push(ArenaChunk { address, bytes, requested_bytes: bytes });
            node = next;
        }
        (chunks.len() as u64 == count).then_some(chunks)
    }

    /// Reads the contents of a vector. Its beginning and end are two words of the object.
    fn vector(&self, allocator: u64, offset: u32, most_bytes: u64) -> Option<Vec<u8>> {
        let at = allocator.checked_add(u64::from(offset))?;
        let [begin, end] = self.space.words(at, 2)?.try_into().ok()?;
        self.space.bytes(begin, end.checked_sub(begin)?, usize::try_from(most_bytes).ok()?)
    }
}

/// Regions as address and size in bytes, and the chunks in them.
type RegionsAndChunks = (Vec<(u64, u64)>, Vec<ArenaChunk>);

/// Parses regions of this size; `None` unless each region's end equals its beginning plus its size.
fn regions_of(bytes: &[u8], stride: u64) -> Option<Vec<(u64, u64)>> {
    let stride = usize::try_from(stride).ok()?;
    let region = |element: &[u8]| {
        let [start, length, end] = [0, 8, 16].map(|at| word(element, at));
        let (start, length) = (start?, length?);
        (start != 0 && start.checked_add(length) == end).then_some((start, length))
    };
    let regions: Option<Vec<_>> = bytes.chunks_exact(stride).map(region).collect();
    regions.filter(|_| bytes.len().is_multiple_of(stride))
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::regions_of;

    fn bytes_of(words: &[u64]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    #[test]
    fn the_size_of_a_region_is_the_one_at_which_all_of_them_are_whole() {
        let two = bytes_of(&[0x1000, 0x100, 0x1100, 7, 8, 9, 10, 0x2000, 0x200, 0x2200, 7, 8, 9, 10]);
        assert_eq!(regions_of(&two, 0x38), Some(vec![(0x1000, 0x100), (0x2000, 0x200)]));
        assert_eq!(regions_of(&two, 0x30), None);
        assert_eq!(regions_of(&two[..0x40], 0x38), None, "none is cut");
        assert_eq!(regions_of(&[], 0x38), Some(Vec::new()));
    }
}
