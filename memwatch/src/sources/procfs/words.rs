//! Command line and environment of a process. The kernel reads both from the process's memory under
//! the lock of its address space. The process can hold that lock for as long as mapping a file on
//! FUSE takes. Since Linux 4.17 the kernel does not wait for pages of such a file (`FOLL_ANON` in
//! `get_mm_cmdline` and `environ_read`, fs/proc/base.c).

use std::fs;
use std::path::{Path, PathBuf};

use super::beginning;
use crate::sources::library::limits::FileOwner;
use crate::sources::owner_queues::OwnerQueries;

/// Maximum length of a command line in bytes.
const COMMAND_BYTES: usize = 4096;
/// Size in bytes from which an environment is ignored.
pub(super) const ENVIRONMENT_BYTES: usize = 1 << 20;

/// Command line and environment of a process.
#[derive(Debug, Default)]
pub(super) struct ProcessWords {
    pub(super) command_line: Vec<u8>,
    pub(super) environment: Option<Vec<u8>>,
}

/// Reads command lines and environments in the queue of the process's owner.
#[derive(Debug)]
pub(super) struct WordsReader(OwnerQueries<ProcessWords>);

impl WordsReader {
    pub(super) fn new() -> Self {
        Self(OwnerQueries::new("command-lines"))
    }

    /// Reads command line and environment of the process with this directory. Returns empty ones if
    /// its owner blocks the read. `main_thread_ended`: only the other threads have memory.
    pub(super) fn read(&mut self, tgid: u32, directory: PathBuf, main_thread_ended: bool) -> ProcessWords {
        let Some(owner) = FileOwner::of(&directory) else { return ProcessWords::default() };
        let read = move || {
            let own = beginning(&directory.join("cmdline"), COMMAND_BYTES).filter(|words| !words.is_empty());
            // An exited main thread has no memory and so no command line; the other threads have
            // it.
            let words = own.or_else(|| main_thread_ended.then(|| words_of_threads(&directory)).flatten());
            let environment = beginning(&directory.join("environ"), ENVIRONMENT_BYTES);
            ProcessWords { command_line: words.unwrap_or_default(), environment }
        };
        self.0.ask(owner, tgid, read).unwrap_or_default()
    }

    /// Takes some of the processes whose reads were blocked and whose owners do not block any
    /// longer.
    pub(super) fn again(&mut self) -> Vec<u32> {
        self.0.again()
    }
}

/// Reads the command line through a thread of the process.
fn words_of_threads(directory: &Path) -> Option<Vec<u8>> {
    let threads = fs::read_dir(directory.join("task")).ok()?.flatten();
    let mut words = threads.filter_map(|thread| beginning(&thread.path().join("cmdline"), COMMAND_BYTES));
    words.find(|words| !words.is_empty())
}
