//! Applies events of PyTorch's caching allocators to the tensor ledger of their process.

use std::collections::BTreeSet;

use memwatch_common::record::RingRecord;

use crate::allocators::TensorLedger;
use crate::allocators::log::LogLine;
use crate::allocators::pytorch::StatisticsWords;
use crate::attribution::device::resolve;
use crate::attribution::process::Process;
use crate::decode::{TensorChange, TensorEvent, TraceAction, decode_tensor};
use crate::input::LevelChoice;
use crate::input::allocator_state::{
    AllocatorNumbers, AllocatorState, MovingAllocatorState, StateBlock, StateBlockUse,
};
use crate::input::arenas::ArenaReadings;
use crate::input::held_names::HeldNames;
use crate::input::holdings::Holdings;
use crate::input::kv_cache::KvCacheReading;
use crate::ledger::refusals::FrameworkReading;
use crate::ledger::totals::DeviceRef;
use crate::snapshot::build::history::history;
use crate::snapshot::build::places::{call_paths, module_name, phase_name};
use crate::snapshot::{DeviceCallPaths, MemoryHistory, PlaceNameView, ProcessView};
use crate::stack::PythonStack;
use crate::stack::native::NativeStack;
use crate::state::State;
use crate::state::event::{Detector, Event};
use crate::words::{Framework, Name, Ordinal, Tgid};

/// New lines in a process's log of phases and modules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLog {
    /// Process of the log.
    pub tgid: Tgid,
    /// Rank of the process in its job.
    pub rank: Option<u32>,
    /// Number of lines lost before these, because they were not taken in time.
    pub missing: u64,
    /// New lines, in time order.
    pub lines: Vec<TensorLogLine>,
}

/// A line of the log: a thread allocates for another module or in another phase than the device's
/// previous allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorLogLine {
    /// Name of the module.
    pub module: PlaceNameView,
    /// Name of the phase, as in [`crate::snapshot::PhaseView`].
    pub phase: Name,
    /// Event.
    pub line: LogLine,
}

impl State {
    /// Keeps a log of phases and modules for every process in which tensor tracing starts from now
    /// on.
    pub fn log_tensors(&mut self) {
        self.logs_tensors = true;
    }

    /// Sets the size from which blocks are listed individually; 100 MiB by default.
    pub fn list_tensors_from(&mut self, least_bytes: u64) {
        self.least_listed_bytes = Some(least_bytes);
        let known = self.ended.iter_mut().chain(self.processes.values_mut());
        known.filter_map(|process| process.tensors.as_mut()).for_each(|tensors| tensors.list_from(least_bytes));
    }

    /// Takes the new lines of all logs.
    pub fn take_tensor_logs(&mut self) -> Vec<TensorLog> {
        let alive = self.processes.values_mut();
        let logs = self.ended.iter_mut().chain(alive).filter_map(|process| {
            let rank = process.owner.rank.as_ref().and_then(|rank| rank.rank);
            let tensors = process.tensors.as_mut()?;
            let (lines, missing) = tensors.take_log();
            let named = |line: LogLine| TensorLogLine {
                module: module_name(tensors.names(), line.module),
                phase: phase_name(line.phase),
                line,
            };
            let lines: Vec<TensorLogLine> = lines.into_iter().map(named).collect();
            (!lines.is_empty()).then_some(TensorLog { tgid: process.tgid, rank, missing, lines })
        });
        logs.collect()
    }

    fn tensors_of(&self, tgid: Tgid) -> Option<&TensorLedger> {
        self.processes.get(&tgid)?.tensors.as_deref()
    }

    /// Returns whether a caching allocator of this process has to be asked for its statistics.
    pub fn wants_statistics(&self, tgid: Tgid) -> bool {
        self.tensors_of(tgid).is_some_and(TensorLedger::wants_statistics)
    }

    /// Returns whether a caching allocator of this process produces no trace, so that it needs
    /// other probes.
    pub fn lacks_trace(&self, tgid: Tgid) -> bool {
        self.tensors_of(tgid).is_some_and(TensorLedger::lacks_trace)
    }

    /// Returns whether the caching allocators of this process trace everything they report, so that
    /// they need fewer probes.
    pub fn has_trace(&self, tgid: Tgid) -> bool {
        self.tensors_of(tgid).is_some_and(TensorLedger::has_trace)
    }

