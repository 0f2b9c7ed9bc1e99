//! Reads a thread-local variable as the code of a library does: by the `tls_index` that the code
//! passes to `__tls_get_addr` (ELF Handling For Thread-Local Storage, 3.4.2 and 3.4.6; glibc's
//! sysdeps/x86_64/dl-tls.h).

use memwatch_common::capture::{CaptureKernel, ThreadKey};

use crate::kernel::Bpf;
use crate::task::thread_pointer;
use crate::threads::notes;

/// Offset of the vector of blocks in the thread control block (glibc's sysdeps/x86_64/nptl/tls.h, `tcbhead_t`).
const VECTOR_OFFSET_BYTES: u64 = 8;
/// Size of a vector entry, `dtv_t`: the address of the block, and the pointer to free. The entry
/// before the first holds the length.
const ENTRY_BYTES: u64 = 16;
/// Marks a block that the thread has not accessed yet (glibc's `TLS_DTV_UNALLOCATED`).
const UNTOUCHED: u64 = u64::MAX;

/// Reads the word at an offset in the running thread's variable for this `tls_index`. Returns 0 if
/// the thread has not accessed the variable yet, which is right for zero-initialized variables.
/// Returns `None` if unreadable.
#[inline(always)]
pub(crate) fn word(thread: ThreadKey, index: u64, offset_bytes: u16) -> Option<u64> {
    let notes = notes(thread)?;
    if notes.variable[0] != index || index == 0 {
        let mut named = [0; 2];
        if !Bpf.read_words(index, &mut named) {
            return None;
        }
        let [module, within] = named;
        let vector = read(thread_pointer()?.wrapping_add(VECTOR_OFFSET_BYTES))?;
        if module > read(vector.wrapping_sub(ENTRY_BYTES))? {
            return Some(0);
        }
        let block = read(vector.wrapping_add(module.wrapping_mul(ENTRY_BYTES)))?;
        if block == UNTOUCHED {
            return Some(0);
        }
        // The address is constant for the life of the thread.
        notes.variable = [index, block.wrapping_add(within)];
    }
    read(notes.variable[1].wrapping_add(offset_bytes.into()))
}

#[inline(always)]
fn read(address: u64) -> Option<u64> {
    let mut word = [0; 1];
    Bpf.read_words(address, &mut word).then_some(word[0])
}
