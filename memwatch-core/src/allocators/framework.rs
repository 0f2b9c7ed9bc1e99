//! The trait between the allocators of frameworks and [`super::frameworks::Frameworks`], which
//! combines those of a process.
//!
//! An implementation is in a directory of its own, with the views of its state. What only one
//! framework has, such as allocator state that can be read from memory, are methods of its own
//! type.

use std::collections::BTreeMap;

use super::pytorch::DriverChange;
use super::{BlockChange, ReportedTotals};
use crate::decode::TensorEvent;
use crate::ledger::DriverSegment;
use crate::words::{Framework, Ordinal};

/// A framework's allocators in one process. Turns events into block changes and totals.
pub trait FrameworkAllocator {
    /// Records that a framework's functions are probed. `from_start` is set if the driver had
    /// granted nothing before. Returns whether the framework is one of this allocator and was not
    /// probed before.
    fn watch(&mut self, _framework: Framework, _from_start: bool) -> bool {
        false
    }

    /// Records what affects the certainty of the known blocks and totals.
    fn note(&mut self, notice: AllocatorNotice);

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

    /// Applies a driver call that may allocate or free a segment.
    fn driver(&mut self, change: DriverChange);

    /// Returns the totals by device, as the allocators last reported them.
    fn reported(&self) -> BTreeMap<Ordinal, ReportedTotals>;

    /// Returns the individually known blocks on a device, size in bytes by address, if their events
    /// contain no totals.
    fn blocks_on(&self, _ordinal: Ordinal) -> BTreeMap<u64, u64> {
        BTreeMap::new()
    }
}

/// What affects the certainty of an allocator's known blocks and totals.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocatorNotice {
    /// There was an earlier allocation: allocators first seen from here on may have older blocks.
    StartMissed,
    /// Whether all driver allocations of the process are known.
    DriverKnown(bool),
    /// Events were lost.
    EventsLost,
    /// Events are not traced from here on. The allocator keeps its last state, or drops it.
    Stopped,
    /// Events are traced again. Those in between were missed.
    Resumed,
    /// Peaks begin anew at this time, `CLOCK_BOOTTIME` in nanoseconds, in memwatch's counters only.
    PeaksBegin(u64),
}
