//! How the free memory of a caching allocator lies: see [`crate::features::fragments::model`].

use serde::{Deserialize, Serialize};

pub use crate::features::fragments::model::Shape as ShapeView;
use crate::ledger::layout::Holes;
use crate::snapshot::PlaceNameView;
use crate::words::{GpuUuid, Name, Tgid, json};

/// One device's caching allocator of one process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FragmentsView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// From when on it was watched: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// The process's own number of the device.
    pub device: i32,
    /// The GPU, where it is known.
    pub uuid: Option<GpuUuid>,
    /// When it lay as it is shown: `CLOCK_BOOTTIME`, nanoseconds; `None` for now.
    #[serde(serialize_with = "json::date")]
    pub at_worst_ns: Option<u64>,
    /// Whether its segments are seen; without that only what it reports is known.
    pub traced: bool,
    /// What it has of the driver by its own last report, in bytes; `None` before the first, and where another moment is shown.
    pub reported_reserved_bytes: Option<u64>,
    /// What tensors have by that, in bytes.
    pub reported_allocated_bytes: Option<u64>,
    /// Requests of up to 1 MiB.
    #[serde(serialize_with = "json::apart")]
    pub small: ShapeView,
    /// Larger ones.
    #[serde(serialize_with = "json::apart")]
    pub large: ShapeView,
    /// How it has lain, oldest first.
    pub moments: Vec<MomentView>,
    /// The moment with most memory in pieces between blocks in use.
    pub worst: Option<MomentView>,
    /// What would become of a request, where one was asked for.
    pub request: Option<FitView>,
    /// By stream and private pool, those with most of the driver first.
    #[serde(default)]
    pub pools: Vec<StreamPoolView>,
    /// The segments, by address.
    pub segments: Vec<SegmentView>,
    /// Whose lines' blocks hold free memory together, most first; empty where that is not seen.
    pub sites: Vec<PinView>,
    /// And whose layers'.
    pub layers: Vec<PinView>,
}

/// What one stream has in the allocator's usual pools, or what is in one private pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamPoolView {
    /// `stream` for the usual pools. Of a private one: `graph` for a CUDA graph's own, `graphs` for one that captures share, `mem_pool` for a
    /// `torch.cuda.MemPool`, and `private` where it may be either.
    pub owner: Name,
    /// The stream, 0 for the default one; of a private pool that of one of its segments.
    pub stream: u64,
    /// The private pool, as PyTorch numbers it; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Of a private pool: whether its graph or `MemPool` still lives, as far as is known.
    pub in_use: bool,
    /// What it has.
    #[serde(flatten)]
    pub shape: ShapeView,
    /// What is free of it, is not given back by `empty_cache`, and serves the next requests there.
    pub reusable_bytes: u64,
}

/// What the blocks of a line or a layer hold back: free memory that cannot go to the driver, since they lie in the same segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinView {
    /// The line or the layer; of kind `pending` for blocks that were given back and a stream uses still.
    #[serde(flatten)]
    pub place: PlaceNameView,
    /// Its blocks' own bytes in segments that are not full.
    pub held_bytes: u64,
    /// Its share of what is free there, by its bytes in each segment; those of all add up to `split_bytes`.
    pub share_bytes: u64,
    /// What would go back if its blocks went: free in segments in which there are no others; `None` for the rest.
    pub alone_bytes: Option<u64>,
}

/// How the memory lies that a process has of the driver itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFragmentsView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// From when on it was watched: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// When it lay as it is shown: `CLOCK_BOOTTIME`, nanoseconds; `None` for now.
    #[serde(serialize_with = "json::date")]
    pub at_worst_ns: Option<u64>,
    /// Addresses that it has set apart, and those of them without memory.
    pub addresses: Holes,
    /// On each GPU.
    pub gpus: Vec<DriverGpuView>,
}

/// On one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverGpuView {
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// Memory of `cuMemAlloc`.
    pub device: LinearView,
    /// Physical memory (`cuMemCreate`).
    pub physical: PhysicalView,
    /// Pools (`cuMemAllocAsync`).
    pub pool: DriverPoolView,
    /// All that is of no use, as far as it is known.
    pub wasted_bytes: u64,
    /// Whether a request would fit, where one was asked for.
    pub request: Option<DriverFitView>,
}

