//! The second level: what a process's caching allocators have made of the driver's allocations. Never added to the first.
//!
//! ```text
//! TensorEvent ▶ allocators (blocks in segments, the allocator's own numbers) ▶ BlockChange
//!      └──────▶ threads (what each is doing: stage, layer, site) ──────────────────▶ places (sums by site, stage, layer)
//! ```

pub mod bfc;
pub mod ggml;
pub mod names;
pub mod places;
pub mod pools;
pub mod pytorch;
pub mod threads;

mod arenas;
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
use crate::input::books::{BookState, Books};
use crate::input::holdings::Holdings;
use crate::stack::native::NativeStack;
use crate::stack::{PythonStack, Stacks};
use crate::words::{Name, Ordinal, Tid, by_name};

use self::durations::Durations;
use self::high_water::HighWater;
use self::log::Log;
use self::marks::Marks;
use self::moving::Moving;
use self::names::Names;
use self::operators::Operators;
use self::places::Places;
use self::pytorch::{DeviceAllocator, DriverChange, Words};
use self::sampling::Sampling;
use self::settled::Unsettled;
use self::threads::Threads;

pub use self::framework::FrameworkAllocator;
pub use self::frameworks::{Frameworks, Refused, is_pytorch_probed};
pub use self::log::LogLine;
pub use self::marks::Mark;

/// A block that was granted to the program, or taken back: for the sums by place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockChange {
    /// The program has a new block.
    Granted(Block),
    /// The program gave one back.
    Freed {
        /// The device.
        ordinal: Ordinal,
        /// Its address.
        address: u64,
        /// As the allocator rounded it, in bytes.
        block_bytes: u64,
    },
    /// An allocation failed.
    Refused {
        /// The device.
        ordinal: Ordinal,
        /// What was wanted, rounded, in bytes.
        wanted_bytes: u64,
    },
}

/// A block of a caching allocator that the program has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// The device.
    pub ordinal: Ordinal,
    /// Its address.
    pub address: u64,
    /// As the allocator rounded it, in bytes.
    pub block_bytes: u64,
    /// As the program asked for it, in bytes; `None` where only the rounded size can be seen.
    pub requested_bytes: Option<u64>,
    /// Whether the allocator had it in its cache; `None` where that is not known.
    pub cached: Option<bool>,
    /// The thread that asked.
    pub tid: Tid,
    /// Where in the program.
    pub stack: StackRef,
    /// Its stack was taken by a draw: see [`TensorEvent::is_drawn`].
    pub is_drawn: bool,
    /// `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

/// The totals of one device's caching allocator, as it reported them itself with its last event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reported {
    /// What the program has, in bytes.
    pub allocated_bytes: u64,
    /// What the allocator has of the driver, in bytes.
    pub reserved_bytes: u64,
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    pub time_ns: u64,
}

/// The caching allocators of one process, and what its threads do with them.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TensorLedger<A = Frameworks> {
    allocators: A,
    stacks: Stacks,
    #[serde(with = "by_name::losses")]
    losses: BTreeMap<Loss, u64>,
    names: Names,
    threads: Threads,
    places: Places,
    operators: Operators,
    log: Log,
    #[serde(skip)]
    marks: Marks,
    durations: Durations,
    high_waters: BTreeMap<Ordinal, HighWater>,
    window: Window,
    step_window: Window,
    course: Course,
    /// Blocks that were read while the allocators worked, and are not settled yet.
    moving: Option<Moving>,
    /// Why their own books cannot be read.
    books_refused: Option<Name>,
    /// What the process held when that was read last.
    held: Option<Box<Holdings>>,
    /// The windows in which it is traced, where that is not done all the time.
    sampling: Option<Box<Sampling>>,
    /// Since when events are traced again, `CLOCK_BOOTTIME`, nanoseconds; 0 where they always were.
    traced_since_ns: u64,
    /// No event is traced, but in windows.
    is_stopped: bool,
    /// Ranges that began while no event of blocks was traced.
    ranges_between: u64,
    /// What allocators have counted that did not agree with their events.
    #[serde(skip)]
    unsettled: Vec<Unsettled>,
}

/// Up to when things are in the ledger.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Course {
    /// The time of the latest event so far: `CLOCK_BOOTTIME`, nanoseconds.
    event_ns: u64,
    /// What happened up to here is in the books that were read last, likewise.
    books_ns: u64,
}

/// The time in which the least of each site is looked for.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
struct Window {
    /// How many were closed before.
    closed: u64,
    opened_ns: u64,
    /// How many steps had been done when it was opened.
    steps: u64,
}

/// A window is closed after this at the latest, however long a step takes; nanoseconds.
const LONGEST_WINDOW_NS: u64 = 60_000_000_000;
/// A window of steps is no shorter than this: to look at all lines after it takes longer than many a short step. Nanoseconds.
const SHORTEST_STEP_WINDOW_NS: u64 = 50_000_000;
/// So many windows of steps are closed; by then there are enough windows of time.
const STEP_WINDOWS: u64 = 256;

