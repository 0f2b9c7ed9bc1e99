//! The state: everything known about processes, devices and workloads, without analyses.

mod allocated;
mod clock;
mod contexts;
mod ended;
pub mod event;
mod kernel_driver;
mod losses;
mod owners;
mod peaks;
mod prefetch;
pub(crate) mod room;
pub mod tensors;

pub use allocated::AllocatedBytes;
pub use contexts::ContextUse;

use std::collections::{BTreeMap, BTreeSet};

use memwatch_common::loss::Loss;
use memwatch_common::record::{CallRecord, ProcessEvent, ProcessRecord, RingRecord};
use serde::{Deserialize, Serialize};

use crate::attribution::device::{self, UnplacedThreads};
use crate::attribution::ended::EndedProcesses;
use crate::attribution::losses::LossLedger;
use crate::attribution::names::ContainerRegistry;
use crate::attribution::process::Process;
use crate::attribution::reconcile::Reconciliation;
use crate::attribution::sharing::Sharing;
use crate::attribution::workload::Workloads;
use crate::decode::{self, Action, Call, DecodeError};
use crate::input::{DeviceReading, Input, NvmlState, ProbeCoverage, ProcessFacts};
use crate::kernel_driver::KernelDriver;
use crate::ledger::EndedAddress;
use crate::owner::{CgroupMemory, Promise};
use crate::snapshot::build::{Surroundings, named, still_holds, workloads};
use crate::snapshot::{ProcessView, Snapshot};
use crate::state::event::{Detector, Event};
use crate::state::room::{Room, answers};
use crate::words::{GpuUuid, Tgid, Tid};

/// Addresses of a process that the kernel half's allocation map has to drop: see [`EndedAddress`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unnamed {
    /// Process of the addresses.
    pub tgid: Tgid,
    /// Generation of the allocation map of this pid that contains the addresses; `None` for the present one.
    pub life: Option<u32>,
    /// Addresses to drop.
    pub addresses: Vec<EndedAddress>,
    /// Whether addresses may be missing, because records of the process were lost.
    pub incomplete: bool,
}

/// Everything known about processes, devices and workloads.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct State {
    pub(crate) now_ns: u64,
    pub(crate) attached_ns: u64,
    pub(crate) processes: BTreeMap<Tgid, Process>,
    pub(crate) ended: EndedProcesses,
    /// Parent of each child in a list of forked children.
    pub(crate) forks: BTreeMap<Tgid, Tgid>,
    pub(crate) keep_ended: bool,
    pub(crate) reading: DeviceReading,
    /// Processes that the reading lists on several devices.
    pub(crate) on_several: BTreeSet<Tgid>,
    /// Processes with memory in CUDA graphs at the last check.
    pub(crate) with_graphs: BTreeSet<Tgid>,
    pub(crate) reconciliation: Reconciliation,
    pub(crate) kernel_driver: KernelDriver,
    pub(crate) coverage: ProbeCoverage,
    pub(crate) losses: LossLedger,
    pub(crate) sharing: Sharing,
    pub(crate) room: Room,
    #[serde(skip)]
    pub(crate) unnamed: Vec<Unnamed>,
    pub(crate) names: ContainerRegistry,
    pub(crate) workloads: Workloads,
    pub(crate) promised: Vec<Promise>,
    pub(crate) cgroup_memory: Vec<CgroupMemory>,
    #[serde(skip)]
    pub(crate) logs_tensors: bool,
    #[serde(skip)]
    pub(crate) least_listed_bytes: Option<u64>,
    /// Process with an allocator history, and the length limit of the history.
    #[serde(skip)]
    pub(crate) keeps_history: Option<(Tgid, usize)>,
}

impl State {
    /// Creates an empty state. `keep_ended` keeps ended processes in snapshots, for sessions with named targets.
    pub fn new(keep_ended: bool) -> Self {
        let state = NvmlState::Starting;
        Self {
            now_ns: 0,
            attached_ns: 0,
            processes: BTreeMap::new(),
            ended: EndedProcesses::default(),
            forks: BTreeMap::new(),
            keep_ended,
            reading: DeviceReading { begin_ns: 0, end_ns: 0, state, devices: Vec::new() },
            on_several: BTreeSet::new(),
            with_graphs: BTreeSet::new(),
            reconciliation: Reconciliation::default(),
            kernel_driver: KernelDriver::default(),
            coverage: ProbeCoverage::default(),
            losses: LossLedger::default(),
            sharing: Sharing::default(),
            room: Room::default(),
            unnamed: Vec::new(),
            names: ContainerRegistry::default(),
            workloads: Workloads::default(),
            promised: Vec::new(),
            cgroup_memory: Vec::new(),
            logs_tensors: false,
            least_listed_bytes: None,
            keeps_history: None,
        }
    }

