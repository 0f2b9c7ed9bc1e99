//! Walks the frames of all threads of a process as the kernel half does, to verify its layout.

use memwatch_common::python::PythonLayout;
use memwatch_common::tensor::{STACK_FRAMES, StackFrame};

use super::memory::{MemoryAccess, at};

/// Maximum number of interpreters and threads. A longer list is a cycle.
const MOST_INTERPRETERS: usize = 64;
const MOST_THREADS: usize = 4096;

/// A Python thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PythonThread {
    /// Address of the thread's state.
    pub(super) state: u64,
    /// Value of `pthread_self()`.
    pub(super) id: u64,
}

/// The frames of one thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ThreadFrames {
    /// Frames, innermost first.
    pub(super) frames: Vec<StackFrame>,
    /// Set if the thread has more frames than [`STACK_FRAMES`].
    pub(super) truncated: bool,
}

/// Returns the addresses of all interpreters; `None` if the list is unreadable.
pub(super) fn interpreters(memory: &impl MemoryAccess, layout: &PythonLayout) -> Option<Vec<u64>> {
    list(memory, memory.u64(layout.interpreters_head)?, layout.interpreter_next, MOST_INTERPRETERS)
}

/// Returns all threads of all interpreters; `None` if a list is unreadable.
pub(super) fn threads(memory: &impl MemoryAccess, layout: &PythonLayout) -> Option<Vec<PythonThread>> {
    let mut threads = Vec::new();
    for interpreter in interpreters(memory, layout)? {
        let first = memory.u64(at(interpreter, layout.interpreter_threads)?)?;
        for state in list(memory, first, layout.thread_next, MOST_THREADS)? {
            threads.push(PythonThread { state, id: memory.u64(at(state, layout.thread_id)?)? });
        }
    }
    Some(threads)
}

fn list(memory: &impl MemoryAccess, first: u64, next: u32, most: usize) -> Option<Vec<u64>> {
    let (mut found, mut address) = (Vec::new(), first);
    while address != 0 {
        if found.len() == most {
            return None;
        }
        found.push(address);
        address = memory.u64(at(address, next)?)?;
    }
    Some(found)
}

/// Returns the frames of a thread; `None` if one is unreadable.
pub(super) fn frames(memory: &impl MemoryAccess, layout: &PythonLayout, thread: PythonThread) -> Option<ThreadFrames> {
    let mut address = memory.u64(at(thread.state, layout.thread_frame)?)?;
    if let Some(offset) = layout.indirect_frame.checked_sub(1) {
        address = memory.u64(at(address, offset)?)?;
    }
    let mut walked = ThreadFrames::default();
    // Skipped frames count towards the limit, too, so that a cycle of them ends.
    for _ in 0..2 * STACK_FRAMES {
        if address == 0 {
            return Some(walked);
        }
        if walked.frames.len() == STACK_FRAMES {
            break;
        }
        let field = |offset: u32| memory.u64(at(address, offset)?);
        let owner = match layout.frame_owner.checked_sub(1) {
            Some(offset) => memory.array::<1>(at(address, offset)?)?[0].into(),
            None => 0,
        };
        if layout.frame_owner == 0 || owner < layout.owner_internal {
            let code = field(layout.frame_code)? & layout.pointer_mask;
            let wide = field(layout.frame_instruction)?;
            let instruction = if layout.instruction_bytes == 4 { wide & u64::from(u32::MAX) } else { wide };
            let is_module = code != 0 && layout.module_codes.contains(&code);
            let object = if is_module { field(layout.frame_local0)? & layout.pointer_mask } else { 0 };
            walked.frames.push(StackFrame { code, instruction, object });
        }
        address = field(layout.frame_previous)?;
    }
    walked.truncated = true;
    Some(walked)
}
