//! Prefetch instruction.

/// Starts to fetch the cache line in which `item` begins, without waiting for it.
///
/// A hint: it changes nothing, and does nothing on processors without an implementation here.
#[inline(always)]
pub(super) fn prefetch<T>(item: Option<&T>) {
    let address = item.map_or(std::ptr::null(), std::ptr::from_ref);
    fetch(address.cast());
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(unsafe_code, reason = "`core::hint::prefetch_read` is not stable yet")]
fn fetch(address: *const i8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: every x86-64 processor has the instruction. It loads no value and faults at no
    // address.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address) }
}

#[cfg(target_arch = "aarch64")]
#[inline(always)]
#[expect(unsafe_code, reason = "`core::hint::prefetch_read` is not stable yet")]
fn fetch(address: *const i8) {
    // SAFETY: the instruction loads no value and faults at no address (Arm ARM, PRFM).
    unsafe { std::arch::asm!("prfm pldl1keep, [{}]", in(reg) address, options(nostack, readonly, preserves_flags)) }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn fetch(_: *const i8) {}
