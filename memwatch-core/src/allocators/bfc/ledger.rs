//! Arenas of JAX, TensorFlow and ONNX Runtime, and the driver allocations that contain their
//! chunks.

use super::Arenas;
use crate::allocators::{FrameworkAllocator as _, TensorLedger};
use crate::input::arenas::ArenaReadings;
use crate::ledger::DriverSegment;

impl TensorLedger {
    /// Returns the arenas by address.
    pub const fn arenas(&self) -> &Arenas {
        &self.allocators.bfc
    }

    /// Learns the driver allocation that contains a region of an arena.
    pub fn learn_segment(&mut self, segment: DriverSegment) {
        self.allocators.bfc.learn_segment(segment);
    }

    /// Learns the state of the arenas as read from memory. Chunks that no event showed were
    /// allocated before the attach.
    pub fn learn_arenas(&mut self, allocator_state: &ArenaReadings) {
        for older in self.allocators.bfc.learn_arenas(allocator_state) {
            let reported = self.allocators.reported();
            if let Some(now) = reported.get(&older.ordinal) {
                self.attribution.observe(older.ordinal, now.allocated_bytes, now.allocated_bytes);
            }
            let chunks = self.allocators.bfc.chunks_on(older.ordinal);
            if !older.chunks.is_empty() && !self.has_lost_events() {
                self.attribution.adopt_older(older.ordinal, &chunks);
            }
        }
        self.name_older();
    }

    /// Learns the state of the arenas while events are not traced. The chunks are not attributed.
    pub fn read_arenas(&mut self, allocator_state: &ArenaReadings) {
        self.allocators.stop();
        self.allocators.bfc.learn_arenas(allocator_state);
        for (ordinal, now) in self.allocators.bfc.reported() {
            self.follow_read(ordinal, now);
        }
    }
}
