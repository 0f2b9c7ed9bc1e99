//! Where the garbage collector of CPython has its lists of objects: found in the interpreter by what such a list is, with no table of offsets.
//!
//! A generation is the head of a circular list, doubly linked, with a threshold and a count behind it: 24 bytes. Three follow one another, in 3.14 as
//! the young and the two old ones; the permanent one stands right behind them or after one word (Include/internal/pycore_gc.h, 3.9 to 3.14).

use super::layout::{TYPE, TYPE_FLAGS};
use crate::memory::{Memory, at};
use crate::pass::words_of;

/// Bytes of an interpreter in which the lists are looked for: at 7,424 in 3.13.
const SCANNED_BYTES: u64 = 32 << 10;
/// Words from one generation to the next.
const GENERATION_WORDS: usize = 3;
/// Words from the first generation to the permanent one: 3.14, and 3.9 to 3.13.
const PERMANENT_WORDS: [usize; 2] = [9, 10];
/// The collector keeps flags in the lowest bits of both links.
pub(super) const LINK: u64 = !3;
/// An object stands behind its links.
pub(super) const LINKS_BYTES: u32 = 16;
/// `Py_TPFLAGS_TYPE_SUBCLASS`.
const IS_CLASS: u64 = 1 << 31;

/// A head of a list.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Head {
    Empty,
    Full,
}

/// The addresses of the heads of all generations of an interpreter; `None` where none are found, as in a free-threaded build.
pub(super) fn generations(memory: &impl Memory, interpreter: u64) -> Option<Vec<u64>> {
    let words = readable_words(memory, interpreter);
    let address = |index: usize| interpreter + 8 * index as u64;
    let head = |index: usize| head_at(memory, &words, index, address(index));
    (0..words.len()).find_map(|index| {
        let heads = [head(index)?, head(index + GENERATION_WORDS)?, head(index + 2 * GENERATION_WORDS)?];
        let first = (0..3).find(|number| heads[*number] == Head::Full)?;
        let object = words[index + first * GENERATION_WORDS] & LINK;
        if !is_object(memory, at(object, LINKS_BYTES)?) {
            return None;
        }
        let permanent = PERMANENT_WORDS.into_iter().map(|behind| index + behind).find(|index| head(*index).is_some());
        let all = (0..3).map(|number| index + number * GENERATION_WORDS).chain(permanent);
        Some(all.map(address).collect())
    })
}

/// As much of the interpreter as is there.
fn readable_words(memory: &impl Memory, interpreter: u64) -> Vec<u64> {
    const PAGE_BYTES: u64 = 4096;
    let mut words = Vec::new();
    let mut at = interpreter;
    while at < interpreter.saturating_add(SCANNED_BYTES) {
        let Some(bytes) = memory.bytes(at, PAGE_BYTES - at % PAGE_BYTES, 4096) else { break };
        at += bytes.len() as u64;
        words.extend(words_of(&bytes));
    }
    words
}

fn head_at(memory: &impl Memory, words: &[u64], index: usize, address: u64) -> Option<Head> {
    let (next, previous) = (words.get(index)? & LINK, words.get(index + 1)? & LINK);
    if next == address && previous == address {
        return Some(Head::Empty);
    }
    let is_place = |link: u64| link % 8 == 0 && link >= 0x1_0000;
    if !is_place(next) || !is_place(previous) || next == address || previous == address {
        return None;
    }
    let is_linked = |node: u64, offset: u32| Some(memory.u64(at(node, offset)?)? & LINK == address);
    (is_linked(next, 8)? && is_linked(previous, 0)?).then_some(Head::Full)
}

/// Whether an object stands at an address: its class is one, and so is the class of that.
fn is_object(memory: &impl Memory, object: u64) -> bool {
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