    /// Applies one input and passes what happens to `detector`.
    pub fn step(&mut self, input: Input, detector: &mut impl Detector) {
        if let Some(time_ns) = clock::time_of(&input) {
            detector.on(&Event::Time(time_ns), self);
        }
        match input {
            Input::Attached { time_ns } => {
                self.attached_ns = time_ns;
                self.now_ns = self.now_ns.max(time_ns);
            }
            Input::Record(RingRecord::Call(record)) => self.call(&record, detector),
            Input::Record(RingRecord::Process(record)) => self.process_event(&record, detector),
            Input::Record(record @ (RingRecord::Tensor(_) | RingRecord::Text(_))) => self.tensor(&record, detector),
            Input::Stack { tgid, id, stack } => self.learn_stack(tgid, id, stack),
            Input::NativeStack { tgid, id, stack } => self.learn_native(tgid, id, stack),
            Input::TensorsWatched { tgid, missing, time_ns } => self.watch_tensors(tgid, &missing, time_ns),
            Input::TensorLevel(choice) => self.choose_level(choice),
            Input::Statistics { tgid, allocator, time_ns, words } => {
                self.learn_statistics((tgid, allocator), time_ns, &words);
            }
            Input::Process(facts) => self.learn(facts, detector),
            Input::ObservedFrom { tgid, time_ns } => {
                self.forget_readings(tgid);
                self.process_mut(tgid, time_ns).observe_from(time_ns);
            }
            Input::ProcessEnded { tgid, time_ns } => {
                self.end(tgid, time_ns, detector);
                self.losses.forget(tgid);
            }
            Input::Devices(reading) => self.devices(reading, detector),
            Input::Held(held) => self.anchor(&held, detector),
            Input::Cgroups { tgid, cgroups } => self.move_to(tgid, &cgroups),
            Input::Names(names) => self.name(&names),
            Input::Promised(promised) => self.promised = promised,
            Input::CgroupMemory(memory) => self.cgroup_memory = memory,
            Input::Lost { tgid, loss, count } => self.lose(tgid, loss, count),
            Input::Coverage(coverage) => self.coverage = coverage,
            Input::PeaksReset { tgid, time_ns } => self.reset_peaks(tgid, time_ns),
            Input::Tick { time_ns } => self.tick(time_ns, detector),
            Input::AllocatorState(allocator_state) => self.learn_allocator_state(&allocator_state, detector),
            Input::AllocatorStateRefused { tgid, reason } => self.refuse_allocator_state(tgid, reason),
            Input::MovingAllocatorState(allocator_state) => self.learn_moving_allocator_state(&allocator_state),
            Input::Numbers(numbers) => self.learn_numbers(&numbers, detector),
            Input::TraceWindow { tgid, time_ns, is_open } => self.trace_window(tgid, time_ns, is_open),
            Input::Holdings(holdings) => self.learn_holdings(holdings),
            Input::Rm(call) => self.follow_rm(&call, detector),
            Input::Arenas(allocator_state) => self.learn_arenas(&allocator_state),
            Input::ContextChanges(tgid, seen) => self.see_context_changes(tgid, seen),
            Input::ScratchWatched(tgid, time_ns) => self.watch_scratch(tgid, time_ns),
            Input::FrameworkWatched { tgid, framework, time_ns } => self.watch_framework(tgid, framework, time_ns),
            Input::Frameworks { tgid, frameworks } => self.learn_frameworks(tgid, frameworks),
            Input::Unproven(tgids) => {
                self.processes.values_mut().for_each(|process| process.unproven = tgids.contains(&process.tgid));
            }
            Input::KvCache(reading) => self.learn_kv_cache(reading),
            Input::HeldNames(reading) => self.learn_held_names(*reading, detector),
            Input::KernelDriver { version } => self.kernel_driver.learn_version(version),
        }
    }

