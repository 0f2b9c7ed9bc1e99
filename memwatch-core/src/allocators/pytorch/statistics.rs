//! Statistics that a caching allocator keeps, under PyTorch's names: `torch.cuda.memory_stats()`.

use serde::{Deserialize, Serialize};

/// A family of statistics, in the order of `DeviceStats` (c10/core/CachingDeviceAllocator.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatFamily {
    /// Blocks allocated by the program.
    Allocation,
    /// Segments allocated with one driver call.
    Segment,
    /// Blocks in use by the program or by a stream.
    Active,
    /// Free blocks in a segment shared with blocks in use, which therefore cannot be freed.
    InactiveSplit,
    /// Bytes of allocated blocks, rounded.
    AllocatedBytes,
    /// Bytes that the allocator reserved from the driver.
    ReservedBytes,
    /// Bytes of active blocks.
    ActiveBytes,
    /// Bytes of inactive split blocks.
    InactiveSplitBytes,
    /// Bytes of active blocks as the program requested them.
    RequestedBytes,
}

impl StatFamily {
    /// All families, in the order of `DeviceStats`.
    pub const ALL: [Self; 9] = [
        Self::Allocation,
        Self::Segment,
        Self::Active,
        Self::InactiveSplit,
        Self::AllocatedBytes,
        Self::ReservedBytes,
        Self::ActiveBytes,
        Self::InactiveSplitBytes,
        Self::RequestedBytes,
    ];

    /// Returns PyTorch's key.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocation => "allocation",
            Self::Segment => "segment",
            Self::Active => "active",
            Self::InactiveSplit => "inactive_split",
            Self::AllocatedBytes => "allocated_bytes",
            Self::ReservedBytes => "reserved_bytes",
            Self::ActiveBytes => "active_bytes",
            Self::InactiveSplitBytes => "inactive_split_bytes",
            Self::RequestedBytes => "requested_bytes",
        }
    }
}

/// Blocks that a statistic covers, in the order of `StatArray`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StatScope {
    /// All blocks.
    All,
    /// Requests of up to 1 MiB.
    Small,
    /// Requests above 1 MiB.
    Large,
}

impl StatScope {
    /// All scopes, in the order of `StatArray`.
    pub const ALL: [Self; 3] = [Self::All, Self::Small, Self::Large];

    /// Returns PyTorch's key.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Small => "small_pool",
            Self::Large => "large_pool",
        }
    }
}

/// The allocator's two kinds of pools. Memory of one never serves requests for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PoolSize {
    /// Requests of up to 1 MiB (`kSmallSize` of c10/cuda/CUDACachingAllocator.cpp).
    Small,
    /// Larger requests.
    Large,
}

impl PoolSize {
    /// Returns the pool that serves a request of this many bytes, rounded or not.
    ///
    /// A block of the small pool is never larger than its request, since a remainder of 512 bytes
    /// is split off. This is therefore also the pool of a block of this size.
    pub const fn of_request(bytes: u64) -> Self {
        if bytes <= 1 << 20 { Self::Small } else { Self::Large }
    }

    pub(super) const fn scope(self) -> StatScope {
        match self {
            Self::Small => StatScope::Small,
            Self::Large => StatScope::Large,
        }
    }
}

/// A statistic over time: `c10::CachingAllocator::AllocatorStat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorStat {
    /// Current value.
    pub current: i64,
    /// Highest value.
    pub peak: i64,
    /// Sum of all increases.
    pub allocated: i64,
    /// Sum of all decreases.
    pub freed: i64,
}

impl AllocatorStat {
    /// Changes the value by a positive or negative amount.
    pub const fn change(&mut self, by: i64) {
        self.current = self.current.saturating_add(by);
        if by > 0 {
            self.allocated = self.allocated.saturating_add(by);
            if self.current > self.peak {
                self.peak = self.current;
            }
        } else {
            self.freed = self.freed.saturating_sub(by);
        }
    }
}

/// Counters that only increase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorCounters {
    /// Retries of `cudaMalloc` after it failed and the cache was released.
    pub retries: i64,
    /// Allocations that failed for lack of memory.
    pub ooms: i64,
    /// Synchronizations of all streams.
    pub synchronizations: i64,
    /// Driver calls that allocated memory.
    pub device_allocations: i64,
    /// Driver calls that freed memory.
    pub device_frees: i64,
}

/// Statistics of one allocator that can be computed from its events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocatorStatistics {
    families: [[AllocatorStat; 3]; 9],
    /// Counters of calls and failures.
    pub counters: AllocatorCounters,
    /// Blocks of at least the size from which blocks are not split.
    pub oversize_allocations: AllocatorStat,
    /// Segments of at least that size.
    pub oversize_segments: AllocatorStat,
}

impl AllocatorStatistics {
    /// Returns a statistic.
    pub const fn get(&self, family: StatFamily, scope: StatScope) -> AllocatorStat {
        self.families[family as usize][scope as usize]
    }

    /// Returns a statistic for modification.
    pub const fn get_mut(&mut self, family: StatFamily, scope: StatScope) -> &mut AllocatorStat {
        &mut self.families[family as usize][scope as usize]
    }

    /// Changes a family in the scope of the pool and in that of all blocks.
    pub const fn change(&mut self, family: StatFamily, pool: PoolSize, by: i64) {
        if by != 0 {
            self.get_mut(family, StatScope::All).change(by);
            self.get_mut(family, pool.scope()).change(by);
        }
    }

    /// Resets the peaks to the current values: `resetPeakStats`.
    pub fn reset_peaks(&mut self) {
        self.for_each(|stat| stat.peak = stat.current);
    }

    /// Takes the peaks of `later`, which were reset later, but at least the current values.
    pub fn keep_peaks(&mut self, later: &Self) {
        let own =
            self.families.iter_mut().flatten().chain([&mut self.oversize_allocations, &mut self.oversize_segments]);
        let others = later.families.iter().flatten().chain([&later.oversize_allocations, &later.oversize_segments]);
        own.zip(others).for_each(|(own, later)| own.peak = later.peak.max(own.current));
    }

    /// Resets the accumulated values: `resetAccumulatedStats`.
    pub fn reset_accumulated(&mut self) {
        self.for_each(|stat| (stat.allocated, stat.freed) = (0, 0));
        self.counters = AllocatorCounters::default();
    }

    fn for_each(&mut self, mut what: impl FnMut(&mut AllocatorStat)) {
        self.families.iter_mut().flatten().for_each(&mut what);
        what(&mut self.oversize_allocations);
        what(&mut self.oversize_segments);
    }
}

/// Peaks as memwatch counts them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnPeaks {
    /// Peak of the cached bytes at reports.
    pub cached_bytes: u64,
    /// When memwatch's peaks were reset: `CLOCK_BOOTTIME`, nanoseconds; `None` while they are the
    /// program's own.
    pub begun_ns: Option<u64>,
    /// A higher value may have been missed since.
    pub missed: bool,
}

/// Counters that depend on the version, and settings stored among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tail {
    /// Size in bytes from which blocks are not split; -1 if all are.
    pub max_split_size: i64,
    /// Synchronizations and driver calls are counted (since 2.2).
    pub counts_calls: bool,
    /// Number of private pools in the statistics; `None` before 2.15, which does not count them.
    pub pools: Option<u64>,
    /// Allocations rejected without an attempt (2.15).
    pub oom_rejections: Option<i64>,
}
