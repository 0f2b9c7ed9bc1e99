//! Stack copies of the running thread for unwinding native frames in user space. Each Python stack
//! is copied at its first allocation. A thread without Python gets as many copies as the budget of
//! its process allows.

use core::ffi::c_void;

use aya_ebpf::bindings::{BPF_ANY, BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::helpers::generated::bpf_probe_read_user;
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap};
use memwatch_common::capture::ThreadKey;
use memwatch_common::native::{
    COPY_BYTES, CopyState, FLAG_AGAIN, FLAG_WITHOUT_PYTHON, NativeRecord, PIECE_BYTES, WINDOW_COPIES, WINDOW_NS,
};
use memwatch_common::record::RecordKind;
use memwatch_common::shares::SharedTable;
use memwatch_common::tensor::{FLAG_BY_DRAW, FLAG_COPY_LOST, FLAG_COPY_OVER_BUDGET, FLAG_NO_PYTHON};

use crate::codes::ProcessWord;
use crate::counter::add;
use crate::kernel::Bpf;
use crate::python::{WalkResult, mix};
use crate::shares;
use crate::task::{ProbedReturn, kept_at_probe, stack_pointer_at_probe};
use crate::threads::{SENT, notes};

/// Processes whose native frames are requested.
#[map]
static COPIES: HashMap<u32, CopyState> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Copy budgets of processes that have allocated through the kernel driver. Their stacks are copied
/// at such requests, with a separate budget.
#[map]
static RM_COPIES: HashMap<u32, CopyState> =
    HashMap::with_max_entries(SharedTable::RequestCopies.entries(), BPF_F_NO_PREALLOC);

/// Python stacks already copied. A stack that was evicted from this map is copied again.
#[map]
static COPIED_STACKS: LruHashMap<ProcessWord, u8> = LruHashMap::with_max_entries(32_768, 0);

/// Size in bytes from which the stack of every allocation is copied; 0 for none.
#[map]
static LARGE_BYTES: Array<u64> = Array::with_max_entries(1, 0);

/// Maximum number of nested calls with return probes that are undone in a copy.
const MOST_RETURNS: usize = 4;

/// An allocation whose stack may be copied.
#[derive(Clone, Copy)]
pub(crate) struct Grant {
    pub(crate) thread: ThreadKey,
    pub(crate) time_ns: u64,
    pub(crate) bytes: u64,
}

impl Grant {
    #[inline(always)]
    fn is_large(self) -> bool {
        LARGE_BYTES.get(0).is_some_and(|least| *least != 0 && self.bytes >= *least)
    }
}

/// Copies the stack if due, and completes the result of the walk. A thread without Python gets the
/// number of the copy.
#[inline(always)]
pub(crate) fn copy(grant: Grant, walked: WalkResult) -> WalkResult {
    if walked.id != 0 {
        let lost = copy_once(grant, walked.id);
        return WalkResult { flags: if lost { walked.flags | FLAG_COPY_LOST } else { walked.flags }, ..walked };
    }
    let by_draw = walked.flags & FLAG_BY_DRAW;
    // A stack that was not sampled has no other flag.
    if walked.flags == FLAG_BY_DRAW || walked.flags & !(FLAG_NO_PYTHON | FLAG_BY_DRAW) != 0 {
        return walked;
    }
    let (id, flags) = match copy_alone(COPIES.get_ptr_mut(&grant.thread.tgid), grant) {
        Alone::Unwanted => return walked,
        Alone::Copied(id) => (id, 0),
        Alone::OverBudget => (0, FLAG_COPY_OVER_BUDGET),
        Alone::Lost => (0, FLAG_COPY_LOST),
    };
    WalkResult { id, flags: FLAG_NO_PYTHON | by_draw | flags }
}

/// Result of a numbered copy.
#[derive(Clone, Copy)]
enum Alone {
    /// Copies of this process are not requested.
    Unwanted,
    /// Number of the copy.
    Copied(u64),
    OverBudget,
    Lost,
}

/// Copies the stack of a request to the kernel driver. Returns the number of the copy; 0 if there
/// is no space, the budget is used up, or user space cannot unwind this architecture.
#[inline(always)]
pub(crate) fn copy_request(thread: ThreadKey, now_ns: u64) -> u64 {
    if !cfg!(bpf_target_arch = "x86_64") {
        return 0;
    }
    let grant = Grant { thread, time_ns: now_ns, bytes: 0 };
    let state = RM_COPIES.get_ptr_mut(&thread.tgid).or_else(|| {
        let owner = shares::take(SharedTable::RequestCopies)?;
        let nothing = CopyState { window_start_ns: 0, window_copies: 0, owner: owner.into() };
        if RM_COPIES.insert(&thread.tgid, &nothing, BPF_NOEXIST.into()).is_err() {
            // A racing thread may have inserted it first.
            shares::give(SharedTable::RequestCopies, owner);
        }
        RM_COPIES.get_ptr_mut(&thread.tgid)
    });
    match copy_alone(state, grant) {
        Alone::Copied(id) => id,
        Alone::Unwanted | Alone::OverBudget | Alone::Lost => 0,
    }
}

