//! Moves a block to a module that became known only after the allocation.

use serde::{Deserialize, Serialize};

use super::{BlockSum, CodeAttribution, LiveBlock, ModuleSum, at};
use crate::allocators::TensorBlock;
use crate::allocators::names::ModuleKey;
use crate::allocators::threads::Attribution;
use crate::words::Ordinal;

/// A block that is being allocated, with the sums before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::allocators) struct GrantInProgress {
    ordinal: Ordinal,
    address: u64,
    granted_ns: u64,
    requested_bytes: Option<u64>,
    /// Peak of the block's module before the block, in bytes.
    peak_bytes: u64,
    /// Number of peaks of the device before the block.
    epoch: u64,
}

impl CodeAttribution {
    /// Records the sums before a block is added to a module.
    pub(in crate::allocators) fn granted(&self, block: &TensorBlock, module: ModuleKey) -> GrantInProgress {
        let device = self.devices.get(&block.ordinal);
        let peak_bytes =
            device.and_then(|device| device.modules.get(module.0 as usize)).map(|module| module.sum.peak_bytes);
        GrantInProgress {
            ordinal: block.ordinal,
            address: block.address,
            granted_ns: block.time_ns,
            requested_bytes: block.requested_bytes,
            peak_bytes: peak_bytes.unwrap_or(0),
            epoch: device.map_or(0, |device| device.epoch),
        }
    }

    /// Moves the block just allocated to another module, and restores the sums of its first module.
    pub(in crate::allocators) fn move_granted(&mut self, granted: &GrantInProgress, module: ModuleKey) {
        let is_it = |block: &&LiveBlock| block.granted_ns == granted.granted_ns;
        let Some(block) = self.live.get(granted.ordinal, granted.address).filter(is_it).copied() else { return };
        let named = Attribution { module, ..block.whose };
        self.live.insert(LiveBlock { whose: named, ..block });
        let modules = &mut self.device(granted.ordinal).modules;
        let phase = block.whose.phase as usize;
        let from = at(modules, block.whose.module.0 as usize);
        from.sum.take_back(block.bytes, granted.peak_bytes);
        from.live_by_phase[phase] = from.live_by_phase[phase].saturating_sub(block.bytes);
        from.total_by_phase[phase] = from.total_by_phase[phase].saturating_sub(block.bytes);
        match granted.requested_bytes {
            Some(requested) => from.rounding_bytes -= from.rounding_bytes.min(block.bytes.saturating_sub(requested)),
            None => from.unrounded = from.unrounded.saturating_sub(1),
        }
        let to = at(modules, module.0 as usize);
        to.sum.grant(block.bytes, granted.epoch);
        to.live_by_phase[phase] = to.live_by_phase[phase].saturating_add(block.bytes);
        to.total_by_phase[phase] = to.total_by_phase[phase].saturating_add(block.bytes);
        to.round(block.bytes, granted.requested_bytes);
    }
}

impl ModuleSum {
    /// Adds the bytes by which an allocated block was rounded up.
    pub(super) fn round(&mut self, bytes: u64, requested_bytes: Option<u64>) {
        match requested_bytes {
            Some(requested) => self.rounding_bytes += bytes.saturating_sub(requested),
            None => self.unrounded += 1,
        }
    }
}

impl BlockSum {
    /// Removes the last block; `peak_bytes` is the peak before it.
    fn take_back(&mut self, bytes: u64, peak_bytes: u64) {
        let was_highest = self.peak_bytes == self.live_bytes;
        self.live_bytes = self.live_bytes.saturating_sub(bytes);
        self.total_bytes = self.total_bytes.saturating_sub(bytes);
        self.allocations = self.allocations.saturating_sub(1);
        if was_highest {
            self.peak_bytes = peak_bytes.max(self.live_bytes);
        }
    }
}
