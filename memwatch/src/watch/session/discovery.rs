//! Finds libraries that have appeared since the last poll, and processes that need more probes.

use memwatch_common::loss::Loss;
use memwatch_core::input::Input;
use memwatch_core::words::Tgid;

use super::Session;
use crate::backends::library_watch::LateAttach;
use crate::sources::library::LibraryScan;
use crate::sources::library_sweep::Among;
use crate::sources::mappings::HERALDS;

impl Session {
    /// Finds new libraries, and processes that need more probes.
    pub(super) fn discover(&mut self) {
        self.meet_heralded();
        self.look_closer();
        let Self { kernel, libraries, sink, targets, everybody, own, .. } = self;
        // In a session with targets the pipeline knows the targets and their children.
        let wanted =
            |tgid| (*everybody && !own.holds(tgid)) || targets.contains(&tgid) || sink.state().knows(Tgid(tgid));
        let among = || match everybody {
            true => Among::Everybody,
            false => Among::Processes(sink.state().watched().map(|tgid| tgid.0).collect()),
        };
        let late = libraries.look_at_mapped(wanted);
        libraries.look_at_expected();
        libraries.look_at_swept(kernel, among);
        self.learn_latecomers(late);
        self.attach_looked();
    }

    /// Adds processes that have loaded a library which usually precedes CUDA, since they may load a
    /// framework next. Where PyTorch is traced machine-wide, its probes must be in place before the
    /// first allocation, so the process is added at this point and not with its first call.
    fn meet_heralded(&mut self) {
        for tgid in self.libraries.take_heralded() {
            self.frameworks.hurry(tgid);
            let is_new = !self.own.holds(tgid) && !self.sink.state().knows(Tgid(tgid));
            if self.everybody && self.tensors.is_wanted() && is_new {
                self.learn(tgid, false);
            }
        }
    }

    /// Adds the processes that had loaded such a library before the session began.
    pub(super) fn meet_earlier(&mut self) {
        if !self.everybody || !self.tensors.is_wanted() {
            return;
        }
        for tgid in LibraryScan::new("/proc").with_stems(&HERALDS).mapped_by_name() {
            if !self.own.holds(tgid) && !self.sink.state().knows(Tgid(tgid)) {
                self.learn(tgid, false);
            }
        }
    }

    /// Attaches to the library files examined since the last poll.
    pub(super) fn attach_looked(&mut self) {
        let late = self.libraries.attach_looked(&mut self.kernel);
        self.update_coverage();
        self.learn_latecomers(late);
    }

    /// Marks processes whose library cannot be opened and so has no probes: their later calls are
    /// not seen, and their numbers are inexact.
    pub(super) fn lose_unwatched(&mut self) {
        for tgid in self.libraries.take_unwatched() {
            if (self.everybody && !self.own.holds(tgid)) || self.sink.state().knows(Tgid(tgid)) {
                self.sink.step(Input::Lost { tgid: Some(Tgid(tgid)), loss: Loss::LibraryUnreadable, count: 1 });
            }
        }
    }

    pub(super) fn learn_latecomers(&mut self, late: Vec<LateAttach>) {
        for LateAttach { tgid, since_ns } in late {
            if (self.everybody && !self.own.holds(tgid)) || self.sink.state().knows(Tgid(tgid)) {
                self.learn_late(tgid, since_ns);
            }
        }
    }

    /// Requests container names, and attaches more probes to processes that need them.
    fn look_closer(&mut self) {
        let Self { kernel, libraries, on_demand, sink, names, tensors, .. } = self;
        names.want(sink.state().names());
        for probes in on_demand {
            probes.update(kernel, libraries, sink.pipeline());
        }
        tensors.update(kernel, sink);
        self.tend_changes();
    }

    /// Adds a process that mapped its library before the probes were in place and that is not known
    /// yet.
    pub(super) fn learn_late(&mut self, tgid: u32, since_ns: u64) {
        let Some(facts) = self.processes.facts(tgid, self.targets.contains(&tgid)) else { return };
        if facts.start_ns < since_ns {
            self.presence.unreported(tgid);
            self.sink.step(Input::Process(facts));
            self.sink.step(Input::ObservedFrom { tgid: Tgid(tgid), time_ns: since_ns });
        }
    }
}
