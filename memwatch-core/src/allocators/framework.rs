//! The trait between framework allocators and their consumers: sums by call site, views, forecasts.
//!
//! There is one implementation per framework: [`super::pytorch::Allocators`] for PyTorch,
//! [`super::bfc::Arenas`] for JAX, TensorFlow and ONNX Runtime, [`super::ggml::Buffers`] for ggml,
//! and [`super::pools::MemoryPools`] for RAPIDS and CuPy. [`super::frameworks::Frameworks`] combines
//! those of a process. Methods that only some allocators support have default implementations. A
//! new framework also needs a table of its functions in memwatch-common, and code to find them in a
//! process in memwatch's `frameworks/`.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::decode::TensorEvent;
use crate::input::allocator_state::{DeviceAllocatorState, DeviceNumbers, StateBlock};
use crate::ledger::DriverSegment;
use crate::words::Ordinal;

use super::pytorch::{DriverChange, StatisticsWords};
use super::threads::Phase;
use super::{BlockChange, ReportedTotals};

/// A framework's allocators in one process. Turns events into block changes and totals.
pub trait FrameworkAllocator: Clone + Debug + Default {
    /// Records that all probes are attached except the ones of the table rows in `missing`.
    /// `from_start` is set if nothing was allocated before.
    fn begin(&mut self, from_start: bool, missing: &[u16]);

    /// Records an earlier allocation: allocators first seen from here on may have older blocks.
    fn miss_start(&mut self);

    /// Records whether all driver allocations of the process are known.
    fn see_driver(&mut self, _all: bool) {}

    /// Prepares an event before `apply`. `segment_at` returns the driver allocation that contains
    /// an address; the driver call that made it precedes the event.
    fn place(&mut self, _event: &TensorEvent, _segment_at: &dyn Fn(u64) -> Option<DriverSegment>) {}

    /// Applies one event and returns the resulting block change.
    fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange>;

    /// Returns a further block change caused by the last event, to be applied before its own. Call
    /// until it returns `None`.
    fn also(&mut self) -> Option<BlockChange> {
        None
    }

    /// Returns the allocated and reserved bytes on a device of the allocators that report no totals
    /// in their events.
    fn beside(&self, _ordinal: Ordinal) -> (u64, u64) {
        (0, 0)
    }

    /// Returns the individually known blocks, on a device, of the allocators that report no totals
    /// in their events: size in bytes by address.
    fn blocks_beside(&self, _ordinal: Ordinal) -> BTreeMap<u64, u64> {
        BTreeMap::new()
    }

    /// Skips an event that the last reading of the allocator state covers. Only what it reveals
    /// about the build is used.
    fn skip(&mut self, _event: &TensorEvent) {}

    /// Applies a driver call that may allocate or free a segment.
    fn driver(&mut self, change: DriverChange);

    /// Returns the totals by device, as the allocators last reported them.
    fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals>;

    /// Learns the counters of the allocator at this address, read right after its last report.
    /// Returns whether they are plausible.
    fn learn_counters(&mut self, _allocator: u64, _time_ns: u64, _words: &StatisticsWords) -> bool {
        false
    }

    /// Learns all segments and blocks of a device from a reading of the allocator state. No event
    /// applied so far is later than the reading. Returns whether the state is plausible.
    fn learn_allocator_state(&mut self, _allocator_state: &DeviceAllocatorState, _time_ns: u64) -> bool {
        false
    }

    /// Learns the counters of a device's allocator, read while no events are traced. Returns
    /// whether they are plausible.
    fn learn_numbers(&mut self, _numbers: &DeviceNumbers, _time_ns: u64) -> bool {
        false
    }

    /// Returns the cumulative bytes allocated on each device by the allocator's own counter, where
    /// it is known.
    fn counted_bytes(&self) -> BTreeMap<Ordinal, u64> {
        BTreeMap::new()
    }

    /// Stops following events. The allocator keeps its last state, or drops it.
    fn stop(&mut self) {}

    /// Follows events again. Those in between were missed.
    fn resume(&mut self) {
        self.lose();
    }

    /// Returns whether a reading of the allocator state would add information.
    fn wants_allocator_state(&self) -> bool {
        false
    }

    /// Marks the blocks that were read, but appear in no event, as allocated before the attach. Does
    /// so only if all known blocks then add up to the reported total. Returns the marked blocks.
    fn adopt_older(&mut self, _ordinal: Ordinal, _blocks: &[StateBlock]) -> Vec<StateBlock> {
        Vec::new()
    }

    /// Returns whether some of the program's blocks are not known individually.
    fn wants_blocks(&self) -> bool {
        false
    }

    /// Returns whether reading an allocator's counters would help and is possible.
    fn wants_counters(&self) -> bool {
        false
    }

    /// Records that events were lost.
    fn lose(&mut self);

    /// Resets the peaks of all devices, in memwatch's counters only.
    fn begin_own_peaks(&mut self, _now_ns: u64) {}

    /// Sets how many history lines are kept of each device.
    fn keep_history(&mut self, _limit: usize) {}

    /// Sets the phase of the block that a device allocated last.
    fn note_phase(&mut self, _ordinal: Ordinal, _phase: Phase) {}
}
