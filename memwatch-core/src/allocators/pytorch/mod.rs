//! Follows PyTorch's caching allocators from outside, by the rules of
//! c10/cuda/CUDACachingAllocator.cpp.
//!
//! Behaviour is inferred from the events, never from a version. Under one lock, a device's
//! allocator traces what it does and then reports it. If it does not trace, its reports and the
//! entry of `malloc` have to suffice.

mod allocator_state;
mod device;
mod driver;
mod history;
mod memory;
mod numbers;
mod peaks;
mod pools;
mod read_only;
mod readout;
mod statistics;
mod trust;
mod untraced;
pub(crate) mod view;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use device::SeenRequest;
pub use device::{Base, DeviceAllocator};
pub use driver::DriverChange;
use driver::Mapped;
pub use history::{AllocatorHistory, HistoryEntry, LineAction};
pub use memory::{AllocatorMemory, AllocatorSegment, BlockState, SegmentCell};
pub use readout::{StatisticsWords, statistics_of, totals};
pub use statistics::{AllocatorCounters, AllocatorStat, AllocatorStatistics, PoolSize, StatFamily, StatScope};
pub use trust::{Certainty, Doubt, NamedNumber, RatedNumber};
pub use view::{AllocatorView, StatisticView};

use super::threads::Phase;
use super::{AllocatorNotice, BlockChange, FrameworkAllocator, ReportedTotals};
use crate::decode::{PendingBlocks, TensorChange, TensorEvent, TraceAction, Traced};
use crate::input::allocator_state::{DeviceAllocatorState, DeviceNumbers, StateBlock};
use crate::words::{Ordinal, Tid};

/// Maximum number of events kept of allocators on a still unknown device.
const KEPT_UNPLACED: usize = 4096;
/// Maximum number of threads known to be in `malloc`. Threads that exit inside it would stay
/// forever.
const KEPT_THREADS: usize = 4096;
/// Block sizes are multiples of this: `kMinBlockSize`, in bytes.
const ROUNDING: u64 = 512;
/// Upper bound for addresses and sizes; larger values do not come from PyTorch.
const BELIEVABLE: u64 = 1 << 57;

/// A thread's request that has not been granted yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct ThreadRequest {
    allocator: u64,
    words: [u64; 2],
    /// The cache could not serve the request.
    is_segment_wanted: bool,
}

/// Caching allocators of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Allocators {
    devices: BTreeMap<Ordinal, DeviceAllocator>,
    /// Device by allocator address, known from the reports that follow an allocator's events.
    places: BTreeMap<u64, Ordinal>,
    unplaced: BTreeMap<u64, Vec<TensorEvent>>,
    unplaced_events: usize,
    asked: BTreeMap<Tid, ThreadRequest>,
    /// Allocator and address of each thread's last traced event.
    traced: BTreeMap<Tid, (u64, u64)>,
    /// Index of the size among the words of a request.
    size_word: Option<usize>,
    /// Memory mapped by the driver that no report has shown to belong to an allocator.
    mapped: Mapped,
    unbelievable: u64,
    /// Freed blocks that are still in use, according to events of single probes.
    pending: PendingBlocks,
    from_start: bool,
    missing: Vec<u16>,
    #[serde(skip)]
    history_limit: usize,
}

impl Allocators {
    /// Returns the allocators by device.
    pub const fn devices(&self) -> &BTreeMap<Ordinal, DeviceAllocator> {
        &self.devices
    }

    /// Returns the number of implausible events.
    pub const fn unbelievable(&self) -> u64 {
        self.unbelievable
    }

    /// Returns whether an allocator sends reports but no trace.
    pub fn lacks_trace(&self) -> bool {
        self.devices.values().any(DeviceAllocator::lacks_trace)
    }

    /// Returns whether all allocators trace what they report.
    pub fn has_trace(&self) -> bool {
        !self.devices.is_empty() && self.devices.values().all(DeviceAllocator::has_trace)
    }

