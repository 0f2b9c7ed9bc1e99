//! Simulates PyTorch's allocator with other settings: replays a program's requests through models
//! of allocation policies.
//!
//! ```text
//! TensorEvent ▶ feed (requests of the program, measured run) ▶ Operation ▶ replay (one per policy) ▶ Outcome
//! ```
//!
//! The program's behaviour is taken as given: sizes, streams, private pools, the order of requests
//! and frees, and calls that empty the cache. The policy decides how the allocator serves them.
//! Facts about PyTorch's allocator are from c10/cuda/CUDACachingAllocator.cpp, 2.4 to 2.15.

mod addresses;
mod adopt;
mod arena;
mod caching;
mod classes;
mod collect;
mod expandable;
mod feed;
mod meter;
mod replay;
mod settings;
#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;

use std::collections::BTreeMap;

pub use self::caching::OWN_SEGMENT_BYTES;
pub use self::feed::{DeviceRun, MeasuredRun, PreexistingBytes};
pub use self::meter::{Capacity, Meter};
pub use self::replay::{PolicyReplay, PredictedFailure, ReplayOutcome};
pub use self::settings::{LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES};
pub use self::settings::{Settings, SettingsError};

use self::caching::Caching;
use self::classes::SizeClasses;
use self::feed::CapacitySource;
use crate::decode::TensorEvent;
use crate::input::allocator_state::{DeviceAllocatorState, StateSegment};
use crate::words::{Ordinal, Tgid};

/// An operation of the program on its allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// A request that was granted.
    Allocate {
        /// Address in the program's run, which identifies the block until it is freed.
        address: u64,
        /// The request.
        request: SimulatedRequest,
    },
    /// A request that was refused.
    Refused(SimulatedRequest),
    /// The program frees a block, which another stream may still use.
    GiveBack {
        /// Address of the block.
        address: u64,
    },
    /// No stream uses the block any longer.
    Complete {
        /// Address of the block.
        address: u64,
    },
    /// `torch.cuda.empty_cache()`.
    EmptyCache,
    /// The program's own allocator has allocated a segment.
    Segment {
        /// Address of the segment.
        address: u64,
        /// Its size in bytes.
        bytes: u64,
    },
    /// The program's own allocator has freed a segment.
    SegmentGone {
        /// Address of the segment.
        address: u64,
        /// Its size in bytes.
        bytes: u64,
    },
    /// A private pool has no references left, and the cache was emptied.
    ReleasePool {
        /// The pool.
        private_pool: (u64, u64),
    },
}

/// A request for a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedRequest {
    /// Requested size in bytes.
    pub bytes: u64,
    /// Stream of the request.
    pub stream: u64,
    /// Private pool of the request; (0, 0) for none.
    pub private_pool: (u64, u64),
}

/// Identifies a granted block within a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BlockHandle(u32);

/// A granted block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantedBlock {
    /// The block.
    pub handle: BlockHandle,
    /// Whether the block came from the cache.
    pub is_hit: bool,
}

/// An allocation policy: divides the driver's memory among requests.
pub trait AllocationPolicy: Send + Sync + std::fmt::Debug {
    /// Allocates a block; returns `None` if the driver has no memory left.
    fn allocate(&mut self, request: &SimulatedRequest) -> Option<GrantedBlock>;
    /// Frees a block. Its memory can be reused after [`AllocationPolicy::complete`].
    fn give_back(&mut self, handle: BlockHandle);
    /// Marks a freed block as no longer used by any stream.
    fn complete(&mut self, handle: BlockHandle);
    /// Releases all cached memory that can be released to the driver.
    fn empty_cache(&mut self);
    /// Records that the program's own allocator has or no longer has a segment at this address,
    /// which shows the driver's addresses.
    fn note_segment(&mut self, _address: u64, _bytes: u64, _is_there: bool) {}
    /// Releases the memory of a private pool that is no longer in use.
    fn release_pool(&mut self, private_pool: (u64, u64));
    /// Sets the memory that the driver has for the allocator.
    fn set_capacity(&mut self, capacity: Capacity);
    /// Returns the counters of driver memory.
    fn meter(&self) -> &Meter;
    /// Returns the size of the largest free block and of all free blocks, in bytes.
    fn free_bytes(&self) -> (u64, u64);
    /// Adopts the segments of the program's own allocator, if the policy creates segments of that
    /// kind. Returns the handles of the program's blocks by address.
    fn take_over(&mut self, _segments: &[StateSegment]) -> Option<Vec<(u64, BlockHandle)>> {
        None
    }
    /// Resets the counters; the current bytes become the peak.
    fn begin(&mut self);
    /// Returns a copy of the policy with its state.
    fn copied(&self) -> Box<dyn AllocationPolicy>;
}

impl Clone for Box<dyn AllocationPolicy> {
    fn clone(&self) -> Self {
        self.copied()
    }
}

