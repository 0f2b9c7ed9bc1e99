//! Where things lie in a CPython process, for the walk of a Python stack in the kernel half.

/// Offsets in bytes, and addresses in the traced process. Written by user space per process, read by the kernel half.
///
/// A thread's stack is found without thread-local storage: the interpreters' lists of threads are walked to the one whose `thread_id` is the running
/// task's thread pointer (`pthread_self()` is that in glibc and musl), and the result is remembered and checked again at each use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PythonLayout {
    /// Address of `_PyRuntime.interpreters.head`: a pointer to the newest interpreter.
    pub interpreters_head: u64,
    /// Code objects of functions whose first local variable is a module (`torch.nn.Module`); 0 for none. Learnt from the first stacks.
    pub module_codes: [u64; 2],
    /// What is left of a pointer in a frame when its tag bits are taken off.
    pub pointer_mask: u64,
    /// In an interpreter: the next one.
    pub interpreter_next: u32,
    /// In an interpreter: its first thread.
    pub interpreter_threads: u32,
    /// In a thread: the next one.
    pub thread_next: u32,
    /// In a thread: `pthread_self()`.
    pub thread_id: u32,
    /// In a thread: its innermost frame; or what `indirect_frame` is in.
    pub thread_frame: u32,
    /// Where `thread_frame` points to a struct that has the frame: where in it, plus one; 0 where it is the frame itself.
    pub indirect_frame: u32,
    /// In a frame: its code object.
    pub frame_code: u32,
    /// In a frame: the next outer frame.
    pub frame_previous: u32,
    /// In a frame: the instruction.
    pub frame_instruction: u32,
    /// Bytes of the instruction: 8 for a pointer, 4 for an index.
    pub instruction_bytes: u32,
    /// In a frame: its first local variable.
    pub frame_local0: u32,
    /// In a frame: one byte, who owns it, plus one; 0 where frames have no owner.
    pub frame_owner: u32,
    /// Frames of this owner or a higher one are the interpreter's own and are left out; the frame within was entered from outside the
    /// interpreter's loop.
    pub owner_internal: u32,
    /// In a frame: one byte that is not 0 where the interpreter's loop was entered for it, plus one; 0 where no frame says so, and [`EACH_FRAME`]
    /// where the loop is entered for every frame.
    pub frame_entry: u32,
    /// 1: stacks of allocations at different depths of the machine's stack are different ones, since other native frames lie within them.
    pub by_depth: u32,
    /// Bytes to copy of each frame: all of the above lie below, and at most 128; where `frame_far` says so, two copies are made.
    pub frame_bytes: u32,
    /// 1: code, previous and instruction lie in the first `frame_bytes`, the first local beyond (before 3.11).
    pub frame_far: u32,
    /// Which stacks are wanted: [`STACKS_OF_ALL`], [`STACKS_BY_BYTES`], [`STACKS_OF_RARE`] or 0 for none.
    pub stacks: u32,
}

const _: () = assert!(size_of::<PythonLayout>() == 104);

/// [`PythonLayout::stacks`]: those of all allocations.
pub const STACKS_OF_ALL: u32 = 1;
/// [`PythonLayout::stacks`]: those of large blocks, and of small ones by a draw ([`crate::tensor::draw`]).
pub const STACKS_BY_BYTES: u32 = 2;
/// [`PythonLayout::stacks`]: those of events that are no allocations, such as failures.
pub const STACKS_OF_RARE: u32 = 3;

/// [`PythonLayout::frame_entry`] of interpreters that enter their loop for every frame (before 3.11).
pub const EACH_FRAME: u32 = u32::MAX;

/// What the kernel half keeps of the walks in one process; made by user space, changed by the kernel half alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WalkState {
    /// Mixed into every stack's id; it changes when a code object goes whose address was sent. Never 0.
    pub epoch: u64,
    /// When the running window of the budget began: `CLOCK_BOOTTIME`, nanoseconds.
    pub window_start_ns: u64,
    /// Frames walked in it, and [`WALK_FRAMES`] for each walk.
    pub window_frames: u64,
    /// Stacks that were left out since the budget of their window was used up.
    pub left_out: u64,
    /// 1: more code objects were sent than are remembered, so any code object that goes changes the epoch.
    pub forgets_all: u64,
}

const _: () = assert!(size_of::<WalkState>() == 40);

/// A window of the budget for walks.
pub const WINDOW_NS: u64 = 100_000_000;
/// What a walk costs besides its frames, in frames.
pub const WALK_FRAMES: u64 = 4;
/// Frames that may be walked in each process in a window: a quarter of a processor's time at 0.1 microseconds per frame.
pub const DEFAULT_WINDOW_FRAMES: u64 = WINDOW_NS / 4 / 100;
