//! Handles the results of scans: attaches probes to new files and detaches them from files without
//! users.

use std::path::Path;

use memwatch_core::input::KernelCalls;

use super::files::Met;
use super::{LateAttach, LibraryWatch, PendingScan};
use crate::sources::clock;
use crate::sources::kernel::attach::{PlanError, attach, attach_requests, detach_from_unused};
use crate::sources::kernel::load::{KernelHalf, Mechanism};
use crate::sources::library::limits::FileOwner;
use crate::sources::library::{Discovery, FileIdentity, LibraryFile};
use crate::sources::library_look::{Looked, Looking, NewFile};

impl LibraryWatch {
    /// Handles the result of one scan.
    pub(super) fn take_in_look(
        &mut self,
        kernel: &mut KernelHalf,
        Looked { subject, owner, found, new, requesters }: Looked,
    ) -> Vec<LateAttach> {
        self.attach_requesters(kernel, requesters);
        match subject {
            Looking::Mapped(tgid) => self.take_in_process(kernel, tgid, (found, new)),
            Looking::Part(begun_ns) => {
                let late = self.take_in_part(kernel, begun_ns, (&found, new));
                self.sweeper.note_part(owner);
                if let Some(sweep) = &mut self.sweep {
                    sweep.take(owner, begun_ns, &found);
                }
                self.end_sweep_if_over(kernel);
                late
            }
            Looking::Requesters => Vec::new(),
            Looking::Functions(tgid, when) => {
                // The process may have exited.
                if let Some(wanted) = self.wanted.get_mut(&(tgid, when)) {
                    *wanted = Some(new);
                }
                Vec::new()
            }
            Looking::Loader(tgid) => {
                self.loaders.done(tgid);
                self.attach_new(kernel, new, (Some(owner), None));
                found.files.iter().for_each(|file| self.files.note_wanted(&file.identity, tgid));
                self.order_loaders();
                Vec::new()
            }
            Looking::Program => {
                self.attach_new(kernel, new, (Some(owner), None));
                found.files.iter().for_each(|file| self.files.note_wanted(&file.identity, std::process::id()));
                Vec::new()
            }
        }
    }

    /// Handles the files that one process maps.
    fn take_in_process(
        &mut self,
        kernel: &mut KernelHalf,
        tgid: u32,
        (found, new): (Discovery, Vec<NewFile>),
    ) -> Vec<LateAttach> {
        let PendingScan { mappings, again, .. } = self.pending.remove(&tgid).unwrap_or_default();
        if !found.files.is_empty() || !found.left_out.is_empty() || found.processes == 0 {
            self.expected.remove(&tgid);
        }
        let mapped_ns = mappings.iter().map(|mapping| mapping.time_ns).min();
        let mut late = self.take_in(kernel, &found, (new, mapped_ns));
        self.note_look_at(tgid, &found);
        for mapping in mappings {
            let named = |file: &&LibraryFile| file.identity.inode() == mapping.inode.number;
            let met = found.files.iter().find(named).and_then(|file| self.files.find(&file.identity));
            let Some((identity, since_ns)) = met.map(|met| (met.identity.clone(), met.attached_ns)) else {
                if found.over_limit > 0 {
                    self.refuse(mapping.inode);
                }
                continue;
            };
            self.files.name(mapping.inode, &identity);
            if mapping.time_ns < since_ns && late.is_empty() {
                late.push(LateAttach { tgid, since_ns });
            }
        }
        self.mapped.extend(again);
        self.loaders.note(vec![tgid]);
        late
    }

    /// Detaches probes from files without users after a sweep. Returns whether any were detached.
    /// Skipped if a sweep exceeded the limit on files, since a missing file may still be mapped,
    /// and with classic uprobes, since each takes a tenth of a second to detach.
    pub(super) fn drop_unused(&mut self, kernel: &mut KernelHalf, begun_ns: u64, found: &Discovery) -> bool {
        if found.over_limit > 0 {
            return false;
        }
        self.files.note_sweep(found, begun_ns);
        if kernel.mechanism == Mechanism::Classic {
            return false;
        }
        let is_running = |tgid: u32| Path::new(&format!("/proc/{tgid}")).exists();
        let unused = self.files.take_unused(begun_ns, is_running);
        for gone in &unused {
            log::info!("{}: no process maps this file; detaching its probes", gone.coverage.path);
        }
        let has_unused = !unused.is_empty();
        if has_unused {
            detach_from_unused(kernel, unused.into_iter().map(|gone| gone.probes).collect());
        }
        has_unused
    }

