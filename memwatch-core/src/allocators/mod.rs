//! Follows the caching allocators of a process: the blocks they hand out from the driver's memory.
//!
//! Their bytes are part of the driver's allocations and are never added to those.
//!
//! ```text
//! TensorEvent ▶ allocators (blocks in segments, the allocator's statistics) ▶ BlockChange
//!      └──────▶ threads (current phase, module, call site) ────────────────▶ places (sums by these)
//! ```

pub mod bfc;
pub mod ggml;
pub mod names;
pub mod places;
pub mod pools;
pub mod pytorch;
pub mod threads;

mod changes;
mod durations;
mod framework;
mod frameworks;
mod held;
mod high_water;
pub mod log;
mod marks;
mod moving;
mod operators;
mod read_only;
pub mod sampling;
mod settled;
#[cfg(test)]
#[path = "tests/stacks.rs"]
pub(crate) mod test_stacks;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use memwatch_common::loss::Loss;
use serde::{Deserialize, Serialize};

use crate::decode::{Action, StackRef, TensorChange, TensorEvent};
use crate::input::allocator_state::{AllocatorState, StateBlockUse};
use crate::input::holdings::Holdings;
use crate::stack::native::NativeStack;
use crate::stack::{PythonStack, StackTable};
use crate::words::{Name, Ordinal, Tid, by_name};

use self::durations::Durations;
use self::high_water::HighWater;
use self::log::Log;
use self::marks::Marks;
use self::moving::Moving;
use self::names::NameTable;
use self::operators::Operators;
use self::places::CodeAttribution;
use self::pytorch::{DeviceAllocator, DriverChange, StatisticsWords};
use self::sampling::Sampling;
use self::settled::Unsettled;
use self::threads::Threads;

pub use self::framework::{AllocatorNotice, FrameworkAllocator};
pub use self::frameworks::{Frameworks, Refused, is_pytorch_probed};
pub use self::log::LogLine;
pub use self::marks::RangeMark;

/// A change of one block, or a failed allocation; input of the sums by call site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChange {
    /// The program received a new block.
    Granted(TensorBlock),
    /// The program freed a block.
    Freed {
        /// Device of the block.
        ordinal: Ordinal,
        /// Address of the block.
        address: u64,
        /// Size in bytes, as rounded by the allocator.
        block_bytes: u64,
    },
    /// An allocation failed.
    Refused {
        /// Device of the failed allocation.
        ordinal: Ordinal,
        /// Requested size in bytes, as rounded by the allocator.
        wanted_bytes: u64,
    },
}

/// A block of a caching allocator that the program holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorBlock {
    /// Device of the block.
    pub ordinal: Ordinal,
    /// Address of the block.
    pub address: u64,
    /// Size in bytes, as rounded by the allocator.
    pub block_bytes: u64,
    /// Size in bytes that the program requested; `None` where only the rounded size is visible.
    pub requested_bytes: Option<u64>,
    /// Whether the block came from the allocator's cache; `None` if unknown.
    pub cached: Option<bool>,
    /// The allocating thread.
    pub tid: Tid,
    /// Stack of the allocation.
    pub stack: StackRef,
    /// The stack was sampled: see [`TensorEvent::is_sampled`].
    pub is_sampled: bool,
    /// Time of the allocation: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

/// Totals of one device's caching allocator, as its last event reported them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedTotals {
    /// Bytes allocated by the program.
    pub allocated_bytes: u64,
    /// Bytes that the allocator reserved from the driver.
    pub reserved_bytes: u64,
    /// Time of the report: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

