//! A process: its identity, facts from `/proc`, ledger and completeness.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use memwatch_common::loss::Loss;
use serde::{Deserialize, Serialize};

use super::held_names::HeldNamesLog;
use super::overhead::OverheadCounts;
use crate::allocators::{TensorLedger, is_pytorch_probed};
use crate::decode::{Call, TensorEvent};
use crate::input::arenas::ArenaReadings;
use crate::input::kv_cache::KvCacheReading;
use crate::input::{HeldAddresses, LevelChoice, ProcessFacts, TensorLevel};
use crate::kernel_driver::TracingStatus;
use crate::kernel_driver::view::Explained;
use crate::ledger::ProcessLedger;
use crate::ledger::totals::{AllocationKind, DeviceRef};
use crate::owner::{Environment, Owner};
use crate::words::{Framework, GpuUuid, Tgid, Tid, by_name};

/// Maximum difference between two readings of one start time: two ticks of `/proc/PID/stat`, in
/// nanoseconds.
const START_RESOLUTION_NS: u64 = 20_000_000;

/// Exit of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// Time of the exit: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

/// A process that memwatch watches or has watched.
///
/// Process numbers are reused, so processes are distinguished by the order of events: an exit ends
/// a process, and the next event with its number starts another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Process {
    /// Process number.
    pub tgid: Tgid,
    /// Time since which its calls are seen: `CLOCK_BOOTTIME`, nanoseconds.
    pub observed_since_ns: u64,
    /// Whether it started after the attach, so that nothing was missed.
    pub from_start: bool,
    /// Facts from `/proc`; `None` if the process exited too soon.
    pub facts: Option<ProcessFacts>,
    /// Frameworks whose libraries it has mapped.
    pub frameworks: BTreeSet<Framework>,
    /// Owner: container, pod, job and the like.
    pub owner: Owner,
    /// Allocations made by driver calls.
    pub ledger: ProcessLedger,
    /// Ledger of its caching allocators, if these are traced.
    pub tensors: Option<Box<TensorLedger>>,
    /// Time at which the probes on caching allocators were in place: `CLOCK_BOOTTIME`, nanoseconds;
    /// 0 if not in place or unknown.
    pub tensors_watched_ns: u64,
    /// Time at which the probes on ggml's pool for temporaries were in place: `CLOCK_BOOTTIME`,
    /// nanoseconds; 0 if not in place.
    scratch_watched_ns: u64,
    /// Number of lost records by cause.
    #[serde(with = "by_name::losses")]
    pub losses: BTreeMap<Loss, u64>,
    /// Number of lost records of ioctls to the kernel driver, by cause. They do not affect the
    /// driver calls.
    #[serde(with = "by_name::losses")]
    pub kernel_driver_losses: BTreeMap<Loss, u64>,
    /// Whether a checkpoint has moved its memory from the devices to host memory.
    pub checkpointed: bool,
    /// Time of the last resync with the kernel half's allocation map: `CLOCK_BOOTTIME`, nanoseconds.
    pub anchored_ns: Option<u64>,
    /// Number of records lost in a full ring by the time of the last resync.
    anchored_losses: u64,
    /// Time of the last reset of peaks, if any: `CLOCK_BOOTTIME`, nanoseconds.
    pub peaks_begun_ns: Option<u64>,
    /// GPUs of its devices at the last reading, used after its exit.
    pub last_gpus: BTreeMap<DeviceRef, GpuUuid>,
    /// Overhead of tracing.
    pub overhead: OverheadCounts,
    /// Tracing level of its PyTorch, if one was chosen by overhead.
    pub level: Option<LevelChoice>,
    /// Last reading of the KV cache of an inference server, kept after the exit.
    pub kv_cache: Option<Box<KvCacheReading>>,
    /// Readings of its live objects by name, kept after the exit.
    pub held_names: HeldNamesLog,
    /// Whether no call was seen and its libraries are not known to be probed.
    pub unproven: bool,
    /// Whether its ledger has changed since the last tick.
    pub changed: bool,
    /// Last state by the kernel driver's ledger, kept after its exit.
    pub last_explained: Option<Box<Explained>>,
    /// Latest children that it forked while it had memory from the kernel driver and that have not
    /// been seen to exit or call exec. They share its open files.
    pub forked: VecDeque<Tgid>,
    /// End of the process; `None` while it runs.
    pub ended: Option<Ended>,
}

