//! Fragmentation report: see [`crate::features::fragments::model`].

use serde::{Deserialize, Serialize};

pub use crate::features::fragments::model::FragmentationShape as ShapeView;
use crate::ledger::layout::Holes;
use crate::snapshot::PlaceNameView;
use crate::words::{GpuUuid, Name, Tgid, json};

/// Fragmentation of the caching allocator of one process on one device.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FragmentsView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Start of observation: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// The process's own number of the device.
    pub device: i32,
    /// GPU, if it is known.
    pub uuid: Option<GpuUuid>,
    /// Time of the shown state: `CLOCK_BOOTTIME`, in nanoseconds; `None` for the current
    /// state.
    #[serde(serialize_with = "json::date")]
    pub at_worst_ns: Option<u64>,
    /// Whether the allocator's segments are traced; without them only its own report is known.
    pub traced: bool,
    /// Reserved bytes in the allocator's own last report; `None` before the first report, and if a
    /// past moment is shown.
    pub reported_reserved_bytes: Option<u64>,
    /// Allocated bytes in the allocator's own last report; `None` like `reported_reserved_bytes`.
    pub reported_allocated_bytes: Option<u64>,
    /// Segments for requests of up to 1 MiB.
    #[serde(serialize_with = "json::apart")]
    pub small: ShapeView,
    /// Segments for larger requests.
    #[serde(serialize_with = "json::apart")]
    pub large: ShapeView,
    /// Moments, oldest first.
    pub moments: Vec<MomentView>,
    /// The most fragmented moment.
    pub worst: Option<MomentView>,
    /// Result for the requested size, if one was given.
    pub request: Option<FitView>,
    /// Pools by stream and private pool, most reserved bytes first.
    #[serde(default)]
    pub pools: Vec<StreamPoolView>,
    /// The segments, by address.
    pub segments: Vec<SegmentView>,
    /// Free memory pinned by call sites, most first; empty if it is not traced.
    #[serde(rename = "lines")]
    pub sites: Vec<PinView>,
    /// Free memory pinned by modules, most first; empty if it is not traced.
    pub modules: Vec<PinView>,
}

/// Memory of one stream in the allocator's default pools, or memory of one private pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StreamPoolView {
    /// `stream` for the default pools. For a private pool: `graph` for the pool of one CUDA graph,
    /// `graphs` for a pool that captures share, `mem_pool` for a `torch.cuda.MemPool`, `private` if
    /// it may be either.
    pub owner: Name,
    /// Stream, 0 for the default one; for a private pool the stream of one of its segments.
    pub stream: u64,
    /// Private pool in PyTorch's numbering; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// For a private pool: whether its graph or `MemPool` still exists, as far as is known.
    pub in_use: bool,
    /// Shape of the pool.
    #[serde(flatten)]
    pub shape: ShapeView,
    /// Free bytes that `empty_cache` does not release and that later requests of the pool can use.
    pub reusable_bytes: u64,
}

/// Free memory pinned by the blocks of a call site or a module: it cannot be released to the
/// driver, because the blocks are in the same segments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinView {
    /// Call site or module; kind `pending` for blocks that the program has freed and a stream still
    /// uses.
    #[serde(flatten)]
    pub place: PlaceNameView,
    /// The owner's own bytes in segments that are not full.
    pub held_bytes: u64,
    /// The owner's share of the free bytes there, in proportion to its bytes in each segment; all
    /// shares add up to `split_bytes`.
    pub share_bytes: u64,
    /// Bytes that would be released if the owner's blocks were freed: free bytes in segments
    /// without blocks of others; `None` for the remainder row.
    pub alone_bytes: Option<u64>,
}

/// Fragmentation of the memory that a process allocates from the driver directly.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFragmentsView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// Start of observation: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub observed_since_ns: u64,
    /// Time of the shown state: `CLOCK_BOOTTIME`, in nanoseconds; `None` for the current
    /// state.
    #[serde(serialize_with = "json::date")]
    pub at_worst_ns: Option<u64>,
    /// Reserved addresses, and those of them without memory.
    pub addresses: Holes,
    /// Memory on each GPU.
    pub gpus: Vec<DriverGpuView>,
}

/// Driver memory of a process on one GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverGpuView {
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Memory from `cuMemAlloc`.
    pub device: LinearView,
    /// Physical memory from `cuMemCreate`.
    pub physical: PhysicalView,
    /// Pools used by `cuMemAllocAsync`.
    pub pool: DriverPoolView,
    /// All wasted bytes, as far as they are known.
    pub wasted_bytes: u64,
    /// Result for the requested size, if one was given.
    pub request: Option<DriverFitView>,
}