    /// Records the files found and probes the new ones. `mapped_ns` is when the first process
    /// mapped them, if known.
    pub(super) fn take_in(
        &mut self,
        kernel: &mut KernelHalf,
        found: &Discovery,
        (new, mapped_ns): (Vec<NewFile>, Option<u64>),
    ) -> Vec<LateAttach> {
        let attached = self.attach_new(kernel, new, (None, mapped_ns));
        let mut late = Vec::new();
        for file in &found.files {
            let since_ns =
                attached.iter().find(|(new, _)| new.is_same_file(&file.identity)).map(|(_, since_ns)| *since_ns);
            for &tgid in &file.mapped_by {
                self.files.note_user(&file.identity, tgid, clock::boottime_ns());
                late.extend(since_ns.map(|since_ns| LateAttach { tgid, since_ns }));
            }
        }
        if found.over_limit > 0 {
            self.files.note_refused(found.over_limit);
        }
        self.note_left_out(found);
        late
    }

    /// Probes new files unless their owner has too many: the file's own owner, or else the given
    /// one. Returns when each file had its probes.
    fn attach_new(
        &mut self,
        kernel: &mut KernelHalf,
        new: Vec<NewFile>,
        (owner, mapped_ns): (Option<FileOwner>, Option<u64>),
    ) -> Vec<(FileIdentity, u64)> {
        let mut attached = Vec::new();
        let mut refused = 0;
        for NewFile { file, plan } in new {
            // Two scans may have found the file. A file that is busy is found again by the next
            // sweep.
            if self.files.find(&file.identity).is_some() || plan.as_ref().is_err_and(PlanError::is_busy) {
                continue;
            }
            let owner = file.owner.or(owner);
            if owner.is_some_and(|owner| !self.files.has_room(owner, std::iter::empty())) {
                refused += 1;
                // Files with an owner of their own are checked against that owner's limit each
                // time.
                if let (None, Some(owner)) = (file.owner, owner) {
                    self.files.refuse_file(file.identity, owner);
                }
                continue;
            }
            let (mut coverage, probes) = attach(kernel, &file, plan.as_ref());
            let attached_ns = clock::boottime_ns();
            if coverage.probes_attached > 0 {
                coverage.gap_ns = mapped_ns.map(|mapped_ns| attached_ns.saturating_sub(mapped_ns));
            }
            log::info!("{}: {} probes attached", coverage.path, coverage.probes_attached);
            attached.push((file.identity.clone(), attached_ns));
            self.files.insert(Met::new(file.identity, (coverage, probes), attached_ns, owner));
        }
        self.files.note_refused(refused);
        attached
    }

    /// Returns the processes that map a probed file which was not probed before according to
    /// `was_probed`, with the time its probes were attached.
    pub(crate) fn users_without_probes(&self, was_probed: impl Fn(&FileIdentity) -> bool) -> Vec<LateAttach> {
        let new = self.files.probed().filter(|met| !was_probed(&met.identity));
        new.flat_map(|met| met.users.keys().map(|&tgid| LateAttach { tgid, since_ns: met.attached_ns })).collect()
    }

    /// Probes the kernel-driver requests of the driver's graphics and video libraries. Their users
    /// are not reported as late: memory requested before the probes is older than the session, and
    /// no CUDA call is missed.
    fn attach_requesters(&mut self, kernel: &mut KernelHalf, new: Vec<NewFile>) {
        for NewFile { file, plan } in new {
            let (calls, probes) = attach_requests(kernel, &file, plan.as_ref());
            match calls {
                KernelCalls::Probed { stubs } => log::info!("{}: requests are probed at {stubs} stubs", file.display),
                KernelCalls::Refused { reason } => {
                    log::info!("{}: kernel-driver requests cannot be probed: {reason}", file.display);
                }
                KernelCalls::None => {}
            }
            self.requesters.push(probes);
        }
    }

    /// Records the files that cannot be probed.
    pub(super) fn note_left_out(&mut self, found: &Discovery) {
        let Self { left_out, files, .. } = self;
        for one in found.left_out.iter().filter(|one| one.concerns_somebody()) {
            match left_out.note(one, |tgid| files.is_probed_for(tgid, &one.display)) {
                Some(true) => files.touch(),
                Some(false) => {}
                None => files.note_refused(1),
            }
        }
    }

    /// Returns the processes found since the last call with a library that cannot be opened and was
    /// not probed before.
    pub(crate) fn take_unwatched(&mut self) -> Vec<u32> {
        self.left_out.take_unwatched()
    }
}
