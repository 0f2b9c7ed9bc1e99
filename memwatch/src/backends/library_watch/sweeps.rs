//! Sweeps over the mappings of all processes. Each owner's part is handled when it arrives, and the
//! whole once all parts have arrived.

use std::time::Instant;

use super::{LateAttach, LibraryWatch, MACHINE_WAIT};
use crate::sources::kernel::load::KernelHalf;
use crate::sources::library::Discovery;
use crate::sources::library_look::{LibraryQuery, NewFile};
use crate::sources::library_sweep::{Among, ProcessListing};

impl LibraryWatch {
    /// Probes every driver library that any process on the machine maps, and waits for that. Later
    /// sweeps run beside the loop. Parts that do not arrive in time are handled when they do.
    pub(crate) fn attach_machine(&mut self, kernel: &mut KernelHalf) {
        let listed = ProcessListing::now(Among::Everybody);
        self.swept_ns = listed.begun_ns;
        self.begin_sweep(listed, true);
        let end = Instant::now() + MACHINE_WAIT;
        while self.sweep.is_some()
            && let Some(looked) = self.lookers.wait(end.saturating_duration_since(Instant::now()))
        {
            self.take_in_look(kernel, looked);
        }
    }

    /// Queues the scans of a sweep once its processes have been listed, ends a sweep that is over,
    /// and starts the next one when due.
    pub(crate) fn look_at_swept(&mut self, kernel: &mut KernelHalf, among: impl FnOnce() -> Among) {
        if let Some(listed) = self.sweeper.listed() {
            self.begin_sweep(listed, false);
        }
        self.end_sweep_if_over(kernel);
        if self.sweeper.is_due() {
            self.sweeper.order(among());
        }
    }

    fn begin_sweep(&mut self, listed: ProcessListing, is_first: bool) {
        let begun_ns = listed.begun_ns;
        let (sweep, parts) = self.sweeper.begin(listed, is_first);
        self.sweep = Some(sweep);
        for (owner, tgids) in parts {
            self.order(LibraryQuery::Part(begun_ns, owner, tgids));
        }
    }

    /// Handles the part of a sweep with one owner's processes.
    pub(super) fn take_in_part(
        &mut self,
        kernel: &mut KernelHalf,
        begun_ns: u64,
        (found, new): (&Discovery, Vec<NewFile>),
    ) -> Vec<LateAttach> {
        let users = self.files.users();
        let mut late = self.take_in(kernel, found, (new, None));
        if !late.is_empty() {
            self.sweeper.hurry();
        }
        let left_out = found.left_out.iter().map(|one| &one.mapped_by);
        for tgid in found.files.iter().map(|file| &file.mapped_by).chain(left_out).flatten() {
            self.expected.remove(tgid);
        }
        // A process that mapped a file between the sweep that found the file and its probes appears
        // in the next sweep only.
        for file in &found.files {
            let since_ns = self.files.find(&file.identity).map_or(0, |met| met.attached_ns);
            let unheard = file.mapped_by.iter().filter(|tgid| !users.contains(tgid));
            let unheard = unheard.filter(|_| since_ns > self.swept_ns && since_ns < begun_ns);
            late.extend(unheard.map(|&tgid| LateAttach { tgid, since_ns }));
        }
        late
    }

    /// Ends a sweep once all parts have arrived or its time is over. Files without users lose their
    /// probes.
    pub(super) fn end_sweep_if_over(&mut self, kernel: &mut KernelHalf) {
        let Some(sweep) = self.sweep.take_if(|sweep| sweep.is_over()) else { return };
        self.sweeper.note_end();
        let (begun_ns, is_first) = (sweep.begun_ns, sweep.is_first);
        let found = sweep.finish();
        // Refused files may fit below the limit now.
        if self.drop_unused(kernel, begun_ns, &found) {
            self.sweeper.hurry();
        }
        self.swept_ns = begun_ns;
        self.note_look_at_all(begun_ns, &found);
        if self.left_out.keep_listed(&found) {
            self.files.touch();
        }
        if is_first {
            let users = ProcessListing::now(Among::Processes(self.users()));
            users.of_owners.into_values().for_each(|tgids| self.order(LibraryQuery::Requesters(Some(tgids))));
        }
    }
}
