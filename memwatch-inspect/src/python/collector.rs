//! Finds the object lists of CPython's garbage collector in the interpreter by their structure,
//! without a table of offsets.
//!
//! A generation is the head of a circular, doubly linked list, followed by a threshold and a count:
//! 24 bytes. There are three in a row, in 3.14 the young and the two old ones. The permanent
//! generation follows directly or after a pointer (Include/internal/pycore_gc.h, 3.9 to 3.14).

use std::collections::HashSet;

use foldhash::fast::FixedState;

use super::layout::{TYPE, TYPE_FLAGS};
use crate::memory::{MemoryAccess, at};

/// Bytes of an interpreter that are searched. In 3.13 the lists are at offset 7,424.
const SCANNED_BYTES: u64 = 32 << 10;
/// Alignment of the searched offsets. In 3.13.5 of Debian 13, generations are aligned to 4 bytes.
const STEP: usize = 4;
/// Distance in bytes from one generation to the next.
const GENERATION_BYTES: usize = 24;
/// Distance in bytes from the first generation to the permanent one: in 3.14; in 3.9 to 3.13; and
/// in the latter if the first is not aligned to 8 bytes.
const PERMANENT_BYTES: [usize; 3] = [72, 80, 84];
/// Maximum number of interpreters of a process.
pub(super) const MOST_INTERPRETERS: usize = 64;
/// Mask for links: the collector stores flags in the lowest bits of both.
pub(super) const LINK: u64 = !3;
/// Size of the links that precede an object.
pub(super) const LINKS_BYTES: u32 = 16;
/// `Py_TPFLAGS_TYPE_SUBCLASS`.
const IS_CLASS: u64 = 1 << 31;

/// State of a list head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListHead {
    Empty,
    /// Both ends of the list link back to the head.
    Full,
    /// Only one end links back: the program is adding a young object, or the collector is counting
    /// references in the links.
    Moving,
}

/// Returns the addresses of all generation heads of an interpreter; `None` if there are none, as in
/// a free-threaded build.
pub(super) fn generations(memory: &impl MemoryAccess, interpreter: u64) -> Option<Vec<u64>> {
    let bytes = readable_bytes(memory, interpreter);
    let address = |offset: usize| interpreter + offset as u64;
    let head = |offset: usize| head_at(memory, &bytes, offset, address(offset));
    (0..bytes.len()).step_by(STEP).find_map(|offset| {
        let heads = [head(offset)?, head(offset + GENERATION_BYTES)?, head(offset + 2 * GENERATION_BYTES)?];
        // While the oldest generation is collected, the young are merged into it, and references
        // are counted in one of each object's links.
        let is_collecting = heads == [ListHead::Empty, ListHead::Empty, ListHead::Moving];
        let first = (0..3).find(|number| heads[*number] == ListHead::Full).or(is_collecting.then_some(2))?;
        let object = word(&bytes, offset + first * GENERATION_BYTES)? & LINK;
        if !is_object(memory, at(object, LINKS_BYTES)?) {
            return None;
        }
        let permanent =
            PERMANENT_BYTES.into_iter().map(|behind| offset + behind).find(|offset| head(*offset).is_some());
        let all = (0..3).map(|number| offset + number * GENERATION_BYTES).chain(permanent);
        Some(all.map(address).collect())
    })
}

/// Reads the mapped part of the interpreter.
fn readable_bytes(memory: &impl MemoryAccess, interpreter: u64) -> Vec<u8> {
    const PAGE_BYTES: u64 = 4096;
    let mut bytes = Vec::new();
    let mut at = interpreter;
    while at < interpreter.saturating_add(SCANNED_BYTES) {
        let Some(piece) = memory.bytes(at, PAGE_BYTES - at % PAGE_BYTES, 4096) else { break };
        at += piece.len() as u64;
        bytes.extend(piece);
    }
    bytes
}

fn word(bytes: &[u8], offset: usize) -> Option<u64> {
    bytes.get(offset..)?.first_chunk().map(|word| u64::from_le_bytes(*word))
}

fn head_at(memory: &impl MemoryAccess, bytes: &[u8], offset: usize, address: u64) -> Option<ListHead> {
    let (next, previous) = (word(bytes, offset)? & LINK, word(bytes, offset + 8)? & LINK);
    if next == address && previous == address {
        return Some(ListHead::Empty);
    }
    let is_place = |link: u64| link.is_multiple_of(8) && link >= 0x1_0000;
    if !is_place(next) || !is_place(previous) || next == address || previous == address {
        return None;
    }
    let is_linked = |node: u64, offset: u32| Some(memory.u64(at(node, offset)?)? & LINK == address);
    match (is_linked(next, 8), is_linked(previous, 0)) {
        (Some(true), Some(true)) => Some(ListHead::Full),
        (Some(true), _) | (_, Some(true)) => Some(ListHead::Moving),
        _ => None,
    }
}

