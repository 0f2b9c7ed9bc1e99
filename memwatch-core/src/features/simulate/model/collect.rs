//! `garbage_collection_threshold`: releases old blocks before the driver refuses a request.

use super::caching::Caching;
use super::{BlockHandle, arena::SimulatedPool};

impl Caching {
    /// Returns whether collection is on: it needs a threshold and a memory fraction that the
    /// threshold refers to.
    pub(super) fn collects(&self) -> bool {
        self.settings.collection_threshold > 0.0 && self.settings.allowed_bytes(self.meter.capacity).is_some()
    }

    /// Releases segments of the large pool that are at least as old as the average, until the
    /// reserved bytes are below the threshold.
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "as PyTorch"
    )]
    pub(super) fn collect(&mut self) {
        if !self.collects() {
            return;
        }
        let allowed = self.settings.allowed_bytes(self.meter.capacity).unwrap_or(u64::MAX);
        let threshold = (self.settings.collection_threshold * allowed as f64) as u64;
        let Some(target) = self.meter.reserved_bytes.checked_sub(threshold).filter(|more| *more > 0) else { return };
        let mut reclaimed = 0;
        while reclaimed < target {
            let old: Vec<(BlockHandle, u64, u64)> = self.unsplit().collect();
            let count = old.len() as f64;
            let average = old.iter().map(|(_, age, _)| *age).sum::<u64>() as f64 / count;
            let before = reclaimed;
            for (handle, age, bytes) in old {
                if age as f64 >= average {
                    self.release(handle);
                    reclaimed += bytes;
                }
            }
            if reclaimed == before {
                return;
            }
        }
    }

    /// Returns the free segments of the large pool: handle, age in searches, bytes.
    fn unsplit(&self) -> impl Iterator<Item = (BlockHandle, u64, u64)> {
        let SimulatedPool { free, looked, .. } = &self.arena.pools[0];
        let whole = free.iter().map(|(.., handle)| (*handle, self.arena.get(*handle)));
        whole
            .filter(|(_, block)| !block.is_split())
            .map(move |(handle, block)| (handle, looked - block.born, block.bytes))
    }
}
