//! The allocator of each device: where they are, and at which moment they stand.

use memwatch_common::tensor::{STATISTICS_OFFSET_BYTES, STATISTICS_WORDS};
use memwatch_core::allocators::pytorch::{Statistics, statistics_of};

use super::calibration::heap_words;
use super::containers::{HashTable, trees_in};
use super::refusal::Refusal;
use crate::memory::{Memory, at, words_of};
use crate::pass::Pass;

/// The vector of devices lies within so many bytes from the allocator's beginning.
const OBJECT_BYTES: usize = 256 << 10;
/// Words of it that are looked at in one piece.
const PIECE_WORDS: usize = 512;
/// No table has more slots.
const MOST_SLOTS: u64 = 1 << 40;
/// No machine has more devices.
const MOST_DEVICES: u64 = 64;
/// Of a device's allocator, as many bytes hold all its trees and tables.
const DEVICE_BYTES: usize = 4096;
/// Where its numbers begin, in words: behind the mutex.
pub(super) const STATISTICS_WORD: usize = (STATISTICS_OFFSET_BYTES / 8) as usize;
/// It has this many words at least.
const LEAST_WORDS: usize = STATISTICS_WORD + STATISTICS_WORDS;
/// The large and the small pool of free blocks have a tree each at least.
const LEAST_TREES: usize = 2;

/// The devices' allocators: `std::vector<std::unique_ptr<DeviceCachingAllocator>>`, somewhere in the object.
pub(super) fn find<M: Memory>(pass: &Pass<'_, M>, object: u64) -> Result<Vec<u64>, Refusal> {
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
        (true, _) => Refusal::Busy,
        (false, true) => Refusal::NotInitialized,
        (false, false) => Refusal::NotRecognized("the vector of devices is not found"),
    })
}

/// Whether the tables of granted blocks are there and empty: the object is made when PyTorch is imported, and devices when CUDA is first used.
fn has_granted_nothing(words: &[u64]) -> bool {
    let tables = words.array_windows::<{ HashTable::WORDS }>().filter_map(|words| HashTable::of(words, MOST_SLOTS));
    let mut counts = tables.map(|table| table.count).peekable();
    counts.peek().is_some() && counts.all(|count| count == 0)
}

/// The devices of a vector, and whether the numbers of all agree with each other; `None` where it is another vector, or none.
fn devices<M: Memory>(pass: &Pass<'_, M>, begin: u64, end: u64, room: u64) -> Option<(Vec<u64>, bool)> {
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

/// Whether the numbers of a device's allocator agree with each other, as they do while it is not at work; `None` where it is none.
fn is_at_rest<M: Memory>(pass: &Pass<'_, M>, device: u64) -> Option<bool> {
    let device = at(device, 0).filter(|device| device.is_multiple_of(8))?;
    let words = pass.words(device, STATISTICS_WORD + STATISTICS_WORDS)?;
    let statistics = words.get(STATISTICS_WORD..).and_then(|words| words.first_chunk::<STATISTICS_WORDS>())?;
    let is_at_rest = statistics_of(statistics).is_some();
    let words = pass.words(device, DEVICE_BYTES / 8)?;
    (trees_in(pass, device, &words).len() >= LEAST_TREES).then_some(is_at_rest)
}

/// Words of one device's allocator: no more than its piece of the heap has, or than there are up to the next one's, which may lie right behind it.
pub(super) fn words<M: Memory>(pass: &Pass<'_, M>, device: u64, all: &[u64]) -> Option<Vec<u64>> {
    let most = DEVICE_BYTES / 8;
    let by_heap = heap_words(pass, device).filter(|words| (LEAST_WORDS..most).contains(words)).unwrap_or(most);
    let next = all.iter().filter(|other| **other > device).min();
    let by_next = next.and_then(|next| usize::try_from((next - device) / 8).ok()).unwrap_or(most);
    pass.words(device, most.min(by_heap).min(by_next))
}

/// Where an allocator stands: between which of its doings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Moment {
    /// The words of its `DeviceStats` and behind.
    pub(super) words: Box<[u64; STATISTICS_WORDS]>,
    /// The numbers among them.
    pub(super) statistics: Statistics,
}

impl Moment {
    /// The moment now. Everything that an allocator does, it does with its mutex locked and counts.
    pub(super) fn read(memory: &impl Memory, device: u64) -> Result<Self, Refusal> {
        let gone = Refusal::Unreadable("an allocator");
        let bytes = memory.array::<{ 8 * (STATISTICS_WORD + STATISTICS_WORDS) }>(device).ok_or(gone)?;
        let words = words_of(&bytes);
        // `std::recursive_mutex` begins with a word that is 0 while nobody has it (glibc's `__pthread_mutex_s`).
        if words[0] & 0xffff_ffff != 0 {
            return Err(Refusal::Busy);
        }
        let words: &[u64; STATISTICS_WORDS] = words[STATISTICS_WORD..].first_chunk().expect("so many were read");
        let statistics = statistics_of(words).ok_or(Refusal::Busy)?;
        Ok(Self { words: Box::new(*words), statistics })
    }
}
