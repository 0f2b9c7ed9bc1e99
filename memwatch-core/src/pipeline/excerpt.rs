//! The part of a recording that one user may see: the user's processes, and of others nothing but
//! what the machine's totals say.
//!
//! A process is the user's while its real user id is, as in [`crate::snapshot::ProcessView::is_shown_to`].

use std::collections::BTreeMap;

use memwatch_common::record::{ProcessEvent, RingRecord};

use crate::attribution::process::Process;
use crate::input::{DeviceReading, Input, ProbeCoverage};
use crate::pipeline::Pipeline;
use crate::pipeline::detectors::Detectors;
use crate::snapshot::Viewer;
use crate::snapshot::viewer::public;
use crate::state::State;
use crate::words::Tgid;

/// A user's part of a recording, input by input.
#[derive(Clone, Debug)]
pub struct Excerpt {
    uid: u32,
    /// Real user id of each process.
    users: BTreeMap<Tgid, u32>,
}

impl Excerpt {
    /// Begins at this state of everybody's processes. Returns the state as the user may see it.
    pub fn begin(uid: u32, everybody: &Pipeline) -> (Self, Pipeline) {
        let known = everybody.state.processes.values();
        let users = known.filter_map(|process| Some((process.tgid, process.facts.as_ref()?.uid?)));
        let excerpt = Self { uid, users: users.collect() };
        let state = excerpt.state(&everybody.state);
        // The failures are those of the log: of a time without inputs nothing else knows them.
        let ooms = everybody.detectors.ooms.as_ref().map(|log| Box::new(log.of(Viewer::User(uid))));
        (excerpt, Pipeline { state, detectors: Detectors { ooms, ..Detectors::default() } })
    }

    /// Returns the next input as the user may see it; `None` if it is about others.
    pub fn take(&mut self, input: Input) -> Option<Input> {
        self.follow(&input);
        let ended = match &input {
            Input::Record(RingRecord::Process(record)) if record.event() == Some(ProcessEvent::Exit) => {
                Some(Tgid(record.tgid))
            }
            Input::ProcessEnded { tgid, .. } => Some(*tgid),
            _ => None,
        };
        let taken = match input {
            Input::Devices(reading) => Some(Input::Devices(self.reading(reading))),
            Input::Coverage(coverage) => Some(Input::Coverage(public_coverage(&coverage))),
            Input::Unproven(mut tgids) => {
                tgids.retain(|tgid| self.is_own(*tgid));
                Some(Input::Unproven(tgids))
            }
            input => match subject(&input) {
                Subject::Nobody => Some(input),
                Subject::Process(tgid) => self.is_own(tgid).then_some(input),
                Subject::Others => None,
            },
        };
        // The number may be another's from now on.
        if let Some(tgid) = ended {
            self.users.remove(&tgid);
        }
        taken
    }

    /// Learns whose processes an input is about.
    fn follow(&mut self, input: &Input) {
        match input {
            Input::Process(facts) => match facts.uid {
                Some(uid) => drop(self.users.insert(Tgid(facts.tgid), uid)),
                None => drop(self.users.remove(&Tgid(facts.tgid))),
            },
            Input::Record(RingRecord::Process(record)) => {
                self.users.insert(Tgid(record.tgid), record.uid);
            }
            _ => {}
        }
    }

    fn is_own(&self, tgid: Tgid) -> bool {
        self.users.get(&tgid) == Some(&self.uid)
    }