/// Maximum number of children in [`Process::forked`].
const FORKED_KEPT: usize = 8;

impl Process {
    /// Creates a process that becomes known at `now_ns`, with memwatch attached since
    /// `attached_ns`.
    pub fn new(tgid: Tgid, facts: Option<ProcessFacts>, now_ns: u64, attached_ns: u64) -> Self {
        let from_start = facts.as_ref().is_some_and(|facts| facts.started_under_watch || facts.start_ns >= attached_ns);
        Self {
            tgid,
            observed_since_ns: if from_start { now_ns } else { attached_ns },
            from_start,
            facts,
            frameworks: BTreeSet::new(),
            owner: Owner::default(),
            ledger: ProcessLedger::new(from_start),
            tensors: None,
            tensors_watched_ns: 0,
            scratch_watched_ns: 0,
            losses: BTreeMap::new(),
            kernel_driver_losses: BTreeMap::new(),
            checkpointed: false,
            anchored_ns: None,
            peaks_begun_ns: None,
            anchored_losses: 0,
            last_gpus: BTreeMap::new(),
            overhead: OverheadCounts::default(),
            level: None,
            kv_cache: None,
            held_names: HeldNamesLog::default(),
            unproven: false,
            changed: false,
            last_explained: None,
            forked: VecDeque::new(),
            ended: None,
        }
    }

    /// Sets the previous process with this number. The two are distinguished by their times of
    /// observation.
    pub fn comes_after(&mut self, before: Option<&Self>) {
        let ended = before.and_then(|before| before.ended);
        self.observed_since_ns = self.observed_since_ns.max(ended.map_or(0, |ended| ended.time_ns));
    }

    /// Notes a forked child.
    pub fn forks(&mut self, child: Tgid) {
        if self.forked.len() == FORKED_KEPT {
            self.forked.pop_front();
        }
        self.forked.push_back(child);
    }

    /// Notes that its library was not probed until `time_ns`, so that earlier calls are unknown.
    pub fn observe_from(&mut self, time_ns: u64) {
        self.from_start = false;
        self.observed_since_ns = self.observed_since_ns.max(time_ns);
    }

    /// Whether `facts` belong to this process and not to a later one with the same number.
    pub fn is_of(&self, facts: &ProcessFacts) -> bool {
        self.facts.as_ref().is_none_or(|own| own.start_ns.abs_diff(facts.start_ns) <= START_RESOLUTION_NS)
    }

    /// Updates the facts from `/proc`, which an exec changes. The first facts may show that no call
    /// was missed.
    pub fn learn(&mut self, facts: ProcessFacts) {
        let seen_whole = facts.started_under_watch || facts.start_ns >= self.observed_since_ns;
        self.from_start |= self.facts.is_none() && seen_whole;
        self.facts = Some(facts);
    }

    /// Returns its owner, without names, from control groups in the format of `/proc/PID/cgroup`
    /// and from its environment.
    pub fn owner_in(&self, cgroups: &str) -> Owner {
        let none = Environment::new();
        Owner::decide(cgroups, self.facts.as_ref().map_or(&none, |facts| &facts.environment))
    }

    /// Sets the start time from the kernel, which is finer than that of `/proc`. Called before any
    /// call is applied. 0 means unknown.
    pub fn started_at(&mut self, start_ns: u64, now_ns: u64) {
        if start_ns >= self.observed_since_ns && !self.from_start {
            self.from_start = true;
            self.observed_since_ns = now_ns;
            self.ledger = ProcessLedger::new(true);
        }
    }

    /// Counts lost records.
    pub fn lose(&mut self, loss: Loss, count: u64) {
        self.overhead.lose(loss, count);
        if loss.is_of_tensors() {
            if self.tensors_ended_ns().is_some() {
                return;
            }
            return self.tensors.get_or_insert_default().lose(loss, count);
        }
        let losses = if loss.is_of_kernel_driver() { &mut self.kernel_driver_losses } else { &mut self.losses };
        *losses.entry(loss).or_insert(0) += count;
    }

    /// Advances to `now_ns`.
    pub fn tick(&mut self, now_ns: u64) {
        self.ledger.tick(now_ns);
        let windows = self.level.and_then(|level| level.windows);
        self.overhead.tick(now_ns, self.observed_since_ns, windows.map(|windows| windows.every_ns));
        if let Some(tensors) = &mut self.tensors {
            tensors.tick(now_ns);
        }
    }