/// Memory of `cuMemAlloc`, and the granules it lies in: these are no driver's word, but follow from the addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearView {
    /// What was asked for and is live.
    pub live_bytes: u64,
    /// In so many requests.
    pub allocations: u64,
    /// What those of up to 1 MiB asked for.
    pub small_bytes: u64,
    /// How many those are.
    pub small_allocations: u64,
    /// The granules in which at least one of them lies: an estimate of what the driver has for it.
    pub backed_bytes: u64,
    /// How large a granule is.
    pub granule_bytes: u64,
    /// What of the granules nobody asked for.
    pub unused_bytes: u64,
    /// It is an estimate: always.
    pub estimated: bool,
}

/// Physical memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhysicalView {
    /// What there is, in bytes.
    pub live_bytes: u64,
    /// What of it is neither mapped nor bound.
    pub idle_bytes: u64,
}

/// The driver's pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverPoolView {
    /// What is used of them.
    pub used_bytes: u64,
    /// What they hold; `None` where that cannot even be estimated.
    pub backed_bytes: Option<u64>,
    /// The program has not asked the driver for it lately, so it is an estimate.
    pub backed_estimated: bool,
    /// What they hold and nobody uses.
    pub unused_bytes: Option<u64>,
}

impl DriverPoolView {
    /// Of which this is used, and so much held.
    pub fn new(used_bytes: u64, backed_bytes: Option<u64>, backed_estimated: bool) -> Self {
        let unused_bytes = backed_bytes.map(|backed| backed.saturating_sub(used_bytes));
        Self { used_bytes, backed_bytes, backed_estimated, unused_bytes }
    }
}

/// What would become of a request of the driver itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFitView {
    /// What is asked for, in bytes.
    pub wanted_bytes: u64,
    /// What the driver has to have for it: whole granules.
    pub driver_bytes: u64,
    /// What it has free by NVML's last reading; `None` where that is not known, and of another moment than now.
    pub driver_free_bytes: Option<u64>,
}

/// How it lay at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MomentView {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// What the allocator had of the driver, in bytes.
    pub reserved_bytes: u64,
    /// What tensors had of that.
    pub allocated_bytes: u64,
    /// What lay free.
    pub free_bytes: u64,
    /// What of it lay beside blocks in use.
    pub split_bytes: u64,
    /// The largest free block.
    pub largest_free_bytes: u64,
}

/// What would become of a request now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FitView {
    /// What is asked for, in bytes.
    pub wanted_bytes: u64,
    /// The stream that it is asked for on: that of most of what the program has.
    #[serde(default)]
    pub stream: u64,
    /// Whether there is a free block for it on that stream.
    pub cached: bool,
    /// The other streams on which there is one: a request on any other stream cannot have it.
    #[serde(default)]
    pub other_streams: Vec<u64>,
    /// What the driver would have to give for it otherwise, in bytes.
    pub driver_bytes: u64,
    /// What the driver has free by NVML's last reading, in bytes; `None` where that is not known.
    pub driver_free_bytes: Option<u64>,
    /// What it would have more once the cache was emptied, which PyTorch does before it gives up, in bytes.
    pub releasable_bytes: u64,
}

/// A segment, and the blocks that tile it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentView {
    /// Where it begins.
    pub address: u64,
    /// Its size in bytes.
    pub bytes: u64,
    /// It is for requests of up to 1 MiB.
    pub small: bool,
    /// It grows and shrinks.
    pub expandable: bool,
    /// The stream it is for.
    pub stream: u64,
    /// The private pool it is for; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Its blocks, in their order.
    pub blocks: Vec<SegmentBlockView>,
}

/// A block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentBlockView {
    /// Its size in bytes.
    pub bytes: u64,
    /// What it is used for.
    pub state: SegmentBlockState,
}

/// What a block is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentBlockState {
    /// A tensor has it.
    Allocated,
    /// It was given back, and a stream uses it still.
    Pending,
    /// Nothing.
    Free,
}
