//! One process: its identity, what `/proc` has of it, its ledger, and whether that is complete.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use memwatch_common::loss::Loss;
use serde::{Deserialize, Serialize};

use super::overhead::Overhead;
use crate::allocators::{TensorLedger, is_pytorch_probed};
use crate::decode::{Call, TensorEvent};
use crate::input::arenas::ArenaBooks;
use crate::input::{HeldAddresses, LevelChoice, ProcessFacts, TensorLevel};
use crate::kernel_driver::Watched;
use crate::kernel_driver::view::Explained;
use crate::ledger::ProcessLedger;
use crate::ledger::totals::{DeviceRef, Kind};
use crate::owner::{Environment, Owner};
use crate::words::{Framework, GpuUuid, Tgid, Tid, by_name};

/// Start times of one process that are read twice differ by no more than this: two ticks of `/proc/PID/stat`, nanoseconds.
const START_RESOLUTION_NS: u64 = 20_000_000;

/// How a process's watch came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

/// A process that memwatch watches or watched.
///
/// A tgid is reused, so processes are distinguished by the order of events: an exit ends one, the next event of the tgid starts another.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Process {
    /// Process id.
    pub tgid: Tgid,
    /// From when on its calls were seen: `CLOCK_BOOTTIME`, nanoseconds.
    pub observed_since_ns: u64,
    /// It started after the attach: nothing of it was missed.
    pub from_start: bool,
    /// What `/proc` reported; `None` where the process was gone too soon.
    pub facts: Option<ProcessFacts>,
    /// The frameworks whose libraries it has.
    pub frameworks: BTreeSet<Framework>,
    /// Whose it is.
    pub owner: Owner,
    /// What it holds.
    pub ledger: ProcessLedger,
    /// What its caching allocators do, where that is watched.
    pub tensors: Option<Box<TensorLedger>>,
    /// Since when the probes around them are in place: `CLOCK_BOOTTIME`, nanoseconds; 0 where they are not, or it is not known.
    pub tensors_watched_ns: u64,
    /// The same of those around ggml's pool for temporaries.
    scratch_watched_ns: u64,
    /// Records of it that did not arrive.
    #[serde(with = "by_name::losses")]
    pub losses: BTreeMap<Loss, u64>,
    /// Those of its ioctls to the kernel driver: its calls are complete all the same.
    #[serde(with = "by_name::losses")]
    pub kernel_driver_losses: BTreeMap<Loss, u64>,
    /// Its memory was taken off the devices by a checkpoint, and is in host memory meanwhile.
    pub checkpointed: bool,
    /// When its totals were last taken from the kernel half's allocation map, after records were lost: `CLOCK_BOOTTIME`, nanoseconds.
    pub anchored_ns: Option<u64>,
    /// How many records were lost in a full ring by then.
    anchored_losses: u64,
    /// When its peaks began again, if they did: `CLOCK_BOOTTIME`, nanoseconds.
    pub peaks_begun_ns: Option<u64>,
    /// The GPUs behind its devices at the last reading: where it was, once it has ended.
    pub last_gpus: BTreeMap<DeviceRef, GpuUuid>,
    /// What watching it takes of its time.
    pub overhead: Overhead,
    /// How much of its PyTorch is traced, where the price of that was predicted.
    pub level: Option<LevelChoice>,
    /// It is not known that its calls are seen, and none was.
    pub unproven: bool,
    /// Its ledger has changed since the last tick.
    pub changed: bool,
    /// What it had last by the kernel driver's own books, once it has ended.
    pub last_explained: Option<Box<Explained>>,
    /// The last children that it forked while it had memory of the kernel driver, and that were not seen to end or to become another program: they have
    /// its open files.
    pub forked: VecDeque<Tgid>,
    /// Set once it has ended.
    pub ended: Option<Ended>,
}

/// How many of them are remembered.
const FORKED_KEPT: usize = 8;

