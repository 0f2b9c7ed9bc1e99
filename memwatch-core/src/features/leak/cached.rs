//! Splits the free memory of PyTorch's allocator by stream and private pool. A cached block serves
//! only the stream that it was allocated for, a private pool only its owner.

use std::collections::BTreeMap;

use crate::allocators::pytorch::{BlockState, DeviceAllocator};
use crate::features::leak::view::CachedView;
use crate::words::Ordinal;

/// Returns the free memory by stream; `None` if the device's segments are unknown.
pub(super) fn cached(ordinal: Ordinal, allocator: &DeviceAllocator) -> Option<CachedView> {
    if allocator.shows_totals_alone() {
        return None;
    }
    let memory = allocator.memory();
    let (mut streams, mut private_bytes) = (BTreeMap::<u64, u64>::new(), 0_u64);
    for (address, cell) in memory.cells().iter().filter(|(_, cell)| cell.state == BlockState::Inactive) {
        let Some((_, segment)) = memory.segment_of(*address) else { continue };
        if segment.private_pool == (0, 0) {
            *streams.entry(segment.stream).or_default() += cell.bytes;
        } else {
            private_bytes = private_bytes.saturating_add(cell.bytes);
        }
    }
    let free_bytes = streams.values().copied().fold(private_bytes, u64::saturating_add);
    let main_bytes = streams.get(&0).copied().unwrap_or(0);
    let side_bytes = free_bytes.saturating_sub(private_bytes).saturating_sub(main_bytes);
    let side_streams = streams.keys().filter(|stream| **stream != 0).count() as u64;
    let reserved_bytes = memory.reserved_bytes();
    Some(CachedView {
        device: ordinal.0,
        reserved_bytes,
        free_bytes,
        side_streams,
        side_bytes,
        private_bytes,
        waiting_bytes: memory.pending_bytes(),
    })
}
