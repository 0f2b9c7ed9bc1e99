//! The seam between a framework's allocator and everything that asks what it has: sums by place, views, forecasts.
//!
//! One implementation per framework: PyTorch's is [`super::pytorch::Allocators`], JAX's, TensorFlow's and ONNX Runtime's [`super::bfc::Arenas`], that of
//! ggml [`super::ggml::Buffers`], those of RAPIDS and CuPy [`super::pools::Pools`]; in a process they are one, [`super::frameworks::Frameworks`]. What is
//! not asked of every allocator is provided: it has none. What it needs beside this is a table of the framework's functions in memwatch-common, and the
//! way to find them in a process in memwatch's `frameworks/`.

use std::collections::BTreeMap;
use std::fmt::Debug;

use crate::decode::TensorEvent;
use crate::input::books::{BookBlock, DeviceBooks, DeviceNumbers};
use crate::ledger::DriverSegment;
use crate::words::Ordinal;

use super::pytorch::{DriverChange, Words};
use super::threads::Stage;
use super::{BlockChange, Reported};

/// A framework's allocators in one process: events in, blocks and totals out.
pub trait FrameworkAllocator: Clone + Debug + Default {
    /// Probes are in place from now on, but for these rows of the table; `from_start` where nothing was allocated before.
    fn begin(&mut self, from_start: bool, missing: &[u16]);

    /// Something was allocated before: an allocator that is first heard of from now on has a past.
    fn miss_start(&mut self);

    /// Whether all that the driver has granted to the process is known.
    fn see_driver(&mut self, _all: bool) {}

    /// Before an event is taken in: `segment_at` is the driver's allocation that holds an address, which the driver's call that made room came before.
    fn place(&mut self, _event: &TensorEvent, _segment_at: &dyn Fn(u64) -> Option<DriverSegment>) {}

    /// Takes one event into account, and says what has become of a block.
    fn apply(&mut self, event: &TensorEvent) -> Option<BlockChange>;

    /// What had become of another block before that event's own: asked again and again, until nothing has.
    fn also(&mut self) -> Option<BlockChange> {
        None
    }

    /// What the process's other allocators have of a device, beside the one that reports its own totals with its events: allocated and reserved bytes.
    fn beside(&self, _ordinal: Ordinal) -> (u64, u64) {
        (0, 0)
    }

    /// The blocks of these others on a device that are known one by one: by address their sizes in bytes.
    fn blocks_beside(&self, _ordinal: Ordinal) -> BTreeMap<u64, u64> {
        BTreeMap::new()
    }

    /// An event that its own books have already: nothing of it counts but what it shows of the build.
    fn skip(&mut self, _event: &TensorEvent) {}

    /// The driver granted or took back memory that may be a segment.
    fn driver(&mut self, change: DriverChange);

    /// The totals by device, as the allocators reported them last.
    fn reported(&self) -> BTreeMap<Ordinal, Reported>;

    /// What the allocator at this address has counted itself, read right after its last report. Says whether it could be believed.
    fn learn_counters(&mut self, _allocator: u64, _time_ns: u64, _words: &Words) -> bool {
        false
    }

    /// All segments and blocks of a device at this moment, as the allocator's own books have them; no event that came before is later. Says whether
    /// they could be believed.
    fn learn_books(&mut self, _books: &DeviceBooks, _time_ns: u64) -> bool {
        false
    }

    /// What a device's allocator has counted by now, read while no event is traced. Says whether it could be believed.
    fn learn_numbers(&mut self, _numbers: &DeviceNumbers, _time_ns: u64) -> bool {
        false
    }

    /// How many bytes each device's allocator has granted in all, by its own count, where that is known.
    fn counted_bytes(&self) -> BTreeMap<Ordinal, u64> {
        BTreeMap::new()
    }

    /// No event of it is traced from now on: what is known is as it was read last.
    fn stop(&mut self) {}

    /// Events are traced again: what came meanwhile was missed.
    fn resume(&mut self) {
        self.lose();
    }

    /// Whether a reading of the allocators' own books would say more than is known.
    fn wants_books(&self) -> bool {
        false
    }

    /// Of these blocks, which were read, the ones that are known from no event are older than the watch, if with them all blocks add up to what the
    /// allocator reports. Says which it took.
    fn adopt_older(&mut self, _ordinal: Ordinal, _blocks: &[BookBlock]) -> Vec<BookBlock> {
        Vec::new()
    }

    /// Whether not all blocks that the program has are known one by one.
    fn wants_blocks(&self) -> bool {
        false
    }

    /// Whether an allocator's own counters are wanted, and there is a way to them.
    fn wants_counters(&self) -> bool {
        false
    }

    /// Events did not arrive.
    fn lose(&mut self);

    /// Peaks of all devices begin again, for memwatch alone.
    fn begin_own_peaks(&mut self, _now_ns: u64) {}

    /// So many lines of history are kept from now on, of each device.
    fn keep_history(&mut self, _limit: usize) {}

    /// In which phase the block was granted that a device granted last.
    fn note_phase(&mut self, _ordinal: Ordinal, _phase: Stage) {}
}