/// Caching allocators of one process, and what its threads allocate from them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TensorLedger {
    allocators: Frameworks,
    stacks: StackTable,
    #[serde(with = "by_name::losses")]
    losses: BTreeMap<Loss, u64>,
    names: NameTable,
    threads: Threads,
    attribution: CodeAttribution,
    operators: Operators,
    log: Log,
    #[serde(skip)]
    marks: Marks,
    durations: Durations,
    high_waters: BTreeMap<Ordinal, HighWater>,
    window: FloorWindow,
    step_window: FloorWindow,
    course: LedgerProgress,
    /// Blocks that were read while the allocators were running and are not reconciled yet.
    moving: Option<Moving>,
    /// Why the allocator state cannot be read.
    allocator_state_refused: Option<Name>,
    /// Live objects of the process, as of the last reading.
    held: Option<Box<Holdings>>,
    /// Call sites of the blocks of that reading, with the times of their allocation.
    #[serde(skip)]
    held_sites: held::HeldSites,
    /// Windows in which events are traced; `None` unless tracing is sampled.
    sampling: Option<Box<Sampling>>,
    /// When tracing resumed: `CLOCK_BOOTTIME`, nanoseconds; 0 if it never stopped.
    traced_since_ns: u64,
    /// Events are traced in windows only, or not at all.
    is_stopped: bool,
    /// Number of ranges that began while no block events were traced.
    ranges_between: u64,
    /// Counters read from allocators that disagree with the events.
    #[serde(skip)]
    unsettled: Vec<Unsettled>,
}

/// Times up to which the ledger is complete.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct LedgerProgress {
    /// Time of the latest event: `CLOCK_BOOTTIME`, nanoseconds.
    event_ns: u64,
    /// Time of the last reading of the allocator state, which covers earlier events.
    allocator_state_ns: u64,
}

/// A time window over which the minimum of each call site is taken.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct FloorWindow {
    /// Number of windows closed before this one.
    closed: u64,
    opened_ns: u64,
    /// Number of training steps done when the window was opened.
    steps: u64,
}

/// Maximum length of a window in nanoseconds, however long a training step takes.
const LONGEST_WINDOW_NS: u64 = 60_000_000_000;
/// Minimum length of a step window in nanoseconds. Closing a window scans all call sites, which
/// takes longer than many short steps.
const SHORTEST_STEP_WINDOW_NS: u64 = 50_000_000;
/// Maximum number of step windows; by then enough time windows are closed.
const STEP_WINDOWS: u64 = 256;

impl TensorLedger {
    /// Closes the window if a training step ended in it or the program has no steps.
    pub fn tick(&mut self, now_ns: u64) {
        self.settle_at(now_ns);
        let (steps, opened_ns) = (self.threads.steps(), self.window.opened_ns);
        if steps == 0 || steps > self.window.steps || now_ns.saturating_sub(opened_ns) >= LONGEST_WINDOW_NS {
            self.attribution.close_window();
            self.high_waters.values_mut().for_each(HighWater::close);
            self.window = FloorWindow { closed: self.window.closed + 1, opened_ns: now_ns, steps };
        }
    }

    /// Closes the step window if a training step ended. A program that runs out of memory within
    /// seconds has many step windows but few time windows.
    fn follow_steps(&mut self, now_ns: u64) {
        let (steps, FloorWindow { closed, opened_ns, .. }) = (self.threads.steps(), self.step_window);
        let is_over = steps > self.step_window.steps && now_ns.saturating_sub(opened_ns) >= SHORTEST_STEP_WINDOW_NS;
        if is_over && closed < STEP_WINDOWS {
            self.attribution.close_step_window();
            self.step_window = FloorWindow { closed: closed + 1, opened_ns: now_ns, steps };
        }
    }

    /// Returns the number of closed step windows.
    pub const fn step_windows(&self) -> u64 {
        self.step_window.closed
    }

    /// Returns the number of closed windows.
    pub const fn windows(&self) -> u64 {
        self.window.closed
    }

    /// Returns the peak tensor bytes in the last closed window; `None` before the first.
    pub fn high_water_bytes(&self, ordinal: Ordinal) -> Option<u64> {
        self.high_waters.get(&ordinal).and_then(HighWater::of_closed)
    }

    /// Applies one event.
    pub fn apply(&mut self, event: &TensorEvent) {
        let stack = event.stack.renumbered(|id| self.stacks.kept_as(id));
        if stack == event.stack { self.take(event) } else { self.take(&TensorEvent { stack, ..event.clone() }) }
    }

