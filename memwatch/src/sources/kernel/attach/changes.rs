//! Probes on calls that change a thread's context. They can be removed from a file, for all
//! processes that map it, and attached again.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::programs::uprobe::UProbeScope;

use super::{Attempt, Links, PlannedProbe, attach_points};
use crate::sources::clock;
use crate::sources::kernel::load::{KernelHalf, TakenLink, chain};
use crate::sources::kernel::pins::RETURN;
use crate::sources::library::LibraryFile;

/// Retry interval after a refused attach.
const AGAIN: Duration = Duration::from_secs(10);

/// Probes on a library file, in every process that maps it or will map it, until they are removed.
#[derive(Debug, Default)]
pub(crate) struct LibraryProbes {
    pub(super) links: Links,
    /// Probes on calls that change a thread's context, if the file has such functions.
    pub(super) changes: Option<ChangeProbes>,
}

impl LibraryProbes {
    /// Whether calls that change a thread's context are seen. True for a file without such
    /// functions.
    pub(crate) fn see_changes(&self) -> bool {
        self.changes.as_ref().is_none_or(ChangeProbes::are_in)
    }

    /// Starts removing the probes on context changes. The removal continues after this has
    /// returned.
    pub(crate) fn take_changes_out(&mut self, kernel: &mut KernelHalf) {
        if let Some(changes) = &mut self.changes {
            changes.take_out(kernel);
        }
    }

    /// Attaches the probes on context changes again. Does nothing while they are being removed.
    pub(crate) fn put_changes_in(&mut self, kernel: &mut KernelHalf) {
        if let Some(changes) = &mut self.changes {
            changes.put_in(kernel);
        }
    }

    /// Completes a removal. Must be called regularly while the probes are removed.
    pub(crate) fn settle(&mut self, kernel: &mut KernelHalf) {
        if let Some(changes) = &mut self.changes {
            changes.settle(kernel);
        }
    }

    /// Returns all links. Called when no process maps the file.
    pub(super) fn into_links(self, kernel: &mut KernelHalf) -> Links {
        let mut links = self.links;
        links.extend(self.changes.map(|changes| changes.into_links(kernel)).into_iter().flatten());
        links
    }
}

/// Probes on context changes in one file.
#[derive(Debug)]
pub(super) struct ChangeProbes {
    file: LibraryFile,
    probes: Vec<PlannedProbe>,
    state: ChangeProbeState,
}

#[derive(Debug)]
enum ChangeProbeState {
    In(Links),
    /// Being removed: at each link the kernel waits until no thread is inside the probe.
    Leaving(JoinHandle<()>),
    Out,
    /// The probes could not be attached again; time of the attempt.
    Refused(Instant),
}

impl ChangeProbes {
    /// Attaches the probes. The attempt holds errors. Returns `None` if the file has none of these
    /// functions.
    pub(super) fn attach(
        kernel: &mut KernelHalf,
        file: &LibraryFile,
        probes: Vec<PlannedProbe>,
    ) -> (Option<Self>, Attempt) {
        if probes.is_empty() {
            return (None, Attempt::default());
        }
        let mut attempt = attach_points(kernel, file, &probes, (UProbeScope::AllProcesses, RETURN));
        let state = ChangeProbeState::In(std::mem::take(&mut attempt.links));
        (Some(Self { file: file.clone(), probes, state }), attempt)
    }

    /// Whether the probes are attached.
    pub(super) const fn are_in(&self) -> bool {
        matches!(self.state, ChangeProbeState::In(_))
    }

    /// Removes the probes in a separate thread: each link takes up to 200 ms, and the ring must be
    /// read meanwhile.
    pub(super) fn take_out(&mut self, kernel: &mut KernelHalf) {
        let ChangeProbeState::In(links) = &mut self.state else { return };
        // Threads inside such a call return unseen, which must not count as losses.
        note(kernel.arm(self.file.identity.group(), 0).map_err(|error| chain(&error)));
        let mut taken = Vec::new();
        // Return probes are removed first: a return without its entry would count as a loss.
        for link in std::mem::take(links).into_iter().rev() {
            match kernel.take(link) {
                Ok(link) => taken.push(link),
                Err(error) => log::warn!("cannot remove a probe that exceeds the budget: {error}"),
            }
        }
        let leave = move || taken.into_iter().for_each(TakenLink::end);
        self.state = match std::thread::Builder::new().name("detach".to_owned()).spawn(leave) {
            Ok(thread) => ChangeProbeState::Leaving(thread),
            Err(error) => {
                log::warn!("cannot start a thread to remove probes; pinned ones stay: {error}");
                ChangeProbeState::Out
            }
        };
    }

    /// Notes when the removal has finished.
    pub(super) fn settle(&mut self, kernel: &mut KernelHalf) {
        if matches!(&self.state, ChangeProbeState::Leaving(thread) if thread.is_finished()) {
            self.state = ChangeProbeState::Out;
            note(kernel.arm(self.file.identity.group(), clock::boottime_ns()).map_err(|error| chain(&error)));
        }
    }

    /// Attaches the probes again, unless they are still being removed.
    pub(super) fn put_in(&mut self, kernel: &mut KernelHalf) {
        self.settle(kernel);
        let is_time = match &self.state {
            ChangeProbeState::Out => true,
            ChangeProbeState::Refused(since) => since.elapsed() >= AGAIN,
            ChangeProbeState::In(_) | ChangeProbeState::Leaving(_) => false,
        };
        if is_time {
            let Attempt { links, error, .. } =
                attach_points(kernel, &self.file, &self.probes, (UProbeScope::AllProcesses, RETURN));
            match error {
                None => self.state = ChangeProbeState::In(links),
                // The file may be gone. The attach is retried, and context changes stay unknown
                // until it succeeds.
                Some(error) => {
                    log::warn!("{}: context changes are not probed: {error}", self.file.display);
                    self.state = ChangeProbeState::Refused(Instant::now());
                    note(links.into_iter().map(|link| kernel.release(link)).fold(Ok(()), Result::and));
                }
            }
        }
    }

    /// Returns the links. Called when no process maps the file.
    pub(super) fn into_links(self, kernel: &mut KernelHalf) -> Links {
        match self.state {
            ChangeProbeState::In(links) => links,
            ChangeProbeState::Leaving(_) => {
                note(kernel.arm(self.file.identity.group(), clock::boottime_ns()).map_err(|error| chain(&error)));
                Vec::new()
            }
            ChangeProbeState::Out | ChangeProbeState::Refused(_) => Vec::new(),
        }
    }
}

fn note(done: Result<(), String>) {
    if let Err(error) = done {
        log::warn!("probes on context changes: {error}");
    }
}
