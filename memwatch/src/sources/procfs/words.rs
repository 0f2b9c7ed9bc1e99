//! What a process was started with: its command line and its environment. The kernel reads both from the process's memory, under the lock of its address
//! space, which its owner can hold for as long as a file on FUSE takes to be mapped. Pages that are mapped from such a file are not waited for since
//! Linux 4.17 (`FOLL_ANON` in `get_mm_cmdline` and `environ_read`, fs/proc/base.c).

use std::fs;
use std::path::{Path, PathBuf};

use super::beginning;
use crate::sources::library::limits::Owner;
use crate::sources::owner_queues::Asking;

/// The longest command line kept, in bytes.
const COMMAND_BYTES: usize = 4096;
/// An environment of so many bytes is not looked at.
pub(super) const ENVIRONMENT_BYTES: usize = 1 << 20;

/// What a process was started with.
#[derive(Debug, Default)]
pub(super) struct Words {
    pub(super) command_line: Vec<u8>,
    pub(super) environment: Option<Vec<u8>>,
}

/// Reads it in the queue of the process's owner.
#[derive(Debug)]
pub(super) struct WordsReader(Asking<Words>);

impl WordsReader {
    pub(super) fn new() -> Self {
        Self(Asking::new("command-lines"))
    }

    /// Of the process with this directory; nothing where its owner holds it. `main_thread_ended` is whether only other threads have memory.
    pub(super) fn read(&mut self, tgid: u32, directory: PathBuf, main_thread_ended: bool) -> Words {
        let Some(owner) = Owner::of(&directory) else { return Words::default() };
        let read = move || {
            let own = beginning(&directory.join("cmdline"), COMMAND_BYTES).filter(|words| !words.is_empty());
            // A main thread that has ended has no memory, and so no words; others have them.
            let words = own.or_else(|| main_thread_ended.then(|| words_of_threads(&directory)).flatten());
            let environment = beginning(&directory.join("environ"), ENVIRONMENT_BYTES);
            Words { command_line: words.unwrap_or_default(), environment }
        };
        self.0.ask(owner, tgid, read).unwrap_or_default()
    }

    /// Some of the processes that were held and are no longer.
    pub(super) fn again(&mut self) -> Vec<u32> {
        self.0.again()
    }
}

/// The command line as a thread of the process has it.
fn words_of_threads(directory: &Path) -> Option<Vec<u8>> {
    let threads = fs::read_dir(directory.join("task")).ok()?.flatten();
    let mut words = threads.filter_map(|thread| beginning(&thread.path().join("cmdline"), COMMAND_BYTES));
    words.find(|words| !words.is_empty())
}
