//! The program's memory: the system's, in large pages where much is asked for at once.
//!
//! The allocation map of millions of allocations are read in no order. In pages of 4 KiB a processor cannot keep in mind where they lie, and waits
//! for the page tables before each read; and each of the pages must be given by the kernel, one by one. Kernels give large pages at once
//! to who asks, if `/sys/kernel/mm/transparent_hugepage/enabled` is `madvise`, as most distributions have it, or `always` (madvise(2)).

use std::alloc::{GlobalAlloc, Layout, System};

/// From so many bytes on: those of about a million allocations. To make room for a large page the kernel may move small ones, of the watched
/// programs as well, and what is being moved cannot be read by a probe.
const LEAST_BYTES: usize = 32 << 20;

/// A large page of x86-64, and of aarch64 with a granule of 4 KiB.
const PAGE_BYTES: usize = 2 << 20;

/// The system's allocator, with large pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LargePages;

/// How memory of this layout is asked for: in whole pages, where it is much.
fn asked(layout: Layout) -> Layout {
    match layout.size() {
        ..LEAST_BYTES => layout,
        _ => layout.align_to(PAGE_BYTES).unwrap_or(layout),
    }
}

// SAFETY: every call is passed on to the system's allocator, with a layout that depends on nothing but the caller's and is at least as
// strict; advice about pages changes nothing in them.
unsafe impl GlobalAlloc for LargePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is the caller's, which is not zero.
        let pointer = unsafe { System.alloc(asked(layout)) };
        if layout.size() >= LEAST_BYTES && !pointer.is_null() {
            // Refused where the kernel has no large pages: small ones do as well.
            // SAFETY: the range has just been allocated, and begins with a page.
            let _ = unsafe { libc::madvise(pointer.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: what was allocated for the caller's layout was asked for by this one.
        unsafe { System.dealloc(pointer, asked(layout)) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() < LEAST_BYTES && size < LEAST_BYTES {
            // SAFETY: the pointer is the system's, of this layout; the rest is the caller's promise.
            return unsafe { System.realloc(pointer, layout, size) };
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        // SAFETY: the size is not zero, as the caller promises.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both have room for so many bytes, and are apart; the old one is given back once.
            unsafe {
                pointer.copy_to_nonoverlapping(moved, size.min(layout.size()));
                self.dealloc(pointer, layout);
            }
        }
        moved
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_small_stays_with_the_system() {
        let small = super::Layout::new::<[u64; 4]>();
        assert_eq!(super::asked(small), small);
    }

    #[test]
    fn a_list_keeps_what_is_in_it_as_it_grows_into_large_pages_and_out_of_them() {
        let words = super::LEAST_BYTES / 8;
        let mut list: Vec<usize> = (0..words - 1).collect();
        list.shrink_to_fit();
        list.extend(words - 1..3 * words);
        assert_eq!(list.as_ptr().addr() % super::PAGE_BYTES, 0);
        assert!(list.iter().copied().eq(0..3 * words));
        list.truncate(10);
        list.shrink_to_fit();
        assert!(list.iter().copied().eq(0..10));
    }

    #[test]
    fn zeroed_memory_is_zeroed() {
        assert!(vec![0_u64; super::LEAST_BYTES / 4].iter().all(|word| *word == 0));
    }
}