/// Returns whether there is an object at an address: its class is an object, and the class of that
/// is a metaclass.
fn is_object(memory: &impl MemoryAccess, object: u64) -> bool {
    let class = |object: u64| {
        let class = memory.u64(at(object, TYPE)?)?;
        (memory.u64(at(class, TYPE)?).is_some()).then_some(class)
    };
    let is_class = |class: u64| Some(memory.u64(at(class, TYPE_FLAGS)?)? & IS_CLASS != 0);
    let checked = || {
        let own = class(object)?;
        is_class(class(own)?)
    };
    checked() == Some(true)
}

/// Follows a list of addresses linked at `next`, until its end, an unreadable node or a repetition.
pub(super) fn list(memory: &impl MemoryAccess, first: u64, next: u32, most: usize) -> Vec<u64> {
    let mut found = Vec::new();
    let mut seen = HashSet::with_hasher(FixedState::default());
    let mut address = first;
    while address != 0 && found.len() < most && seen.insert(address) {
        let Some(behind) = at(address, next).and_then(|at| memory.u64(at)) else { break };
        found.push(address);
        address = behind;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    const INTERPRETER: u64 = 0x10_0000;
    const GENERATIONS: u64 = INTERPRETER + 0x100;

    /// Words by address. All other words of the interpreter's pages are 0.
    struct Words(HashMap<u64, u64>);

    impl MemoryAccess for Words {
        fn fill(&self, address: u64, into: &mut [u8]) -> bool {
            for (byte, at) in into.iter_mut().zip(address..) {
                let word = self.0.get(&(at & !7)).copied();
                let is_interpreter = (INTERPRETER..INTERPRETER + SCANNED_BYTES).contains(&at);
                let Some(word) = word.or_else(|| is_interpreter.then_some(0)) else { return false };
                *byte = word.to_le_bytes()[usize::try_from(at & 7).unwrap()];
            }
            true
        }
    }

    /// An interpreter with two objects in each generation. Those of generation `number` are at
    /// `0x20_0000 * (number + 1)`.
    fn interpreter() -> Words {
        let (class, metaclass) = (0x1_0000_u64, 0x1_1000);
        let mut words = HashMap::from([(class + 8, metaclass), (metaclass + 8, metaclass)]);
        words.insert(metaclass + u64::from(TYPE_FLAGS), IS_CLASS);
        for number in 0..3 {
            let head = GENERATIONS + number * GENERATION_BYTES as u64;
            let (first, last) = (0x20_0000 * (number + 1), 0x20_0000 * (number + 1) + 0x1000);
            words.extend([(head, first), (head + 8, last)]);
            words.extend([(first, last), (first + 8, head), (last, head), (last + 8, first)]);
            words.extend([(first + 16, 1), (first + 24, class), (last + 16, 1), (last + 24, class)]);
        }
        Words(words)
    }

    fn heads() -> Vec<u64> {
        (0..3).map(|number| GENERATIONS + number * GENERATION_BYTES as u64).collect()
    }

    #[test]
    fn gc_generations_are_found_by_their_list_shape() {
        assert_eq!(generations(&interpreter(), INTERPRETER), Some(heads()));
    }

    #[test]
    fn gc_generations_are_found_while_an_object_is_being_added() {
        let mut moving = interpreter();
        // The object that the head considers last already has a successor.
        moving.0.insert(0x20_1000, 0x20_2000);
        assert_eq!(generations(&moving, INTERPRETER), Some(heads()));
    }

    #[test]
    fn gc_generations_are_found_while_the_collector_counts_references() {
        let mut counting = interpreter();
        for number in 0..2 {
            counting.0.insert(0x20_0000 * (number + 1) + 8, 4);
        }
        assert_eq!(generations(&counting, INTERPRETER), Some(heads()));
    }

    #[test]
    fn generations_are_found_while_all_objects_are_collected() {
        let mut collecting = interpreter();
        for number in 0..2 {
            let head = GENERATIONS + number * GENERATION_BYTES as u64;
            collecting.0.extend([(head, head), (head + 8, head)]);
        }
        collecting.0.insert(0x60_0008, 4);
        assert_eq!(generations(&collecting, INTERPRETER), Some(heads()));
    }

    #[test]
    fn a_list_that_comes_back_to_itself_ends_there() {
        let circle = Words(HashMap::from([(0x10_0008, 0x20_0000), (0x20_0008, 0x30_0000), (0x30_0008, 0x20_0000)]));
        assert_eq!(list(&circle, 0x10_0000, 8, 4096), [0x10_0000, 0x20_0000, 0x30_0000]);
        assert_eq!(list(&circle, 0x10_0000, 8, 2), [0x10_0000, 0x20_0000]);
    }

    #[test]
    fn gc_generations_with_broken_links_are_rejected() {
        let mut broken = interpreter();
        broken.0.insert(0x20_1000, 0x20_2000);
        broken.0.insert(0x20_0008, 4);
        assert_eq!(generations(&broken, INTERPRETER), None);
    }
}