impl Process {
    /// A process first heard of at `now_ns`, when memwatch was attached at `attached_ns`.
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
            overhead: Overhead::default(),
            level: None,
            unproven: false,
            changed: false,
            last_explained: None,
            forked: VecDeque::new(),
            ended: None,
        }
    }

    /// The process before under its number has ended, and this one began afterwards: the two are kept apart by when they were observed.
    pub fn comes_after(&mut self, before: Option<&Self>) {
        let ended = before.and_then(|before| before.ended);
        self.observed_since_ns = self.observed_since_ns.max(ended.map_or(0, |ended| ended.time_ns));
    }

    /// It has a child that goes on as a copy of it.
    pub fn forks(&mut self, child: Tgid) {
        if self.forked.len() == FORKED_KEPT {
            self.forked.pop_front();
        }
        self.forked.push_back(child);
    }

    /// Its library was probed only at `time_ns`: what it did before is unknown.
    pub fn observe_from(&mut self, time_ns: u64) {
        self.from_start = false;
        self.observed_since_ns = self.observed_since_ns.max(time_ns);
    }

    /// Whether `facts` are of this process, and not of a later one with its number.
    pub fn is_of(&self, facts: &ProcessFacts) -> bool {
        self.facts.as_ref().is_none_or(|own| own.start_ns.abs_diff(facts.start_ns) <= START_RESOLUTION_NS)
    }

    /// What `/proc` says of it now; an exec changes that. The first that is heard of it may say that nothing was missed.
    pub fn learn(&mut self, facts: ProcessFacts) {
        let seen_whole = facts.started_under_watch || facts.start_ns >= self.observed_since_ns;
        self.from_start |= self.facts.is_none() && seen_whole;
        self.facts = Some(facts);
    }

    /// Whose it is by these control groups, as `/proc/PID/cgroup` writes them, and its environment; without names.
    pub fn owner_in(&self, cgroups: &str) -> Owner {
        let none = Environment::new();
        Owner::decide(cgroups, self.facts.as_ref().map_or(&none, |facts| &facts.environment))
    }

    /// The kernel's own word on its start, finer than `/proc`'s; before any of its calls. 0 says nothing.
    pub fn started_at(&mut self, start_ns: u64, now_ns: u64) {
        if start_ns >= self.observed_since_ns && !self.from_start {
            self.from_start = true;
            self.observed_since_ns = now_ns;
            self.ledger = ProcessLedger::new(true);
        }
    }

    /// Records of it did not arrive.
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

    /// Time has come to `now_ns`.
    pub fn tick(&mut self, now_ns: u64) {
        self.ledger.tick(now_ns);
        let windows = self.level.and_then(|level| level.windows);
        self.overhead.tick(now_ns, self.observed_since_ns, windows.map(|windows| windows.every_ns));
        if let Some(tensors) = &mut self.tensors {
            tensors.tick(now_ns);
        }
    }

    /// A thread of it is no more.
    pub fn end_thread(&mut self, tid: Tid) {
        self.ledger.end_thread(tid);
        if let Some(facts) = self.facts.as_mut().filter(|_| tid.0 == self.tgid.0) {
            facts.main_thread_ended = true;
        }
        if let Some(tensors) = &mut self.tensors {
            tensors.end_thread(tid);
        }
    }

    /// The probes around its caching allocators are in place since `time_ns`, but for these rows. One that starts has no memory of the driver yet.
    pub fn watch_tensors(&mut self, missing: &[u16], time_ns: u64) {
        let from_start = self.from_start && self.ledger.totals().whole().allocations == 0;
        // Of others nothing begins with this.
        if is_pytorch_probed(missing) {
            self.tensors_watched_ns = time_ns;
        }
        let tensors = self.tensors.get_or_insert_default();
        if self.from_start {
            tensors.begin_with_process();
        }
        tensors.begin(from_start, missing);
    }

    /// The probes around ggml's pool for temporaries are in place since `time_ns`: memory that was mapped before may be the pool's.
    pub fn watch_scratch(&mut self, time_ns: u64) {
        if self.scratch_watched_ns == 0 {
            self.scratch_watched_ns = time_ns;
            if self.maps_memory() {
                self.tensors.get_or_insert_default().miss_buffers();
            }
        }
    }

    fn maps_memory(&self) -> bool {
        self.ledger.totals().whole().kind(Kind::Physical).allocations > 0
    }

    /// A framework's allocator is probed since `time_ns`, as [`Self::watch_tensors`] says of PyTorch's.
    pub fn watch_framework(&mut self, framework: Framework, time_ns: u64) {
        let from_start = self.from_start && self.ledger.totals().whole().allocations == 0;
        self.frameworks.insert(framework);
        let tensors = self.tensors.get_or_insert_default();
        match framework {
            Framework::Ggml if !tensors.buffers().is_watched() => tensors.watch_buffers(from_start),
            Framework::Rmm | Framework::CuPy if !tensors.pools().watched().contains(&framework) => {
                tensors.watch_pools(framework, from_start);
            }
            _ => return,
        }
        self.tensors_watched_ns = time_ns;
    }

    /// Where in the driver's memory lies what an event is about, before the event is taken in: the driver's call that made room for it came before.
    pub fn place(&mut self, event: &TensorEvent) {
        let Some(tensors) = &mut self.tensors else { return };
        tensors.see_driver(self.from_start && self.losses.is_empty());
        let ledger = &self.ledger;
        tensors.place(event, &|address| ledger.segment_at(address));
    }

    /// Where in the driver's memory the regions of arenas lie, before their books are taken in.
    pub fn place_regions(&mut self, books: &ArenaBooks) {
        let Some(tensors) = &mut self.tensors else { return };
        let regions = books.arenas.iter().flat_map(|arena| &arena.regions);
        for segment in regions.filter_map(|(address, _)| self.ledger.segment_at(*address)) {
            tensors.learn_segment(segment);
        }
    }

    /// Records of calls come later than the word on the probes: an allocation from before them says that blocks were missed.
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

    /// From now on more or less of it is traced.
    pub fn choose_level(&mut self, choice: LevelChoice) {
        if let Some(tensors) = self.tensors.as_mut().filter(|_| choice.chosen < TensorLevel::Layers) {
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

    /// Whether no event of its PyTorch is traced: its memory is read.
    pub fn is_read_only(&self) -> bool {
        let is_in_window = || self.tensors.as_ref().is_some_and(|tensors| tensors.is_in_window());
        self.level.is_some_and(|choice| choice.chosen == TensorLevel::Read) && !is_in_window()
    }

    /// A window of tracing begins or ends.
    pub fn trace_window(&mut self, time_ns: u64, is_open: bool) {
        let is_read = self.level.is_some_and(|choice| choice.chosen == TensorLevel::Read);
        let Some(tensors) = self.tensors.as_mut().filter(|_| is_read) else { return };
        if is_open { tensors.open_window(time_ns) } else { tensors.close_window(time_ns) }
    }

    /// Since when nothing of its PyTorch is traced any more, to keep it fast: `CLOCK_BOOTTIME`, nanoseconds.
    pub fn tensors_ended_ns(&self) -> Option<u64> {
        self.level.filter(|choice| choice.chosen == TensorLevel::Off).map(|choice| choice.time_ns)
    }

    /// What its caching allocators have now; `None` where that is not traced, or not any more.
    pub fn current_tensors(&self) -> Option<&TensorLedger> {
        self.tensors.as_deref().filter(|_| self.tensors_ended_ns().is_none())
    }

    /// A call of the driver may concern a caching allocator's segments.
    pub fn report_tensors(&mut self, call: &Call) {
        self.note_late_probes(call);
        let is_traced = self.tensors_ended_ns().is_none();
        if let Some(tensors) = self.tensors.as_mut().filter(|_| call.status == 0 && is_traced) {
            tensors.driver(&call.action);
        }
    }

    /// Whether records were lost that the kernel half's allocation map can make up for.
    pub fn needs_anchor(&self) -> bool {
        self.lost_in_ring() > self.anchored_losses
    }

    /// Its addresses by the allocation map: see [`ProcessLedger::anchor`].
    pub fn anchor(&mut self, held: &HeldAddresses, now_ns: u64) {
        if self.ledger.anchor(&held.held, held.teardowns, now_ns) {
            self.anchored_ns = Some(now_ns);
            self.anchored_losses = self.lost_in_ring();
        }
    }

    /// Its peaks begin again at what it has.
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

    /// Whether there is anything to report about it after its end.
    pub fn is_memorable(&self) -> bool {
        !self.ledger.is_blank() || !self.is_exact() || self.facts.as_ref().is_some_and(|facts| facts.target)
    }

    /// Whether every record of it arrived.
    pub fn is_exact(&self) -> bool {
        self.losses.is_empty() && !self.unproven
    }

    /// Whether nothing of it was missed.
    pub const fn is_from_start(&self) -> bool {
        self.from_start && !self.unproven
    }

    /// What decides whether the kernel driver's books of it are believed.
    pub fn watched(&self) -> Watched {
        let losses = &self.kernel_driver_losses;
        let odd_layout = losses.contains_key(&Loss::RmLayout);
        Watched { from_start: self.from_start, complete: losses.is_empty(), odd_layout }
    }

    /// Its image was replaced: everything it held is freed, and nothing of the new one was missed.
    pub fn exec(&mut self, time_ns: u64) {
        self.ledger.end(time_ns);
        self.ledger.forget_devices();
        self.tensors = None;
        (self.tensors_watched_ns, self.scratch_watched_ns) = (0, 0);
        self.level = None;
        self.last_gpus.clear();
        self.kernel_driver_losses.clear();
        self.from_start = true;
    }

    /// Everything it held is freed.
    pub fn end(&mut self, time_ns: u64) {
        self.ledger.end(time_ns);
        self.ended = Some(Ended { time_ns });
    }
}
