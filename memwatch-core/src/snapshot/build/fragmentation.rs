//! Fragmentation by module: rounding of its blocks, and free bytes next to them.

use std::collections::{BTreeSet, HashMap};

use crate::allocators::names::ModuleKey;
use crate::allocators::places::CodeAttribution;
use crate::allocators::pytorch::{AllocatorSegment, BlockState, DeviceAllocator};
use crate::words::Ordinal;

/// Fragmentation of the live blocks of one module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fragmentation {
    /// Bytes added by rounding; `None` if the requested size of some of the blocks is unknown.
    pub rounding_bytes: Option<u64>,
    /// Bytes of free blocks that cannot be released, in the segments of the module's blocks; `None`
    /// if the segments are unknown.
    pub nearby_split_bytes: Option<u64>,
}

/// Returns the fragmentation of all modules with live blocks on a device.
pub(super) fn by_module(
    places: &CodeAttribution,
    ordinal: Ordinal,
    allocator: &DeviceAllocator,
) -> HashMap<ModuleKey, Fragmentation> {
    // Segments are only estimated if the allocator shows nothing but totals.
    if allocator.shows_totals_alone() {
        return HashMap::new();
    }
    let memory = allocator.memory();
    let module_at = |address| places.live(ordinal, address).map(|block| block.whose.module);
    let mut modules: HashMap<ModuleKey, Fragmentation> = HashMap::new();
    for (address, cell) in memory.cells().iter().filter(|(_, cell)| cell.state == BlockState::Allocated) {
        let Some(module) = module_at(*address) else { continue };
        let known = Fragmentation { rounding_bytes: Some(0), nearby_split_bytes: None };
        let own = modules.entry(module).or_insert(known);
        let rounding = cell.requested_bytes.map(|requested| cell.bytes.saturating_sub(requested));
        own.rounding_bytes = own.rounding_bytes.zip(rounding).map(|(sum, more)| sum.saturating_add(more));
    }
    for (begin, AllocatorSegment { bytes, is_expandable, .. }) in memory.segments() {
        let mut inside = BTreeSet::new();
        let mut free_bytes = 0_u64;
        for (address, cell) in memory.cells().range(*begin..begin.saturating_add(*bytes)) {
            match cell.state {
                // PyTorch counts none in expandable segments, whose free pages can be released.
                BlockState::Inactive if !is_expandable => free_bytes = free_bytes.saturating_add(cell.bytes),
                BlockState::Allocated => inside.extend(module_at(*address)),
                _ => {}
            }
        }
        for module in inside {
            let own = modules.entry(module).or_default();
            own.nearby_split_bytes = Some(own.nearby_split_bytes.unwrap_or(0).saturating_add(free_bytes));
        }
    }
    modules
}
