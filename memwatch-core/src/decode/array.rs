//! Estimates the size of an array from its descriptor.

use memwatch_common::meaning::ArrayShape;
use memwatch_common::record::CallRecord;

use super::low_u32;

/// `CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING` (cuda.h): the array is created without
/// memory.
const WITHOUT_MEMORY: u32 = 0x40 | 0x80;

/// Returns the number of elements times the element size, from cuda.h's descriptors. The driver's
/// padding and tiling are not included.
pub(super) fn estimated_bytes(shape: ArrayShape, record: &CallRecord) -> u64 {
    let [width, height, third, fourth, fifth] = record.peek;
    let (depth, format_and_channels, flags) = match shape {
        ArrayShape::Flat => (1, third, 0),
        ArrayShape::Solid | ArrayShape::Mipmapped => (third, fourth, low_u32(fifth)),
    };
    if flags & WITHOUT_MEMORY != 0 {
        return 0;
    }
    let element_bits = element_bits(low_u32(format_and_channels), low_u32(format_and_channels >> 32));
    let bits = [height.max(1), depth.max(1), element_bits].iter().fold(width, |bits, n| bits.saturating_mul(*n));
    let level = bits.div_ceil(8);
    match shape {
        // Each further level is an eighth to a quarter as large as the previous one; a third more
        // in total is the usual bound.
        ArrayShape::Mipmapped if low_u32(record.args[2]) > 1 => level.saturating_add(level / 3),
        _ => level,
    }
}

/// Returns the bits of an array element, by `CUarray_format` (cuda.h). A block-compressed format
/// (BC1 to BC7) describes the whole element, any other format one channel; planar video formats
/// count as bytes.
fn element_bits(format: u32, channels: u32) -> u64 {
    let channels = u64::from(channels);
    match format {
        0x91 | 0x92 | 0x97 | 0x98 => 4,
        0x93..=0x96 | 0x99..=0x9e => 8,
        0x02 | 0x09 | 0x10 | 0xc3..=0xc5 | 0xc9..=0xcb => 16 * channels,
        0x03 | 0x0a | 0x20 => 32 * channels,
        _ => 8 * channels,
    }
}
