//! What the running PyTorch processes have allocated.

use super::State;
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
            let (facts, tensors) = (process.facts.as_ref()?, process.tensors.as_ref()?);
            let is_running = process.ended.is_none() && process.frameworks.contains(&Framework::PyTorch);
            let bytes = tensors.reported().values().map(|now| now.allocated_bytes).fold(0, u64::saturating_add);
            let user = facts.login_uid.or(facts.uid);
            is_running.then_some(AllocatedBytes { tgid: process.tgid, start_ns: facts.start_ns, user, bytes })
        })
    }
}
