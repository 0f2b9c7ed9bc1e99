//! What another setting of PyTorch's allocator would have taken: the requests of a program, replayed through models of policies.
//!
//! ```text
//! TensorEvent ▶ feed (what the program asked, and what that took) ▶ Operation ▶ replay (one per policy) ▶ Outcome
//! ```
//!
//! What the program does is taken as given: sizes, streams, private pools, the order of requests and frees, when it empties the cache. What the
//! allocator does with that is the policy's. Facts about PyTorch's are of c10/cuda/CUDACachingAllocator.cpp, from 2.4 to 2.15.

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
pub use self::feed::{DeviceRun, Measured, Older};
pub use self::meter::{Capacity, Meter};
pub use self::replay::{Failure, Outcome, Replay};
pub use self::settings::{LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES};
pub use self::settings::{Settings, SettingsError};

use self::caching::Caching;
use self::classes::SizeClasses;
use self::feed::CapacitySource;
use crate::decode::TensorEvent;
use crate::input::books::{BookSegment, DeviceBooks};
use crate::words::{Ordinal, Tgid};

/// What the program asks of its allocator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Memory, which it got.
    Allocate {
        /// Where it was: its name until it is free.
        address: u64,
        /// What for.
        request: Request,
    },
    /// Memory, which it did not get.
    Refused(Request),
    /// It gives memory back; another stream may use it still.
    GiveBack {
        /// Where it was.
        address: u64,
    },
    /// No stream uses the memory any more.
    Complete {
        /// Where it was.
        address: u64,
    },
    /// `torch.cuda.empty_cache()`.
    EmptyCache,
    /// Its own allocator has a segment.
    Segment {
        /// Where.
        address: u64,
        /// Its size in bytes.
        bytes: u64,
    },
    /// It has given that back.
    SegmentGone {
        /// Where it was.
        address: u64,
        /// Its size in bytes.
        bytes: u64,
    },
    /// Nothing refers to a private pool any more, and the cache was emptied.
    ReleasePool {
        /// The pool.
        private_pool: (u64, u64),
    },
}

/// One request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// As the program asked for it, in bytes.
    pub bytes: u64,
    /// On which stream.
    pub stream: u64,
    /// For which private pool; (0, 0) for none.
    pub private_pool: (u64, u64),
}

/// A block that a policy has granted: its name within the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Handle(u32);

/// A block, and whether the driver had to be asked for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// The block.
    pub handle: Handle,
    /// It came out of the cache.
    pub is_hit: bool,
}

/// How an allocator divides the driver's memory among requests.
pub trait Policy: Send + Sync + std::fmt::Debug {
    /// A block for a request; `None` where the driver has no more.
    fn allocate(&mut self, request: &Request) -> Option<Granted>;
    /// The program gives a block back. It is used again once that is complete.
    fn give_back(&mut self, handle: Handle);
    /// No stream uses the block any more.
    fn complete(&mut self, handle: Handle);
    /// The driver gets back what can be given back.
    fn empty_cache(&mut self);
    /// The program's own allocator has a segment here from now on, or no longer: this reports the driver's addresses.
    fn note_segment(&mut self, _address: u64, _bytes: u64, _is_there: bool) {}
    /// The same of a private pool that nobody uses any more.
    fn release_pool(&mut self, private_pool: (u64, u64));
    /// How much the driver has for it from now on.
    fn set_capacity(&mut self, capacity: Capacity);
    /// What it has of the driver, and what it has done for that.
    fn meter(&self) -> &Meter;
    /// The largest free block, in bytes, and all free ones.
    fn free_bytes(&self) -> (u64, u64);
    /// Has from now on what the program's own allocator has, if it makes such segments itself: the blocks that the program has, by their address.
    fn take_over(&mut self, _segments: &[BookSegment]) -> Option<Vec<(u64, Handle)>> {
        None
    }
    /// What it has done so far does not count, and what it has now is the most it had.
    fn begin(&mut self);
    /// One that has come as far.
    fn copied(&self) -> Box<dyn Policy>;
}

impl Clone for Box<dyn Policy> {
    fn clone(&self) -> Self {
        self.copied()
    }
}

/// A policy to be tried.
#[derive(Clone, Debug, PartialEq)]
pub enum Plan {
    /// PyTorch's allocator with these settings.
    PyTorch(Settings),
    /// Size classes below 1 MiB, the driver itself above.
    SizeClasses,
}

