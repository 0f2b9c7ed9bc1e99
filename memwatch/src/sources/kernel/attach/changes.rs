//! The probes on calls that change a thread's context: they can be taken out of a file, in all processes that have it, and be put in again.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use aya::programs::uprobe::UProbeScope;

use super::{Attempt, Links, PlannedProbe, attach_points};
use crate::sources::clock;
use crate::sources::kernel::load::{Kernel, TakenLink, chain};
use crate::sources::kernel::pins::RETURN;
use crate::sources::library::LibraryFile;

/// What was refused is tried again after this.
const AGAIN: Duration = Duration::from_secs(10);

/// Probes on a library file, in every process that has it or will have it, until they are taken out.
#[derive(Debug, Default)]
pub(crate) struct LibraryProbes {
    pub(super) links: Links,
    /// Those on calls that change a thread's context, where the file has them.
    pub(super) changes: Option<ChangeProbes>,
}

impl LibraryProbes {
    /// Whether calls that change a thread's context are seen, where the file has them.
    pub(crate) fn see_changes(&self) -> bool {
        self.changes.as_ref().is_none_or(ChangeProbes::are_in)
    }

    /// Takes those probes out, which goes on when this has returned.
    pub(crate) fn take_changes_out(&mut self, kernel: &mut Kernel) {
        if let Some(changes) = &mut self.changes {
            changes.take_out(kernel);
        }
    }

    /// Puts them in again, or does nothing while they are being taken out.
    pub(crate) fn put_changes_in(&mut self, kernel: &mut Kernel) {
        if let Some(changes) = &mut self.changes {
            changes.put_in(kernel);
        }
    }

    /// To be called now and then while they are taken out.
    pub(crate) fn settle(&mut self, kernel: &mut Kernel) {
        if let Some(changes) = &mut self.changes {
            changes.settle(kernel);
        }
    }

    /// All of them, where nobody uses the file any more.
    pub(super) fn into_links(self, kernel: &mut Kernel) -> Links {
        let mut links = self.links;
        links.extend(self.changes.map(|changes| changes.into_links(kernel)).into_iter().flatten());
        links
    }
}

/// The probes on context changes of one file.
#[derive(Debug)]
pub(super) struct ChangeProbes {
    file: LibraryFile,
    probes: Vec<PlannedProbe>,
    state: State,
}

#[derive(Debug)]
enum State {
    In(Links),
    /// The kernel waits at each until nobody is inside it.
    Leaving(JoinHandle<()>),
    Out,
    /// They could not be put in again.
    Refused(Instant),
}

impl ChangeProbes {
    /// Puts them in; what went wrong is in the attempt. `None` where the file has none of these functions.
    pub(super) fn attach(
        kernel: &mut Kernel,
        file: &LibraryFile,
        probes: Vec<PlannedProbe>,
    ) -> (Option<Self>, Attempt) {
        if probes.is_empty() {
            return (None, Attempt::default());
        }
        let mut attempt = attach_points(kernel, file, &probes, (UProbeScope::AllProcesses, RETURN));
        let state = State::In(std::mem::take(&mut attempt.links));
        (Some(Self { file: file.clone(), probes, state }), attempt)
    }

    /// Whether they are in place.
    pub(super) const fn are_in(&self) -> bool {
        matches!(self.state, State::In(_))
    }

    /// Takes them out, in a thread of its own: it takes up to 200 ms for each link, in which the ring has to be read.
    pub(super) fn take_out(&mut self, kernel: &mut Kernel) {
        let State::In(links) = &mut self.state else { return };
        // Whoever is inside such a call returns unseen.
        note(kernel.arm(self.file.identity.group(), 0).map_err(|error| chain(&error)));
        let mut taken = Vec::new();
        // Returns first: one without its entry would be a loss.
        for link in std::mem::take(links).into_iter().rev() {
            match kernel.take(link) {
                Ok(link) => taken.push(link),
                Err(error) => log::warn!("a probe that costs too much stays: {error}"),
            }
        }
        let leave = move || taken.into_iter().for_each(TakenLink::end);
        self.state = match std::thread::Builder::new().name("detach".to_owned()).spawn(leave) {
            Ok(thread) => State::Leaving(thread),
            Err(error) => {
                log::warn!("no thread takes probes out, and pinned ones stay: {error}");
                State::Out
            }
        };
    }

    /// Notes that they are out, once they are.
    pub(super) fn settle(&mut self, kernel: &mut Kernel) {
        if matches!(&self.state, State::Leaving(thread) if thread.is_finished()) {
            self.state = State::Out;
            note(kernel.arm(self.file.identity.group(), clock::boottime_ns()).map_err(|error| chain(&error)));
        }
    }

    /// Puts them in again, unless they are about to leave still.
    pub(super) fn put_in(&mut self, kernel: &mut Kernel) {
        self.settle(kernel);
        let is_time = match &self.state {
            State::Out => true,
            State::Refused(since) => since.elapsed() >= AGAIN,
            State::In(_) | State::Leaving(_) => false,
        };
        if is_time {
            let Attempt { links, error, .. } =
                attach_points(kernel, &self.file, &self.probes, (UProbeScope::AllProcesses, RETURN));
            match error {
                None => self.state = State::In(links),
                // The file may be gone; it is tried again, and what they would show stays unknown.
                Some(error) => {
                    log::warn!("{}: context changes are not probed: {error}", self.file.display);
                    self.state = State::Refused(Instant::now());
                    note(links.into_iter().map(|link| kernel.release(link)).fold(Ok(()), Result::and));
                }
            }
        }
    }

    /// The links, where nobody uses the file any more.
    pub(super) fn into_links(self, kernel: &mut Kernel) -> Links {
        match self.state {
            State::In(links) => links,
            State::Leaving(_) => {
                note(kernel.arm(self.file.identity.group(), clock::boottime_ns()).map_err(|error| chain(&error)));
                Vec::new()
            }
            State::Out | State::Refused(_) => Vec::new(),
        }
    }
}

fn note(done: Result<(), String>) {
    if let Err(error) = done {
        log::warn!("probes on context changes: {error}");
    }
}
