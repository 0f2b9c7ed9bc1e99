//! Reading the memory of another process: bounded, and never more than reading.
//!
//! The file `/proc/PID/mem` stands for the address space that the process had when it was opened (proc_pid_mem(5); `mem_open` in fs/proc/base.c).
//! After an exec, or when the number is another process's, it reads as nothing: `process_vm_readv` would read the stranger instead.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

pub(super) use memwatch_inspect::memory::{Memory, at};

/// The memory of a process.
#[derive(Debug)]
pub(super) struct ProcessMemory(File);

impl ProcessMemory {
    /// Opens it; that needs the right to trace the process (ptrace(2), `PTRACE_MODE_ATTACH`), but does not stop it.
    ///
    /// # Errors
    /// The process has gone, or may not be read.
    pub(super) fn open(tgid: u32) -> io::Result<Self> {
        File::open(format!("/proc/{tgid}/mem")).map(Self)
    }
}

impl Memory for ProcessMemory {
    fn fill(&self, address: u64, into: &mut [u8]) -> bool {
        self.0.read_exact_at(into, address).is_ok()
    }
}
