//! Churn of memory: sizes, lifetimes, and blocks freed shortly after their allocation.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use memwatch_common::meaning::LinearKind;

use crate::allocators::names::SiteKey;
use crate::attribution::process::Process;
use crate::decode::{Action, Call, TensorChange, TensorEvent};
use crate::features::samples::ProcessLifetime;
use crate::words::Ordinal;

/// Upper edges of the lifetime classes, in nanoseconds; one more class holds longer lifetimes.
pub const LIFETIMES_NS: [u64; 6] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000, 60_000_000_000];
/// Number of size classes, by powers of two.
const SIZES: usize = 64;

/// Kind of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryKind {
    /// Blocks of PyTorch's allocators.
    Tensor,
    /// Device memory from `cuMemAlloc` and similar calls.
    Device,
    /// Stream-ordered memory.
    Pool,
    /// Physical memory, until its handle is released.
    Physical,
    /// Managed memory.
    Managed,
    /// Arrays, of estimated size.
    Array,
    /// Page-locked host memory.
    Pinned,
}

/// Counters of one kind of memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChurnCounts {
    /// Observed allocations.
    pub allocations: u64,
    /// Bytes of the allocations.
    pub total_bytes: u64,
    /// Frees of these allocations.
    pub frees: u64,
    /// Frees of memory that existed before the session.
    pub older_frees: u64,
    /// Number and bytes of allocations from 2^n to below 2^(n+1) bytes; the first class also has
    /// those of 0 bytes.
    pub sizes: [(u64, u64); SIZES],
    /// Number and bytes of freed allocations, by [`LIFETIMES_NS`].
    pub lifetimes: [(u64, u64); LIFETIMES_NS.len() + 1],
    /// Sum of their lifetimes, in nanoseconds.
    pub lifetime_ns: u128,
    /// Longest lifetime, in nanoseconds.
    pub longest_ns: u64,
    /// Number and bytes of temporary allocations.
    pub temporary: (u64, u64),
}

impl Default for ChurnCounts {
    fn default() -> Self {
        Self {
            allocations: 0,
            total_bytes: 0,
            frees: 0,
            older_frees: 0,
            sizes: [(0, 0); SIZES],
            lifetimes: [(0, 0); LIFETIMES_NS.len() + 1],
            lifetime_ns: 0,
            longest_ns: 0,
            temporary: (0, 0),
        }
    }
}

/// Counters of one Python call site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteCounts {
    /// Number of allocations.
    pub allocations: u64,
    /// Bytes of the allocations.
    pub total_bytes: u64,
    /// Number of temporary allocations.
    pub temporary: u64,
    /// Bytes of the temporary allocations.
    pub temporary_bytes: u64,
    /// Sum of the temporary allocations' lifetimes, in nanoseconds.
    pub temporary_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct LiveAllocation {
    bytes: u64,
    time_ns: u64,
    /// Sequence number among the process's allocations of its kind.
    number: u64,
    site: Option<SiteKey>,
}

/// Churn counters of all processes.
#[derive(Clone, Debug)]
pub struct Churn {
    within: u64,
    begun_ns: Option<u64>,
    kinds: BTreeMap<MemoryKind, ChurnCounts>,
    sites: BTreeMap<(ProcessLifetime, SiteKey), SiteCounts>,
    numbers: BTreeMap<(ProcessLifetime, MemoryKind), u64>,
    /// Live allocations by process, kind, device (for tensors) and address or handle.
    open: HashMap<(ProcessLifetime, MemoryKind, i32, u64), LiveAllocation, RandomState>,
}

impl Churn {
    /// Creates empty counters. An allocation is temporary if it is freed before `within` further
    /// ones.
    pub fn new(within: u64) -> Self {
        Self {
            within,
            begun_ns: None,
            kinds: BTreeMap::new(),
            sites: BTreeMap::new(),
            numbers: BTreeMap::new(),
            open: HashMap::default(),
        }
    }

    /// Returns the limit for temporary allocations.
    pub const fn within(&self) -> u64 {
        self.within
    }

    /// Returns the time of the first allocation: `CLOCK_BOOTTIME`, in nanoseconds.
    pub const fn begun_ns(&self) -> Option<u64> {
        self.begun_ns
    }

    /// Returns the counters by kind.
    pub const fn kinds(&self) -> &BTreeMap<MemoryKind, ChurnCounts> {
        &self.kinds
    }

    /// Returns the counters by Python call site.
    pub const fn sites(&self) -> &BTreeMap<(ProcessLifetime, SiteKey), SiteCounts> {
        &self.sites
    }