    pub(super) fn tensor(&mut self, record: &RingRecord, detector: &mut impl Detector) {
        if let Some(event) = decode_tensor(record) {
            detector.on(&Event::Time(event.time_ns), self);
            let now_ns = self.now_ns;
            let process = self.process_mut(event.tgid, now_ns);
            process.overhead.count_event(record);
            if process.tensors_ended_ns().is_some() || (process.is_read_only() && !is_rare(&event.what)) {
                return;
            }
            let tensors = process.tensors.get_or_insert_default();
            if let RingRecord::Tensor(tensor) = record {
                tensors.count_copies(tensor.flags);
            }
            if event.what.is_failure() {
                self.settle_statistics(event.tgid, event.time_ns, false, detector);
            }
            let Some(tensors) = self.processes.get_mut(&event.tgid).and_then(|process| process.tensors.as_mut()) else {
                return;
            };
            match tensors.split(&event) {
                Some(parts) => parts.iter().flatten().for_each(|part| self.tensor_event(part, detector)),
                None => self.tensor_event(&event, detector),
            }
        }
    }

    fn tensor_event(&mut self, event: &TensorEvent, detector: &mut impl Detector) {
        if let Some(process) = self.processes.get_mut(&event.tgid) {
            process.place(event);
            if let Some(tensors) = &mut process.tensors {
                tensors.apply(event);
            }
        }
        detector.on(&Event::Tensor(event), self);
    }

    pub(crate) fn learn_stack(&mut self, tgid: Tgid, id: u64, stack: PythonStack) {
        let now_ns = self.now_ns;
        let process = self.process_mut(tgid, now_ns);
        process.overhead.count_stack(stack.frames.len());
        if process.tensors_ended_ns().is_none() {
            process.tensors.get_or_insert_default().learn(id, stack);
        }
    }

    pub(crate) fn learn_native(&mut self, tgid: Tgid, id: u64, stack: NativeStack) {
        if self.kernel_driver.learn_stack(tgid, id, &stack) {
            return;
        }
        let has_tensors = self.processes.get(&tgid).is_some_and(|process| process.tensors.is_some());
        if has_tensors && !self.has_ended_tensors(tgid) {
            self.tensors_mut(tgid).learn_native(id, stack);
        }
    }

    pub(crate) fn learn_statistics(&mut self, (tgid, allocator): (Tgid, u64), time_ns: u64, words: &StatisticsWords) {
        if !self.has_ended_tensors(tgid) {
            let is_read_only = self.is_read_only(tgid);
            let tensors = self.tensors_mut(tgid);
            if is_read_only || !tensors.learn_statistics(allocator, time_ns, words) {
                tensors.keep_unsettled(allocator, time_ns, words);
            }
        }
    }

    /// Adopts an allocator's counters at a failed request or at the end of its process. They take
    /// precedence over the events seen.
    pub(super) fn settle_statistics(&mut self, tgid: Tgid, time_ns: u64, ends: bool, detector: &mut impl Detector) {
        let Some(process) = self.processes.get_mut(&tgid) else { return };
        let is_read_only = process.is_read_only();
        let Some(tensors) = &mut process.tensors else { return };
        let Some(numbers) = tensors.take_unsettled(tgid, time_ns) else { return };
        if is_read_only && !ends {
            tensors.learn_numbers(&numbers);
        } else {
            tensors.learn_last(&numbers, ends);
        }
        detector.on(&Event::Counters(&numbers), self);
        self.read_counters(&numbers);
    }

    /// Passes the allocators' counters to the ledger: they decide which refusals a retry resolved.
    fn read_counters(&mut self, numbers: &AllocatorNumbers) {
        let Some(process) = self.processes.get_mut(&numbers.tgid) else { return };
        let Some(tensors) = &process.tensors else { return };
        let (time_ns, from_start) = (numbers.time_ns, process.from_start);
        for device in &numbers.devices {
            let Some(allocator) = tensors.allocators().get(&device.ordinal) else { continue };
            let counters = &allocator.statistics().counters;
            let (Ok(ooms), Ok(retries)) = (u64::try_from(counters.ooms), u64::try_from(counters.retries)) else {
                continue;
            };
            let reading = FrameworkReading { ooms, retries, time_ns, from_start };
            process.ledger.read_framework(device.ordinal, reading);
        }
    }

    pub(super) fn learn_allocator_state(&mut self, allocator_state: &AllocatorState, detector: &mut impl Detector) {
        // Changes after this reading would not be seen.
        if self.is_read_only(allocator_state.tgid) {
            let devices =
                allocator_state.devices.iter().map(|device| (device.ordinal, device.blocks().collect::<Vec<_>>()));
            return self.learn_standing(allocator_state.tgid, devices, true);
        }
        if self
            .watched_tensors(allocator_state.tgid)
            .is_some_and(|tensors| tensors.learn_allocator_state(allocator_state))
        {
            detector.on(&Event::AllocatorState(allocator_state), self);
        }
    }

