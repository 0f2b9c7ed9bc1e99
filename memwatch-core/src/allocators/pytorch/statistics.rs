//! The numbers that a caching allocator keeps of itself, under PyTorch's own names: `torch.cuda.memory_stats()`.

use serde::{Deserialize, Serialize};

/// A family of numbers, in the order of `DeviceStats` (c10/core/CachingDeviceAllocator.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Family {
    /// Allocations of the program.
    Allocation,
    /// Segments that were had with one call of the driver.
    Segment,
    /// Blocks in use by the program or by a stream.
    Active,
    /// Free blocks that share their segment with others, so that it cannot be given back.
    InactiveSplit,
    /// Bytes of the program's blocks, rounded.
    AllocatedBytes,
    /// Bytes that the allocator has of the driver.
    ReservedBytes,
    /// Bytes of active blocks.
    ActiveBytes,
    /// Bytes of inactive split blocks.
    InactiveSplitBytes,
    /// Bytes of active blocks as the program asked for them.
    RequestedBytes,
}

impl Family {
    /// All, in the order of `DeviceStats`.
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

    /// PyTorch's key.
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

/// Which blocks a number is about, in the order of `StatArray`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// All.
    All,
    /// Requests of up to 1 MiB.
    Small,
    /// Larger ones.
    Large,
}

impl Scope {
    /// All, in the order of `StatArray`.
    pub const ALL: [Self; 3] = [Self::All, Self::Small, Self::Large];

    /// PyTorch's key.
    pub const fn name(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Small => "small_pool",
            Self::Large => "large_pool",
        }
    }
}

/// The allocator's two kinds of pools: what is in one is never granted for the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PoolSize {
    /// Requests of up to 1 MiB (`kSmallSize` of c10/cuda/CUDACachingAllocator.cpp).
    Small,
    /// Larger ones.
    Large,
}

impl PoolSize {
    /// The pool that a request of so many bytes, rounded or not, is served from.
    ///
    /// A block of the small pool is never larger than what was asked for, since a remainder of 512 bytes is split off; so this is also the pool of a
    /// block of this size.
    pub const fn of_request(bytes: u64) -> Self {
        if bytes <= 1 << 20 { Self::Small } else { Self::Large }
    }

    pub(super) const fn scope(self) -> Scope {
        match self {
            Self::Small => Scope::Small,
            Self::Large => Scope::Large,
        }
    }
}

/// One number over time: `c10::CachingAllocator::Stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stat {
    /// Now.
    pub current: i64,
    /// The most so far.
    pub peak: i64,
    /// The sum of all that was added.
    pub allocated: i64,
    /// The sum of all that was taken away.
    pub freed: i64,
}

impl Stat {
    /// Adds, or takes away what is below 0.
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

/// Numbers that only count.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// `cudaMalloc` failed, and was tried again after the cache was given back.
    pub retries: i64,
    /// Allocations that failed for want of memory.
    pub ooms: i64,
    /// All streams were waited for.
    pub synchronizations: i64,
    /// Calls that took memory of the driver.
    pub device_allocations: i64,
    /// Calls that gave it back.
    pub device_frees: i64,
}

/// All numbers of one allocator that follow from its events.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Statistics {
    families: [[Stat; 3]; 9],
    /// Calls and failures.
    pub counters: Counters,
    /// Blocks of at least the size from which on none is split.
    pub oversize_allocations: Stat,
    /// Segments of at least that size.
    pub oversize_segments: Stat,
}

impl Statistics {
    /// One number.
    pub const fn get(&self, family: Family, scope: Scope) -> Stat {
        self.families[family as usize][scope as usize]
    }

    /// The same, to be set.
    pub const fn get_mut(&mut self, family: Family, scope: Scope) -> &mut Stat {
        &mut self.families[family as usize][scope as usize]
    }

    /// Adds to a family, in the pool and in all, or takes away.
    pub const fn change(&mut self, family: Family, pool: PoolSize, by: i64) {
        if by != 0 {
            self.get_mut(family, Scope::All).change(by);
            self.get_mut(family, pool.scope()).change(by);
        }
    }

    /// `resetPeakStats`: peaks are what is now.
    pub fn reset_peaks(&mut self) {
        self.for_each(|stat| stat.peak = stat.current);
    }

    /// Peaks as `later` has them, which began later, and at least what is now.
    pub fn keep_peaks(&mut self, later: &Self) {
        let own =
            self.families.iter_mut().flatten().chain([&mut self.oversize_allocations, &mut self.oversize_segments]);
        let others = later.families.iter().flatten().chain([&later.oversize_allocations, &later.oversize_segments]);
        own.zip(others).for_each(|(own, later)| own.peak = later.peak.max(own.current));
    }

    /// `resetAccumulatedStats`: nothing was added or taken away yet.
    pub fn reset_accumulated(&mut self) {
        self.for_each(|stat| (stat.allocated, stat.freed) = (0, 0));
        self.counters = Counters::default();
    }

    fn for_each(&mut self, mut what: impl FnMut(&mut Stat)) {
        self.families.iter_mut().flatten().for_each(&mut what);
        what(&mut self.oversize_allocations);
        what(&mut self.oversize_segments);
    }
}

/// What memwatch knows of peaks that the allocator does not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OwnPeaks {
    /// The most that the allocator kept for later at a report, in bytes.
    pub cached_bytes: u64,
    /// When peaks began again in memwatch's counters: `CLOCK_BOOTTIME`, nanoseconds; `None` while they are the program's own.
    pub begun_ns: Option<u64>,
    /// Something may have been higher since, unseen.
    pub missed: bool,
}

/// Counters that not every version has, and the settings among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tail {
    /// From this size on, blocks are not split: bytes; -1 where all are.
    pub max_split_size: i64,
    /// Synchronizations and the driver's calls are counted (since 2.2).
    pub counts_calls: bool,
    /// How many private pools bytes are counted of; `None` where they are not counted (before 2.15).
    pub pools: Option<u64>,
    /// Allocations refused before they were tried (2.15).
    pub oom_rejections: Option<i64>,
}