    /// Notes an exited thread.
    pub fn end_thread(&mut self, tid: Tid) {
        self.ledger.end_thread(tid);
        if let Some(facts) = self.facts.as_mut().filter(|_| tid.0 == self.tgid.0) {
            facts.main_thread_ended = true;
        }
        if let Some(tensors) = &mut self.tensors {
            tensors.end_thread(tid);
        }
    }

    /// Notes that its caching allocators are probed since `time_ns`, except for the table rows in
    /// `missing`. A process that is just starting has no memory from the driver yet.
    pub fn watch_tensors(&mut self, missing: &[u16], time_ns: u64) {
        let from_start = self.from_start && self.ledger.totals().whole().allocations == 0;
        // Probes on other rows do not change since when PyTorch is watched.
        if is_pytorch_probed(missing) {
            self.tensors_watched_ns = time_ns;
        }
        let tensors = self.tensors.get_or_insert_default();
        if self.from_start {
            tensors.begin_with_process();
        }
        tensors.begin(from_start, missing);
    }

    /// Notes that ggml's pool for temporaries is probed since `time_ns`. Earlier mappings may
    /// belong to the pool.
    pub fn watch_scratch(&mut self, time_ns: u64) {
        if self.scratch_watched_ns == 0 {
            self.scratch_watched_ns = time_ns;
            let maps_memory = self.maps_memory();
            let tensors = self.tensors.get_or_insert_default();
            tensors.watch_scratch();
            if maps_memory {
                tensors.miss_buffers();
            }
        }
    }

    fn maps_memory(&self) -> bool {
        self.ledger.totals().whole().kind(AllocationKind::Physical).allocations > 0
    }

    /// Does the same as [`Self::watch_tensors`] for the allocator of another framework.
    pub fn watch_framework(&mut self, framework: Framework, time_ns: u64) {
        let from_start = self.from_start && self.ledger.totals().whole().allocations == 0;
        self.frameworks.insert(framework);
        if self.tensors.get_or_insert_default().watch(framework, from_start) {
            self.tensors_watched_ns = time_ns;
        }
    }

    /// Locates the memory of an event in the driver's allocations, before the event is applied. The
    /// driver call was applied earlier.
    pub fn place(&mut self, event: &TensorEvent) {
        let Some(tensors) = &mut self.tensors else { return };
        tensors.see_driver(self.from_start && self.losses.is_empty());
        let ledger = &self.ledger;
        tensors.place(event, &|address| ledger.segment_at(address));
    }

    /// Locates the regions of arenas in the driver's allocations, before a reading is applied.
    pub fn place_regions(&mut self, allocator_state: &ArenaReadings) {
        let Some(tensors) = &mut self.tensors else { return };
        let regions = allocator_state.arenas.iter().flat_map(|arena| &arena.regions);
        for segment in regions.filter_map(|(address, _)| self.ledger.segment_at(*address)) {
            tensors.learn_segment(segment);
        }
    }

    /// Checks a call for allocations made before the probes were in place: blocks in such
    /// allocations were missed. Call records may arrive after the note that the probes are in
    /// place.
    fn note_late_probes(&mut self, call: &Call) {
        let was_missed = call.entered_ns < self.tensors_watched_ns && self.ledger.totals().whole().allocations > 0;
        let may_be_scratch = call.entered_ns < self.scratch_watched_ns && self.maps_memory();
        let Some(tensors) = &mut self.tensors else { return };
        if was_missed {
            tensors.miss_start();
        }
        if may_be_scratch {
            tensors.miss_buffers();
        }
    }

    /// Changes the tracing level.
    pub fn choose_level(&mut self, choice: LevelChoice) {
        if let Some(tensors) = self.tensors.as_mut().filter(|_| choice.chosen < TensorLevel::Modules) {
            tensors.forget_threads();
        }
        let was_read = self.level.is_some_and(|before| before.chosen == TensorLevel::Read);
        self.level = Some(choice);
        if let Some(tensors) = &mut self.tensors {
            if self.from_start {
                tensors.begin_with_process();
            }
            match (was_read, choice.chosen) {
                (false, TensorLevel::Read) => tensors.stop(),
                (true, level) if level > TensorLevel::Read => tensors.resume(choice.time_ns),
                _ => {}
            }
        }
    }

