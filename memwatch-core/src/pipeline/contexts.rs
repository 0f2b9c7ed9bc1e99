//! What is known of the contexts of processes, for the shell to decide whether calls that change a thread's context have to be seen.

use crate::Pipeline;
use crate::attribution::process::Process;
use crate::words::Tgid;

/// How a process uses its contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextUse {
    /// The process.
    pub tgid: Tgid,
    /// How often its threads have changed their context, as far as that was seen.
    pub changes: u64,
    /// It has more than one context, or is on more than one GPU: where it allocates shows by the changes alone.
    pub are_several: bool,
    /// Changes are seen now.
    pub sees_changes: bool,
}

impl Pipeline {
    /// How this process uses its contexts, if it is watched.
    pub fn context_use(&self, tgid: Tgid) -> Option<ContextUse> {
        self.processes.get(&tgid).map(|process| self.context_use_of(process))
    }

    /// The same of all that are watched now.
    pub fn context_uses(&self) -> impl Iterator<Item = ContextUse> {
        self.processes.values().map(|process| self.context_use_of(process))
    }

    fn context_use_of(&self, process: &Process) -> ContextUse {
        let contexts = process.ledger.contexts();
        ContextUse {
            tgid: process.tgid,
            changes: contexts.changes(),
            are_several: contexts.are_several() || self.on_several.contains(&process.tgid),
            sees_changes: contexts.sees_changes(),
        }
    }

    /// From now on it is seen when threads of this process change their context, or not.
    pub(crate) fn see_context_changes(&mut self, tgid: Tgid, seen: bool) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.ledger.see_context_changes(seen);
        }
    }
}
