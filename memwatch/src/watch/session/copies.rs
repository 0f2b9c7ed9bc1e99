//! Copies of threads' stacks, of tensors and of requests to the kernel driver: as they are unwound, and by which number each is known.

use std::collections::BTreeMap;

use memwatch_common::native::NativeItem;
use memwatch_core::input::Input;
use memwatch_core::words::Tgid;

use crate::sources::native::{NativeFiles, NativeProcess};

/// Copies of stacks that wait for the record that names them: it comes right after them, or where an ioctl returns.
const MOST_SAME: usize = 4096;

/// The stacks of all processes that are watched.
#[derive(Default)]
pub(super) struct Copies {
    /// What is known of files with native code.
    files: NativeFiles,
    processes: BTreeMap<u32, Stacks>,
}

struct Stacks {
    native: NativeProcess,
    /// The numbers of stacks that are the same as an earlier one, until the record comes that names them: theirs, and the earlier one's.
    same: Vec<(u64, u64)>,
}

impl Copies {
    /// Only these processes are watched still; in ascending order.
    pub(super) fn keep(&mut self, watched: impl Iterator<Item = Tgid>) {
        // Where no stack was copied, nobody looks through all processes.
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

    /// A process has ended, or has another image: the kernel half has forgotten it.
    pub(super) fn forget(&mut self, tgid: u32) {
        if self.processes.remove(&tgid).is_some() {
            self.files.keep_those_of(self.processes.values().map(|stacks| &stacks.native));
        }
    }

    /// The stack that was copied: of a thread without Python, or of a request, only if it is another than all before.
    pub(super) fn unwind(&mut self, copy: &NativeItem<'_>) -> Option<Input> {
        let tgid = Tgid(copy.tgid);
        // The first may come before the record that makes the process known.
        let new = || Stacks { native: NativeProcess::new(copy.tgid), same: Vec::new() };
        let process = self.processes.entry(copy.tgid).or_insert_with(new);
        if !copy.is_without_python() {
            let stack = process.native.unwind(&mut self.files, copy)?;
            return Some(Input::NativeStack { tgid, id: copy.id, stack });
        }
        let unwound = process.native.distinguish(&mut self.files, copy);
        if unwound.id != copy.id {
            // The records that name so many copies were lost.
            if process.same.len() >= MOST_SAME {
                process.same.clear();
            }
            process.same.push((copy.id, unwound.id));
        }
        Some(Input::NativeStack { tgid, id: unwound.id, stack: unwound.stack? })
    }

    /// The number that a copy's stack has had before, or the copy's own.
    pub(super) fn take_number(&mut self, tgid: u32, copy: u64) -> u64 {
        let Some(process) = self.processes.get_mut(&tgid).filter(|_| copy != 0) else { return copy };
        let Some(at) = process.same.iter().position(|(id, _)| *id == copy) else { return copy };
        process.same.swap_remove(at).1
    }
}
