//! Scratch space and cached state for each thread that calls an allocator.
//!
//! A BPF program can be preempted by that of another thread on the same processor, so per-CPU space would not do.

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use memwatch_common::capture::Thread;
use memwatch_common::shares::Table;
use memwatch_common::tensor::{STACK_FRAMES, StackFrame, StackRecord};

use crate::shares;

/// By thread id. An entry is removed with its thread.
#[map]
static THREADS: HashMap<u32, Notes> = HashMap::with_max_entries(Table::Threads.entries(), BPF_F_NO_PREALLOC);

/// Maximum useful prefix of a frame in bytes.
pub(crate) const FRAME_BYTES: u32 = 128;
/// Page size, the granularity of mappings.
pub(crate) const PAGE_BYTES: u32 = 4096;
/// Bytes copied at once where frames are adjacent: a frame and the page before it.
pub(crate) const WINDOW_BYTES: u32 = PAGE_BYTES + FRAME_BYTES;
/// The window in words.
pub(crate) const WINDOW_WORDS: usize = WINDOW_BYTES as usize / 8;
/// The window with room for one more frame.
pub(crate) const COPIED_WORDS: usize = WINDOW_WORDS + FRAME_BYTES as usize / 8;
/// Size of the table of sent stacks, which is indexed by a part of their number.
pub(crate) const SENT: usize = 64;

/// State of one thread, written by that thread only.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Notes {
    /// Process that the rest belongs to.
    pub(crate) tgid: u64,
    /// Owner whose share the entry counts for.
    pub(crate) owner: u64,
    /// Thread state in the interpreter; 0 if none was found.
    pub(crate) thread_state: u64,
    /// If none was found: the newest interpreter, its newest thread, and the time of the search.
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
    /// Address and length of the window; 0 if it is empty in this walk.
    pub(crate) window_start: u64,
    pub(crate) window_bytes: u64,
    /// The last frame copied outside a window.
    pub(crate) alone: u64,
    /// A page with frames whose preceding page is unreadable.
    pub(crate) first_page: u64,
    /// Numbers of sent stacks.
    pub(crate) sent: [u64; SENT],
    /// Numbers of stacks with copied native frames.
    pub(crate) copied_of: [u64; SENT],
    /// Allocations of this thread on each of them since.
    pub(crate) copied_times: [u32; SENT],
    /// A `tls_index`, and the address of this thread's variable for it.
    pub(crate) variable: [u64; 2],
    /// Allocator of the next statistics.
    pub(crate) allocator: u64,
    /// Buffer for the stack record.
    pub(crate) stack: Stack,
}

/// A [`StackRecord`] with room for the maximum number of frames.
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

/// State of the running thread, created if there is none; `None` if the table is full.
#[inline(always)]
pub(crate) fn notes(thread: Thread) -> Option<&'static mut Notes> {
    let own = u64::from(thread.tgid);
    // SAFETY: entries live as long as the program runs.
    let known = THREADS.get_ptr_mut(&thread.tid).filter(|notes| unsafe { (**notes).tgid == own });
    let notes = known.or_else(|| {
        // State of another process remains if its exit was not seen.
        drop_notes(thread.tid);
        let owner = shares::take(Table::Threads)?;
        // Only this thread writes its key, so an error means a full table.
        if THREADS.insert(&thread.tid, &NOTHING, BPF_NOEXIST.into()).is_err() {
            shares::give(Table::Threads, owner);
            return None;
        }
        let notes = THREADS.get_ptr_mut(&thread.tid)?;
        // SAFETY: as below.
        unsafe { (*notes).owner = owner.into() };
        Some(notes)
    })?;
    // SAFETY: the entry belongs to the running thread, which is here; no other thread writes or removes it.
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
        shares::give(Table::Threads, owner as u32);
    }
}
