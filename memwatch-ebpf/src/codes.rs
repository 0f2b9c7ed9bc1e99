//! Python code objects known to user space. When a code object is freed, its address may be reused
//! by another.

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use memwatch_common::shares::SharedTable;

use crate::shares;

/// Key of a map: an address or a stack id, with its process.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct ProcessWord {
    pub(crate) word: u64,
    pub(crate) tgid: u64,
}

/// Code objects whose addresses were sent, each with the owner whose share it counts for.
#[map]
static KNOWN_CODE: HashMap<ProcessWord, u32> =
    HashMap::with_max_entries(SharedTable::Codes.entries(), BPF_F_NO_PREALLOC);

/// Whether this code object is in the table. Adds it if the share has space.
#[inline(always)]
pub(crate) fn list(code: &ProcessWord) -> bool {
    if KNOWN_CODE.get_ptr(code).is_some() {
        return true;
    }
    let Some(owner) = shares::take(SharedTable::Codes) else { return false };
    if KNOWN_CODE.insert(code, &owner, BPF_NOEXIST.into()).is_err() {
        // A racing thread may have inserted it first.
        shares::give(SharedTable::Codes, owner);
        return KNOWN_CODE.get_ptr(code).is_some();
    }
    true
}

/// Removes a code object. Returns whether it was in the table.
#[inline(always)]
pub(crate) fn unlist(code: &ProcessWord) -> bool {
    let Some(owner) = KNOWN_CODE.get_ptr(code) else { return false };
    // SAFETY: the value is copied at once; it is written once, by the insert.
    let owner = unsafe { *owner };
    let was_there = KNOWN_CODE.remove(code).is_ok();
    if was_there {
        shares::give(SharedTable::Codes, owner);
    }
    was_there
}
