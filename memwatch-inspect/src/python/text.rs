//! Reads Python strings from another process's memory.

use super::layout::TextLayout;
use crate::memory::{MemoryAccess, at};

/// Maximum number of characters read: the length of the kernel's longest path.
const MOST_LETTERS: u64 = 4096;
/// Maximum plausible length. A longer object is not a string.
const LONGEST: u64 = 1 << 32;

/// `length` and `state` of `PyASCIIObject` (Include/cpython/unicodeobject.h).
const LENGTH: u32 = 16;
const STATE: u32 = 32;

/// Reads the string at an address, cut at 4,096 characters. Returns `None` if there is none, or if
/// it is not stored in one piece (legacy strings of C extensions).
///
/// Invalid characters, such as half a surrogate pair, are replaced.
pub fn text(memory: &impl MemoryAccess, layout: TextLayout, address: u64) -> Option<String> {
    let length = memory.u64(at(address, LENGTH)?)?;
    let state = memory.u32(at(address, STATE)?)?;
    let (width, is_compact, is_ascii) = (state >> 2 & 7, state & 1 << 5 != 0, state & 1 << 6 != 0);
    if !is_compact || length > LONGEST || is_ascii && width != 1 {
        return None;
    }
    let count = length.min(MOST_LETTERS);
    let start = at(address, if is_ascii { layout.ascii_bytes } else { layout.compact_bytes })?;
    let bytes = memory.bytes(start, count * u64::from(width), 4 * 4096)?;
    match width {
        1 => Some(bytes.iter().map(|byte| char::from(*byte)).collect()),
        2 => Some(bytes.as_chunks::<2>().0.iter().map(|unit| letter(u16::from_le_bytes(*unit).into())).collect()),
        4 => Some(bytes.as_chunks::<4>().0.iter().map(|unit| letter(u32::from_le_bytes(*unit))).collect()),
        _ => None,
    }
}

/// Returns whether the string at an address is this ASCII text. Of a longer or shorter string, only
/// the length is read.
pub fn is_text(memory: &impl MemoryAccess, layout: TextLayout, address: u64, expected: &str) -> bool {
    let length = at(address, LENGTH).and_then(|at| memory.u64(at));
    length == Some(expected.len() as u64) && text(memory, layout, address).as_deref() == Some(expected)
}

fn letter(unit: u32) -> char {
    char::from_u32(unit).unwrap_or(char::REPLACEMENT_CHARACTER)
}