    /// Returns the addresses of allocators with statistics that would make memwatch's more certain.
    /// They can be read while the program is idle.
    pub fn drifting(&self) -> Vec<u64> {
        let drifts = |ordinal| self.devices.get(ordinal).is_some_and(DeviceAllocator::drifts);
        self.places.iter().filter(|(_, ordinal)| drifts(ordinal)).map(|(allocator, _)| *allocator).collect()
    }

    /// Returns the device of the allocator at this address.
    pub(super) fn place_of(&self, allocator: u64) -> Option<Ordinal> {
        self.places.get(&allocator).copied()
    }

    /// Sets the device of the allocator at this address.
    #[cfg(test)]
    pub(super) fn know_place(&mut self, allocator: u64, ordinal: Ordinal) {
        self.places.insert(allocator, ordinal);
    }

    /// Learns the statistics of a device's allocator; `ends` is set if they are the last of the
    /// process. Returns whether they are plausible.
    pub(super) fn learn_last(&mut self, numbers: &DeviceNumbers, (time_ns, ends): (u64, bool)) -> bool {
        let device = self.devices.get_mut(&numbers.ordinal);
        device.zip(numbers.words()).is_some_and(|(device, words)| {
            if ends { device.settle(words, time_ns) } else { device.learn_last(words, time_ns) }
        })
    }

    /// Returns the last reported totals of a device.
    pub(super) fn reported_on(&self, ordinal: Ordinal) -> Option<ReportedTotals> {
        self.devices.get(&ordinal).and_then(DeviceAllocator::reported)
    }

    /// Splits an event of a single probe into the trace and report events it stands for; `None` for
    /// other events.
    pub fn split(&mut self, event: &TensorEvent) -> Option<[Option<TensorEvent>; 3]> {
        let TensorChange::Block(report) = &event.what else { return None };
        let Self { devices, pending, .. } = self;
        let pool_of = |ordinal, address| {
            let (_, segment) = devices.get(&ordinal)?.memory.segment_of(address)?;
            Some(segment.private_pool)
        };
        Some(report.events(event, pending, pool_of))
    }

    fn device(&mut self, ordinal: Ordinal) -> &mut DeviceAllocator {
        self.devices.entry(ordinal).or_insert_with(|| {
            let mut device = DeviceAllocator::new(ordinal, self.from_start);
            device.missing.clone_from(&self.missing);
            device.history.keep(self.history_limit);
            device
        })
    }

    /// Drops pending state. Something may have begun unseen.
    fn forget_course(&mut self) {
        self.from_start = false;
        self.pending.forget();
        self.unplaced.clear();
        self.unplaced_events = 0;
        self.asked.clear();
        self.traced.clear();
    }

    /// Remembers the thread's last event of an allocator.
    fn remember(&mut self, tid: Tid, allocator: u64, address: u64) {
        if self.traced.len() >= KEPT_THREADS {
            self.traced.clear();
        }
        self.traced.insert(tid, (allocator, address));
    }

    /// Learns the device of an allocator from a report: it follows the allocator's events in the
    /// thread.
    fn place(&mut self, tid: Tid, ordinal: Ordinal, address: u64, is_grant: bool) {
        let traced = self.traced.remove(&tid).filter(|(_, traced)| *traced == address).map(|(allocator, _)| allocator);
        let asked = self.asked.get(&tid).filter(|_| is_grant).map(|asked| asked.allocator);
        let Some(allocator) = traced.or(asked) else { return };
        if self.places.insert(allocator, ordinal) != Some(ordinal) {
            let kept = self.unplaced.remove(&allocator).unwrap_or_default();
            self.unplaced_events = self.unplaced_events.saturating_sub(kept.len());
            for event in &kept {
                self.device(ordinal).observe(event, None);
            }
        }
    }

