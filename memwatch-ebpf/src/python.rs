//! Finds and walks the Python stack of the running thread, and sends it if it is new.
//!
//! Offsets come from user space per process ([`PythonLayout`]); addresses are resolved in user space.

use core::ffi::c_void;

use aya_ebpf::Global;
use aya_ebpf::bindings::{BPF_ANY, BPF_F_NO_PREALLOC};
use aya_ebpf::helpers::generated::{bpf_get_prandom_u32, bpf_loop};
use aya_ebpf::macros::map;
use aya_ebpf::maps::{Array, HashMap, LruHashMap};
use memwatch_common::capture::{CaptureKernel, ThreadKey};
use memwatch_common::loss::Loss;
use memwatch_common::python::{
    DEFAULT_WINDOW_FRAMES, EACH_FRAME, PythonLayout, STACKS_BY_BYTES, STACKS_OF_RARE, WALK_FRAMES, WINDOW_NS, WalkState,
};
use memwatch_common::record::RecordKind;
use memwatch_common::tensor::draw::chance;
use memwatch_common::tensor::{
    FLAG_BY_DRAW, FLAG_NO_PYTHON, FLAG_STACK_OVER_BUDGET, FLAG_STACK_TRUNCATED, FLAG_STACK_UNREADABLE,
    STACK_FRAME_BYTES, STACK_FRAMES, STACK_RECORD_BYTES, StackFrame, StackRecord,
};

use crate::codes::{self, ProcessWord};
use crate::counter::add;
use crate::kernel::Bpf;
use crate::task::{stack_pointer_at_probe, thread_pointer};
use crate::threads::{Notes, SENT, notes};
use crate::window::{byte, copy, word};

/// Layout of each process. A process without an entry gets no stacks.
#[map]
static PYTHON: HashMap<u32, PythonLayout> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Walk counters of each process.
#[map]
static WALKS: HashMap<u32, WalkState> = HashMap::with_max_entries(4096, BPF_F_NO_PREALLOC);

/// Maximum number of frames walked per process and window; 0 for the default.
#[map]
static WINDOW_FRAMES: Array<u64> = Array::with_max_entries(1, 0);

/// Stacks already sent. A stack that was evicted from this map is sent again.
#[map]
static SEEN_STACKS: LruHashMap<ProcessWord, u8> = LruHashMap::with_max_entries(32_768, 0);

/// 1 if the kernel has `bpf_loop` (Linux 5.17). Set by the loader before load. Without it there are
/// no stacks.
#[unsafe(no_mangle)]
static CAN_LOOP: Global<u8> = Global::new(0);

/// Result of a walk.
#[derive(Clone, Copy, Default)]
pub(crate) struct WalkResult {
    /// Stack id; 0 if there is no stack.
    pub(crate) id: u64,
    /// `FLAG_*` bits of [`memwatch_common::tensor`].
    pub(crate) flags: u8,
}

/// State shared by the steps of a loop.
#[repr(C)]
struct LoopState {
    notes: *mut Notes,
    layout: *const PythonLayout,
    /// Thread pointer to find.
    thread_pointer: u64,
}

/// Outcomes of a loop.
const ENDED: u64 = 0;
const FOUND: u64 = 1;
const UNREADABLE: u64 = 2;
const TRUNCATED: u64 = 3;
/// The step limit was reached.
const UNFINISHED: u64 = 4;

/// Maximum number of threads and interpreters visited in a search.
const SEARCH_STEPS: u32 = 2048;
/// Maximum number of frames of a stack.
#[expect(clippy::cast_possible_truncation, reason = "about a hundred")]
const ALL_FRAMES: u32 = STACK_FRAMES as u32;
/// Maximum number of frames visited in a walk, including the interpreter's internal frames.
const WALK_STEPS: u32 = 2 * ALL_FRAMES;
/// Time for which the lists of threads and interpreters count as unchanged while their newest
/// entries are the same.
const SEARCH_AGAIN_NS: u64 = 100_000_000;

const UNREADABLE_STACK: WalkResult = WalkResult { id: 0, flags: FLAG_STACK_UNREADABLE };
const NO_PYTHON: WalkResult = WalkResult { id: 0, flags: FLAG_NO_PYTHON };