    /// Adopts counters read from a process without traced events. Traced values are more accurate
    /// than those read from a running program.
    pub(super) fn learn_numbers(&mut self, numbers: &AllocatorNumbers, detector: &mut impl Detector) {
        let Some(process) = self.processes.get_mut(&numbers.tgid).filter(|process| process.is_read_only()) else {
            return;
        };
        process.tensors.get_or_insert_default().learn_numbers(numbers);
        detector.on(&Event::Counters(numbers), self);
        self.read_counters(numbers);
    }

    pub(crate) fn learn_moving_allocator_state(&mut self, allocator_state: &MovingAllocatorState) {
        if self.is_read_only(allocator_state.tgid) {
            let devices =
                allocator_state.devices.iter().map(|device| (device.ordinal, device.blocks.iter().collect::<Vec<_>>()));
            self.learn_standing(allocator_state.tgid, devices, false);
        } else if let Some(tensors) = self.watched_tensors(allocator_state.tgid) {
            tensors.learn_moving_allocator_state(allocator_state);
        }
    }

    /// Adopts the blocks of a process without traced events.
    fn learn_standing<'a>(
        &mut self,
        tgid: Tgid,
        devices: impl Iterator<Item = (Ordinal, Vec<&'a StateBlock>)>,
        is_whole: bool,
    ) {
        let Some(tensors) = self.watched_tensors(tgid) else { return };
        for (ordinal, blocks) in devices {
            let allocated = blocks.into_iter().filter(|block| block.state == StateBlockUse::ActiveAllocated);
            let blocks = allocated.map(|block| (block.address, block.bytes)).collect();
            tensors.learn_standing(ordinal, &blocks, is_whole);
        }
    }

    pub(crate) fn learn_holdings(&mut self, holdings: Box<Holdings>) {
        if let Some(tensors) = self.watched_tensors(holdings.tgid) {
            tensors.learn_holdings(holdings);
        }
    }

    pub(crate) fn learn_kv_cache(&mut self, mut reading: Box<KvCacheReading>) {
        // The process may have ended.
        if let Some(process) = self.processes.get_mut(&reading.tgid) {
            reading.follow(process.kv_cache.as_deref());
            process.kv_cache = Some(reading);
        }
    }

    pub(crate) fn learn_held_names(&mut self, reading: HeldNames, detector: &mut impl Detector) {
        detector.on(&Event::HeldNames(&reading), self);
        // The process may have ended.
        if let Some(process) = self.processes.get_mut(&reading.tgid) {
            process.held_names.push(reading);
        }
    }