impl Plan {
    /// A policy that has done nothing yet.
    pub fn policy(&self) -> Box<dyn Policy> {
        match self {
            Self::PyTorch(settings) => Box::new(Caching::new(settings.clone())),
            Self::SizeClasses => Box::new(SizeClasses::default()),
        }
    }

    /// What is tried where nothing else is asked for.
    pub fn usual() -> Vec<Self> {
        let expandable = Settings { expandable_segments: true, ..Settings::default() };
        let unsplit = Settings { max_split_bytes: Some(128 << 20), ..Settings::default() };
        let rounded = Settings { roundup_divisions: [4; 16], ..Settings::default() };
        let settings = [Settings::default(), expandable, unsplit, rounded];
        settings.into_iter().map(Self::PyTorch).chain([Self::SizeClasses]).collect()
    }
}

/// Whose allocator: a process, since when it is watched, and its number of the device.
pub type Whose = (Tgid, u64, Ordinal);

/// All allocators that are seen, each with all policies that are tried.
#[derive(Clone, Debug)]
pub struct Simulations {
    plans: Vec<Plan>,
    /// What the card of another size has, in bytes.
    capacity_bytes: Option<u64>,
    runs: BTreeMap<Whose, DeviceRun>,
    /// On which device an allocator works, by process and its address there.
    places: BTreeMap<(Tgid, u64, u64), Ordinal>,
}

impl Simulations {
    /// Tries these; on a card of another size, where one is given.
    pub const fn new(plans: Vec<Plan>, capacity_bytes: Option<u64>) -> Self {
        Self { plans, capacity_bytes, runs: BTreeMap::new(), places: BTreeMap::new() }
    }

    /// What is tried, in the order of the outcomes.
    pub fn plans(&self) -> &[Plan] {
        &self.plans
    }

    /// What the card of another size has, in bytes.
    pub const fn capacity_bytes(&self) -> Option<u64> {
        self.capacity_bytes
    }

    /// The allocators, with what came of it.
    pub const fn runs(&self) -> &BTreeMap<Whose, DeviceRun> {
        &self.runs
    }

    /// How much the driver has for an allocator from now on: by the last reading.
    pub fn set_capacity(&mut self, whose: Whose, capacity: Capacity) {
        if let Some(run) = self.runs.get_mut(&whose) {
            run.set_capacity(capacity);
        }
    }

    /// Takes one event of a process into account; `capacity` is asked when its allocator is met for the first time.
    pub fn observe(&mut self, since_ns: u64, event: &TensorEvent, capacity: impl FnOnce(Ordinal) -> Capacity) {
        let allocator = feed::allocator_of(&event.what).map(|allocator| (event.tgid, since_ns, allocator));
        let known = allocator.and_then(|allocator| self.places.get(&allocator).copied());
        let Some(ordinal) = feed::ordinal_of(&event.what).or(known) else { return };
        if let Some(allocator) = allocator {
            self.places.insert(allocator, ordinal);
        }
        self.run((event.tgid, since_ns, ordinal), capacity).observe(event);
    }

    /// What a process had before it was watched was read from its allocator's own books: replays begin with it.
    pub fn begin_with(
        &mut self,
        whose: Whose,
        books: &DeviceBooks,
        time_ns: u64,
        capacity: impl FnOnce(Ordinal) -> Capacity,
    ) {
        let (plans, source) = (self.plans.clone(), self.capacity_source());
        let run = self.run(whose, capacity);
        if run.may_begin_with_books() {
            let capacity = run.capacity();
            *run = DeviceRun::new(&plans, source);
            run.set_capacity(capacity);
            run.begin_with(&books.segments, time_ns);
        }
    }

    const fn capacity_source(&self) -> CapacitySource {
        if self.capacity_bytes.is_some() { CapacitySource::Caller } else { CapacitySource::Reading }
    }

    fn run(&mut self, whose: Whose, capacity: impl FnOnce(Ordinal) -> Capacity) -> &mut DeviceRun {
        let source = self.capacity_source();
        let Self { plans, runs, .. } = self;
        runs.entry(whose).or_insert_with(|| {
            let mut run = DeviceRun::new(plans, source);
            run.set_capacity(capacity(whose.2));
            run
        })
    }
}
