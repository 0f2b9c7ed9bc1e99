//! Calls that change a thread's context: which files are probed for them.

use std::collections::BTreeSet;

use super::LibraryWatch;
use super::files::Met;
use crate::sources::kernel::load::Kernel;

impl LibraryWatch {
    /// Takes the probes on context changes out of the files that this process maps, but for the ones that somebody maps who needs them. Whether
    /// there were any.
    pub(crate) fn take_changes_out(&mut self, kernel: &mut Kernel, tgid: u32, needs: impl Fn(u32) -> bool) -> bool {
        let is_spared = |met: &&mut Met| met.probes.see_changes() && !met.users.keys().any(|tgid| needs(*tgid));
        let spared = self.files.mapped_by(tgid).filter(is_spared);
        spared.map(|met| met.probes.take_changes_out(kernel)).count() > 0
    }

    /// Puts them in again where somebody maps the file who needs them, or nobody does any more.
    pub(crate) fn put_changes_in(&mut self, kernel: &mut Kernel, needs: impl Fn(u32) -> bool) {
        for met in self.files.without_changes() {
            met.probes.settle(kernel);
            if met.users.is_empty() || met.users.keys().any(|tgid| needs(*tgid)) {
                met.probes.put_changes_in(kernel);
            }
        }
    }

    /// The processes that map a file without these probes; some may have ended.
    pub(crate) fn without_changes(&mut self) -> BTreeSet<u32> {
        self.files.without_changes().flat_map(|met| met.users.keys().copied()).collect()
    }
}
