//! The CUDA backend's pool for temporaries. It maps memory into a range of addresses piece by
//! piece, when more is needed at once than before, and frees everything at its end. Each piece is
//! kept like a buffer, by address.

use super::{Buffer, Buffers};
use crate::allocators::BlockChange;
use crate::decode::{BufferUsage, TensorEvent};
use crate::words::Ordinal;

impl Buffers {
    /// Adds a piece that the pool mapped: address and bytes. `asked` is the first device given
    /// access.
    pub(super) fn grow(
        &mut self,
        event: &TensorEvent,
        (address, bytes): (u64, u64),
        asked: Ordinal,
    ) -> Option<BlockChange> {
        // Access may be given to another device first.
        let ordinal = self.segment.and_then(|segment| segment.ordinal()).unwrap_or(asked);
        self.make(event, address, Buffer { ordinal, address, bytes, usage: BufferUsage::Scratch })
    }

    /// Removes the pieces from this address on, when the pool frees all of its bytes. Unknown
    /// pieces were mapped before the attach, or unseen.
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