    fn take(&mut self, event: &TensorEvent) {
        if let TensorChange::ChunkNamed(named) = &event.what {
            return self.name_chunk(event.tid, named);
        }
        self.threads.apply(event, &mut self.names);
        if matches!(event.what, TensorChange::RangeBegins(_)) && self.is_stopped && !self.is_in_window() {
            self.ranges_between += 1;
        }
        self.follow_steps(event.time_ns);
        self.marks.apply(event);
        if let TensorChange::NodeBegins { .. } = event.what
            && let Some(spent) = self.durations.begin_node(event.tid, event.time_ns)
        {
            self.attribution.spend(spent);
        }
        if event.time_ns < self.course.allocator_state_ns && !event.what.is_of_others() {
            self.allocators.pytorch.skip(event);
            return;
        }
        self.course.event_ns = self.course.event_ns.max(event.time_ns);
        self.settle_before(event);
        let change = self.allocators.apply(event);
        // Further changes come first: a divided region may begin at the new block's address.
        while let Some(change) = self.allocators.also() {
            let now = self.observed(&change);
            self.take_change(event, change, now);
        }
        if let Some(change) = change {
            let now = if event.what.is_of_others() { self.observed(&change) } else { self.reported_by(event) };
            self.take_change(event, change, now);
        }
    }

    /// Records that the probes are attached, except the table rows in `missing`. `from_start` is
    /// set if nothing was allocated before.
    pub fn begin(&mut self, from_start: bool, missing: &[u16]) {
        self.allocators.begin(from_start, missing);
    }

    /// Records that the process started during the session, so that none of its blocks is older.
    pub const fn begin_with_process(&mut self) {
        self.attribution.begin_with_process();
    }

    /// Records that something was allocated before the probes were attached.
    pub fn miss_start(&mut self) {
        self.allocators.miss_start();
    }

    /// Learns the counters of the allocator at this address, read right after its last report.
    /// Returns whether they are plausible.
    pub fn learn_statistics(&mut self, allocator: u64, time_ns: u64, words: &StatisticsWords) -> bool {
        self.allocators.pytorch.learn_counters(allocator, time_ns, words)
    }

    /// Learns the allocator state as read from memory, and returns whether it was used. A reading
    /// is dropped if an event later than its beginning was applied; a device's state is dropped if
    /// it is implausible.
    pub fn learn_allocator_state(&mut self, allocator_state: &AllocatorState) -> bool {
        if self.course.event_ns >= allocator_state.began_ns {
            return false;
        }
        let mut learnt = !allocator_state.devices.is_empty();
        for device in &allocator_state.devices {
            if !self.allocators.pytorch.learn_allocator_state(device, allocator_state.time_ns) {
                learnt = false;
                continue;
            }
            let allocated = device.blocks().filter(|block| block.state == StateBlockUse::ActiveAllocated);
            let blocks = allocated.map(|block| (block.address, block.bytes)).collect();
            let beside = self.allocators.blocks_beside(device.ordinal);
            self.attribution.drop_gone(device.ordinal, &blocks, &beside);
            if !self.has_lost_events() {
                self.attribution.adopt_older(device.ordinal, &blocks);
            }
        }
        if learnt {
            self.course.allocator_state_ns = allocator_state.time_ns;
            self.moving = None;
        }
        self.name_older();
        learnt
    }

    /// Records why the allocator state cannot be read.
    pub fn refuse_allocator_state(&mut self, reason: Name) {
        self.allocator_state_refused = Some(reason);
    }

    /// Returns why the allocator state cannot be read; `None` if it can or was never tried.
    pub const fn allocator_state_refused(&self) -> Option<&Name> {
        self.allocator_state_refused.as_ref()
    }

    /// Returns whether a reading of the allocator state would add information.
    pub fn wants_allocator_state(&self) -> bool {
        self.allocators.pytorch.wants_allocator_state()
    }

    /// Returns whether reading an allocator's statistics would help and is possible.
    pub fn wants_statistics(&self) -> bool {
        self.allocators.pytorch.wants_counters()
    }

    /// Applies a driver call that may allocate or free a segment.
    pub fn driver(&mut self, action: &Action) {
        let change = match *action {
            Action::Free { address } => DriverChange::Freed { address },
            Action::Map { address, bytes, .. } => DriverChange::Mapped { address, bytes },
            Action::Unmap { address, bytes } => DriverChange::Unmapped { address, bytes },
            _ => return,
        };
        self.allocators.driver(change);
    }

    /// Sets how many history lines are kept of each allocator, and of the program's ranges.
    pub fn keep_history(&mut self, limit: usize) {
        self.allocators.pytorch.keep_history(limit);
        self.marks.keep(limit);
    }

    /// Returns the begins and ends of ranges in the history, oldest first.
    pub fn marks(&self) -> impl Iterator<Item = &RangeMark> {
        self.marks.all()
    }

