//! What the running PyTorch processes have allocated.

use super::State;
use super::room::answers;
use crate::attribution::process::Process;
use crate::words::{Framework, Tgid};

/// What PyTorch's allocators have allocated in a process, on all devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllocatedBytes {
    /// The process.
    pub tgid: Tgid,
    /// Start of the process: `CLOCK_BOOTTIME`, nanoseconds.
    pub start_ns: u64,
    /// User responsible for it.
    pub user: Option<u32>,
    /// Bytes in blocks.
    pub bytes: u64,
}

impl State {
    /// Returns what each running PyTorch process has allocated, by its allocators' counters.
    pub fn allocated_by_pytorch(&self) -> impl Iterator<Item = AllocatedBytes> {
        self.processes.values().filter_map(|process| {
            let is_read = process.frameworks.contains(&Framework::PyTorch) && process.tensors.is_some();
            allocated(process).filter(|_| is_read)
        })
    }

    /// Returns what a running process has allocated by PyTorch's counters, as far as they were read.
    pub fn allocated_by(&self, tgid: Tgid) -> Option<AllocatedBytes> {
        allocated(self.processes.get(&tgid)?)
    }
}

fn allocated(process: &Process) -> Option<AllocatedBytes> {
    let facts = process.facts.as_ref().filter(|_| process.ended.is_none())?;
    let reported = process.tensors.iter().flat_map(|tensors| tensors.reported().into_values());
    let bytes = reported.map(|now| now.allocated_bytes).fold(0, u64::saturating_add);
    Some(AllocatedBytes { tgid: process.tgid, start_ns: facts.start_ns, user: answers(process), bytes })
}