    /// Returns a state with nothing in it but what the user may see.
    fn state(&self, all: &State) -> State {
        let is_own = |process: &&Process| process.facts.as_ref().and_then(|facts| facts.uid) == Some(self.uid);
        let mut own = State::new(all.keep_ended);
        (own.now_ns, own.attached_ns) = (all.now_ns, all.attached_ns);
        own.processes =
            all.processes.values().filter(is_own).map(|process| (process.tgid, self.process(process))).collect();
        all.ended.iter().filter(is_own).for_each(|process| own.ended.push(self.process(process)));
        let forks = all.forks.iter().filter(|(child, parent)| self.is_own(**child) && self.is_own(**parent));
        own.forks = forks.map(|(child, parent)| (*child, *parent)).collect();
        own.reading = self.reading(all.reading.clone());
        own.on_several = all.on_several.iter().copied().filter(|tgid| self.is_own(*tgid)).collect();
        own.with_graphs = all.with_graphs.iter().copied().filter(|tgid| self.is_own(*tgid)).collect();
        own.reconciliation = all.reconciliation.of(|tgid| self.is_own(tgid));
        own.kernel_driver = all.kernel_driver.of(|tgid| self.is_own(tgid));
        own.coverage = public_coverage(&all.coverage);
        own.losses = all.losses.of(|tgid| self.is_own(tgid));
        own
    }

    fn process(&self, process: &Process) -> Process {
        let mut own = process.clone();
        own.forked.retain(|tgid| self.is_own(*tgid));
        // It may name the previous owner of memory.
        own.last_explained = None;
        own
    }

    /// Returns a reading that lists only the user's processes.
    fn reading(&self, mut reading: DeviceReading) -> DeviceReading {
        for list in reading.devices.iter_mut().filter_map(|device| device.processes.as_mut()) {
            list.retain(|process| self.is_own(process.tgid));
        }
        reading
    }
}

/// Whom an input is about.
enum Subject {
    /// No process: the machine.
    Nobody,
    /// One process.
    Process(Tgid),
    /// Several users.
    Others,
}

fn subject(input: &Input) -> Subject {
    let tgid = match input {
        Input::Attached { .. } | Input::Tick { .. } | Input::KernelDriver { .. } => return Subject::Nobody,
        Input::Lost { tgid, .. } | Input::PeaksReset { tgid, .. } => {
            return tgid.map_or(Subject::Nobody, Subject::Process);
        }
        // Containers, pods and groups may belong to several users. The first three of this list are
        // cut to the user's processes instead.
        Input::Devices(_)
        | Input::Coverage(_)
        | Input::Unproven(_)
        | Input::Names(_)
        | Input::Promised(_)
        | Input::CgroupMemory(_) => return Subject::Others,
        Input::Record(RingRecord::Call(record)) => Tgid(record.tgid),
        Input::Record(RingRecord::Process(record)) => Tgid(record.tgid),
        Input::Record(RingRecord::Tensor(record)) => Tgid(record.tgid),
        Input::Record(RingRecord::Text(record)) => Tgid(record.tgid),
        Input::Process(facts) => Tgid(facts.tgid),
        Input::TensorLevel(choice) => choice.tgid,
        Input::Held(held) => held.tgid,
        Input::AllocatorState(state) => state.tgid,
        Input::MovingAllocatorState(state) => state.tgid,
        Input::Numbers(numbers) => numbers.tgid,
        Input::Holdings(holdings) => holdings.tgid,
        Input::Arenas(readings) => readings.tgid,
        Input::KvCache(reading) => reading.tgid,
        Input::HeldNames(reading) => reading.tgid,
        Input::Rm(call) => call.tgid,
        Input::ScratchWatched(tgid, _)
        | Input::ContextChanges(tgid, _)
        | Input::Stack { tgid, .. }
        | Input::NativeStack { tgid, .. }
        | Input::TensorsWatched { tgid, .. }
        | Input::Statistics { tgid, .. }
        | Input::ObservedFrom { tgid, .. }
        | Input::ProcessEnded { tgid, .. }
        | Input::Cgroups { tgid, .. }
        | Input::AllocatorStateRefused { tgid, .. }
        | Input::TraceWindow { tgid, .. }
        | Input::Frameworks { tgid, .. }
        | Input::FrameworkWatched { tgid, .. } => *tgid,
    };
    Subject::Process(tgid)
}

fn public_coverage(coverage: &ProbeCoverage) -> ProbeCoverage {
    ProbeCoverage { libraries: coverage.libraries.iter().map(public).collect(), ..coverage.clone() }
}