    fn place_or_keep(&mut self, allocator: u64, event: &TensorEvent) {
        if let Some(ordinal) = self.places.get(&allocator).copied() {
            let asked = self.asked.get(&event.tid).filter(|asked| asked.allocator == allocator);
            let asked_bytes = asked.zip(self.size_word).and_then(|(asked, word)| asked.words.get(word).copied());
            self.device(ordinal).observe(event, asked_bytes);
            return;
        }
        let Self { devices, places, .. } = self;
        let unplaced = devices.iter_mut().filter(|(ordinal, _)| !places.values().any(|place| place == *ordinal));
        unplaced.for_each(|(_, device)| device.may_have_changed());
        if self.unplaced_events < KEPT_UNPLACED {
            self.unplaced_events += 1;
            self.unplaced.entry(allocator).or_default().push(event.clone());
        } else {
            self.lose();
        }
    }

    /// Learns which word of a request is its size, if the trace also has the size.
    fn weigh_words(&mut self, tid: Tid, traced: &Traced) {
        let Some(asked) = self.asked.get(&tid).filter(|_| traced.action == TraceAction::Alloc) else { return };
        let [first, second] = asked.words.map(|word| word == traced.bytes);
        if first != second {
            self.size_word = Some(usize::from(second));
        }
    }

    /// Returns the requested bytes without a trace: the word that rounds up to the block's size.
    fn requested(&mut self, asked: &ThreadRequest, block_bytes: u64) -> Option<u64> {
        if self.size_word.is_none() {
            let [first, second] =
                asked.words.map(|word| word > 0 && word.checked_next_multiple_of(ROUNDING) == Some(block_bytes));
            self.size_word = (first != second).then(|| usize::from(second));
        }
        self.size_word.and_then(|word| asked.words.get(word).copied()).filter(|bytes| *bytes <= block_bytes)
    }
}

/// The state that can be read from memory, and what is known of single devices.
impl Allocators {
    /// Records that all probes are attached except the ones of the table rows in `missing`.
    /// `from_start` is set if nothing was allocated before.
    pub(super) fn begin(&mut self, from_start: bool, missing: &[u16]) {
        self.from_start = from_start && self.devices.is_empty();
        self.missing = missing.to_vec();
        for device in self.devices.values_mut() {
            device.missing.clone_from(&self.missing);
        }
    }

    /// Sets how many history lines are kept of each device.
    pub(super) fn keep_history(&mut self, limit: usize) {
        self.history_limit = limit;
        self.devices.values_mut().for_each(|device| device.history.keep(limit));
    }

    /// Sets the phase of the block that a device allocated last.
    pub(super) fn note_phase(&mut self, ordinal: Ordinal, phase: Phase) {
        if let Some(device) = self.devices.get_mut(&ordinal) {
            device.history.report_phase(phase);
        }
    }

    /// Records that events were lost.
    pub(super) fn lose(&mut self) {
        self.forget_course();
        self.devices.values_mut().for_each(DeviceAllocator::lose);
    }

    /// Stops following events. The allocator keeps its last state.
    pub(super) fn stop(&mut self) {
        self.forget_course();
        self.devices.values_mut().for_each(DeviceAllocator::stop);
    }

    /// Skips an event that the last reading of the allocator state covers. Only what it reveals
    /// about the build is used, which applies to all devices.
    pub(super) fn skip(&mut self, event: &TensorEvent) {
        for device in self.devices.values_mut() {
            match event.what {
                TensorChange::Traced(_) => device.sight.trace = true,
                TensorChange::BlockFreed { .. } => device.sight.block_frees = true,
                _ => {}
            }
        }
    }

    /// Learns the counters of the allocator at this address, read right after its last report.
    /// Returns whether they are plausible.
    pub(super) fn learn_counters(&mut self, allocator: u64, time_ns: u64, words: &StatisticsWords) -> bool {
        let device = self.places.get(&allocator).and_then(|ordinal| self.devices.get_mut(ordinal));
        device.is_some_and(|device| device.learn_statistics(time_ns, words))
    }

