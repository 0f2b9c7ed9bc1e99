//! The parts of a session that several collectors use, and the record loop, which connects them:
//! the kernel half, the ring, the input sink, and what is known of processes.

use std::collections::BTreeSet;

use anyhow::Context as _;
use aya_log::EbpfLogger;
use memwatch_common::loss::Loss;
use memwatch_common::record::{CallRecord, Item, ProcessRecord, RingRecord};
use memwatch_common::rm::RmRecord;
use memwatch_core::input::Input;
use memwatch_core::words::Tgid;

use super::input_sink::InputSink;
use super::life::ProcessEventSink;
use super::rest::IdleBackoff;
use super::tensors::TensorTracing;
use crate::backends::library_watch::{LateAttach, LibraryWatch};
use crate::frameworks::named::FrameworkNames;
use crate::sources::cgroup::ControlGroups;
use crate::sources::kernel::allocation_map::KernelAllocationMap;
use crate::sources::kernel::load::KernelHalf;
use crate::sources::kernel::losses::LossCounters;
use crate::sources::kernel::ring::{Drained, RecordRing};
use crate::sources::own::OwnProcesses;
use crate::sources::presence::Presence;
use crate::sources::procfs::ProcReader;
use crate::watch::journal::Aside;

/// Maximum number of calls passed to the pipeline as one batch. A batch fits the level-1 data
/// cache.
const TOGETHER: usize = 256;

/// Log of the kernel half.
pub(crate) type KernelLog = EbpfLogger<&'static dyn log::Log>;

/// Parts of a session that its collectors share.
pub(crate) struct SessionParts {
    /// The probes, and the kernel half's settings.
    pub(crate) kernel: KernelHalf,
    /// Log of the kernel half, which `--diagnostics` enables.
    pub(crate) diagnostics: Option<KernelLog>,
    /// Records of the kernel half.
    pub(crate) ring: RecordRing,
    /// Whether the session polls or sleeps.
    pub(crate) backoff: IdleBackoff,
    /// Counts of lost records.
    pub(crate) losses: LossCounters,
    /// The kernel half's map of live allocations.
    pub(crate) allocation_map: KernelAllocationMap,
    /// Where every collector passes its inputs.
    pub(crate) sink: InputSink,
    /// Facts about processes from `/proc`.
    pub(crate) processes: ProcReader,
    /// Processes to look up in `/proc`.
    pub(crate) presence: Presence,
    /// Control groups of processes.
    pub(crate) groups: ControlGroups,
    /// Libraries of processes, and the probes attached to them.
    pub(crate) libraries: LibraryWatch,
    /// Tracing of the frameworks' allocators.
    pub(crate) tensors: TensorTracing,
    /// Frameworks of processes with GPU memory.
    pub(crate) frameworks: FrameworkNames,
    /// Processes that the session watches.
    pub(crate) scope: SessionScope,
}

/// Processes that a session watches.
#[derive(Debug)]
pub(crate) struct SessionScope {
    /// Processes named by the user; empty in a machine-wide session.
    pub(crate) targets: BTreeSet<u32>,
    /// Every process of the machine is watched.
    pub(crate) everybody: bool,
    /// Processes of memwatch, which are not reported.
    pub(crate) own: OwnProcesses,
}

