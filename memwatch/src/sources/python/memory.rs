//! Reads the memory of another process, with limits and without side effects.
//!
//! `/proc/PID/mem` is tied to the process's address space at the time of opening (proc_pid_mem(5);
//! `mem_open` in fs/proc/base.c). After an exec or a reuse of the pid, it yields no data, while
//! `process_vm_readv` would read the wrong process.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(super) use memwatch_inspect::memory::{MemoryAccess, at};

/// The memory of a process.
#[derive(Debug)]
pub(super) struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens the memory. Needs the permission to trace the process (ptrace(2),
    /// `PTRACE_MODE_ATTACH`), but does not stop it.
    ///
    /// # Errors
    /// The process has exited or is not readable.
    pub(super) fn open(tgid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{tgid}/mem")).map(Self)
    }
}

impl MemoryAccess for ProcessMemory {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.read_exact_at(into, address).is_ok()
    }
}
