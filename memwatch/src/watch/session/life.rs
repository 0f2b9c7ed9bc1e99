//! Records of process life on their way into the pipeline: what `/proc` says of a process at that moment goes before them.

use std::collections::BTreeSet;

use memwatch_common::record::{ProcessEvent, ProcessRecord, Record};
use memwatch_core::input::{Input, ProcessFacts};

use super::intake::Intake;
use crate::backends::library_watch::LibraryWatch;
use crate::sources::cgroup::Groups;
use crate::sources::procfs::ProcReader;

/// `/proc/PID/stat` reports a start to 10 ms, cut off: two readings of one start differ by less.
pub(super) const START_RESOLUTION_NS: u64 = 20_000_000;

/// What such a record concerns.
pub(crate) struct Life<'a> {
    pub(crate) pipeline: &'a mut Intake,
    pub(crate) processes: &'a mut ProcReader,
    pub(crate) libraries: &'a mut LibraryWatch,
    pub(crate) groups: &'a mut Groups,
    pub(crate) targets: &'a BTreeSet<u32>,
}

impl Life<'_> {
    /// Takes one record in.
    pub(crate) fn take(&mut self, event: ProcessRecord) {
        let record = Record::Process(event);
        match event.event() {
            // Read even for a number that is known: its exit may be among the lost records, and this another process.
            Some(ProcessEvent::FirstCall) => {
                if let Some(facts) = self.facts(&event) {
                    self.pipeline.step(Input::Process(facts));
                }
            }
            // In a watch on everybody a child is of interest from its own first call on.
            Some(ProcessEvent::Fork) if !self.targets.is_empty() => {
                self.libraries.expect(event.tgid);
                if let Some(facts) = self.processes.facts(event.tgid, false) {
                    self.pipeline.step(Input::Process(ProcessFacts { started_under_watch: true, ..facts }));
                }
            }
            Some(ProcessEvent::Exec) => {
                self.libraries.expect_program(event.tgid);
                self.pipeline.step(Input::Record(record));
                if let Some(facts) = self.facts(&event) {
                    self.pipeline.step(Input::Process(ProcessFacts { started_under_watch: true, ..facts }));
                }
                return;
            }
            Some(ProcessEvent::Exit) => self.libraries.forget(event.tgid),
            Some(ProcessEvent::Move) => self.groups.note_move(event.tgid),
            _ => {}
        }
        self.pipeline.step(Input::Record(record));
    }

    /// What `/proc` says of the process, or else the record itself: it may have ended since, and its number may be another's by now, who will have
    /// a first call of his own. The record alone, for now, where its user starts more than are read.
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
                // It may have gone between two of its files.
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
