//! How memory comes and goes: sizes, lifetimes, and what is given back almost at once.

use std::collections::{BTreeMap, HashMap};

use foldhash::fast::RandomState;
use memwatch_common::meaning::LinearKind;

use crate::allocators::names::SiteKey;
use crate::attribution::process::Process;
use crate::decode::{Action, Call, TensorChange, TensorEvent};
use crate::features::samples::Life;
use crate::words::Ordinal;

/// Lifetimes are distinguished at these, nanoseconds: less than the first, than the next and so on, and the rest.
pub const LIFETIMES_NS: [u64; 6] = [1_000_000, 10_000_000, 100_000_000, 1_000_000_000, 10_000_000_000, 60_000_000_000];
/// Sizes are distinguished by powers of two.
const SIZES: usize = 64;

/// What comes and goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Flow {
    /// Blocks of PyTorch's allocators.
    Tensor,
    /// `cuMemAlloc` and the like.
    Device,
    /// Stream-ordered.
    Pool,
    /// Physical memory, until its handle is released.
    Physical,
    /// Managed.
    Managed,
    /// Arrays, of estimated size.
    Array,
    /// Page-locked host memory.
    Pinned,
}

/// What was counted of one kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Allocations seen.
    pub allocations: u64,
    /// Their bytes.
    pub total_bytes: u64,
    /// Frees of them.
    pub frees: u64,
    /// Frees of what is older than the watch.
    pub older_frees: u64,
    /// Number and bytes of allocations from 2^n bytes on and below 2^(n+1); the first also has those of none.
    pub sizes: [(u64, u64); SIZES],
    /// Number and bytes of what was freed, by [`LIFETIMES_NS`].
    pub lifetimes: [(u64, u64); LIFETIMES_NS.len() + 1],
    /// Lifetimes of those in all, nanoseconds.
    pub lifetime_ns: u128,
    /// The longest.
    pub longest_ns: u64,
    /// What was freed before so many more of its kind had been allocated in its process: number and bytes.
    pub temporary: (u64, u64),
}

impl Default for Counts {
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

/// Of one line of Python.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SiteCounts {
    /// Its allocations.
    pub allocations: u64,
    /// Their bytes.
    pub total_bytes: u64,
    /// How many of them were temporary.
    pub temporary: u64,
    /// And their bytes.
    pub temporary_bytes: u64,
    /// How long those lived in all, nanoseconds.
    pub temporary_ns: u64,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    bytes: u64,
    time_ns: u64,
    /// How many of its kind its process had allocated by then.
    number: u64,
    site: Option<SiteKey>,
}

/// All that comes and goes.
#[derive(Clone, Debug)]
pub struct Churn {
    within: u64,
    begun_ns: Option<u64>,
    kinds: BTreeMap<Flow, Counts>,
    sites: BTreeMap<(Life, SiteKey), SiteCounts>,
    numbers: BTreeMap<(Life, Flow), u64>,
    /// By kind, device (of tensors) and address or handle.
    open: HashMap<(Life, Flow, i32, u64), Open, RandomState>,
}

impl Churn {
    /// What is freed before so many more have been allocated is temporary.
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

    /// Before how many more.
    pub const fn within(&self) -> u64 {
        self.within
    }

    /// When the first came or went: `CLOCK_BOOTTIME`, nanoseconds.
    pub const fn begun_ns(&self) -> Option<u64> {
        self.begun_ns
    }

    /// By kind.
    pub const fn kinds(&self) -> &BTreeMap<Flow, Counts> {
        &self.kinds
    }

    /// By line of Python.
    pub const fn sites(&self) -> &BTreeMap<(Life, SiteKey), SiteCounts> {
        &self.sites
    }

    /// A call that has succeeded.
    pub fn observe_call(&mut self, process: &Process, call: &Call) {
        if call.status != 0 {
            return;
        }
        let life = Life::of(process);
        let (flow, address, bytes) = match call.action {
            Action::Allocate { kind, address, bytes } => (flow_of(kind), address, bytes),
            Action::AllocateFromPool { address, bytes, .. } => (Flow::Pool, address, bytes),
            Action::CreatePhysical { handle, bytes, .. } => (Flow::Physical, handle, bytes),
            Action::CreateArray { handle, estimated_bytes } => (Flow::Array, handle, estimated_bytes),
            Action::Free { address } | Action::FreeAsync { address, .. } => {
                let kinds = [Flow::Device, Flow::Pool, Flow::Managed];
                let own = kinds.into_iter().find(|flow| self.open.contains_key(&(life, *flow, 0, address)));
                return self.free((life, own.unwrap_or(Flow::Device), 0, address), call.returned_ns);
            }
            Action::FreeHost { address } => return self.free((life, Flow::Pinned, 0, address), call.returned_ns),
            Action::ReleasePhysical { handle } => {
                return self.free((life, Flow::Physical, 0, handle), call.returned_ns);
            }
            Action::DestroyArray { handle } => return self.free((life, Flow::Array, 0, handle), call.returned_ns),
            _ => return,
        };
        self.grant((life, flow, 0, address), bytes, call.returned_ns, None);
    }

    /// An event of a process's caching allocators, after it was taken in.
    pub fn observe_tensors(&mut self, process: &Process, event: &TensorEvent) {
        let TensorChange::Reported { ordinal, address, block_bytes, .. } = event.what else { return };
        let Ordinal(device) = ordinal;
        let key = (Life::of(process), Flow::Tensor, device, address);
        if block_bytes > 0 {
            let block = process.tensors.as_ref().and_then(|tensors| tensors.places().live(ordinal, address));
            let site = block.map(|block| block.whose.site);
            self.grant(key, block_bytes.unsigned_abs(), event.time_ns, site);
        } else if block_bytes < 0 {
            self.free(key, event.time_ns);
        }
    }

    /// A process is no more: what it had has not been freed by it.
    pub fn end(&mut self, life: Life) {
        self.open.retain(|(own, ..), _| *own != life);
        self.numbers.retain(|(own, _), _| *own != life);
    }

    fn grant(&mut self, key: (Life, Flow, i32, u64), bytes: u64, time_ns: u64, site: Option<SiteKey>) {
        self.begun_ns.get_or_insert(time_ns);
        let (life, flow, ..) = key;
        let number = self.numbers.entry((life, flow)).or_insert(0);
        *number += 1;
        self.open.insert(key, Open { bytes, time_ns, number: *number, site });
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

    fn free(&mut self, key: (Life, Flow, i32, u64), time_ns: u64) {
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

const fn flow_of(kind: LinearKind) -> Flow {
    match kind {
        LinearKind::PinnedHost => Flow::Pinned,
        LinearKind::Managed => Flow::Managed,
        LinearKind::Device => Flow::Device,
    }
}
