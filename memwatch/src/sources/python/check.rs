//! Verifies a layout against the process. Patched builds exist, so the layout of a version is
//! tested before it is used.

use std::collections::HashSet;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use memwatch_common::tensor::StackFrame;

use super::PythonError;
use super::code::{CodeObject, is_as_laid_out};
use super::memory::{MemoryAccess, at};
use super::walk::{self, PythonThread};
use memwatch_inspect::python::layout::CpythonLayout;

/// Number of attempts and pause between two. A running process changes its frames while they are
/// read.
const LOOKS: usize = 50;
const PAUSE: Duration = Duration::from_millis(2);
/// Number of attempts that must have verified the outermost frames if none verified all.
const ENOUGH: usize = 10;

/// Result of an attempt.
enum CheckResult {
    /// All frames are valid.
    All,
    /// The outermost frame of every thread with frames is valid; inner ones may have returned
    /// during the reading.
    Outer,
}

/// The process and layout to verify.
pub(super) struct LayoutCheck<'a, M> {
    pub(super) tgid: u32,
    pub(super) memory: &'a M,
    pub(super) layout: &'a CpythonLayout,
    /// Address of `PyCode_Type`.
    pub(super) code_type: u64,
}

impl<M: MemoryAccess> LayoutCheck<'_, M> {
    /// Retries until threads, frames and code objects are valid.
    ///
    /// # Errors
    /// [`PythonError::UnexpectedLayout`] if they are not, or [`PythonError::Idle`] if no thread
    /// runs Python code and nothing can be verified.
    pub(super) fn check(&self) -> Result<(), PythonError> {
        let (mut right, mut wrong) = (0, Ok(()));
        for look in 0..LOOKS {
            if look > 0 {
                sleep(PAUSE);
            }
            match self.look() {
                Ok(CheckResult::All) => return Ok(()),
                Ok(CheckResult::Outer) => right += 1,
                Err(error) => wrong = Err(error),
            }
        }
        if right >= ENOUGH { Ok(()) } else { wrong }
    }

    fn look(&self) -> Result<CheckResult, PythonError> {
        let unexpected = |what| Err(PythonError::UnexpectedLayout(what));
        let Some(threads) = walk::threads(self.memory, &self.layout.walk) else {
            return unexpected("the list of threads cannot be followed");
        };
        let numbers = numbers_of_threads(self.tgid);
        let (mut frames, mut all) = (0, true);
        for thread in threads {
            let Some(walked) = walk::frames(self.memory, &self.layout.walk, thread) else {
                return unexpected("the frames of a thread cannot be followed");
            };
            // The list may contain the state of a thread that has exited or not begun; such a
            // thread has no frames.
            if !walked.frames.is_empty() && !self.is_thread(thread, &numbers) {
                return unexpected("a Python thread state refers to no thread of this process");
            }
            let wrong = walked.frames.iter().enumerate().rev().find_map(|(depth, frame)| {
                let what = self.what_is_wrong(frame, depth > 0)?;
                Some((depth, what))
            });
            frames += walked.frames.len();
            match wrong {
                None => {}
                Some((depth, what)) if depth + 1 == walked.frames.len() => return unexpected(what),
                Some(_) => all = false,
            }
        }
        match frames {
            0 => Err(PythonError::Idle),
            _ => Ok(if all { CheckResult::All } else { CheckResult::Outer }),
        }
    }

    /// Returns why a frame is invalid; `None` if it is valid.
    fn what_is_wrong(&self, frame: &StackFrame, waits: bool) -> Option<&'static str> {
        let Some(code) = CodeObject::read(self.memory, self.layout, self.code_type, frame.code) else {
            return Some("a frame has no code object");
        };
        if is_as_laid_out(self.memory, self.layout, &code, frame) != Some(true) {
            return Some("a frame's line table or instruction does not match its code");
        }
        // A frame that called another has executed the instructions that load the callee.
        (waits && frame.instruction == 0).then_some("a frame that called another has not executed any instruction")
    }

    /// Checks the thread id, if this Python version stores it, and the word at the thread pointer.
    fn is_thread(&self, thread: PythonThread, numbers: &HashSet<u64>) -> bool {
        let has_number = self.layout.native_thread.is_none_or(|offset| {
            let number = at(thread.state, offset).and_then(|address| self.memory.u64(address));
            number.is_some_and(|number| numbers.contains(&number))
        });
        has_number && self.is_thread_pointer(thread.id)
    }

    /// On x86-64 the word at a thread pointer is its own address (`%fs:0`, ELF Handling For
    /// Thread-Local Storage, 3.4.6).
    fn is_thread_pointer(&self, id: u64) -> bool {
        if cfg!(target_arch = "x86_64") { self.memory.u64(id) == Some(id) } else { self.memory.u64(id).is_some() }
    }
}

/// Returns the ids of a process's threads in its own pid namespace (proc_pid_status(5), `NSpid`).
fn numbers_of_threads(tgid: u32) -> HashSet<u64> {
    let tasks = fs::read_dir(format!("/proc/{tgid}/task")).into_iter().flatten().flatten();
    let statuses = tasks.filter_map(|task| fs::read_to_string(task.path().join("status")).ok());
    statuses
        .filter_map(|status| {
            let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
            numbers.split_ascii_whitespace().last()?.parse().ok()
        })
        .collect()
}