/// An allocation for which a stack is taken.
#[derive(Clone, Copy)]
pub(crate) struct WalkedAllocation {
    /// Size of the block.
    pub(crate) bytes: u64,
}

/// Walks the running thread's Python stack, and sends it if it is new. With sampling by bytes,
/// small blocks may be skipped.
#[inline(always)]
pub(crate) fn walk(thread: ThreadKey, now_ns: u64, allocation: Option<WalkedAllocation>) -> WalkResult {
    if CAN_LOOP.load() == 0 {
        return WalkResult::default();
    }
    let Some(layout) = PYTHON.get_ptr(&thread.tgid) else { return WalkResult::default() };
    // SAFETY: map values live as long as the program runs; user space replaces them as a whole.
    let layout = unsafe { &*layout };
    let by_draw = match draw(layout.stacks, allocation) {
        SamplingChoice::Unwanted => return WalkResult::default(),
        SamplingChoice::Missed => return WalkResult { id: 0, flags: FLAG_BY_DRAW },
        SamplingChoice::Taken { by_draw } => by_draw,
    };
    let Some(state) = WALKS.get_ptr_mut(&thread.tgid) else { return WalkResult::default() };
    // SAFETY: as above.
    let state = unsafe { &mut *state };
    let walked = walk_wanted(thread, now_ns, (layout, state), allocation);
    WalkResult { flags: walked.flags | by_draw, ..walked }
}

/// Result of the sampling decision.
#[derive(Clone, Copy)]
enum SamplingChoice {
    /// No stacks are requested.
    Unwanted,
    /// The block was not sampled.
    Missed,
    /// The block was sampled. The flag marks sampled blocks.
    Taken { by_draw: u8 },
}

#[inline(always)]
fn draw(stacks: u32, allocation: Option<WalkedAllocation>) -> SamplingChoice {
    match (stacks, allocation) {
        (0, _) | (STACKS_OF_RARE, Some(_)) => SamplingChoice::Unwanted,
        (STACKS_BY_BYTES, Some(allocation)) => match chance(allocation.bytes) {
            // SAFETY: the helper has no arguments.
            Some(chance) if unsafe { bpf_get_prandom_u32() } >= chance => SamplingChoice::Missed,
            Some(_) => SamplingChoice::Taken { by_draw: FLAG_BY_DRAW },
            None => SamplingChoice::Taken { by_draw: 0 },
        },
        _ => SamplingChoice::Taken { by_draw: 0 },
    }
}

#[inline(always)]
fn walk_wanted(
    thread: ThreadKey,
    now_ns: u64,
    (layout, state): (&PythonLayout, &mut WalkState),
    allocation: Option<WalkedAllocation>,
) -> WalkResult {
    if !is_in_budget(state, now_ns) {
        return WalkResult { id: 0, flags: FLAG_STACK_OVER_BUDGET };
    }
    let Some(notes) = notes(thread) else { return UNREADABLE_STACK };
    let Some(own) = thread_pointer() else { return UNREADABLE_STACK };
    match innermost_frame(notes, layout, own, now_ns) {
        Ok(0) => return NO_PYTHON,
        Ok(frame) => notes.cursor = frame,
        Err(()) => return UNREADABLE_STACK,
    }
    notes.hash = match allocation {
        // The thread pointer is at a fixed distance above the stack, so threads on the same code
        // path have the same depth.
        Some(_) if layout.by_depth != 0 => mix(state.epoch, own.wrapping_sub(stack_pointer_at_probe())),
        _ => state.epoch,
    };
    notes.frames = 0;
    notes.stack.record.entries = [0; STACK_FRAMES / 64];
    // Memory copied in the last walk is stale.
    notes.window_bytes = 0;
    notes.alone = notes.cursor;
    notes.end = UNFINISHED;
    repeat(WALK_STEPS, walk_step, &mut LoopState { notes, layout, thread_pointer: 0 });
    // SAFETY: the counter is aligned to eight bytes and lives in a map.
    unsafe { add(&raw mut state.window_frames, notes.frames + WALK_FRAMES) };
    match notes.end {
        UNREADABLE => UNREADABLE_STACK,
        _ if notes.frames == 0 => NO_PYTHON,
        _ => send(notes, state, thread),
    }
}