    /// Latest time passed in: `CLOCK_BOOTTIME`, nanoseconds.
    pub const fn now_ns(&self) -> u64 {
        self.now_ns
    }

    /// Returns whether this process is tracked. The shell reads `/proc` of an untracked process before it passes on
    /// the process's records.
    pub fn knows(&self, tgid: Tgid) -> bool {
        self.processes.contains_key(&tgid)
    }

    /// Returns the latest `/proc` data of a tracked process.
    pub fn facts(&self, tgid: Tgid) -> Option<&ProcessFacts> {
        self.processes.get(&tgid)?.facts.as_ref()
    }

    /// Iterates over the tracked processes.
    pub fn watched(&self) -> impl Iterator<Item = Tgid> {
        self.processes.keys().copied()
    }

    /// Number of GPUs in the last reading.
    pub fn gpus(&self) -> usize {
        self.reading.devices.len()
    }

    /// Iterates over the GPUs with their used bytes according to the last NVML reading.
    pub fn used(&self) -> impl Iterator<Item = (&GpuUuid, Option<u64>)> {
        self.reading.devices.iter().map(|device| (&device.uuid, device.used_bytes))
    }

    /// Returns the part of the time in which the busiest GPU of a process runs kernels, percent, by
    /// NVML; `None` if that is unknown for one of its GPUs.
    pub fn gpu_percent(&self, tgid: Tgid) -> Option<u32> {
        let own = self.reading.devices.iter().filter(|device| device.lists(tgid));
        own.map(|device| device.sensors.utilization_percent).collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    /// Returns the control groups of tracked processes.
    pub fn cgroups(&self) -> BTreeSet<&str> {
        self.processes.values().filter_map(|process| process.owner.cgroup.as_deref()).collect()
    }

    /// Iterates over processes with instantiated graphs that allocate memory: their launches have to be traced.
    pub fn with_graph_memory(&self) -> impl Iterator<Item = Tgid> {
        let has = |tgid: &Tgid| self.processes.get(tgid).is_some_and(|process| process.ledger.has_graph_memory());
        self.with_graphs.iter().copied().filter(has)
    }

    /// Returns the processes with possibly wrong totals because of lost records, which can be resynced with the
    /// kernel half's allocation map.
    pub fn to_anchor(&self) -> Vec<Tgid> {
        self.processes.values().filter(|process| process.needs_anchor()).map(|process| process.tgid).collect()
    }

    /// Takes the addresses, by process, that ended without a naming free since the last call and are still in the
    /// kernel half's allocation map.
    pub fn take_unnamed(&mut self) -> Vec<Unnamed> {
        std::mem::take(&mut self.unnamed)
    }

    /// Containers with live processes. Missing names have to be looked up in the runtimes.
    pub fn names(&self) -> &ContainerRegistry {
        &self.names
    }

    /// Iterates over the processes on several devices with threads on an unknown device.
    pub fn unplaced(&self) -> impl Iterator<Item = (Tgid, UnplacedThreads)> {
        let listed = self.on_several.iter().filter_map(|tgid| self.processes.get(tgid));
        listed.filter_map(|process| Some((process.tgid, device::is_unplaced(process, &self.reading.devices)?)))
    }

    /// Returns the view of one tracked process, as in [`Self::snapshot`].
    pub fn process(&self, tgid: Tgid) -> Option<ProcessView> {
        Some(self.surroundings().process(self.processes.get(&tgid)?))
    }

    pub(crate) const fn surroundings(&self) -> Surroundings<'_> {
        let Self { reading, reconciliation, processes, kernel_driver, .. } = self;
        Surroundings { reading, reconciliation, processes, kernel_driver }
    }

    /// Returns the read model as of the last tick, without growth rates.
    pub fn snapshot(&self) -> Snapshot {
        let surroundings = self.surroundings();
        let all = self.ended.iter().chain(self.processes.values());
        let mut processes: Vec<ProcessView> = all.map(|process| surroundings.process(process)).collect();
        processes.sort_by_key(|process| (process.tgid, process.observed_since_ns));
        let gpus = self.reading.devices.iter().map(|device| surroundings.gpu(device, &processes)).collect();
        let workloads = workloads::views(&self.workloads, &processes);
        Snapshot {
            time_ns: self.now_ns,
            complete: self.losses.all().is_empty() && !self.processes.values().any(|process| process.unproven),
            losses: named(self.losses.all()),
            coverage: self.coverage.clone(),
            nvml: self.reading.state.clone(),
            attached_ns: self.attached_ns,
            gpus,
            processes,
            workloads,
            promised: self.promised.clone(),
            cgroup_memory: self.cgroup_memory.clone(),
            hidden: None,
            from_agent: false,
        }
    }

