//! Sweeps over what all processes have mapped: each owner's part is taken in when it comes back, and what follows from all of them once they have.

use std::time::Instant;

use super::{Latecomer, LibraryWatch, MACHINE_WAIT};
use crate::sources::kernel::load::Kernel;
use crate::sources::library::Discovery;
use crate::sources::library_look::{NewFile, Subject};
use crate::sources::library_sweep::{Among, Listed};

impl LibraryWatch {
    /// Probes every file that any process of the machine has mapped. It takes a while: later, sweeps do that beside the loop. An owner's files that do not
    /// answer in time are taken in when they do.
    pub(crate) fn attach_machine(&mut self, kernel: &mut Kernel) {
        let listed = Listed::now(Among::Everybody);
        self.swept_ns = listed.begun_ns;
        self.begin_sweep(listed, true);
        let end = Instant::now() + MACHINE_WAIT;
        while self.sweep.is_some()
            && let Some(looked) = self.lookers.wait(end.saturating_duration_since(Instant::now()))
        {
            self.take_in_look(kernel, looked);
        }
    }

    /// Has the parts of a sweep looked at whose processes are listed, ends the one whose time is over, and orders the next where it is due.
    pub(crate) fn look_at_swept(&mut self, kernel: &mut Kernel, among: impl FnOnce() -> Among) {
        if let Some(listed) = self.sweeper.listed() {
            self.begin_sweep(listed, false);
        }
        self.end_sweep_if_over(kernel);
        if self.sweeper.is_due() {
            self.sweeper.order(among());
        }
    }

    fn begin_sweep(&mut self, listed: Listed, is_first: bool) {
        let begun_ns = listed.begun_ns;
        let (sweep, parts) = self.sweeper.begin(listed, is_first);
        self.sweep = Some(sweep);
        for (owner, tgids) in parts {
            self.order(Subject::Part(begun_ns, owner, tgids));
        }
    }

    /// What one owner's processes have mapped.
    pub(super) fn take_in_part(
        &mut self,
        kernel: &mut Kernel,
        begun_ns: u64,
        (found, new): (&Discovery, Vec<NewFile>),
    ) -> Vec<Latecomer> {
        let users = self.files.users();
        let mut late = self.take_in(kernel, found, (new, None));
        if !late.is_empty() {
            self.sweeper.hurry();
        }
        let left_out = found.left_out.iter().map(|one| &one.mapped_by);
        for tgid in found.files.iter().map(|file| &file.mapped_by).chain(left_out).flatten() {
            self.expected.remove(tgid);
        }
        // Who mapped a file between the sweep that found it and its probes stands in the next sweep only.
        for file in &found.files {
            let since_ns = self.files.find(&file.identity).map_or(0, |met| met.attached_ns);
            let unheard = file.mapped_by.iter().filter(|tgid| !users.contains(tgid));
            let unheard = unheard.filter(|_| since_ns > self.swept_ns && since_ns < begun_ns);
            late.extend(unheard.map(|&tgid| Latecomer { tgid, since_ns }));
        }
        late
    }

    /// What all processes have mapped, once all parts have come back or their time is over: files that nobody maps any more lose their probes.
    pub(super) fn end_sweep_if_over(&mut self, kernel: &mut Kernel) {
        let Some(sweep) = self.sweep.take_if(|sweep| sweep.is_over()) else { return };
        self.sweeper.note_end();
        let (begun_ns, is_first) = (sweep.begun_ns, sweep.is_first);
        let found = sweep.finish();
        // What was refused may have room now.
        if self.drop_unused(kernel, begun_ns, &found) {
            self.sweeper.hurry();
        }
        self.swept_ns = begun_ns;
        self.note_look_at_all(begun_ns, &found);
        if self.left_out.keep_listed(&found) {
            self.files.touch();
        }
        if is_first {
            let users = Listed::now(Among::Processes(self.users()));
            users.of_owners.into_values().for_each(|tgids| self.order(Subject::Requesters(Some(tgids))));
        }
    }
}