/// Whether this window has frames left. Counts a skipped stack if not.
#[inline(always)]
fn is_in_budget(state: &mut WalkState, now_ns: u64) -> bool {
    // If two threads start a window at the same time, frames of the first are not counted.
    if now_ns.wrapping_sub(state.window_start_ns) >= WINDOW_NS {
        state.window_start_ns = now_ns;
        state.window_frames = 0;
    }
    let limit = WINDOW_FRAMES.get(0).copied().filter(|limit| *limit != 0).unwrap_or(DEFAULT_WINDOW_FRAMES);
    if state.window_frames < limit {
        return true;
    }
    // SAFETY: the counter is aligned to eight bytes and lives in a map.
    unsafe { add(&raw mut state.left_out, 1) };
    false
}

/// Returns the current frame of the running thread; 0 if it runs no Python.
#[inline(always)]
fn innermost_frame(notes: &mut Notes, layout: &PythonLayout, own: u64, now_ns: u64) -> Result<u64, ()> {
    if notes.thread_state != 0 {
        let id = read(notes.thread_state, layout.thread_id);
        if id.is_some_and(|id| is_of(id, own))
            && let Some(frame) = frame_of(notes.thread_state, layout)
            && frame != 0
        {
            return Ok(frame);
        }
        // The thread state is gone or belongs to another thread.
        notes.thread_state = 0;
    }
    let interpreter = read(layout.interpreters_head, 0).ok_or(())?;
    if interpreter == 0 {
        return Ok(0);
    }
    let newest = [interpreter, read(interpreter, layout.interpreter_threads).ok_or(())?];
    // Both lists grow at the front, so their first entries are the newest.
    if notes.newest == newest && now_ns.wrapping_sub(notes.searched_ns) < SEARCH_AGAIN_NS {
        return Ok(0);
    }
    notes.interpreter = newest[0];
    notes.cursor = newest[1];
    notes.end = UNFINISHED;
    repeat(SEARCH_STEPS, search_step, &mut LoopState { notes, layout, thread_pointer: own });
    match notes.end {
        FOUND => {
            notes.thread_state = notes.cursor;
            notes.searched_ns = 0;
            frame_of(notes.thread_state, layout).ok_or(())
        }
        ENDED => {
            notes.newest = newest;
            notes.searched_ns = now_ns;
            Ok(0)
        }
        _ => Err(()),
    }
}

/// Returns the innermost frame of a thread state; 0 if there is none.
#[inline(always)]
fn frame_of(thread_state: u64, layout: &PythonLayout) -> Option<u64> {
    let frame = read(thread_state, layout.thread_frame)?;
    match layout.indirect_frame {
        0 => Some(frame),
        _ if frame == 0 => Some(0),
        within => read(frame, within - 1),
    }
}

/// Whether the interpreter's thread id belongs to the thread with this thread pointer.
#[inline(always)]
fn is_of(thread_id: u64, thread_pointer: u64) -> bool {
    // On x86-64, pthread_self() is the thread pointer. On 64-bit Arm it is a struct that ends at the
    // thread pointer and whose size depends on the C library.
    if cfg!(bpf_target_arch = "aarch64") {
        thread_pointer.wrapping_sub(thread_id) < 4096
    } else {
        thread_pointer == thread_id
    }
}

/// Visits one thread, or advances to the next interpreter. Returns 1 to end the loop.
extern "C" fn search_step(_index: u64, step: *mut LoopState) -> u64 {
    // SAFETY: `innermost_frame` passes its own step, whose pointers are to map values.
    let (notes, layout, own) = unsafe { (&mut *(*step).notes, &*(*step).layout, (*step).thread_pointer) };
    if notes.cursor == 0 {
        let next = read(notes.interpreter, layout.interpreter_next);
        notes.interpreter = next.unwrap_or(0);
        if notes.interpreter == 0 {
            notes.end = if next.is_some() { ENDED } else { UNREADABLE };
            return 1;
        }
        let Some(first) = read(notes.interpreter, layout.interpreter_threads) else {
            notes.end = UNREADABLE;
            return 1;
        };
        notes.cursor = first;
        return 0;
    }
    let Some(id) = read(notes.cursor, layout.thread_id) else {
        notes.end = UNREADABLE;
        return 1;
    };
    if is_of(id, own) {
        notes.end = FOUND;
        return 1;
    }
    let Some(next) = read(notes.cursor, layout.thread_next) else {
        notes.end = UNREADABLE;
        return 1;
    };
    notes.cursor = next;
    0
}