    /// Whether its PyTorch is only read from memory at the moment, and not traced.
    pub fn is_read_only(&self) -> bool {
        let is_in_window = || self.tensors.as_ref().is_some_and(|tensors| tensors.is_in_window());
        self.level.is_some_and(|choice| choice.chosen == TensorLevel::Read) && !is_in_window()
    }

    /// Starts or ends a sampling window.
    pub fn trace_window(&mut self, time_ns: u64, is_open: bool) {
        let is_read = self.level.is_some_and(|choice| choice.chosen == TensorLevel::Read);
        let Some(tensors) = self.tensors.as_mut().filter(|_| is_read) else { return };
        if is_open { tensors.open_window(time_ns) } else { tensors.close_window(time_ns) }
    }

    /// Returns the time since which the tracing of its PyTorch is off because of the budget:
    /// `CLOCK_BOOTTIME`, nanoseconds; `None` if it is not off.
    pub fn tensors_ended_ns(&self) -> Option<u64> {
        self.level.filter(|choice| choice.chosen == TensorLevel::Off).map(|choice| choice.time_ns)
    }

    /// Returns the ledger of its caching allocators; `None` if these are not traced.
    pub fn current_tensors(&self) -> Option<&TensorLedger> {
        self.tensors.as_deref().filter(|_| self.tensors_ended_ns().is_none())
    }

    /// Applies a driver call that may concern segments of a caching allocator.
    pub fn report_tensors(&mut self, call: &Call) {
        self.note_late_probes(call);
        let is_traced = self.tensors_ended_ns().is_none();
        if let Some(tensors) = self.tensors.as_mut().filter(|_| call.status == 0 && is_traced) {
            tensors.driver(&call.action);
        }
    }

    /// Whether records were lost since the last resync, so that a resync is needed.
    pub fn needs_anchor(&self) -> bool {
        self.lost_in_ring() > self.anchored_losses
    }

    /// Resynchronizes the ledger with the allocation map. See [`ProcessLedger::anchor`].
    pub fn anchor(&mut self, held: &HeldAddresses, now_ns: u64) {
        if self.ledger.anchor(&held.held, held.teardowns, now_ns) {
            self.anchored_ns = Some(now_ns);
            self.anchored_losses = self.lost_in_ring();
        }
    }

    /// Resets its peaks to the current values.
    pub fn reset_peaks(&mut self, now_ns: u64) {
        self.ledger.reset_peaks();
        if let Some(tensors) = &mut self.tensors {
            tensors.reset_peaks(now_ns);
        }
        self.peaks_begun_ns = Some(now_ns);
    }

    fn lost_in_ring(&self) -> u64 {
        self.losses.get(&Loss::RingFull).copied().unwrap_or(0)
    }

    /// Whether the process has anything to report after its exit.
    pub fn is_memorable(&self) -> bool {
        !self.ledger.is_blank() || !self.is_exact() || self.facts.as_ref().is_some_and(|facts| facts.target)
    }

    /// Whether all records arrived.
    pub fn is_exact(&self) -> bool {
        self.losses.is_empty() && !self.unproven
    }

    /// Whether all calls since its start were seen.
    pub const fn is_from_start(&self) -> bool {
        self.from_start && !self.unproven
    }

    /// Returns the facts that decide whether the kernel driver's ledger of the process is valid.
    pub fn watched(&self) -> TracingStatus {
        let losses = &self.kernel_driver_losses;
        let odd_layout = losses.contains_key(&Loss::RmLayout);
        TracingStatus { from_start: self.from_start, complete: losses.is_empty(), odd_layout }
    }

    /// Handles an exec: all its memory is freed, and the new program is observed from its start.
    pub fn exec(&mut self, time_ns: u64) {
        self.ledger.end(time_ns);
        self.ledger.forget_devices();
        self.tensors = None;
        (self.tensors_watched_ns, self.scratch_watched_ns) = (0, 0);
        self.level = None;
        self.kv_cache = None;
        self.held_names = HeldNamesLog::default();
        self.last_gpus.clear();
        self.kernel_driver_losses.clear();
        self.from_start = true;
    }

    /// Handles an exit: all its memory is freed.
    pub fn end(&mut self, time_ns: u64) {
        self.ledger.end(time_ns);
        self.ended = Some(Ended { time_ns });
    }
}
