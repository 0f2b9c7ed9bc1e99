//! Reserved bytes of private pools: `reserved_bytes_by_private_pools`, which PyTorch counts since
//! 2.15.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::statistics::{AllocatorStat, PoolSize, StatScope};

/// Maximum number of pools, since a program may create pools without bound.
const KEPT: usize = 1024;

/// Bytes by private pool. A pool is identified by two numbers.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct PrivatePools {
    by_id: BTreeMap<(u64, u64), [AllocatorStat; 3]>,
    /// No pool and no change was missed.
    is_whole: bool,
}

impl PrivatePools {
    pub(super) const fn new(is_whole: bool) -> Self {
        Self { by_id: BTreeMap::new(), is_whole }
    }

    /// Changes the bytes of a private pool; (0, 0) is no pool.
    pub(super) fn change(&mut self, id: (u64, u64), pool: PoolSize, by: i64) {
        if id == (0, 0) {
            return;
        }
        if self.by_id.len() >= KEPT && !self.by_id.contains_key(&id) {
            self.is_whole = false;
            return;
        }
        let stats = self.by_id.entry(id).or_default();
        stats[StatScope::All as usize].change(by);
        stats[pool.scope() as usize].change(by);
    }

    /// Records that a change was missed.
    pub(super) const fn miss(&mut self) {
        self.is_whole = false;
    }

    pub(super) const fn is_whole(&self) -> bool {
        self.is_whole
    }

    pub(super) fn reset_peaks(&mut self) {
        self.by_id.values_mut().flatten().for_each(|stat| stat.peak = stat.current);
    }

    pub(super) fn reset_accumulated(&mut self) {
        self.by_id.values_mut().flatten().for_each(|stat| (stat.allocated, stat.freed) = (0, 0));
    }

    /// Returns all pools with the key that PyTorch gives them.
    pub(super) fn all(&self) -> impl Iterator<Item = (String, &[AllocatorStat; 3])> {
        self.by_id.iter().map(|((first, second), stats)| (format!("{first}_{second}"), stats))
    }
}