/// Adds one frame to the stack. Returns 1 to end the loop.
extern "C" fn walk_step(_index: u64, step: *mut LoopState) -> u64 {
    // SAFETY: `walk` passes its own step, whose pointers are to map values.
    let (notes, layout) = unsafe { (&mut *(*step).notes, &*(*step).layout) };
    let frame = notes.cursor;
    let taken = notes.frames;
    if frame == 0 {
        notes.end = ENDED;
        return 1;
    }
    if taken >= STACK_FRAMES as u64 {
        notes.end = TRUNCATED;
        return 1;
    }
    let Some(at) = copy(notes, frame, layout.frame_bytes) else {
        notes.end = UNREADABLE;
        return 1;
    };
    notes.cursor = word(notes, at, layout.frame_previous);
    if layout.frame_owner != 0 && u32::from(byte(notes, at, layout.frame_owner - 1)) >= layout.owner_internal {
        if taken > 0 {
            enter(notes, taken - 1);
        }
        return 0;
    }
    let is_entry = match layout.frame_entry {
        0 => false,
        EACH_FRAME => true,
        offset => byte(notes, at, offset - 1) != 0,
    };
    if is_entry {
        enter(notes, taken);
    }
    let code = word(notes, at, layout.frame_code) & layout.pointer_mask;
    let mut instruction = word(notes, at, layout.frame_instruction);
    if layout.instruction_bytes == 4 {
        instruction &= 0xFFFF_FFFF;
    }
    let is_module = code != 0 && (code == layout.module_codes[0] || code == layout.module_codes[1]);
    let object = match (is_module, layout.frame_far) {
        (false, _) => 0,
        (true, 0) => word(notes, at, layout.frame_local0) & layout.pointer_mask,
        (true, _) => read(frame, layout.frame_local0).unwrap_or(0) & layout.pointer_mask,
    };
    notes.hash = mix(mix(mix(notes.hash, code), instruction), object);
    #[expect(clippy::cast_possible_truncation, reason = "fewer than the frames there is room for")]
    let slot = taken as usize;
    notes.stack.frames[slot] = StackFrame { code, instruction, object };
    notes.frames = taken + 1;
    0
}

/// Marks that the interpreter loop was entered for this frame.
#[inline(always)]
fn enter(notes: &mut Notes, frame: u64) {
    let bit = 1 << (frame % 64);
    let half = if frame < 64 { &mut notes.stack.record.entries[0] } else { &mut notes.stack.record.entries[1] };
    *half |= bit;
    // The mark is part of the id, since stacks that differ only in it are different.
    notes.hash = mix(notes.hash, frame);
}