impl<A: FrameworkAllocator> TensorLedger<A> {
    /// Time passes: the window is closed where a step of training has ended in it, or there are no steps.
    pub fn tick(&mut self, now_ns: u64) {
        self.settle_at(now_ns);
        let (steps, opened_ns) = (self.threads.steps(), self.window.opened_ns);
        if steps == 0 || steps > self.window.steps || now_ns.saturating_sub(opened_ns) >= LONGEST_WINDOW_NS {
            self.places.close_window();
            self.high_waters.values_mut().for_each(HighWater::close);
            self.window = Window { closed: self.window.closed + 1, opened_ns: now_ns, steps };
        }
    }

    /// A window of steps is closed where a step has ended: a program that runs out of memory within seconds has many of them, and few of time.
    fn follow_steps(&mut self, now_ns: u64) {
        let (steps, Window { closed, opened_ns, .. }) = (self.threads.steps(), self.step_window);
        let is_over = steps > self.step_window.steps && now_ns.saturating_sub(opened_ns) >= SHORTEST_STEP_WINDOW_NS;
        if is_over && closed < STEP_WINDOWS {
            self.places.close_step_window();
            self.step_window = Window { closed: closed + 1, opened_ns: now_ns, steps };
        }
    }

    /// How many windows of steps have been closed.
    pub const fn step_windows(&self) -> u64 {
        self.step_window.closed
    }

    /// How many windows have been closed.
    pub const fn windows(&self) -> u64 {
        self.window.closed
    }

    /// The most that a device's tensors had together within the last window that was closed, in bytes; `None` before one was.
    pub fn high_water_bytes(&self, ordinal: Ordinal) -> Option<u64> {
        self.high_waters.get(&ordinal).and_then(HighWater::of_closed)
    }