    /// Learns all segments and blocks of a device from a reading of the allocator state. No event
    /// applied so far is later than the reading. Returns whether the state is plausible.
    pub(super) fn learn_allocator_state(&mut self, allocator_state: &DeviceAllocatorState, time_ns: u64) -> bool {
        self.places.insert(allocator_state.allocator, allocator_state.ordinal);
        let kept = self.unplaced.remove(&allocator_state.allocator).unwrap_or_default();
        self.unplaced_events = self.unplaced_events.saturating_sub(kept.len());
        self.device(allocator_state.ordinal).learn_allocator_state(allocator_state, time_ns)
    }

    /// Learns the counters of a device's allocator, read while no events are traced. Returns
    /// whether they are plausible.
    pub(super) fn learn_numbers(&mut self, numbers: &DeviceNumbers, time_ns: u64) -> bool {
        let Some(words) = numbers.words() else { return false };
        self.places.insert(numbers.allocator, numbers.ordinal);
        self.device(numbers.ordinal).learn_numbers(words, time_ns)
    }

    /// Returns the cumulative bytes allocated on each device by the allocator's own counter, where
    /// it is known.
    pub(super) fn counted_bytes(&self) -> BTreeMap<Ordinal, u64> {
        let counted = |device: &DeviceAllocator| {
            let bytes = device.number(StatFamily::AllocatedBytes, StatScope::All, "allocated")?;
            u64::try_from(bytes.known()?).ok()
        };
        self.devices.iter().filter_map(|(ordinal, device)| Some((*ordinal, counted(device)?))).collect()
    }

    /// Marks the blocks that were read, but appear in no event, as allocated before the attach. Does
    /// so only if all known blocks then add up to the reported total. Returns the marked blocks.
    pub(super) fn adopt_older(&mut self, ordinal: Ordinal, blocks: &[StateBlock]) -> Vec<StateBlock> {
        self.devices.get_mut(&ordinal).map_or_else(Vec::new, |device| device.adopt_older(blocks))
    }

    /// Returns whether some of the program's blocks are not known individually.
    pub(super) fn wants_blocks(&self) -> bool {
        let is_unknown = self.devices.is_empty() && !self.from_start;
        is_unknown || self.devices.values().any(|device| !device.knows_blocks())
    }

    /// Returns whether a reading of the allocator state would add information.
    pub(super) fn wants_allocator_state(&self) -> bool {
        let is_unknown = self.devices.is_empty() && !self.from_start;
        is_unknown || self.devices.values().any(DeviceAllocator::wants_allocator_state)
    }

    /// Returns whether reading an allocator's counters would help and is possible.
    pub(super) fn wants_counters(&self) -> bool {
        let mut placed = self.places.values().filter_map(|ordinal| self.devices.get(ordinal));
        placed.any(DeviceAllocator::wants_statistics)
    }

    /// Resets the peaks of all devices, in memwatch's counters only.
    pub(super) fn begin_own_peaks(&mut self, now_ns: u64) {
        self.devices.values_mut().for_each(|device| device.begin_own_peaks(now_ns));
    }
}

impl FrameworkAllocator for Allocators {
    fn note(&mut self, notice: AllocatorNotice) {
        match notice {
            AllocatorNotice::StartMissed => self.from_start = false,
            AllocatorNotice::DriverKnown(_) => {}
            AllocatorNotice::EventsLost => self.lose(),
            AllocatorNotice::Stopped => self.stop(),
            AllocatorNotice::Resumed => self.devices.values_mut().for_each(DeviceAllocator::resume),
            AllocatorNotice::PeaksBegin(now_ns) => self.begin_own_peaks(now_ns),
        }
    }

    fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange> {
        if !is_believable(&event.what) {
            self.unbelievable += 1;
            return None;
        }
        match event.what {
            TensorChange::Reported { ordinal, address, block_bytes, .. } => {
                self.place(event.tid, ordinal, address, block_bytes > 0);
                let asked = if block_bytes > 0 { self.asked.remove(&event.tid) } else { None };
                let bytes = asked.and_then(|asked| self.requested(&asked, block_bytes.unsigned_abs()));
                let request = SeenRequest { bytes, is_segment_wanted: asked.map(|asked| asked.is_segment_wanted) };
                let mut mapped = std::mem::take(&mut self.mapped);
                let change = self.device(ordinal).report(event, request, &mut mapped);
                self.mapped = mapped;
                change
            }
            TensorChange::OutOfMemory { ordinal, wanted_bytes, .. } => {
                self.place(event.tid, ordinal, 0, true);
                self.asked.remove(&event.tid);
                self.device(ordinal).refuse(event);
                Some(BlockChange::Refused { ordinal, wanted_bytes })
            }
            TensorChange::Requested { allocator, words } => {
                if self.asked.len() >= KEPT_THREADS {
                    self.asked.clear();
                }
                self.asked.insert(event.tid, ThreadRequest { allocator, words, is_segment_wanted: false });
                None
            }
            TensorChange::Traced(traced) => {
                self.weigh_words(event.tid, &traced);
                self.remember(event.tid, traced.allocator, traced.address);
                self.place_or_keep(traced.allocator, event);
                None
            }
            TensorChange::SegmentWanted { allocator, .. } => {
                if let Some(asked) = self.asked.get_mut(&event.tid) {
                    asked.is_segment_wanted = true;
                }
                self.place_or_keep(allocator, event);
                None
            }
            TensorChange::BlockFreed { allocator, address } => {
                self.remember(event.tid, allocator, address.unwrap_or(0));
                self.place_or_keep(allocator, event);
                None
            }
            TensorChange::Synchronized { allocator } => {
                self.place_or_keep(allocator, event);
                None
            }
            TensorChange::PeaksReset { ordinal } | TensorChange::AccumulatedReset { ordinal } => {
                if let Some(device) = self.devices.get_mut(&ordinal) {
                    device.observe(event, None);
                }
                None
            }
            _ => None,
        }
    }

    fn driver(&mut self, change: DriverChange) {
        let is_believable = match change {
            DriverChange::Freed { .. } => true,
            DriverChange::Mapped { address, bytes } | DriverChange::Unmapped { address, bytes } => {
                address < BELIEVABLE && (1..BELIEVABLE).contains(&bytes)
            }
        };
        if is_believable {
            if let DriverChange::Mapped { address, bytes } = change {
                self.mapped.add(address, bytes);
            }
            self.devices.values_mut().for_each(|device| device.driver(change));
        }
    }

    fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals> {
        self.devices.iter().filter_map(|(ordinal, device)| Some((*ordinal, device.reported()?))).collect()
    }
}

/// Returns whether all addresses and sizes are possible on a GPU.
fn is_believable(change: &TensorChange) -> bool {
    let numbers = match *change {
        TensorChange::Reported { address, block_bytes, allocated_bytes, reserved_bytes, .. } => {
            [address, block_bytes.unsigned_abs(), allocated_bytes, reserved_bytes]
        }
        // The requested size may be anything, since the request was refused.
        TensorChange::OutOfMemory { allocated_bytes, reserved_bytes, .. } => [0, 0, allocated_bytes, reserved_bytes],
        TensorChange::Traced(traced) if traced.action.is_of_memory() => [traced.address, traced.bytes, 0, 0],
        _ => [0; 4],
    };
    let is_nothing = match *change {
        TensorChange::Reported { block_bytes, .. } => block_bytes == 0,
        TensorChange::Traced(traced) => traced.bytes == 0 && traced.action.is_of_memory(),
        _ => false,
    };
    !is_nothing && numbers.into_iter().all(|number| number < BELIEVABLE)
}

#[cfg(test)]
pub(crate) mod tests;
