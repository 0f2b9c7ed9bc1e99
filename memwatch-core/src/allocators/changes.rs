//! Applies block changes to the sums by call site, with the totals of the device at that moment.

use super::places::RefusedBlock;
use super::threads::Attribution;
use super::{BlockChange, ReportedTotals, TensorLedger};
use crate::decode::{TensorChange, TensorEvent};
use crate::words::Ordinal;

/// A device, the bytes allocated on it before the event, and its totals after.
type Now = (Ordinal, u64, ReportedTotals);

impl TensorLedger {
    /// Applies a block change caused by an event.
    pub(super) fn take_change(&mut self, event: &TensorEvent, change: BlockChange, now: Option<Now>) {
        if let Some((ordinal, before_bytes, now)) = now {
            self.log.observe(ordinal, &now);
            self.attribution.observe(ordinal, before_bytes, now.allocated_bytes);
            self.high_waters.entry(ordinal).or_default().observe(before_bytes, now.allocated_bytes);
        }
        match change {
            BlockChange::Granted(block) => {
                if let Some(moving) = &mut self.moving {
                    moving.settle_block(block.ordinal, block.address);
                }
                let whose = self.threads.attribute(block.tid, block.stack);
                let module = self.operator_of(event, &block, whose.module).unwrap_or(whose.module);
                let whose = Attribution { module, ..whose };
                if let Some(sampling) = &mut self.sampling {
                    sampling.grant(block.ordinal, block.block_bytes, &whose);
                }
                self.attribution.grant(&block, whose);
                if let Some(spent) = self.durations.grant(&block, &whose) {
                    self.attribution.spend(spent);
                }
                self.allocators.pytorch.note_phase(block.ordinal, whose.phase);
                if let Some((_, _, now)) = now {
                    self.log.grant((block.ordinal, block.tid), &now, &whose);
                }
            }
            BlockChange::Freed { ordinal, address, block_bytes } => {
                if let Some(moving) = &mut self.moving {
                    moving.settle_block(ordinal, address);
                }
                if let Some(block) = self.attribution.free(ordinal, address, block_bytes, event.time_ns)
                    && let Some(range_bytes) =
                        self.threads.give_back(&block.whose, block.granted_ns, (block.ordinal, block.bytes))
                {
                    self.attribution.free_temporary(&block, range_bytes);
                }
            }
            BlockChange::Refused { ordinal, wanted_bytes } => {
                let whose = self.threads.attribute(event.tid, event.stack);
                self.attribution.refuse(RefusedBlock { ordinal, wanted_bytes, time_ns: event.time_ns, whose });
            }
        }
    }

    /// Returns the totals around a change, for an allocator that reports none in its events.
    pub(super) fn observed(&self, change: &BlockChange) -> Option<Now> {
        let (ordinal, is_grant, bytes) = match change {
            BlockChange::Granted(block) => (block.ordinal, true, block.block_bytes),
            BlockChange::Freed { ordinal, block_bytes, .. } => (*ordinal, false, *block_bytes),
            BlockChange::Refused { .. } => return None,
        };
        let now = self.allocators.reported().get(&ordinal).copied()?;
        let before_bytes = if is_grant {
            now.allocated_bytes.saturating_sub(bytes)
        } else {
            now.allocated_bytes.saturating_add(bytes)
        };
        Some((ordinal, before_bytes, now))
    }

    /// Returns the totals around an event that reports them, with those of other allocators on the
    /// device added.
    pub(super) fn reported_by(&self, event: &TensorEvent) -> Option<Now> {
        let TensorChange::Reported { ordinal, block_bytes, allocated_bytes, reserved_bytes, .. } = event.what else {
            return None;
        };
        let (beside_bytes, beside_reserved_bytes) = self.allocators.beside(ordinal);
        let allocated_bytes = allocated_bytes.saturating_add(beside_bytes);
        let reserved_bytes = reserved_bytes.saturating_add(beside_reserved_bytes);
        let before_bytes = allocated_bytes.saturating_add_signed(block_bytes.saturating_neg());
        Some((ordinal, before_bytes, ReportedTotals { allocated_bytes, reserved_bytes, time_ns: event.time_ns }))
    }
}