    fn call(&mut self, record: &CallRecord, detector: &mut impl Detector) {
        let tgid = Tgid(record.tgid);
        match decode::decode(record) {
            Ok(call) => {
                detector.on(&Event::Time(call.returned_ns), self);
                self.apply(&call);
                detector.on(&Event::Call(&call), self);
            }
            Err(DecodeError::UnknownProbe(_)) => self.lose(Some(tgid), Loss::UndecodableRecord, 1),
            // The kernel half has already counted the loss, unless it could not decide whether the call matters. In
            // neither case can the call be applied.
            Err(DecodeError::ResultUnreadable(probe)) => {
                if probe.plan.is_tolerant() {
                    self.lose(Some(tgid), Loss::OutUnreadable, 1);
                }
            }
        }
    }

    fn apply(&mut self, call: &Call) {
        let origin = self.sharing.origin_of(&call.action);
        let mut process = self.process_mut(call.tgid, call.entered_ns);
        process.changed = true;
        process.overhead.count_call();
        if call.status == 0 && process.ledger.is_to_be_counted(&call.action) {
            if !self.make_room(call) {
                return;
            }
            process = self.process_mut(call.tgid, call.entered_ns);
        }
        process.ledger.apply_import(call, origin);
        process.report_tensors(call);
        let addresses = process.ledger.take_unnamed();
        if process.ledger.has_graph_memory() {
            self.with_graphs.insert(call.tgid);
        }
        if !addresses.is_empty() {
            self.unnamed.push(Unnamed { tgid: call.tgid, life: None, addresses, incomplete: false });
        }
        if call.status != 0 {
            return;
        }
        match call.action {
            Action::ExportAddress { .. } | Action::ExportPhysical { .. } => self.offer(call),
            Action::Checkpoint { tgid } => self.checkpoint(tgid, true),
            Action::Restore { tgid } => self.checkpoint(tgid, false),
            _ => {}
        }
    }

    fn offer(&mut self, call: &Call) {
        if self.sharing.is_full() {
            let Self { sharing, processes, .. } = self;
            let user_of = |tgid: Tgid| processes.get(&tgid).and_then(answers);
            sharing.clean(|origin| still_holds(processes, origin), user_of);
        }
        if let Some(process) = self.processes.get(&call.tgid) {
            self.sharing.note(call.tgid, &call.action, &process.ledger);
        }
    }

