//! Reads Python integers from another process's memory.

use super::heap::Heap;
use super::layout::SIZE;
use crate::memory::{MemoryAccess, at};

/// Reads an integer of one 30-bit digit. From 3.12 on, the digit count is stored above three bits
/// with the sign (Include/cpython/longintrepr.h).
pub(super) fn number(heap: &Heap<'_, impl MemoryAccess>, object: u64) -> Option<i64> {
    const DIGITS: u32 = 24;
    let memory = heap.objects.memory;
    let size = memory.u64(at(object, SIZE)?)?;
    let digit = i64::from(memory.u32(at(object, DIGITS)?)?);
    if heap.objects.layout.text.ascii_bytes == 40 {
        return match (size >> 3, size & 3) {
            (_, 1) => Some(0),
            (1, 0) => Some(digit),
            (1, 2) => Some(-digit),
            _ => None,
        };
    }
    match size.cast_signed() {
        0 => Some(0),
        1 => Some(digit),
        -1 => Some(-digit),
        _ => None,
    }
}