    /// Counts a call; failed calls are ignored.
    pub fn observe_call(&mut self, process: &Process, call: &Call) {
        if call.status != 0 {
            return;
        }
        let life = ProcessLifetime::of(process);
        let (flow, address, bytes) = match call.action {
            Action::Allocate { kind, address, bytes } => (flow_of(kind), address, bytes),
            Action::AllocateFromPool { address, bytes, .. } => (MemoryKind::Pool, address, bytes),
            Action::CreatePhysical { handle, bytes, .. } => (MemoryKind::Physical, handle, bytes),
            Action::CreateArray { handle, estimated_bytes } => (MemoryKind::Array, handle, estimated_bytes),
            Action::Free { address } | Action::FreeAsync { address, .. } => {
                let kinds = [MemoryKind::Device, MemoryKind::Pool, MemoryKind::Managed];
                let own = kinds.into_iter().find(|flow| self.open.contains_key(&(life, *flow, 0, address)));
                return self.free((life, own.unwrap_or(MemoryKind::Device), 0, address), call.returned_ns);
            }
            Action::FreeHost { address } => return self.free((life, MemoryKind::Pinned, 0, address), call.returned_ns),
            Action::ReleasePhysical { handle } => {
                return self.free((life, MemoryKind::Physical, 0, handle), call.returned_ns);
            }
            Action::DestroyArray { handle } => {
                return self.free((life, MemoryKind::Array, 0, handle), call.returned_ns);
            }
            _ => return,
        };
        self.grant((life, flow, 0, address), bytes, call.returned_ns, None);
    }

    /// Counts an event of a process's caching allocators after it was processed.
    pub fn observe_tensors(&mut self, process: &Process, event: &TensorEvent) {
        let TensorChange::Reported { ordinal, address, block_bytes, .. } = event.what else { return };
        let Ordinal(device) = ordinal;
        let key = (ProcessLifetime::of(process), MemoryKind::Tensor, device, address);
        if block_bytes > 0 {
            let block = process.tensors.as_ref().and_then(|tensors| tensors.attribution().live(ordinal, address));
            let site = block.map(|block| block.whose.site);
            self.grant(key, block_bytes.unsigned_abs(), event.time_ns, site);
        } else if block_bytes < 0 {
            self.free(key, event.time_ns);
        }
    }

    /// Forgets the live allocations of a process that has exited: it did not free them.
    pub fn end(&mut self, life: ProcessLifetime) {
        self.open.retain(|(own, ..), _| *own != life);
        self.numbers.retain(|(own, _), _| *own != life);
    }

    fn grant(&mut self, key: (ProcessLifetime, MemoryKind, i32, u64), bytes: u64, time_ns: u64, site: Option<SiteKey>) {
        self.begun_ns.get_or_insert(time_ns);
        let (life, flow, ..) = key;
        let number = self.numbers.entry((life, flow)).or_insert(0);
        *number += 1;
        self.open.insert(key, LiveAllocation { bytes, time_ns, number: *number, site });
        let counts = self.kinds.entry(flow).or_default();
        counts.allocations += 1;
        counts.total_bytes = counts.total_bytes.saturating_add(bytes);
        let class = &mut counts.sizes[bytes.checked_ilog2().unwrap_or(0) as usize];
        *class = (class.0 + 1, class.1.saturating_add(bytes));
        if let Some(site) = site {
            let counts = self.sites.entry((life, site)).or_default();
            counts.allocations += 1;
            counts.total_bytes = counts.total_bytes.saturating_add(bytes);
        }
    }

    fn free(&mut self, key: (ProcessLifetime, MemoryKind, i32, u64), time_ns: u64) {
        let (life, flow, ..) = key;
        let counts = self.kinds.entry(flow).or_default();
        let Some(open) = self.open.remove(&key) else {
            counts.older_frees += 1;
            return;
        };
        let age_ns = time_ns.saturating_sub(open.time_ns);
        counts.frees += 1;
        counts.lifetime_ns += u128::from(age_ns);
        counts.longest_ns = counts.longest_ns.max(age_ns);
        let class = LIFETIMES_NS.iter().position(|limit| age_ns < *limit).unwrap_or(LIFETIMES_NS.len());
        let lifetime = &mut counts.lifetimes[class];
        *lifetime = (lifetime.0 + 1, lifetime.1.saturating_add(open.bytes));
        let later = self.numbers.get(&(life, flow)).map_or(0, |number| number - open.number);
        if later >= self.within {
            return;
        }
        counts.temporary = (counts.temporary.0 + 1, counts.temporary.1.saturating_add(open.bytes));
        if let Some(counts) = open.site.and_then(|site| self.sites.get_mut(&(life, site))) {
            counts.temporary += 1;
            counts.temporary_bytes = counts.temporary_bytes.saturating_add(open.bytes);
            counts.temporary_ns = counts.temporary_ns.saturating_add(age_ns);
        }
    }
}

const fn flow_of(kind: LinearKind) -> MemoryKind {
    match kind {
        LinearKind::PinnedHost => MemoryKind::Pinned,
        LinearKind::Managed => MemoryKind::Managed,
        LinearKind::Device => MemoryKind::Device,
    }
}