    fn checkpoint(&mut self, tgid: Tgid, checkpointed: bool) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.checkpointed = checkpointed;
        }
    }

    fn process_event(&mut self, record: &ProcessRecord, detector: &mut impl Detector) {
        let tgid = Tgid(record.tgid);
        match record.event() {
            Some(ProcessEvent::Exit) => {
                self.forget_fork(tgid);
                self.end(tgid, record.time_ns, detector);
                self.losses.forget(tgid);
                self.note_life(record);
            }
            Some(ProcessEvent::Exec) => {
                self.forget_fork(tgid);
                self.begin_end(tgid, record.time_ns, detector);
                self.kernel_driver.end(tgid, record.time_ns);
                if let Some(process) = self.processes.get_mut(&tgid) {
                    process.exec(record.time_ns);
                    self.reconciliation.forget(tgid);
                    let (addresses, incomplete) = (process.ledger.take_unnamed(), !process.is_exact());
                    self.unnamed.push(Unnamed { tgid, life: None, addresses, incomplete });
                }
                self.note_life(record);
            }
            Some(ProcessEvent::FirstCall) => {
                self.process_mut(tgid, record.time_ns).started_at(record.start_ns, record.time_ns);
            }
            // A child starts without memory, because CUDA memory does not survive a fork. The child appears with its
            // own first call.
            Some(ProcessEvent::Fork) => self.note_fork(Tgid(record.parent_tgid), tgid),
            // The shell reads the new group from `/proc`.
            Some(ProcessEvent::Move) => {}
            Some(ProcessEvent::ThreadEnd) => {
                if let Some(process) = self.processes.get_mut(&tgid) {
                    process.end_thread(Tid(record.parent_tgid));
                }
            }
            None => self.lose(Some(tgid), Loss::UndecodableRecord, 1),
        }
    }

    fn process_mut(&mut self, tgid: Tgid, now_ns: u64) -> &mut Process {
        self.processes.entry(tgid).or_insert_with(|| {
            let mut process = Process::new(tgid, None, now_ns, self.attached_ns);
            process.comes_after(self.ended.last(tgid));
            self.losses.settle(&mut process);
            self.workloads.enter(tgid, &process.owner);
            process
        })
    }

    fn learn(&mut self, facts: ProcessFacts, detector: &mut impl Detector) {
        let tgid = Tgid(facts.tgid);
        if let Some(known) = self.processes.get_mut(&tgid).filter(|known| known.is_of(&facts)) {
            known.learn(facts);
            self.own(tgid);
            return;
        }
        // A process with this pid and another start time has exited, and its exit was not seen.
        self.end(tgid, facts.start_ns, detector);
        // The start time is truncated to 10 ms, so it may precede the end of the previous process with this pid.
        let before = self.ended.last(tgid);
        let now_ns = self.now_ns.max(facts.start_ns);
        let mut process = Process::new(tgid, Some(facts), now_ns, self.attached_ns);
        process.comes_after(before);
        self.losses.settle(&mut process);
        self.workloads.enter(tgid, &process.owner);
        self.processes.insert(tgid, process);
        self.own(tgid);
    }

    /// Assigns the generation of the closed allocation map to the addresses that the process has left so far.
    fn note_life(&mut self, record: &ProcessRecord) {
        for unnamed in self.unnamed.iter_mut().filter(|unnamed| unnamed.tgid == Tgid(record.tgid)) {
            unnamed.life.get_or_insert(record.life);
        }
    }

    /// Adopts the last counters of a process that is about to exit or to execute another image.
    fn begin_end(&mut self, tgid: Tgid, time_ns: u64, detector: &mut impl Detector) {
        self.settle_statistics(tgid, time_ns, true, detector);
        detector.on(&Event::Ends { tgid, time_ns }, self);
    }

    fn end(&mut self, tgid: Tgid, time_ns: u64, detector: &mut impl Detector) {
        self.begin_end(tgid, time_ns, detector);
        self.keep_explained(tgid);
        self.kernel_driver.end(tgid, time_ns);
        if let Some(mut process) = self.processes.remove(&tgid) {
            self.names.leave(&process.owner);
            process.end(time_ns);
            self.workloads.leave(&process, &self.reading.devices, time_ns);
            let (addresses, incomplete) = (process.ledger.take_unnamed(), !process.is_exact());
            self.unnamed.push(Unnamed { tgid, life: None, addresses, incomplete });
            self.reconciliation.forget(tgid);
            self.remember(process);
        }
    }

    fn devices(&mut self, reading: DeviceReading, detector: &mut impl Detector) {
        for process in self.processes.values_mut() {
            device::remember(process, &reading.devices);
            self.reconciliation.compare(process, &reading);
        }
        self.on_several = device::on_several(&reading.devices);
        self.compare_kernel_driver();
        self.reading = reading;
        self.kernel_driver.await_comparison();
        detector.on(&Event::Reading, self);
    }

    fn tick(&mut self, time_ns: u64, detector: &mut impl Detector) {
        self.now_ns = self.now_ns.max(time_ns);
        let now_ns = self.now_ns;
        self.losses.tick(now_ns);
        self.tick_kernel_driver();
        self.forget_ended(detector);
        let processes = &self.processes;
        self.with_graphs.retain(|tgid| processes.get(tgid).is_some_and(|process| process.ledger.has_graph_memory()));
        let mut changed = BTreeSet::new();
        for process in self.processes.values_mut() {
            process.tick(now_ns);
            if std::mem::take(&mut process.changed) {
                changed.insert(process.tgid);
            }
        }
        self.ended.iter_mut().for_each(|process| process.ledger.tick(now_ns));
        self.free_room();
        detector.on(&Event::Tick, self);
        self.workloads.tick(&changed, &self.processes, &self.reading.devices, now_ns);
    }
}