/// A policy to simulate.
#[derive(Clone, Debug, PartialEq)]
pub enum PolicyPlan {
    /// PyTorch's allocator with these settings.
    PyTorch(Settings),
    /// Size classes below 1 MiB, direct driver allocations above.
    SizeClasses,
}

impl PolicyPlan {
    /// Creates the policy in its initial state.
    pub fn policy(&self) -> Box<dyn AllocationPolicy> {
        match self {
            Self::PyTorch(settings) => Box::new(Caching::new(settings.clone())),
            Self::SizeClasses => Box::new(SizeClasses::default()),
        }
    }

    /// Returns the plans to simulate by default.
    pub fn usual() -> Vec<Self> {
        let expandable = Settings { expandable_segments: true, ..Settings::default() };
        let unsplit = Settings { max_split_bytes: Some(128 << 20), ..Settings::default() };
        let rounded = Settings { roundup_divisions: [4; 16], ..Settings::default() };
        let settings = [Settings::default(), expandable, unsplit, rounded];
        settings.into_iter().map(Self::PyTorch).chain([Self::SizeClasses]).collect()
    }
}

/// Key of an allocator: the process, its start of observation, and its number of the device.
pub type SimulatedAllocatorKey = (Tgid, u64, Ordinal);

/// Runs of all observed allocators, each with all plans.
#[derive(Clone, Debug)]
pub struct Simulations {
    plans: Vec<PolicyPlan>,
    /// Memory of a simulated card of another size, in bytes.
    capacity_bytes: Option<u64>,
    runs: BTreeMap<SimulatedAllocatorKey, DeviceRun>,
    /// Device of each allocator, by process and address of the allocator object.
    places: BTreeMap<(Tgid, u64, u64), Ordinal>,
}

impl Simulations {
    /// Creates simulations of these plans; on a card of another size, if one is given.
    pub const fn new(plans: Vec<PolicyPlan>, capacity_bytes: Option<u64>) -> Self {
        Self { plans, capacity_bytes, runs: BTreeMap::new(), places: BTreeMap::new() }
    }

    /// Returns the plans, in the order of the outcomes.
    pub fn plans(&self) -> &[PolicyPlan] {
        &self.plans
    }

    /// Returns the memory of the simulated card of another size, in bytes.
    pub const fn capacity_bytes(&self) -> Option<u64> {
        self.capacity_bytes
    }

    /// Returns the runs by allocator.
    pub const fn runs(&self) -> &BTreeMap<SimulatedAllocatorKey, DeviceRun> {
        &self.runs
    }

    /// Sets the memory that the driver has for an allocator, from the last reading.
    pub fn set_capacity(&mut self, whose: SimulatedAllocatorKey, capacity: Capacity) {
        if let Some(run) = self.runs.get_mut(&whose) {
            run.set_capacity(capacity);
        }
    }

    /// Processes an event of a process; `capacity` is called for the first event of an allocator.
    pub fn observe(&mut self, since_ns: u64, event: &TensorEvent, capacity: impl FnOnce(Ordinal) -> Capacity) {
        let allocator = feed::allocator_of(&event.what).map(|allocator| (event.tgid, since_ns, allocator));
        let known = allocator.and_then(|allocator| self.places.get(&allocator).copied());
        let Some(ordinal) = feed::ordinal_of(&event.what).or(known) else { return };
        if let Some(allocator) = allocator {
            self.places.insert(allocator, ordinal);
        }
        self.run((event.tgid, since_ns, ordinal), capacity).observe(event);
    }

    /// Begins the replays with the memory that a process held before the first event, from its
    /// allocator state.
    pub fn begin_with(
        &mut self,
        whose: SimulatedAllocatorKey,
        allocator_state: &DeviceAllocatorState,
        time_ns: u64,
        capacity: impl FnOnce(Ordinal) -> Capacity,
    ) {
        let (plans, source) = (self.plans.clone(), self.capacity_source());
        let run = self.run(whose, capacity);
        if run.may_begin_with_allocator_state() {
            let capacity = run.capacity();
            *run = DeviceRun::new(&plans, source);
            run.set_capacity(capacity);
            run.begin_with(&allocator_state.segments, time_ns);
        }
    }

    const fn capacity_source(&self) -> CapacitySource {
        if self.capacity_bytes.is_some() { CapacitySource::Caller } else { CapacitySource::Reading }
    }

    fn run(&mut self, whose: SimulatedAllocatorKey, capacity: impl FnOnce(Ordinal) -> Capacity) -> &mut DeviceRun {
        let source = self.capacity_source();
        let Self { plans, runs, .. } = self;
        runs.entry(whose).or_insert_with(|| {
            let mut run = DeviceRun::new(plans, source);
            run.set_capacity(capacity(whose.2));
            run
        })
    }
}
