//! Stack copies of tensor events and of requests to the kernel driver: unwinding, and the stack number of each copy.

use std::collections::BTreeMap;

use memwatch_common::native::NativeItem;
use memwatch_core::input::Input;
use memwatch_core::words::Tgid;

use crate::sources::native::{NativeFiles, NativeProcess};

/// Maximum number of copies that wait for the record that refers to them. The record follows at
/// once, or when an ioctl returns.
const MOST_SAME: usize = 4096;

/// Stack copies of all watched processes.
#[derive(Default)]
pub(super) struct StackCopies {
    /// Unwind tables of native files.
    files: NativeFiles,
    processes: BTreeMap<u32, ProcessStackCopies>,
}

struct ProcessStackCopies {
    native: NativeProcess,
    /// Copies equal to an earlier stack, until the record of the copy arrives: number of the copy,
    /// and number of the earlier stack.
    same: Vec<(u64, u64)>,
}

impl StackCopies {
    /// Keeps only these processes, given in ascending order.
    pub(super) fn keep(&mut self, watched: impl Iterator<Item = Tgid>) {
        // Without any copy there is nothing to search.
        if self.processes.is_empty() {
            return;
        }
        let mut watched = watched.peekable();
        self.processes.retain(|tgid, _| {
            while watched.next_if(|watched| watched.0 < *tgid).is_some() {}
            watched.peek().is_some_and(|watched| watched.0 == *tgid)
        });
        self.files.keep_those_of(self.processes.values().map(|stacks| &stacks.native));
    }

    /// Drops a process that has exited or called exec. The kernel half drops it, too.
    pub(super) fn forget(&mut self, tgid: u32) {
        if self.processes.remove(&tgid).is_some() {
            self.files.keep_those_of(self.processes.values().map(|stacks| &stacks.native));
        }
    }

    /// Unwinds a copy. The stack of a thread without Python, or of a request to the kernel driver,
    /// is returned only if it is new.
    pub(super) fn unwind(&mut self, copy: &NativeItem<'_>) -> Option<Input> {
        let tgid = Tgid(copy.tgid);
        // The first copy may arrive before the record that introduces the process.
        let new = || ProcessStackCopies { native: NativeProcess::new(copy.tgid), same: Vec::new() };
        let process = self.processes.entry(copy.tgid).or_insert_with(new);
        if !copy.is_without_python() {
            let stack = process.native.unwind(&mut self.files, copy)?;
            return Some(Input::NativeStack { tgid, id: copy.id, stack });
        }
        let unwound = process.native.distinguish(&mut self.files, copy);
        if unwound.id != copy.id {
            // A full list means that records were lost: the copies in it would wait forever.
            if process.same.len() >= MOST_SAME {
                process.same.clear();
            }
            process.same.push((copy.id, unwound.id));
        }
        Some(Input::NativeStack { tgid, id: unwound.id, stack: unwound.stack? })
    }

    /// Returns the number of the earlier equal stack, or the copy's own number if there is none.
    pub(super) fn take_number(&mut self, tgid: u32, copy: u64) -> u64 {
        let Some(process) = self.processes.get_mut(&tgid).filter(|_| copy != 0) else { return copy };
        let Some(at) = process.same.iter().position(|(id, _)| *id == copy) else { return copy };
        process.same.swap_remove(at).1
    }
}
