//! What is known of the contexts of processes, for the shell to decide whether calls that change a thread's context have to be seen.

use crate::Pipeline;
use crate::attribution::process::Process;
use crate::words::Tgid;

/// How a process uses its contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextUse {
    /// It has more than one context, or is on more than one GPU, or may be: where it allocates shows by the changes alone.
    pub may_be_several: bool,
    /// Changes are seen now.
    pub sees_changes: bool,
}

impl Pipeline {
    /// How this process uses its contexts, if it is watched.
    pub fn context_use(&self, tgid: Tgid) -> Option<ContextUse> {
        let process = self.processes.get(&tgid)?;
        let contexts = process.ledger.contexts();
        let may_be_several = contexts.are_several() || self.on_several.contains(&tgid) || self.may_have_others(process);
        Some(ContextUse { may_be_several, sees_changes: contexts.sees_changes() })
    }

    /// How often the threads of each process that is watched now have changed their context, as far as that was seen.
    pub fn context_changes(&self) -> impl Iterator<Item = (Tgid, u64)> {
        self.processes.values().map(|process| (process.tgid, process.ledger.contexts().changes()))
    }

    /// Of a process that is older than the watch, NVML alone shows whether it has others than the ones that its calls have named.
    fn may_have_others(&self, process: &Process) -> bool {
        !process.from_start && !self.reading.devices.iter().any(|device| device.lists(process.tgid))
    }

    /// From now on it is seen when threads of this process change their context, or not.
    pub(crate) fn see_context_changes(&mut self, tgid: Tgid, seen: bool) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.ledger.see_context_changes(seen);
        }
    }
}
