//! Reads Python integers from another process's memory.

use super::heap::Heap;
use super::layout::{CpythonLayout, SIZE};
use crate::memory::{MemoryAccess, at};

/// Offset of the digits, of 30 bits each (Include/cpython/longintrepr.h).
const DIGITS: u32 = 24;
/// Maximum number of digits read. Three have more than 64 bits.
const MOST_DIGITS: u64 = 3;

/// Reads an integer of one digit.
pub(super) fn number(heap: &Heap<'_, impl MemoryAccess>, object: u64) -> Option<i64> {
    integer(heap.objects.memory, heap.objects.layout, object)
}

/// Reads the integer at an address; `None` if it has more than 64 bits. The caller has checked that
/// the object is an integer.
pub fn integer(memory: &impl MemoryAccess, layout: &CpythonLayout, object: u64) -> Option<i64> {
    let size = memory.u64(at(object, SIZE)?)?;
    // From 3.12 on, the number of digits is above three bits, the lowest two of which are the sign:
    // 0 is positive, 1 is zero and 2 is negative.
    let (digits, is_negative) = if layout.text.ascii_bytes == 40 {
        match size & 3 {
            0 => (size >> 3, false),
            1 => return Some(0),
            2 => (size >> 3, true),
            _ => return None,
        }
    } else {
        (size.cast_signed().unsigned_abs(), size.cast_signed() < 0)
    };
    if digits > MOST_DIGITS {
        return None;
    }
    let mut value = 0i128;
    for index in (0..u32::try_from(digits).ok()?).rev() {
        value = value << 30 | i128::from(memory.u32(at(object, DIGITS + 4 * index)?)? & 0x3fff_ffff);
    }
    i64::try_from(if is_negative { -value } else { value }).ok()
}