    /// Learns a Python stack. Must be called before the events that refer to it.
    pub fn learn(&mut self, id: u64, stack: PythonStack) {
        self.threads.learn(id, &stack, &mut self.names);
        self.stacks.learn(id, stack);
    }

    /// Learns a native stack. Must be called before the events that refer to it.
    pub fn learn_native(&mut self, id: u64, stack: NativeStack) {
        if self.stacks.learn_native(id, stack)
            && let Some(stack) = self.stacks.native(id)
        {
            self.threads.learn_native(id, stack, &mut self.names);
        }
    }

    /// Counts missing native stacks, by the flags of an event.
    pub(crate) fn count_copies(&mut self, flags: u8) {
        self.stacks.count_copies(flags);
    }

    /// Forgets what the threads are doing, since their events are no longer traced.
    pub fn forget_threads(&mut self) {
        self.threads.forget();
        self.durations.lose();
    }

    /// Removes a thread that exited.
    pub fn end_thread(&mut self, tid: Tid) {
        self.threads.end(tid);
        self.operators.end(tid);
        self.durations.end(tid);
    }

    /// Resets the peaks to the current values, in memwatch's counters only.
    pub fn reset_peaks(&mut self, now_ns: u64) {
        self.attribution.reset_peaks();
        self.allocators.begin_own_peaks(now_ns);
    }

    /// Sets the minimum size in bytes of individually listed blocks; the default is 100 MiB.
    pub fn list_from(&mut self, least_bytes: u64) {
        self.attribution.list_from(least_bytes);
    }

    /// Enables or disables the log.
    pub fn want_log(&mut self, is_wanted: bool) {
        self.log.want(is_wanted);
    }

    /// Takes the new log lines, and the number dropped before them because the log was full.
    pub fn take_log(&mut self) -> (Vec<LogLine>, u64) {
        self.log.take()
    }

    /// Returns the names behind the keys of call sites, modules and ranges.
    pub const fn names(&self) -> &NameTable {
        &self.names
    }

    /// Returns the threads, with their training steps.
    pub const fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Returns the attribution of blocks by code.
    pub const fn attribution(&self) -> &CodeAttribution {
        &self.attribution
    }

    /// Counts lost events or stacks.
    pub fn lose(&mut self, loss: Loss, count: u64) {
        *self.losses.entry(loss).or_insert(0) += count;
        if loss == Loss::TensorEventLost {
            self.allocators.lose();
            self.operators.lose();
            self.marks.lose();
            self.durations.lose();
        }
    }

    /// Returns whether a block without an event may be younger than the attach.
    fn has_lost_events(&self) -> bool {
        self.lost_events() > self.sampling.as_ref().map_or(0, |sampling| sampling.lost_before())
    }

    fn lost_events(&self) -> u64 {
        self.losses.get(&Loss::TensorEventLost).copied().unwrap_or(0)
    }

    /// Returns the number of lost records by kind.
    pub const fn losses(&self) -> &BTreeMap<Loss, u64> {
        &self.losses
    }

    /// Returns the totals by device, as the allocators reported them.
    pub fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        self.allocators.reported()
    }

    /// Returns all stacks seen so far.
    pub const fn stacks(&self) -> &StackTable {
        &self.stacks
    }
}

/// Methods that apply to PyTorch only.
impl TensorLedger {
    /// Returns the addresses of allocators with statistics that would make memwatch's more certain.
    pub fn drifting(&self) -> Vec<u64> {
        self.allocators.pytorch.drifting()
    }

    /// Returns whether an allocator reports without a trace, so other functions need probes.
    pub fn lacks_trace(&self) -> bool {
        self.allocators.pytorch.lacks_trace()
    }

    /// Returns whether all allocators trace what they report.
    pub fn has_trace(&self) -> bool {
        self.allocators.pytorch.has_trace()
    }

    /// Returns whether PyTorch is the only framework that holds memory on this device.
    pub fn has_only_pytorch(&self, ordinal: Ordinal) -> bool {
        self.allocators.beside(ordinal) == (0, 0)
    }

    /// Returns PyTorch's allocators by device.
    pub const fn allocators(&self) -> &BTreeMap<Ordinal, DeviceAllocator> {
        self.allocators.pytorch.devices()
    }
}
