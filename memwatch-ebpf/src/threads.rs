//! What is kept of each thread that runs into the allocator: room to copy a stack to, and what need not be found out again.
//!
//! A probe's program can be interrupted by another thread's on the same processor, so room per processor would not do.

use aya_ebpf::bindings::{BPF_F_NO_PREALLOC, BPF_NOEXIST};
use aya_ebpf::macros::map;
use aya_ebpf::maps::HashMap;
use memwatch_common::capture::Thread;
use memwatch_common::shares::Table;
use memwatch_common::tensor::{STACK_FRAMES, StackFrame, StackRecord};

use crate::shares;

/// By tid. An entry goes with its thread.
#[map]
static THREADS: HashMap<u32, Notes> = HashMap::with_max_entries(Table::Threads.entries(), BPF_F_NO_PREALLOC);

/// The longest front of a frame that is of use, in bytes.
pub(crate) const FRAME_BYTES: u32 = 128;
/// A page of memory: what is mapped and what is not begins with one.
pub(crate) const PAGE_BYTES: u32 = 4096;
/// Bytes that are copied at once where frames lie one after the other: a frame, and a page before it.
pub(crate) const WINDOW_BYTES: u32 = PAGE_BYTES + FRAME_BYTES;
/// The same in words.
pub(crate) const WINDOW_WORDS: usize = WINDOW_BYTES as usize / 8;
/// With room for one frame more.
pub(crate) const COPIED_WORDS: usize = WINDOW_WORDS + FRAME_BYTES as usize / 8;
/// Stacks that are known to have been sent, by a part of their number.
pub(crate) const SENT: usize = 64;

/// The notes on one thread; written by itself alone.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Notes {
    /// The process that the rest was noted in.
    pub(crate) tgid: u64,
    /// Whose place it takes.
    pub(crate) owner: u64,
    /// Its thread state in the interpreter; 0 where none was found.
    pub(crate) thread_state: u64,
    /// Where none was found: the newest interpreter and the newest thread in it at that time, and when that was.
    pub(crate) newest: [u64; 2],
    pub(crate) searched_ns: u64,
    /// The next thing to look at: a thread state of a search, and the interpreter it is in; the frame of a walk.
    pub(crate) cursor: u64,
    pub(crate) interpreter: u64,
    /// The running hash of a walk, and of how many frames.
    pub(crate) hash: u64,
    pub(crate) frames: u64,
    /// How the search or walk ended: one of [`crate::python`]'s.
    pub(crate) end: u64,
    /// What was copied of the process: a window with many frames, and a single one behind it.
    pub(crate) copied: [u64; COPIED_WORDS],
    /// Where the window lies, and how long it is; 0 where it has nothing of this walk.
    pub(crate) window_start: u64,
    pub(crate) window_bytes: u64,
    /// The frame that was copied last without being in a window.
    pub(crate) alone: u64,
    /// The page that frames lie in of which the page before it could not be read.
    pub(crate) first_page: u64,
    /// Numbers of stacks that were sent.
    pub(crate) sent: [u64; SENT],
    /// Numbers of stacks whose native frames were copied.
    pub(crate) copied_of: [u64; SENT],
    /// How many allocations this thread has made on each of them since.
    pub(crate) copied_times: [u32; SENT],
    /// A `tls_index`, and where this thread's variable is that it names.
    pub(crate) variable: [u64; 2],
    /// The allocator that the next statistics are of.
    pub(crate) allocator: u64,
    /// The stack, as it is sent.
    pub(crate) stack: Stack,
}

/// A [`StackRecord`] with room for all the frames there can be.
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

/// The notes on the running thread, empty ones where there are none; `None` when the table is full.
#[inline(always)]
pub(crate) fn notes(thread: Thread) -> Option<&'static mut Notes> {
    let own = u64::from(thread.tgid);
    // SAFETY: entries live as long as the program runs.
    let known = THREADS.get_ptr_mut(&thread.tid).filter(|notes| unsafe { (**notes).tgid == own });
    let notes = known.or_else(|| {
        // What is there of another process has not been seen going.
        drop_notes(thread.tid);
        let owner = shares::take(Table::Threads)?;
        // Only this thread writes under its key, so a failure means a full table.
        if THREADS.insert(&thread.tid, &NOTHING, BPF_NOEXIST.into()).is_err() {
            shares::give(Table::Threads, owner);
            return None;
        }
        let notes = THREADS.get_ptr_mut(&thread.tid)?;
        // SAFETY: as below.
        unsafe { (*notes).owner = owner.into() };
        Some(notes)
    })?;
    // SAFETY: the entry belongs to the running thread, which is here; nobody else writes or removes it.
    let notes = unsafe { &mut *notes };
    notes.tgid = own;
    Some(notes)
}

/// Drops the notes on a thread that has ended, or has another program.
#[inline(always)]
pub(crate) fn drop_notes(tid: u32) {
    // Absent is the usual case.
    let Some(notes) = THREADS.get_ptr(&tid) else { return };
    // SAFETY: entries live as long as the program runs.
    let owner = unsafe { (*notes).owner };
    if THREADS.remove(&tid).is_ok() {
        #[expect(clippy::cast_possible_truncation, reason = "it was made of one")]
        shares::give(Table::Threads, owner as u32);
    }
}
