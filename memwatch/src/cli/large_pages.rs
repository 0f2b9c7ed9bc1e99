//! Global allocator: the system's allocator, with large pages for large allocations.
//!
//! The allocation maps of millions of allocations are accessed at random. With 4 KiB pages, the TLB
//! does not cover them, so each access waits for the page tables, and the kernel has to provide
//! every page separately. The kernel provides large pages on request if
//! `/sys/kernel/mm/transparent_hugepage/enabled` is `madvise`, the default of most distributions,
//! or `always` (madvise(2)).

use std::alloc::{GlobalAlloc, Layout, System};

/// Minimum size for large pages: the maps of about a million allocations. To make room for a large
/// page, the kernel may migrate small pages, including those of traced programs, and probes cannot
/// read a page during migration.
const LEAST_BYTES: usize = 32 << 20;

/// Size of a large page on x86-64, and on aarch64 with a granule of 4 KiB.
const PAGE_BYTES: usize = 2 << 20;

/// The system's allocator with large pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LargePages;

/// Returns the layout to request from the system. Large allocations are aligned to large pages.
fn asked(layout: Layout) -> Layout {
    match layout.size() {
        ..LEAST_BYTES => layout,
        _ => layout.align_to(PAGE_BYTES).unwrap_or(layout),
    }
}

// SAFETY: every call is forwarded to the system's allocator. The forwarded layout depends only on
// the caller's and is at least as strict. Advice on pages does not change their contents.
unsafe impl GlobalAlloc for LargePages {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is the caller's, which is not zero.
        let pointer = unsafe { System.alloc(asked(layout)) };
        if layout.size() >= LEAST_BYTES && !pointer.is_null() {
            // If the kernel has no large pages, the call fails and small pages are used.
            // SAFETY: the range has just been allocated and is page-aligned.
            let _ = unsafe { libc::madvise(pointer.cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        pointer
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `alloc` requested this layout for the same caller's layout.
        unsafe { System.dealloc(pointer, asked(layout)) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.size() < LEAST_BYTES && size < LEAST_BYTES {
            // SAFETY: the system allocated the pointer with this layout; the caller guarantees the
            // rest.
            return unsafe { System.realloc(pointer, layout, size) };
        }
        let Ok(wanted) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        // SAFETY: the size is not zero, as the caller guarantees.
        let moved = unsafe { self.alloc(wanted) };
        if !moved.is_null() {
            // SAFETY: both ranges have room for the copied bytes and do not overlap; the old one is
            // freed once.
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
    fn large_page_allocator_leaves_small_allocations_to_the_system() {
        let small = super::Layout::new::<[u64; 4]>();
        assert_eq!(super::asked(small), small);
    }

    #[test]
    fn large_page_list_keeps_its_elements_as_it_grows_and_shrinks() {
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
