//! Passes process events (fork, exec, exit) to the pipeline, each after the facts that `/proc`
//! holds about the process at that moment.

use std::collections::BTreeSet;

use memwatch_common::record::{ProcessEvent, ProcessRecord, RingRecord};
use memwatch_core::input::{Input, ProcessFacts};

use super::input_sink::InputSink;
use crate::backends::library_watch::LibraryWatch;
use crate::sources::cgroup::ControlGroups;
use crate::sources::procfs::ProcReader;

/// `/proc/PID/stat` truncates a start time to 10 ms. Two readings of the same start differ by less
/// than this.
pub(super) const START_RESOLUTION_NS: u64 = 20_000_000;

/// The parts of a session that process events concern.
pub(crate) struct ProcessEventSink<'a> {
    pub(crate) sink: &'a mut InputSink,
    pub(crate) processes: &'a mut ProcReader,
    pub(crate) libraries: &'a mut LibraryWatch,
    pub(crate) groups: &'a mut ControlGroups,
    pub(crate) targets: &'a BTreeSet<u32>,
}

impl ProcessEventSink<'_> {
    /// Handles one process event.
    pub(crate) fn take(&mut self, event: ProcessRecord) {
        let record = RingRecord::Process(event);
        match event.event() {
            // Facts are read even for a known number: its exit record may be lost and the number
            // reused.
            Some(ProcessEvent::FirstCall) => {
                if let Some(facts) = self.facts(&event) {
                    self.sink.step(Input::Process(facts));
                }
            }
            // In a machine-wide session a child matters only from its own first call on.
            Some(ProcessEvent::Fork) if !self.targets.is_empty() => {
                self.libraries.expect(event.tgid);
                if let Some(facts) = self.processes.facts(event.tgid, false) {
                    self.sink.step(Input::Process(ProcessFacts { started_under_watch: true, ..facts }));
                }
            }
            Some(ProcessEvent::Exec) => {
                self.libraries.expect_program(event.tgid);
                self.sink.step(Input::Record(record));
                if let Some(facts) = self.facts(&event) {
                    self.sink.step(Input::Process(ProcessFacts { started_under_watch: true, ..facts }));
                }
                return;
            }
            Some(ProcessEvent::Exit) => self.libraries.forget(event.tgid),
            Some(ProcessEvent::Move) => self.groups.note_move(event.tgid),
            _ => {}
        }
        self.sink.step(Input::Record(record));
    }

    /// Returns the facts of the process from `/proc`. Falls back to the record if the process has
    /// exited (its number may be reused; the new process reports its own first call) or if its user
    /// starts processes faster than memwatch reads them.
    fn facts(&mut self, event: &ProcessRecord) -> Option<ProcessFacts> {
        let target = self.targets.contains(&event.tgid);
        if !target && event.start_ns != 0 && !self.processes.may_read(event.tgid, event.uid) {
            return Some(self.processes.facts_of_gone(event, self.groups.of_gone(event.cgroup_id), false));
        }
        let own = |facts: &ProcessFacts| facts.start_ns.abs_diff(event.start_ns) <= START_RESOLUTION_NS;
        match self.processes.facts(event.tgid, target) {
            Some(mut facts) if event.start_ns == 0 || own(&facts) => {
                self.groups.note(event.cgroup_id, facts.cgroups.as_deref().unwrap_or_default());
                facts.cgroups = facts.cgroups.or_else(|| self.groups.of_gone(event.cgroup_id));
                // The process may have exited between two reads.
                if facts.uid.is_none() {
                    let ProcessFacts { uid, login_uid, user, .. } = self.processes.facts_of_gone(event, None, target);
                    facts = ProcessFacts { uid, login_uid, user, ..facts };
                }
                Some(facts)
            }
            _ if event.start_ns == 0 => None,
            _ => Some(self.processes.facts_of_gone(event, self.groups.of_gone(event.cgroup_id), target)),
        }
    }
}
