//! What only processes with JAX, TensorFlow or ONNX Runtime have: arenas, and where in the driver's memory their chunks lie.

use super::TensorLedger;
use super::bfc::Arenas;
use super::framework::FrameworkAllocator as _;
use crate::input::arenas::ArenaBooks;
use crate::ledger::DriverSegment;

impl TensorLedger {
    /// The arenas, by address.
    pub const fn arenas(&self) -> &Arenas {
        &self.allocators.bfc
    }

    /// The driver's allocation that holds a region of an arena.
    pub fn learn_segment(&mut self, segment: DriverSegment) {
        self.allocators.bfc.learn_segment(segment);
    }

    /// What the arenas have by their own books. Chunks that no event had shown are older than the watch.
    pub fn learn_arenas(&mut self, books: &ArenaBooks) {
        for older in self.allocators.bfc.learn_arenas(books) {
            let reported = self.allocators.reported();
            if let Some(now) = reported.get(&older.ordinal) {
                self.places.observe(older.ordinal, now.allocated_bytes, now.allocated_bytes);
            }
            let chunks = self.allocators.bfc.chunks_on(older.ordinal);
            if !older.chunks.is_empty() && !self.has_lost_events() {
                self.places.adopt_older(older.ordinal, &chunks);
            }
        }
        self.name_older();
    }

    /// The same while no event is traced: whose the chunks are is not known.
    pub fn read_arenas(&mut self, books: &ArenaBooks) {
        self.allocators.stop();
        self.allocators.bfc.learn_arenas(books);
        for (ordinal, now) in self.allocators.bfc.reported() {
            self.follow_read(ordinal, now);
        }
    }
}
