//! Walks the stack of an event in a global function.
//!
//! The verifier checks a global function (by its BTF linkage) once and on its own, from its
//! argument types alone, and not again for each path that calls it. With the walk inlined, Linux
//! 6.1 exceeded its limit of a million instructions.

use memwatch_common::capture::{CaptureKernel, ThreadKey};

use crate::kernel::Bpf;
use crate::native::{self, Grant};
use crate::python::{self, WalkResult, WalkedAllocation};

/// Walks the stack of the running thread at an allocation: Python frames, if sampled, and native frames.
#[inline(always)]
pub(crate) fn of_grant(time_ns: u64, bytes: u64) -> WalkResult {
    walked(time_ns, bytes, true)
}

/// Walks the Python stack of the running thread at any other event.
#[inline(always)]
pub(crate) fn of_event(time_ns: u64) -> WalkResult {
    walked(time_ns, 0, false)
}

#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "it was made of a byte")]
fn walked(time_ns: u64, bytes: u64, is_grant: bool) -> WalkResult {
    let mut flags = 0;
    // SAFETY: the flags outlive the call.
    let id = unsafe { mw_walk(time_ns, bytes, is_grant.into(), &raw mut flags) };
    WalkResult { id, flags: flags as u8 }
}

/// Walks the running thread's stack. Returns the id and writes the flags of [`WalkResult`] to the
/// pointer.
///
/// # Safety
/// The pointer is null or exclusive.
#[unsafe(no_mangle)]
#[inline(never)]
unsafe extern "C" fn mw_walk(time_ns: u64, bytes: u64, is_grant: u64, flags: *mut u64) -> u64 {
    // SAFETY: the caller's contract. The verifier requires the check for null.
    let Some(flags) = (unsafe { flags.as_mut() }) else { return 0 };
    let thread: ThreadKey = Bpf.thread();
    let walked = if is_grant == 0 {
        python::walk(thread, time_ns, None)
    } else {
        native::copy(Grant { thread, time_ns, bytes }, python::walk(thread, time_ns, Some(WalkedAllocation { bytes })))
    };
    *flags = walked.flags.into();
    walked.id
}