impl SessionParts {
    /// Reads all records in the ring.
    pub(crate) fn pump(&mut self) {
        if let Some(log) = &mut self.diagnostics {
            log.flush();
        }
        let Self { ring, sink, processes, presence, libraries, groups, tensors, scope, .. } = self;
        let SessionScope { targets, own, .. } = scope;
        let mut life = ProcessEventSink { sink, processes, libraries, groups, targets };
        let mut calls = Vec::new();
        let mut has_come = false;
        let is_behind = ring.drain(|drained| {
            let item = match drained {
                Drained::Item(item) => item,
                Drained::UpTo(reached) => {
                    life.sink.step_calls(&calls);
                    calls.clear();
                    return life.sink.commit(reached);
                }
            };
            has_come = true;
            if let Ok(
                Item::Record(
                    RingRecord::Call(CallRecord { tgid, .. }) | RingRecord::Process(ProcessRecord { tgid, .. }),
                )
                | Item::Rm(RmRecord { tgid, .. }),
            ) = &item
                && own.holds(*tgid)
            {
                return;
            }
            let call = if let Ok(Item::Record(RingRecord::Call(call))) = item { Some(call) } else { None };
            calls.extend(call);
            if call.is_none() || calls.len() == TOGETHER {
                life.sink.step_calls(&calls);
                calls.clear();
            }
            match item {
                Ok(Item::Record(RingRecord::Call(_))) => {}
                Ok(Item::Record(RingRecord::Process(event))) => {
                    presence.reported(event.tgid);
                    tensors.note_life(&event);
                    life.take(event);
                }
                Ok(item) => tensors.take(&item).into_iter().for_each(|input| life.sink.step(input)),
                Err(_) => life.sink.step(Input::Lost { tgid: None, loss: Loss::UndecodableRecord, count: 1 }),
            }
        });
        life.sink.step_calls(&calls);
        if has_come {
            self.backoff.note_records();
        }
        self.backoff.note_behind(is_behind);
        tensors.note_fetched();
        for moved in self.groups.take_moved(&self.processes) {
            self.sink.step(moved);
        }
    }

    /// Whether this session reports a process: in a machine-wide session every one but memwatch's
    /// own, otherwise the known ones.
    pub(crate) fn is_watched(&self, tgid: u32) -> bool {
        (self.scope.everybody && !self.scope.own.holds(tgid)) || self.sink.state().knows(Tgid(tgid))
    }

    /// Adds a running process that is known from NVML or `/proc` and not from a record.
    pub(crate) fn learn(&mut self, tgid: u32, target: bool) {
        let facts = self.processes.facts(tgid, target).filter(|_| !self.processes.is_over(tgid));
        // A listed process may be exiting after its exit record was processed: it would appear as a
        // new process.
        if let Some(mut facts) = facts.filter(|facts| !self.sink.state().has_ended(facts)) {
            self.presence.unreported(tgid);
            // A process that had not mapped the library at that time has made no call.
            facts.started_under_watch |= self.libraries.is_expected(tgid);
            self.sink.step(Input::Process(facts));
        }
    }

    /// Adds the watched ones of these processes, whose libraries were probed late.
    pub(crate) fn learn_latecomers(&mut self, late: Vec<LateAttach>) {
        for LateAttach { tgid, since_ns } in late {
            if self.is_watched(tgid) {
                self.learn_late(tgid, since_ns);
            }
        }
    }

    /// Adds a process that mapped its library before the probes were in place and that is not known
    /// yet.
    pub(crate) fn learn_late(&mut self, tgid: u32, since_ns: u64) {
        let Some(facts) = self.processes.facts(tgid, self.scope.targets.contains(&tgid)) else { return };
        if facts.start_ns < since_ns {
            self.presence.unreported(tgid);
            self.sink.step(Input::Process(facts));
            self.sink.step(Input::ObservedFrom { tgid: Tgid(tgid), time_ns: since_ns });
        }
    }

    /// Returns which table entries of the kernel half were consumed.
    pub(crate) fn aside(&self) -> Aside {
        let (losses, removed) = (self.losses.reported(), self.allocation_map.removed());
        Aside { losses, removed, takes_waiting: false }
    }

    /// Writes to the journal which table entries of the kernel half were consumed, together with
    /// the inputs made from them.
    pub(crate) fn note_aside(&mut self) {
        if self.sink.journal.is_some() {
            let aside = self.aside();
            if let Some(journal) = &mut self.sink.journal {
                journal.note_aside(aside);
            }
        }
    }
}

/// Opens the log of the kernel half.
///
/// # Errors
/// The log cannot be read.
pub(crate) fn log_of(kernel: &mut KernelHalf) -> anyhow::Result<KernelLog> {
    EbpfLogger::init(&mut kernel.ebpf).context("the kernel half's log cannot be read")
}
