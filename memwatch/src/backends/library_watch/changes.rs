//! Attaches and detaches the probes on calls that change a thread's context, by file.

use std::collections::BTreeSet;

use super::LibraryWatch;
use super::files::Met;
use crate::sources::kernel::load::KernelHalf;

impl LibraryWatch {
    /// Detaches the context-change probes from the files that a process maps, except files also
    /// mapped by a process that needs these probes. Returns whether any were detached.
    pub(crate) fn take_changes_out(&mut self, kernel: &mut KernelHalf, tgid: u32, needs: impl Fn(u32) -> bool) -> bool {
        let is_spared = |met: &&mut Met| met.probes.see_changes() && !met.users.keys().any(|tgid| needs(*tgid));
        let spared = self.files.mapped_by(tgid).filter(is_spared);
        spared.map(|met| met.probes.take_changes_out(kernel)).count() > 0
    }

    /// Attaches the context-change probes again to files that are mapped by a process that needs
    /// them, or by no process.
    pub(crate) fn put_changes_in(&mut self, kernel: &mut KernelHalf, needs: impl Fn(u32) -> bool) {
        for met in self.files.without_changes() {
            met.probes.settle(kernel);
            if met.users.is_empty() || met.users.keys().any(|tgid| needs(*tgid)) {
                met.probes.put_changes_in(kernel);
            }
        }
    }

    /// Returns the processes that map a file without these probes. Some may have exited.
    pub(crate) fn without_changes(&mut self) -> BTreeSet<u32> {
        self.files.without_changes().flat_map(|met| met.users.keys().copied()).collect()
    }
}
