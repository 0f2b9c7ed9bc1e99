//! Use of contexts by processes. The shell decides with it whether calls that change a thread's
//! context have to be traced.

use std::collections::BTreeMap;

use crate::attribution::process::Process;
use crate::state::State;
use crate::words::{GpuUuid, Tgid};

/// Use of contexts by a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextUse {
    /// Whether the process has, or may have, several contexts or GPUs, so that only context changes
    /// show where it allocates.
    pub may_be_several: bool,
    /// Whether context changes are traced at the moment.
    pub sees_changes: bool,
}

impl State {
    /// Returns the observed size of a CUDA context by GPU, in bytes.
    pub const fn contexts(&self) -> &BTreeMap<GpuUuid, u64> {
        self.reconciliation.contexts()
    }

    /// Sets known sizes of CUDA contexts. Otherwise the size is unknown until NVML's first reading
    /// after a program's first allocations.
    pub fn know_contexts(&mut self, contexts: BTreeMap<GpuUuid, u64>) {
        self.reconciliation.know_contexts(contexts);
    }

    /// Returns how a traced process uses its contexts.
    pub fn context_use(&self, tgid: Tgid) -> Option<ContextUse> {
        let process = self.processes.get(&tgid)?;
        let contexts = process.ledger.contexts();
        let may_be_several = contexts.are_several() || self.on_several.contains(&tgid) || self.may_have_others(process);
        Some(ContextUse { may_be_several, sees_changes: contexts.sees_changes() })
    }

    /// Iterates over all traced processes, with the number of observed context changes.
    pub fn context_changes(&self) -> impl Iterator<Item = (Tgid, u64)> {
        self.processes.values().map(|process| (process.tgid, process.ledger.contexts().changes()))
    }

    /// Returns whether a process older than the attach may have contexts besides those named by its
    /// calls; only NVML's process lists rule that out.
    fn may_have_others(&self, process: &Process) -> bool {
        !process.from_start && !self.reading.devices.iter().any(|device| device.lists(process.tgid))
    }

    /// Sets whether context changes of this process are traced.
    pub(crate) fn see_context_changes(&mut self, tgid: Tgid, seen: bool) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.ledger.see_context_changes(seen);
        }
    }
}