    pub(crate) fn learn_frameworks(&mut self, tgid: Tgid, frameworks: BTreeSet<Framework>) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.frameworks.extend(frameworks);
        }
    }

    pub(crate) fn watch_framework(&mut self, tgid: Tgid, framework: Framework, time_ns: u64) {
        let now_ns = self.now_ns;
        self.process_mut(tgid, now_ns).watch_framework(framework, time_ns);
    }

    pub(crate) fn watch_scratch(&mut self, tgid: Tgid, time_ns: u64) {
        let now_ns = self.now_ns;
        self.process_mut(tgid, now_ns).watch_scratch(time_ns);
    }

    pub(crate) fn learn_arenas(&mut self, allocator_state: &ArenaReadings) {
        let Some(process) = self.processes.get_mut(&allocator_state.tgid) else { return };
        process.place_regions(allocator_state);
        if process.is_read_only() {
            process.tensors.get_or_insert_default().read_arenas(allocator_state);
        } else if let Some(tensors) = self.watched_tensors(allocator_state.tgid) {
            tensors.learn_arenas(allocator_state);
        }
    }

    /// Returns the addresses of a framework's arenas in this process that have unknown state and
    /// should be read.
    pub fn wanted_arenas(&self, tgid: Tgid, framework: Framework) -> Vec<u64> {
        self.tensors_of(tgid).map_or_else(Vec::new, |tensors| tensors.arenas().wanted_allocator_state(framework))
    }

    pub(crate) fn refuse_allocator_state(&mut self, tgid: Tgid, reason: Name) {
        if let Some(tensors) = self.watched_tensors(tgid) {
            tensors.refuse_allocator_state(reason);
        }
    }

    /// Returns the tensor ledger of a live process, if its tensors are traced.
    fn watched_tensors(&mut self, tgid: Tgid) -> Option<&mut TensorLedger> {
        let process = self.processes.get_mut(&tgid)?;
        if process.tensors_ended_ns().is_some() { None } else { process.tensors.as_deref_mut() }
    }

    /// Returns whether blocks of this process are unknown, and no blocks that were read wait for
    /// concurrent changes.
    pub fn wants_blocks(&self, tgid: Tgid) -> bool {
        self.tensors_of(tgid).is_some_and(TensorLedger::wants_blocks)
    }

    /// Returns whether reading the allocators' state would add information. After one reading,
    /// nothing later than the attach is missing.
    pub fn wants_allocator_state(&self, tgid: Tgid) -> bool {
        self.tensors_of(tgid).is_some_and(TensorLedger::wants_allocator_state)
    }

    /// Begins or ends a window in which all events of a process are traced.
    pub(crate) fn trace_window(&mut self, tgid: Tgid, time_ns: u64, is_open: bool) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.trace_window(time_ns, is_open);
        }
    }

    /// Changes the tracing level of a process.
    pub(crate) fn choose_level(&mut self, choice: LevelChoice) {
        // The process may have ended.
        if let Some(process) = self.processes.get_mut(&choice.tgid) {
            process.choose_level(choice);
        }
    }

    /// Returns the tracing level of a process, if its overhead was predicted.
    pub fn level_of(&self, tgid: Tgid) -> Option<LevelChoice> {
        self.processes.get(&tgid).and_then(|process| process.level)
    }

    /// Returns whether no PyTorch events of this process are traced and its allocators' counters
    /// are read instead.
    pub fn is_read_only(&self, tgid: Tgid) -> bool {
        self.processes.get(&tgid).is_some_and(Process::is_read_only)
    }

    /// Returns whether the process was traced from its start.
    pub fn is_from_start(&self, tgid: Tgid) -> bool {
        self.processes.get(&tgid).is_some_and(|process| process.from_start)
    }

    fn has_ended_tensors(&self, tgid: Tgid) -> bool {
        self.processes.get(&tgid).is_some_and(|process| process.tensors_ended_ns().is_some())
    }

    pub(crate) fn tensors_mut(&mut self, tgid: Tgid) -> &mut TensorLedger {
        let now_ns = self.now_ns;
        self.process_mut(tgid, now_ns).tensors.get_or_insert_default()
    }

    pub(crate) fn watch_tensors(&mut self, tgid: Tgid, missing: &[u16], time_ns: u64) {
        let (now_ns, logs) = (self.now_ns, self.logs_tensors);
        self.process_mut(tgid, now_ns).watch_tensors(missing, time_ns);
        let least_bytes = self.least_listed_bytes;
        let history = self.keeps_history.filter(|(kept, _)| *kept == tgid);
        let tensors = self.tensors_mut(tgid);
        tensors.want_log(logs);
        if let Some(least_bytes) = least_bytes {
            tensors.list_from(least_bytes);
        }
        // A process that appears later starts without a history.
        if let Some((_, limit)) = history {
            tensors.keep_history(limit);
        }
    }

    /// Returns the addresses (`this`) of a process's caching allocators whose counters should be
    /// read. Their `DeviceStats` can be read from the process's memory while it is at rest, and is
    /// passed on as [`crate::input::Input::Statistics`]; implausible values are rejected.
    pub fn drifting_allocators(&self, tgid: Tgid) -> Vec<u64> {
        self.tensors_of(tgid).map_or_else(Vec::new, TensorLedger::drifting)
    }

    /// Returns the history of a process's caching allocators, as far back as it is kept, with or
    /// without native frames; `None` if they are not traced.
    pub fn history(&self, tgid: Tgid, with_native: bool) -> Option<MemoryHistory> {
        let ended = || self.ended.last(tgid);
        Some(history(self.processes.get(&tgid).or_else(ended)?.tensors.as_ref()?, with_native))
    }

    /// Keeps the last `limit` history lines of each caching allocator of this process from now on.
    pub fn keep_history(&mut self, tgid: Tgid, limit: usize) {
        self.keeps_history = Some((tgid, limit));
        self.tensors_mut(tgid).keep_history(limit);
    }

    /// Returns all call paths of a process in this pipeline's snapshot, by device; nothing if its
    /// tensors are not traced.
    pub fn call_paths(&self, process: &ProcessView) -> Vec<DeviceCallPaths> {
        let is_meant = |one: &&Process| {
            one.tgid == process.tgid && one.observed_since_ns == process.observed_since_ns && one.tensors.is_some()
        };
        let Some(process) = self.ended.iter().chain(self.processes.values()).find(is_meant) else { return Vec::new() };
        let uuid = |ordinal| resolve(process, DeviceRef::Ordinal(ordinal), &self.reading.devices);
        process.tensors.as_ref().map_or_else(Vec::new, |ledger| call_paths(ledger, uuid))
    }
}

/// Returns whether an event is applied at every level: a failure, a range of the program, or a
/// reset of counters.
const fn is_rare(change: &TensorChange) -> bool {
    match change {
        TensorChange::Traced(traced) => matches!(traced.action, TraceAction::OutOfMemory),
        TensorChange::RangeBegins(_)
        | TensorChange::RangeEnds
        | TensorChange::PeaksReset { .. }
        | TensorChange::AccumulatedReset { .. } => true,
        change => change.is_failure(),
    }
}
