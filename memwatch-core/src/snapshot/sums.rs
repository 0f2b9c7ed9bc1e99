//! Sums over the processes of a workload on one GPU.

use serde::{Deserialize, Serialize};

use crate::words::sum_of_known;

/// Sums over the caching allocators of several processes. Each sum covers the processes for which the value is known;
/// `None` if there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FrameworkSums {
    /// Bytes of tensors, rounded by the allocators.
    pub allocated_bytes: Option<u64>,
    /// Bytes that the allocators have reserved from the driver.
    pub reserved_bytes: Option<u64>,
    /// Bytes of blocks in use or waiting for another stream.
    pub active_bytes: Option<u64>,
    /// Bytes of free blocks that cannot be released, because other blocks of their segment are in use.
    pub inactive_split_bytes: Option<u64>,
    /// Number of times that the cache was emptied to retry an allocation.
    pub retries: Option<u64>,
    /// Out-of-memory errors returned to programs.
    pub ooms: Option<u64>,
}

impl FrameworkSums {
    /// Returns the sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            allocated_bytes: sum_of_known(self.allocated_bytes, other.allocated_bytes),
            reserved_bytes: sum_of_known(self.reserved_bytes, other.reserved_bytes),
            active_bytes: sum_of_known(self.active_bytes, other.active_bytes),
            inactive_split_bytes: sum_of_known(self.inactive_split_bytes, other.inactive_split_bytes),
            retries: sum_of_known(self.retries, other.retries),
            ooms: sum_of_known(self.ooms, other.ooms),
        }
    }
}

/// Sums over the KV caches of several processes. Each sum of bytes covers the processes for which it is known; `None` if
/// there is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvCacheSums {
    /// Bytes of the blocks that requests can use.
    pub size_bytes: Option<u64>,
    /// Bytes of the blocks in use by requests.
    pub used_bytes: Option<u64>,
    /// Bytes of the free blocks with a prefix that a later request can reuse.
    pub reusable_bytes: Option<u64>,
    /// Requests that run.
    pub running_requests: u64,
    /// Requests that wait to run.
    pub waiting_requests: u64,
}

impl KvCacheSums {
    /// Returns the sum of both.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            size_bytes: sum_of_known(self.size_bytes, other.size_bytes),
            used_bytes: sum_of_known(self.used_bytes, other.used_bytes),
            reusable_bytes: sum_of_known(self.reusable_bytes, other.reusable_bytes),
            running_requests: self.running_requests.saturating_add(other.running_requests),
            waiting_requests: self.waiting_requests.saturating_add(other.waiting_requests),
        }
    }
}
