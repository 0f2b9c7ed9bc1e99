//! Finds the allocator of each device, and checks its state.

use memwatch_common::tensor::{STATISTICS_OFFSET_BYTES, STATISTICS_WORDS};
use memwatch_core::allocators::pytorch::{AllocatorStatistics, statistics_of};

use super::calibration::heap_words;
use super::containers::{HashTable, trees_in};
use super::refusal::ReadRefusal;
use crate::memory::{MemoryAccess, at, words_of};
use crate::pass::Pass;

/// Bytes at the beginning of the allocator that are searched for the vector of devices.
const OBJECT_BYTES: usize = 256 << 10;
/// Words read at once.
const PIECE_WORDS: usize = 512;
/// Upper bound of a table's slots.
const MOST_SLOTS: u64 = 1 << 40;
/// Maximum number of devices.
const MOST_DEVICES: u64 = 64;
/// Bytes of a device's allocator that contain all its trees and tables.
const DEVICE_BYTES: usize = 4096;
/// Position of the statistics in words, behind the mutex.
pub(super) const STATISTICS_WORD: usize = (STATISTICS_OFFSET_BYTES / 8) as usize;
/// Minimum size of a device's allocator in words.
const LEAST_WORDS: usize = STATISTICS_WORD + STATISTICS_WORDS;
/// Minimum number of trees: one each in the large and the small pool of free blocks.
const LEAST_TREES: usize = 2;

/// Finds the devices' allocators: a `std::vector<std::unique_ptr<DeviceCachingAllocator>>` in the
/// object.
pub(super) fn find<M: MemoryAccess>(pass: &Pass<'_, M>, object: u64) -> Result<Vec<u64>, ReadRefusal> {
    let mut words = Vec::new();
    while words.len() * 8 < OBJECT_BYTES {
        let Some(piece) = pass.words(object.wrapping_add(8 * words.len() as u64), PIECE_WORDS) else { break };
        words.extend(piece);
    }
    let mut are_at_work = false;
    let found = words.array_windows::<3>().find_map(|[begin, end, room]| {
        let (devices, are_at_rest) = devices(pass, *begin, *end, *room)?;
        are_at_work |= !are_at_rest;
        are_at_rest.then_some(devices)
    });
    found.ok_or_else(|| match (are_at_work, has_granted_nothing(&words)) {
        (true, _) => ReadRefusal::Busy,
        (false, true) => ReadRefusal::NotInitialized,
        (false, false) => ReadRefusal::NotRecognized("the vector of devices was not found"),
    })
}

/// Returns whether the tables of allocated blocks exist and are empty. The object is created when
/// PyTorch is imported, the devices when CUDA is first used.
fn has_granted_nothing(words: &[u64]) -> bool {
    let tables = words.array_windows::<{ HashTable::WORDS }>().filter_map(|words| HashTable::of(words, MOST_SLOTS));
    let mut counts = tables.map(|table| table.count).peekable();
    counts.peek().is_some() && counts.all(|count| count == 0)
}

/// Returns the devices in a vector, and whether the statistics of all are consistent; `None` if it
/// is another vector, or none.
fn devices<M: MemoryAccess>(pass: &Pass<'_, M>, begin: u64, end: u64, room: u64) -> Option<(Vec<u64>, bool)> {
    let is_vector = begin != 0
        && [begin, end, room].iter().all(|word| word.is_multiple_of(8))
        && begin < end
        && end <= room
        && room - begin <= 2 * 8 * MOST_DEVICES
        && end - begin <= 8 * MOST_DEVICES;
    if !is_vector {
        return None;
    }
    let devices = pass.words(at(begin, 0)?, usize::try_from((end - begin) / 8).ok()?)?;
    let at_rest: Option<Vec<bool>> = devices.iter().map(|device| is_at_rest(pass, *device)).collect();
    Some((devices, at_rest?.into_iter().all(|is_at_rest| is_at_rest)))
}

/// Returns whether the statistics of a device's allocator are consistent, as they are while it is
/// idle; `None` if it is no allocator.
fn is_at_rest<M: MemoryAccess>(pass: &Pass<'_, M>, device: u64) -> Option<bool> {
    let device = at(device, 0).filter(|device| device.is_multiple_of(8))?;
    let words = pass.words(device, STATISTICS_WORD + STATISTICS_WORDS)?;
    let statistics = words.get(STATISTICS_WORD..).and_then(|words| words.first_chunk::<STATISTICS_WORDS>())?;
    let is_at_rest = statistics_of(statistics).is_some();
    let words = pass.words(device, DEVICE_BYTES / 8)?;
    (trees_in(pass, device, &words).len() >= LEAST_TREES).then_some(is_at_rest)
}

/// Returns the words of a device's allocator: up to the end of its heap chunk, or to the next
/// allocator, which may follow directly.
pub(super) fn words<M: MemoryAccess>(pass: &Pass<'_, M>, device: u64, all: &[u64]) -> Option<Vec<u64>> {
    let most = DEVICE_BYTES / 8;
    let by_heap = heap_words(pass, device).filter(|words| (LEAST_WORDS..most).contains(words)).unwrap_or(most);
    let next = all.iter().filter(|other| **other > device).min();
    let by_next = next.and_then(|next| usize::try_from((next - device) / 8).ok()).unwrap_or(most);
    pass.words(device, most.min(by_heap).min(by_next))
}

/// State of an allocator between two operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AllocatorMoment {
    /// Words from the start of its `DeviceStats`.
    pub(super) words: Box<[u64; STATISTICS_WORDS]>,
    /// Statistics decoded from the words.
    pub(super) statistics: AllocatorStatistics,
}

impl AllocatorMoment {
    /// Reads the current state. An allocator counts every operation, and performs it with its mutex
    /// locked.
    pub(super) fn read(memory: &impl MemoryAccess, device: u64) -> Result<Self, ReadRefusal> {
        let gone = ReadRefusal::Unreadable("an allocator");
        let bytes = memory.array::<{ 8 * (STATISTICS_WORD + STATISTICS_WORDS) }>(device).ok_or(gone)?;
        let words = words_of(&bytes);
        // The first word of `std::recursive_mutex` is 0 while it is unlocked (glibc's
        // `__pthread_mutex_s`).
        if words[0] & 0xffff_ffff != 0 {
            return Err(ReadRefusal::Busy);
        }
        let words: &[u64; STATISTICS_WORDS] = words[STATISTICS_WORD..].first_chunk().expect("so many were read");
        let statistics = statistics_of(words).ok_or(ReadRefusal::Busy)?;
        Ok(Self { words: Box::new(*words), statistics })
    }
}