/// Memory from `cuMemAlloc` and the granules that contain it. The driver does not report granules;
/// they are derived from the addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearView {
    /// Live bytes requested by the program.
    pub live_bytes: u64,
    /// Number of live allocations.
    pub allocations: u64,
    /// Bytes requested in allocations of up to 1 MiB.
    pub small_bytes: u64,
    /// Number of allocations of up to 1 MiB.
    pub small_allocations: u64,
    /// Bytes of the granules that contain at least one allocation: an estimate of what the driver
    /// reserves for them.
    pub backed_bytes: u64,
    /// Size of a granule.
    pub granule_bytes: u64,
    /// Bytes of the granules that are not in an allocation.
    pub unused_bytes: u64,
    /// Whether the numbers are an estimate: always.
    pub estimated: bool,
}

/// Physical memory from `cuMemCreate`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhysicalView {
    /// Live bytes.
    pub live_bytes: u64,
    /// Live bytes that are neither mapped nor bound.
    pub idle_bytes: u64,
}

/// The driver's memory pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverPoolView {
    /// Bytes used from the pools.
    pub used_bytes: u64,
    /// Bytes that the pools hold; `None` if they cannot be estimated either.
    pub backed_bytes: Option<u64>,
    /// Whether `backed_bytes` is an estimate, because the program has not queried the driver for it
    /// lately.
    pub backed_estimated: bool,
    /// Bytes that the pools hold and that are not in use.
    pub unused_bytes: Option<u64>,
}

impl DriverPoolView {
    /// Creates the view of pools with these used and held bytes.
    pub fn new(used_bytes: u64, backed_bytes: Option<u64>, backed_estimated: bool) -> Self {
        let unused_bytes = backed_bytes.map(|backed| backed.saturating_sub(used_bytes));
        Self { used_bytes, backed_bytes, backed_estimated, unused_bytes }
    }
}

/// Result for a request to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverFitView {
    /// Requested bytes.
    pub wanted_bytes: u64,
    /// Bytes that the driver needs for the request: whole granules.
    pub driver_bytes: u64,
    /// Free bytes in NVML's last reading; `None` if they are unknown, and for a past moment.
    pub driver_free_bytes: Option<u64>,
}

/// State of an allocator at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MomentView {
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
    /// Bytes allocated by tensors.
    pub allocated_bytes: u64,
    /// Free bytes.
    pub free_bytes: u64,
    /// Free bytes beside blocks in use.
    pub split_bytes: u64,
    /// Size of the largest free block.
    pub largest_free_bytes: u64,
}

/// Result for a request to the allocator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FitView {
    /// Requested bytes.
    pub wanted_bytes: u64,
    /// Stream of the request: the one with most allocated bytes of the program.
    #[serde(default)]
    pub stream: u64,
    /// Whether the stream has a free block that is large enough.
    pub cached: bool,
    /// Other streams that have such a free block, which only their own requests can use.
    #[serde(default)]
    pub other_streams: Vec<u64>,
    /// Bytes that the driver would have to provide otherwise.
    pub driver_bytes: u64,
    /// Driver's free bytes in NVML's last reading; `None` if they are unknown.
    pub driver_free_bytes: Option<u64>,
    /// Bytes that emptying the cache would release in addition, which PyTorch does before a request
    /// fails.
    pub releasable_bytes: u64,
}

/// A segment, with the blocks that tile it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentView {
    /// Start address.
    pub address: u64,
    /// Size in bytes.
    pub bytes: u64,
    /// Whether the segment is for requests of up to 1 MiB.
    pub small: bool,
    /// Whether the segment can grow and shrink.
    pub expandable: bool,
    /// Stream of the segment.
    pub stream: u64,
    /// Private pool of the segment; (0, 0) for none.
    pub private_pool: (u64, u64),
    /// Blocks, by address.
    pub blocks: Vec<SegmentBlockView>,
}

/// A block of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentBlockView {
    /// Size in bytes.
    pub bytes: u64,
    /// State of the block.
    pub state: SegmentBlockState,
}

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentBlockState {
    /// In use by a tensor.
    Allocated,
    /// Freed by the program and still in use by a stream.
    Pending,
    /// Free.
    Free,
}
