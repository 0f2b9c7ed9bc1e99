//! Counters shared by several processors.

use core::intrinsics::{AtomicOrdering, atomic_xadd};

/// Adds to a counter atomically.
///
/// # Safety
/// `counter` is aligned to eight bytes and lives in a map.
#[inline(always)]
pub(crate) unsafe fn add(counter: *mut u64, more: u64) {
    // SAFETY: the caller's contract. The target has no compare-and-swap, so `AtomicU64::fetch_add`
    // does not exist for it; this intrinsic becomes the kernel's atomic add.
    unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(counter, more) };
}
