//! Is a layout the one that this process has? Builds with patches exist, so tables are tried on the process before they are believed.

use std::collections::HashSet;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

use memwatch_common::tensor::StackFrame;

use super::PythonError;
use super::code::{Code, is_as_laid_out};
use super::memory::{Memory, at};
use super::walk::{self, Thread};
use memwatch_inspect::python::layout::Layout;

/// A process that runs moves its frames while they are read: how many times to look again, and how long apart.
const LOOKS: usize = 50;
const PAUSE: Duration = Duration::from_millis(2);
/// So many looks must have found all but the innermost frames right, where none found all.
const ENOUGH: usize = 10;

/// What a look found.
enum Look {
    /// All is as it should be.
    All,
    /// In every thread that runs Python, the outermost frames are: the others may have gone while they were read.
    Outer,
}

/// What is looked at.
pub(super) struct Subject<'a, M> {
    pub(super) tgid: u32,
    pub(super) memory: &'a M,
    pub(super) layout: &'a Layout,
    /// Address of `PyCode_Type`.
    pub(super) code_type: u64,
}

impl<M: Memory> Subject<'_, M> {
    /// Looks until threads, frames and code objects are what they should be.
    ///
    /// # Errors
    /// They were not: [`PythonError::UnexpectedLayout`], or [`PythonError::Idle`] where no thread runs Python code, so that nothing is known.
    pub(super) fn check(&self) -> Result<(), PythonError> {
        let (mut right, mut wrong) = (0, Ok(()));
        for look in 0..LOOKS {
            if look > 0 {
                sleep(PAUSE);
            }
            match self.look() {
                Ok(Look::All) => return Ok(()),
                Ok(Look::Outer) => right += 1,
                Err(error) => wrong = Err(error),
            }
        }
        if right >= ENOUGH { Ok(()) } else { wrong }
    }

    fn look(&self) -> Result<Look, PythonError> {
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
            // The state of a thread that has ended, or has not begun, may stay in the list; it runs nothing.
            if !walked.frames.is_empty() && !self.is_thread(thread, &numbers) {
                return unexpected("what runs Python is no thread of this process");
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
            _ => Ok(if all { Look::All } else { Look::Outer }),
        }
    }

    /// What a frame lacks to be one; `None` where it is as it should be.
    fn what_is_wrong(&self, frame: &StackFrame, waits: bool) -> Option<&'static str> {
        let Some(code) = Code::read(self.memory, self.layout, self.code_type, frame.code) else {
            return Some("a frame has no code object");
        };
        if is_as_laid_out(self.memory, self.layout, &code, frame) != Some(true) {
            return Some("a frame's code has not its lines, or not its instruction");
        }
        // What waits for another frame has loaded what it calls before.
        (waits && frame.instruction == 0).then_some("a frame that waits for another has not begun")
    }

    /// By its number in the kernel where Python keeps that, and by what stands at its thread pointer.
    fn is_thread(&self, thread: Thread, numbers: &HashSet<u64>) -> bool {
        let has_number = self.layout.native_thread.is_none_or(|offset| {
            let number = at(thread.state, offset).and_then(|address| self.memory.u64(address));
            number.is_some_and(|number| numbers.contains(&number))
        });
        has_number && self.is_thread_pointer(thread.id)
    }

    /// On x86-64 the word at a thread pointer is its own address (`%fs:0`, ELF Handling For Thread-Local Storage, 3.4.6).
    fn is_thread_pointer(&self, id: u64) -> bool {
        if cfg!(target_arch = "x86_64") { self.memory.u64(id) == Some(id) } else { self.memory.u64(id).is_some() }
    }
}

/// The numbers of a process's threads as it knows them itself, in its own namespace (proc_pid_status(5), `NSpid`).
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
