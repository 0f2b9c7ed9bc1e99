//! A variable that each thread of a process has for itself, as the code of a library finds it: by the `tls_index` that it hands to
//! `__tls_get_addr` (ELF Handling For Thread-Local Storage, 3.4.2 and 3.4.6; glibc's sysdeps/x86_64/dl-tls.h).

use memwatch_common::capture::{Kernel, Thread};

use crate::kernel::Bpf;
use crate::task::thread_pointer;
use crate::threads::notes;

/// In the thread's control block (glibc's sysdeps/x86_64/nptl/tls.h, `tcbhead_t`): its vector of blocks.
const VECTOR_OFFSET_BYTES: u64 = 8;
/// An entry of the vector, `dtv_t`: where the block is, and what to free. The one before the first has the vector's length.
const ENTRY_BYTES: u64 = 16;
/// What stands for a block that the thread has not touched yet (glibc's `TLS_DTV_UNALLOCATED`).
const UNTOUCHED: u64 = u64::MAX;

/// The word at an offset into the running thread's variable that this `tls_index` names; 0 where the thread has not touched it yet, which only a
/// variable is whose beginning is 0. `None` where it cannot be read.
#[inline(always)]
pub(crate) fn word(thread: Thread, index: u64, offset_bytes: u16) -> Option<u64> {
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
        // It stays there as long as the thread lives.
        notes.variable = [index, block.wrapping_add(within)];
    }
    read(notes.variable[1].wrapping_add(offset_bytes.into()))
}

#[inline(always)]
fn read(address: u64) -> Option<u64> {
    let mut word = [0; 1];
    Bpf.read_words(address, &mut word).then_some(word[0])
}
