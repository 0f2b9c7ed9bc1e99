//! Scratch space and cached state for each thread that calls an allocator.
//!
//! A BPF program can be preempted by that of another thread on the same processor, so per-CPU space
//! cannot be used.

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use memwatch_common::capture::ThreadKey;
use memwatch_common::shares::SharedTable;
use memwatch_common::tensor::{STACK_FRAMES, StackFrame, StackRecord};

use crate::shares;

/// State of threads, by thread id. An entry is removed when its thread exits.
#[map]
static THREADS: HashMap<u32, Notes> = HashMap::with_max_entries(SharedTable::Threads.entries(), BPF_F_NO_PREALLOC);

/// Maximum number of bytes read of a frame.
pub(crate) const FRAME_BYTES: u32 = 128;
/// Page size, the granularity of mappings.
pub(crate) const PAGE_BYTES: u32 = 4096;
/// Bytes copied at once where frames are adjacent: a frame and the page before it.
pub(crate) const WINDOW_BYTES: u32 = PAGE_BYTES + FRAME_BYTES;
/// Size of the window in words.
pub(crate) const WINDOW_WORDS: usize = WINDOW_BYTES as usize / 8;
/// Size of the window, with space for one more frame, in words.
pub(crate) const COPIED_WORDS: usize = WINDOW_WORDS + FRAME_BYTES as usize / 8;
/// Number of slots in the tables of stack ids, which are indexed by a part of the id.
pub(crate) const SENT: usize = 64;

/// State of one thread, written by that thread only.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Notes {
    /// Process of this thread. State of another process with the same thread id is dropped.
    pub(crate) tgid: u64,
    /// Owner whose share the entry counts for.
    pub(crate) owner: u64,
    /// Thread state in the interpreter; 0 if none was found.
    pub(crate) thread_state: u64,
    /// If no thread state was found: the newest interpreter, its newest thread, and the time of the
    /// search.
    pub(crate) newest: [u64; 2],
    pub(crate) searched_ns: u64,
    /// Cursor: the thread state and interpreter of a search, or the frame of a walk.
    pub(crate) cursor: u64,
    pub(crate) interpreter: u64,
    /// Running hash of a walk, and the number of frames in it.
    pub(crate) hash: u64,
    pub(crate) frames: u64,
    /// Outcome of the search or walk: a constant of [`crate::python`].
    pub(crate) end: u64,
    /// Copied memory: a window with many frames, followed by a single frame.
    pub(crate) copied: [u64; COPIED_WORDS],
    /// Address and length of the window. The length is 0 if the window is empty in this walk.
    pub(crate) window_start: u64,
    pub(crate) window_bytes: u64,
    /// Last frame copied outside a window.
    pub(crate) alone: u64,
    /// A page with frames whose preceding page is unreadable.
    pub(crate) first_page: u64,
    /// Ids of sent stacks.
    pub(crate) sent: [u64; SENT],
    /// Ids of Python stacks whose native frames were copied.
    pub(crate) copied_of: [u64; SENT],
    /// For each id in `copied_of`, the number of allocations of this thread on this stack since its
    /// slot was filled.
    pub(crate) copied_times: [u32; SENT],
    /// A `tls_index`, and the address of this thread's variable for it.
    pub(crate) variable: [u64; 2],
    /// Allocator whose statistics are sent next.
    pub(crate) allocator: u64,
    /// Buffer for the stack record.
    pub(crate) stack: Stack,
}

/// A [`StackRecord`] with space for the maximum number of frames.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Stack {
    pub(crate) record: StackRecord,
    pub(crate) frames: [StackFrame; STACK_FRAMES],
}

static NOTHING: Notes = Notes {
    tgid: 0,
    owner: 0,
    thread_state: 0,
    newest: [0; 2],
    searched_ns: 0,
    cursor: 0,
    interpreter: 0,
    hash: 0,
    frames: 0,
    end: 0,
    copied: [0; COPIED_WORDS],
    window_start: 0,
    window_bytes: 0,
    alone: 0,
    first_page: 0,
    sent: [0; SENT],
    copied_of: [0; SENT],
    copied_times: [0; SENT],
    variable: [0; 2],
    allocator: 0,
    stack: Stack {
        record: StackRecord { kind: 0, flags: 0, frames: 0, tgid: 0, id: 0, entries: [0; STACK_FRAMES / 64] },
        frames: [StackFrame { code: 0, instruction: 0, object: 0 }; STACK_FRAMES],
    },
};

/// Returns the state of the running thread, created if there is none; `None` if the table is full.
#[inline(always)]
pub(crate) fn notes(thread: ThreadKey) -> Option<&'static mut Notes> {
    let own = u64::from(thread.tgid);
    // SAFETY: entries live as long as the program runs.
    let known = THREADS.get_ptr_mut(&thread.tid).filter(|notes| unsafe { (**notes).tgid == own });
    let notes = known.or_else(|| {
        // State of a process with the same thread id remains if that process's exit was not seen.
        drop_notes(thread.tid);
        let owner = shares::take(SharedTable::Threads)?;
        // Only this thread writes its key, so an error means a full table.
        if THREADS.insert(&thread.tid, &NOTHING, BPF_NOEXIST.into()).is_err() {
            shares::give(SharedTable::Threads, owner);
            return None;
        }
        let notes = THREADS.get_ptr_mut(&thread.tid)?;
        // SAFETY: as below.
        unsafe { (*notes).owner = owner.into() };
        Some(notes)
    })?;
    // SAFETY: the entry belongs to the running thread, which runs this code; no other thread writes
    // or removes it.
    let notes = unsafe { &mut *notes };
    notes.tgid = own;
    Some(notes)
}

/// Drops the state of a thread that has exited or called exec.
#[inline(always)]
pub(crate) fn drop_notes(tid: u32) {
    // Usually there is no entry.
    let Some(notes) = THREADS.get_ptr(&tid) else { return };
    // SAFETY: entries live as long as the program runs.
    let owner = unsafe { (*notes).owner };
    if THREADS.remove(&tid).is_ok() {
        #[expect(clippy::cast_possible_truncation, reason = "it was made of one")]
        shares::give(SharedTable::Threads, owner as u32);
    }
}
