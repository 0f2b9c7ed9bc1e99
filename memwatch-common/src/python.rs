//! Memory layout of a CPython process, for walking Python stacks in the kernel half.

/// Offsets in bytes, and addresses in the traced process. User space writes the layout per process;
/// the kernel half reads it.
///
/// A thread's stack is found without thread-local storage. The interpreters' thread lists are
/// walked to the thread whose `thread_id` equals the running task's thread pointer (which is
/// `pthread_self()` in glibc and musl). The result is cached and checked again at each use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct PythonLayout {
    /// Address of `_PyRuntime.interpreters.head`: a pointer to the newest interpreter.
    pub interpreters_head: u64,
    /// Code objects of functions whose first local variable is a module (`torch.nn.Module`); 0 for
    /// none. Learnt from the first stacks.
    pub module_codes: [u64; 2],
    /// Mask that clears the tag bits of a pointer in a frame.
    pub pointer_mask: u64,
    /// Interpreter: pointer to the next one.
    pub interpreter_next: u32,
    /// Interpreter: pointer to its first thread.
    pub interpreter_threads: u32,
    /// Thread: pointer to the next one.
    pub thread_next: u32,
    /// Thread: `pthread_self()`.
    pub thread_id: u32,
    /// Thread: its innermost frame, or the struct that `indirect_frame` refers to.
    pub thread_frame: u32,
    /// Offset of the frame in the struct that `thread_frame` points to, plus one; 0 if
    /// `thread_frame` is the frame itself.
    pub indirect_frame: u32,
    /// Frame: its code object.
    pub frame_code: u32,
    /// Frame: pointer to the next outer frame.
    pub frame_previous: u32,
    /// Frame: its current instruction.
    pub frame_instruction: u32,
    /// Size of the instruction: 8 bytes for a pointer, 4 for an index.
    pub instruction_bytes: u32,
    /// Frame: its first local variable.
    pub frame_local0: u32,
    /// Frame: offset of the one-byte owner, plus one; 0 if frames have no owner.
    pub frame_owner: u32,
    /// Frames with this owner or a higher one are internal to the interpreter and left out. The
    /// next inner frame was entered from outside the interpreter's loop.
    pub owner_internal: u32,
    /// Frame: offset plus one of a byte that is not 0 if the interpreter's loop was entered for the
    /// frame. 0 if frames do not record this; [`EACH_FRAME`] if the loop is entered for every
    /// frame.
    pub frame_entry: u32,
    /// 1: allocations at different native stack depths get different stacks, since their native
    /// frames differ.
    pub by_depth: u32,
    /// Bytes to copy of each frame: covers all frame fields above, at most 128. With `frame_far`,
    /// two copies are made.
    pub frame_bytes: u32,
    /// 1: code, previous and instruction are in the first `frame_bytes`, the first local variable
    /// is beyond them (before 3.11).
    pub frame_far: u32,
    /// Stacks to take: [`STACKS_OF_ALL`], [`STACKS_BY_BYTES`], [`STACKS_OF_RARE`] or 0 for none.
    pub stacks: u32,
}

const _: () = assert!(size_of::<PythonLayout>() == 104);

/// [`PythonLayout::stacks`]: stacks of all allocations.
pub const STACKS_OF_ALL: u32 = 1;
/// [`PythonLayout::stacks`]: stacks of large blocks, and of sampled small blocks
/// ([`crate::tensor::draw`]).
pub const STACKS_BY_BYTES: u32 = 2;
/// [`PythonLayout::stacks`]: stacks of events other than allocations, such as failures.
pub const STACKS_OF_RARE: u32 = 3;

/// [`PythonLayout::frame_entry`] of interpreters that enter their loop for every frame (before
/// 3.11).
pub const EACH_FRAME: u32 = u32::MAX;

/// State of the stack walks in one process. Created by user space, changed only by the kernel half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct WalkState {
    /// Mixed into every stack's id. Changes when a code object with a sent address is freed. Never
    /// 0.
    pub epoch: u64,
    /// Start of the current budget window: `CLOCK_BOOTTIME`, nanoseconds.
    pub window_start_ns: u64,
    /// Frames walked in the current window, plus [`WALK_FRAMES`] for each walk.
    pub window_frames: u64,
    /// Stacks that were left out because the budget of their window was used up.
    pub left_out: u64,
    /// 1: more code objects were sent than are remembered, so freeing any code object changes the
    /// epoch.
    pub forgets_all: u64,
}

const _: () = assert!(size_of::<WalkState>() == 40);

/// Budget window for walks, in nanoseconds.
pub const WINDOW_NS: u64 = 100_000_000;
/// Fixed cost of a walk, in frames.
pub const WALK_FRAMES: u64 = 4;
/// Maximum number of frames walked per process and window: a quarter of a CPU at 0.1 microseconds
/// per frame.
pub const DEFAULT_WINDOW_FRAMES: u64 = WINDOW_NS / 4 / 100;