    /// Takes one event into account.
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
            self.places.spend(spent);
        }
        if event.time_ns < self.course.books_ns && !event.what.is_of_others() {
            self.allocators.skip(event);
            return;
        }
        self.course.event_ns = self.course.event_ns.max(event.time_ns);
        self.settle_before(event);
        let change = self.allocators.apply(event);
        // Before that: what it divides may begin at the same address.
        while let Some(change) = self.allocators.also() {
            let now = self.observed(&change);
            self.take_change(event, change, now);
        }
        if let Some(change) = change {
            let now = if event.what.is_of_others() { self.observed(&change) } else { self.reported_by(event) };
            self.take_change(event, change, now);
        }
    }

    /// Probes are in place from now on, but for these rows of the table; `from_start` where nothing was allocated before.
    pub fn begin(&mut self, from_start: bool, missing: &[u16]) {
        self.allocators.begin(from_start, missing);
    }

    /// The process began under the watch: nothing of it is older, whatever was traced of it.
    pub const fn begin_with_process(&mut self) {
        self.places.begin_with_process();
    }

    /// Something was allocated before the probes were in place.
    pub fn miss_start(&mut self) {
        self.allocators.miss_start();
    }

    /// What the allocator at this address has counted, read right after its last report. Says whether it could be believed.
    pub fn learn_statistics(&mut self, allocator: u64, time_ns: u64, words: &Words) -> bool {
        self.allocators.learn_counters(allocator, time_ns, words)
    }

    /// What the allocators have by their own books. Nothing of it is taken where an event that came already is later than the reading's beginning, or
    /// a device's books cannot be believed. Says whether it was.
    pub fn learn_books(&mut self, books: &Books) -> bool {
        if self.course.event_ns >= books.began_ns {
            return false;
        }
        let mut learnt = !books.devices.is_empty();
        for device in &books.devices {
            if !self.allocators.learn_books(device, books.time_ns) {
                learnt = false;
                continue;
            }
            let allocated = device.blocks().filter(|block| block.state == BookState::ActiveAllocated);
            let blocks = allocated.map(|block| (block.address, block.bytes)).collect();
            let beside = self.allocators.blocks_beside(device.ordinal);
            self.places.drop_gone(device.ordinal, &blocks, &beside);
            if !self.has_lost_events() {
                self.places.adopt_older(device.ordinal, &blocks);
            }
        }
        if learnt {
            self.course.books_ns = books.time_ns;
            self.moving = None;
        }
        self.name_older();
        learnt
    }

    /// The allocators' own books cannot be read.
    pub fn refuse_books(&mut self, reason: Name) {
        self.books_refused = Some(reason);
    }

    /// Why the allocators' own books cannot be read, for people; `None` where they can, or were not wanted.
    pub const fn books_refused(&self) -> Option<&Name> {
        self.books_refused.as_ref()
    }

    /// Whether a reading of the allocators' own books would say more than is known.
    pub fn wants_books(&self) -> bool {
        self.allocators.wants_books()
    }

    /// Whether an allocator's own numbers are wanted, and there is a way to them.
    pub fn wants_statistics(&self) -> bool {
        self.allocators.wants_counters()
    }

    /// The driver granted or took back memory that may be a segment.
    pub fn driver(&mut self, action: &Action) {
        let change = match *action {
            Action::Free { address } => DriverChange::Freed { address },
            Action::Map { address, bytes, .. } => DriverChange::Mapped { address, bytes },
            Action::Unmap { address, bytes } => DriverChange::Unmapped { address, bytes },
            _ => return,
        };
        self.allocators.driver(change);
    }

    /// So many lines of each allocator's doings, and of the ranges that the program opens, are kept from now on.
    pub fn keep_history(&mut self, limit: usize) {
        self.allocators.keep_history(limit);
        self.marks.keep(limit);
    }

    /// Beginnings and ends of ranges, oldest first, as far as history is kept.
    pub fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.marks.all()
    }

    /// Learns what a Python stack is, before the events that name it.
    pub fn learn(&mut self, id: u64, stack: PythonStack) {
        self.threads.learn(id, &stack, &mut self.names);
        self.stacks.learn(id, stack);
    }

    /// Learns what a native stack is, before the events that name it.
    pub fn learn_native(&mut self, id: u64, stack: NativeStack) {
        if self.stacks.learn_native(id, stack)
            && let Some(stack) = self.stacks.native(id)
        {
            self.threads.learn_native(id, stack, &mut self.names);
        }
    }

    /// Native stacks are missing, as the flags of an event say.
    pub(crate) fn count_copies(&mut self, flags: u8) {
        self.stacks.count_copies(flags);
    }

    /// What threads do is not traced any more: nothing of it is known of what comes from now on.
    pub fn forget_threads(&mut self) {
        self.threads.forget();
        self.durations.lose();
    }

    /// A thread of the process is no more.
    pub fn end_thread(&mut self, tid: Tid) {
        self.threads.end(tid);
        self.operators.end(tid);
        self.durations.end(tid);
    }

    /// Peaks begin again at what is now, in memwatch's counters alone.
    pub fn reset_peaks(&mut self, now_ns: u64) {
        self.places.reset_peaks();
        self.allocators.begin_own_peaks(now_ns);
    }

    /// Blocks of this size in bytes and above are listed one by one; of 100 MiB until this is called.
    pub fn list_from(&mut self, least_bytes: u64) {
        self.places.list_from(least_bytes);
    }

    /// Begins or ends to write the log.
    pub fn want_log(&mut self, is_wanted: bool) {
        self.log.want(is_wanted);
    }

    /// The lines of the log since the last time, and how many are missing before them since they were not taken in time.
    pub fn take_log(&mut self) -> (Vec<LogLine>, u64) {
        self.log.take()
    }

    /// What the numbers of sites, layers and phases stand for.
    pub const fn names(&self) -> &Names {
        &self.names
    }

    /// What the threads have done: steps.
    pub const fn threads(&self) -> &Threads {
        &self.threads
    }

    /// Whose the blocks are.
    pub const fn places(&self) -> &Places {
        &self.places
    }

    /// Events of it, or stacks, did not arrive.
    pub fn lose(&mut self, loss: Loss, count: u64) {
        *self.losses.entry(loss).or_insert(0) += count;
        if loss == Loss::TensorEventLost {
            self.allocators.lose();
            self.operators.lose();
            self.marks.lose();
            self.durations.lose();
        }
    }

    /// Whether a block of which no event has come may be younger than the watch.
    fn has_lost_events(&self) -> bool {
        self.lost_events() > self.sampling.as_ref().map_or(0, |sampling| sampling.lost_before())
    }

    fn lost_events(&self) -> u64 {
        self.losses.get(&Loss::TensorEventLost).copied().unwrap_or(0)
    }

    /// What did not arrive.
    pub const fn losses(&self) -> &BTreeMap<Loss, u64> {
        &self.losses
    }

    /// The totals by device, as the allocators reported them.
    pub fn reported(&self) -> BTreeMap<Ordinal, Reported> {
        self.allocators.reported()
    }

    /// The stacks met so far.
    pub const fn stacks(&self) -> &Stacks {
        &self.stacks
    }
}

/// What only PyTorch has.
impl TensorLedger {
    /// The allocators whose own numbers would make these surer, by their address.
    pub fn drifting(&self) -> Vec<u64> {
        self.allocators.pytorch.drifting()
    }

    /// Whether an allocator reports without a trace of its own: what it does shows in its other functions.
    pub fn lacks_trace(&self) -> bool {
        self.allocators.pytorch.lacks_trace()
    }

    /// Whether all allocators trace what they report.
    pub fn has_trace(&self) -> bool {
        self.allocators.pytorch.has_trace()
    }

    /// Whether no other framework than PyTorch has memory of a device here.
    pub fn has_only_pytorch(&self, ordinal: Ordinal) -> bool {
        self.allocators.beside(ordinal) == (0, 0)
    }

    /// The allocators by device.
    pub const fn allocators(&self) -> &BTreeMap<Ordinal, DeviceAllocator> {
        self.allocators.pytorch.devices()
    }
}