/// Makes a numbered copy within the budget of the process.
#[inline(always)]
fn copy_alone(state: Option<*mut CopyState>, grant: Grant) -> Alone {
    let Grant { thread, time_ns: now_ns, .. } = grant;
    let Some(state) = state else { return Alone::Unwanted };
    // SAFETY: map values live as long as the program runs.
    let state = unsafe { &mut *state };
    // If two threads start a window at the same time, copies of the first are not counted.
    if now_ns.wrapping_sub(state.window_start_ns) >= WINDOW_NS {
        state.window_start_ns = now_ns;
        state.window_copies = 0;
    }
    if state.window_copies >= WINDOW_COPIES && !grant.is_large() {
        return Alone::OverBudget;
    }
    // SAFETY: the counter is aligned to eight bytes and lives in a map.
    unsafe { add(&raw mut state.window_copies, 1) };
    // The number is unique, since a thread makes one copy at a time.
    let id = mix(mix(now_ns, thread.tid.into()), thread.tgid.into()) | 1;
    if send(grant, (id, FLAG_WITHOUT_PYTHON)) { Alone::Copied(id) } else { Alone::Lost }
}

/// Copies the native stack of this Python stack once. Returns true if a due copy failed.
#[inline(always)]
fn copy_once(grant: Grant, id: u64) -> bool {
    let Some(notes) = notes(grant.thread) else { return false };
    #[expect(clippy::cast_possible_truncation, reason = "less than a hundred")]
    let own = id as usize % SENT;
    if notes.copied_of[own] == id {
        let times = notes.copied_times[own].wrapping_add(1);
        notes.copied_times[own] = times;
        // Other native paths may lead to the same Python stack, so it is copied again at the
        // second, fourth, eighth occurrence and so on, and for large allocations. A failure of such
        // a copy is not a loss.
        if (times & times.wrapping_sub(1) == 0 || grant.is_large()) && COPIES.get_ptr(&grant.thread.tgid).is_some() {
            send(grant, (id, FLAG_AGAIN));
        }
        return false;
    }
    let tgid = grant.thread.tgid;
    let stack = ProcessWord { word: id, tgid: tgid.into() };
    if COPIES.get_ptr(&tgid).is_none() {
        return false;
    }
    if COPIED_STACKS.get_ptr(&stack).is_none() {
        if !send(grant, (id, 0)) {
            return true;
        }
        let _ = COPIED_STACKS.insert(&stack, &1, BPF_ANY.into());
    }
    notes.copied_of[own] = id;
    notes.copied_times[own] = 1;
    false
}

#[inline(always)]
fn send(grant: Grant, (id, flags): (u64, u8)) -> bool {
    let Grant { thread, time_ns, .. } = grant;
    let entry = if Bpf::has_plenty() { Bpf::reserve::<NativeRecord>() } else { None };
    let Some(mut entry) = entry else {
        return false;
    };
    let record = entry.as_mut_ptr();
    let stack_pointer = stack_pointer_at_probe();
    // SAFETY: the record is in the ring and exclusive to this thread until it is submitted. `bytes`
    // excludes the unwritten part of the stack.
    unsafe {
        (*record).kind = RecordKind::Native as u8;
        (*record).flags = flags;
        (*record).reserved = 0;
        (*record).tgid = thread.tgid;
        (*record).tid = thread.tid;
        (*record).id = id;
        (*record).time_ns = time_ns;
        (*record).registers = kept_at_probe();
        let mut bytes = 0;
        while bytes < COPY_BYTES {
            let to = (&raw mut (*record).stack).cast::<u8>().add(bytes).cast::<c_void>();
            let from = stack_pointer.wrapping_add(bytes as u64) as *const c_void;
            #[expect(clippy::cast_possible_truncation, reason = "a kibibyte")]
            if bpf_probe_read_user(to, PIECE_BYTES as u32, from) != 0 {
                break;
            }
            bytes += PIECE_BYTES;
        }
        #[expect(clippy::cast_possible_truncation, reason = "16 KiB")]
        {
            (*record).bytes = bytes as u32;
        }
        mend((&raw mut (*record).stack).cast::<u8>(), stack_pointer);
    }
    Bpf::submit(entry);
    true
}

/// Restores return addresses that return probes have replaced. Otherwise unwinding would end at the
/// innermost probed function.
///
/// # Safety
/// The copy has space for [`COPY_BYTES`].
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "less than the copy's length")]
unsafe fn mend(copy: *mut u8, stack_pointer: u64) {
    let mut probed = ProbedReturn::innermost();
    for _ in 0..MOST_RETURNS {
        let Some(found) = probed else { return };
        let at = found.stack.wrapping_sub(stack_pointer);
        if at <= (COPY_BYTES - 8) as u64 {
            // SAFETY: the caller's contract.
            unsafe { copy.add(at as usize).cast::<u64>().write_unaligned(found.address) };
        }
        probed = found.next();
    }
}

/// Stops copies in a process that has exited or called exec.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    let _ = COPIES.remove(&tgid);
    let Some(state) = RM_COPIES.get_ptr(&tgid) else { return };
    // SAFETY: map values live as long as the program runs.
    let owner = unsafe { (*state).owner };
    if RM_COPIES.remove(&tgid).is_ok() {
        #[expect(clippy::cast_possible_truncation, reason = "it was made of one")]
        shares::give(SharedTable::RequestCopies, owner as u32);
    }
}