#[inline(always)]
pub(crate) fn mix(hash: u64, word: u64) -> u64 {
    let product = (hash ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ (product >> 29)
}

/// Returns the id of the walked stack. Sends a new stack first.
#[inline(always)]
fn send(notes: &mut Notes, state: &mut WalkState, thread: ThreadKey) -> WalkResult {
    let truncated = notes.end == TRUNCATED || notes.end == UNFINISHED;
    let id = match mix(notes.hash, truncated.into()) {
        0 => 1,
        hash => hash,
    };
    #[expect(clippy::cast_possible_truncation, reason = "less than a hundred")]
    let own = id as usize % SENT;
    if notes.sent[own] == id {
        return WalkResult { id, flags: 0 };
    }
    let seen = ProcessWord { word: id, tgid: thread.tgid.into() };
    if SEEN_STACKS.get_ptr(&seen).is_some() {
        notes.sent[own] = id;
        return WalkResult { id, flags: 0 };
    }
    let frames = notes.frames;
    if frames > STACK_FRAMES as u64 {
        return UNREADABLE_STACK;
    }
    #[expect(clippy::cast_possible_truncation, reason = "fewer than the frames there is room for")]
    let count = frames as u16;
    notes.stack.record = StackRecord {
        kind: RecordKind::Stack as u8,
        flags: if truncated { FLAG_STACK_TRUNCATED } else { 0 },
        frames: count,
        tgid: thread.tgid,
        id,
        ..notes.stack.record
    };
    // Done before sending: once the stack is sent, freeing a code object in it must be noticed.
    notes.cursor = 0;
    repeat(ALL_FRAMES, remember_step, &mut LoopState { notes, layout: core::ptr::null(), thread_pointer: 0 });
    if notes.cursor < frames {
        state.forgets_all = 1;
    }
    // Read again: the verifier of kernels before 6.2 forgets the bound of a spilled number.
    // SAFETY: only this thread writes to the state.
    let frames = unsafe { (&raw const notes.frames).read_volatile() };
    if frames > STACK_FRAMES as u64 {
        return UNREADABLE_STACK;
    }
    #[expect(clippy::cast_possible_truncation, reason = "fewer than the frames there is room for")]
    let bytes = STACK_RECORD_BYTES + frames as usize * STACK_FRAME_BYTES;
    // SAFETY: the record and its frames are within the state.
    let stack = unsafe { core::slice::from_raw_parts((&raw const notes.stack).cast::<u8>(), bytes) };
    // Urgent: user space reads the code objects from the process, which may live for only a few
    // steps of a short program.
    if !Bpf::output(stack, true) {
        Bpf.lose(thread.tgid, Loss::StackLost);
        return UNREADABLE_STACK;
    }
    let _ = SEEN_STACKS.insert(&seen, &1, BPF_ANY.into());
    notes.sent[own] = id;
    WalkResult { id, flags: 0 }
}

/// Records the code object of the frame at the cursor. Returns 1 to end the loop.
extern "C" fn remember_step(_index: u64, step: *mut LoopState) -> u64 {
    // SAFETY: `send` passes its own step, whose state is a map value.
    let notes = unsafe { &mut *(*step).notes };
    let at = notes.cursor;
    if at >= notes.frames || at >= STACK_FRAMES as u64 {
        return 1;
    }
    #[expect(clippy::cast_possible_truncation, reason = "fewer than the frames there is room for")]
    let slot = at as usize;
    let code = ProcessWord { word: notes.stack.frames[slot].code, tgid: notes.tgid };
    if !codes::list(&code) {
        return 1;
    }
    notes.cursor = at + 1;
    0
}

/// Notes that a code object is freed. Returns true if its address was sent; all stack ids change
/// from then on.
#[inline(always)]
pub(crate) fn forget_code(tgid: u32, code: u64) -> bool {
    let code = ProcessWord { word: code, tgid: tgid.into() };
    let was_sent = codes::unlist(&code);
    let Some(state) = WALKS.get_ptr_mut(&tgid) else { return was_sent };
    // SAFETY: map values live as long as the program runs.
    let state = unsafe { &mut *state };
    if was_sent || state.forgets_all != 0 {
        // SAFETY: the counter is aligned to eight bytes and lives in a map.
        unsafe { add(&raw mut state.epoch, 1) };
        return true;
    }
    false
}

/// Stops walks in a process that has exited or called exec.
#[inline(always)]
pub(crate) fn forget(tgid: u32) {
    let _ = PYTHON.remove(&tgid);
    let _ = WALKS.remove(&tgid);
}

/// Reads a word of the traced process.
#[inline(always)]
fn read(base: u64, offset_bytes: u32) -> Option<u64> {
    let mut word = [0; 1];
    Bpf.read_words(base.wrapping_add(offset_bytes.into()), &mut word).then_some(word[0])
}

/// Runs a step up to `times` times, or until it returns 1.
#[inline(always)]
fn repeat(times: u32, step: extern "C" fn(u64, *mut LoopState) -> u64, of: &mut LoopState) {
    // SAFETY: the step is a function of this program and gets the argument that it expects.
    unsafe { bpf_loop(times, step as *mut c_void, core::ptr::from_mut(of).cast::<c_void>(), 0) };
}
