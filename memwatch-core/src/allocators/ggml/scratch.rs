//! The pool of CUDA's backend for temporaries: a range of addresses that memory is mapped into piece by piece, as more is wanted at once than before. It gives
//! all of it back at its end, and nothing before. Each piece is kept like a buffer, by its address.

use super::{Buffer, Buffers};
use crate::allocators::BlockChange;
use crate::decode::{BufferUsage, TensorEvent};
use crate::words::Ordinal;

impl Buffers {
    /// The pool has mapped a piece: where it begins, its bytes, and the device that may use it first.
    pub(super) fn grow(
        &mut self,
        event: &TensorEvent,
        (address, bytes): (u64, u64),
        asked: Ordinal,
    ) -> Option<BlockChange> {
        // The first access may be another device's.
        let ordinal = self.segment.and_then(|segment| segment.ordinal()).unwrap_or(asked);
        self.make(event, address, Buffer { ordinal, address, bytes, usage: BufferUsage::Scratch })
    }

    /// The pool gives all back that it has mapped from there on, so many bytes. Pieces that are not known were mapped before the watch, or unseen.
    pub(super) fn shrink(&mut self, (address, bytes): (u64, u64), time_ns: u64) {
        let end = address.saturating_add(bytes);
        let pieces: Vec<u64> = self.contexts.range(address..end).map(|(_, context)| *context).collect();
        let mut known_bytes = 0;
        for context in pieces {
            if let Some(Buffer { ordinal, address, bytes, .. }) = self.release(context, time_ns) {
                known_bytes += bytes;
                self.gone.push_back(BlockChange::Freed { ordinal, address, block_bytes: bytes });
            }
        }
        self.doubts.has_older |= known_bytes != bytes;
    }
}
