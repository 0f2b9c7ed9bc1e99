//! Reconciles blocks that were read while the allocators were running with the events of that time,
//! like a fuzzy checkpoint with its log.
//!
//! A block without an event existed all the time and was allocated before the attach. A block
//! allocated or freed meanwhile follows its events. When all events up to the end of the reading
//! have arrived, the remaining blocks and those of the events must add up to the total that the
//! allocator reports; otherwise the reading is discarded.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::TensorLedger;
use crate::decode::TensorEvent;
use crate::input::allocator_state::{MovingAllocatorState, StateBlock, StateBlockUse};
use crate::words::Ordinal;

/// Time after the end of a reading at which it is reconciled if no later event arrives,
/// nanoseconds.
const SETTLED_AFTER_NS: u64 = 200_000_000;

/// A reading that waits for the events of its time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moving {
    end_ns: u64,
    devices: BTreeMap<Ordinal, BTreeMap<u64, StateBlock>>,
}

impl Moving {
    /// Drops a block, since an event has determined its state.
    pub(super) fn settle_block(&mut self, ordinal: Ordinal, address: u64) {
        if let Some(blocks) = self.devices.get_mut(&ordinal) {
            blocks.remove(&address);
        }
    }
}

impl TensorLedger {
    /// Learns blocks read while the allocators were running. They are used once the events of that
    /// time have arrived and the sums agree.
    pub fn learn_moving_allocator_state(&mut self, allocator_state: &MovingAllocatorState) {
        if self.moving.is_some() {
            return;
        }
        let allocated = |blocks: &[StateBlock]| {
            let allocated = blocks.iter().filter(|block| block.state == StateBlockUse::ActiveAllocated);
            allocated.map(|block| (block.address, *block)).collect()
        };
        let devices =
            allocator_state.devices.iter().map(|device| (device.ordinal, allocated(&device.blocks))).collect();
        self.moving = Some(Moving { end_ns: allocator_state.time_ns, devices });
    }

    /// Returns whether some blocks are not known individually and no reading is pending.
    pub fn wants_blocks(&self) -> bool {
        self.moving.is_none() && self.allocators.pytorch.wants_blocks()
    }

    /// Reconciles the reading if this event is later than its end.
    pub(super) fn settle_before(&mut self, event: &TensorEvent) {
        if self.moving.as_ref().is_some_and(|moving| event.time_ns > moving.end_ns) {
            self.settle();
        }
    }

    /// Reconciles the reading if enough time has passed without an event.
    pub(super) fn settle_at(&mut self, now_ns: u64) {
        if self.moving.as_ref().is_some_and(|moving| now_ns.saturating_sub(moving.end_ns) > SETTLED_AFTER_NS) {
            self.settle();
        }
    }

    fn settle(&mut self) {
        let Some(moving) = self.moving.take().filter(|_| !self.has_lost_events()) else { return };
        for (ordinal, blocks) in moving.devices {
            let blocks: Vec<StateBlock> = blocks.into_values().collect();
            let older = self.allocators.pytorch.adopt_older(ordinal, &blocks);
            let since_ns = match &self.sampling {
                Some(sampling) => sampling.opened_ns(),
                None => Some(self.traced_since_ns),
            };
            if let Some(since_ns) = since_ns.filter(|_| !older.is_empty()) {
                let older = older.iter().map(|block| (block.address, block.bytes)).collect();
                let beside = self.allocators.blocks_beside(ordinal);
                self.attribution.settle_older((ordinal, since_ns), older, &beside);
            }
        }
        self.name_older();
    }
}
