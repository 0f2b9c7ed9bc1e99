//! Copies the prefixes of Python frames, a page at a time where frames are adjacent.

use core::ffi::c_void;

use aya_ebpf::helpers::generated::bpf_probe_read_user;

use crate::threads::{COPIED_WORDS, FRAME_BYTES, Notes, PAGE_BYTES, WINDOW_BYTES, WINDOW_WORDS};

/// Maximum distance of frames that probably share a data stack chunk.
const NEAR_BYTES: u64 = 16 << 10;

/// Copies the prefix of a frame. Returns its word offset in the thread state, or `None` if
/// unreadable.
///
/// Copying a page costs hardly more than copying a word, and calls within Python place their frames
/// adjacently, outer frames first (CPython's data stack, 3.11 and later). So for a frame close to
/// the previous one, the page before it is copied as well.
#[inline(always)]
pub(crate) fn copy(notes: &mut Notes, frame: u64, frame_bytes: u32) -> Option<u32> {
    let bytes = if frame_bytes > FRAME_BYTES { FRAME_BYTES } else { frame_bytes };
    let within = frame.wrapping_sub(notes.window_start);
    #[expect(clippy::cast_possible_truncation, reason = "less than the window's length")]
    if within.wrapping_add(bytes.into()) <= notes.window_bytes
        && within < notes.window_bytes
        && within.is_multiple_of(8)
    {
        return Some((within / 8) as u32);
    }
    // The first frame counts as close, since `alone` is set to it.
    if notes.alone.wrapping_sub(frame) < NEAR_BYTES && frame.is_multiple_of(8) {
        let end = frame.wrapping_add(bytes.into());
        let start = end.wrapping_sub(WINDOW_BYTES.into()) & !7;
        let first = if notes.first_page <= frame && notes.first_page > start { notes.first_page } else { start };
        if let Some(at) = copy_window(notes, first, frame, end) {
            return Some(at);
        }
        // There are no frames before a page whose predecessor is unmapped.
        notes.first_page = frame & !u64::from(PAGE_BYTES - 1);
        if let Some(at) = copy_window(notes, notes.first_page, frame, end) {
            return Some(at);
        }
    }
    notes.alone = frame;
    // SAFETY: the destination is behind the window, with space for a frame.
    let to = unsafe { notes.copied.as_mut_ptr().add(WINDOW_WORDS) };
    // SAFETY: the helper writes at most the size of a frame, and checks the user address itself.
    let failed = unsafe { bpf_probe_read_user(to.cast::<c_void>(), bytes, frame as *const c_void) };
    #[expect(clippy::cast_possible_truncation, reason = "about five hundred")]
    (failed == 0).then_some(WINDOW_WORDS as u32)
}

/// Copies from `start` to `end`. Returns the position of the frame in the copy.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "less than the window's length")]
fn copy_window(notes: &mut Notes, start: u64, frame: u64, end: u64) -> Option<u32> {
    let bytes = end.wrapping_sub(start) as u32;
    let bytes = if bytes > WINDOW_BYTES { WINDOW_BYTES } else { bytes };
    // SAFETY: as in `copy`.
    let failed =
        unsafe { bpf_probe_read_user(notes.copied.as_mut_ptr().cast::<c_void>(), bytes, start as *const c_void) };
    if failed != 0 {
        notes.window_bytes = 0;
        return None;
    }
    notes.window_start = start;
    notes.window_bytes = bytes.into();
    Some((frame.wrapping_sub(start) / 8) as u32)
}

/// Returns the word at this offset (a multiple of eight) in the copied frame.
#[inline(always)]
pub(crate) fn word(notes: &Notes, at: u32, offset_bytes: u32) -> u64 {
    let index = at.wrapping_add(offset_bytes / 8) as usize;
    if index < COPIED_WORDS { notes.copied[index] } else { 0 }
}

/// Returns the byte at this offset in the copied frame.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the byte that is wanted was shifted down")]
pub(crate) fn byte(notes: &Notes, at: u32, offset_bytes: u32) -> u8 {
    (word(notes, at, offset_bytes) >> (offset_bytes % 8 * 8)) as u8
}
