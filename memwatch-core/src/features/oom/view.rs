//! An allocation that failed for lack of memory, and the memory map at that moment.

use serde::{Deserialize, Serialize};

use crate::input::held_names::HeldNames;
use crate::snapshot::{RefusedView, Snapshot, WhoseView};
use crate::words::{Framework, GpuUuid, Name, Tgid, json};

/// A failed allocation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OomView {
    /// Time: `CLOCK_BOOTTIME`, in nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// Process whose allocation failed.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// `tensor` if a framework's allocator failed, else `driver`.
    pub level: Name,
    /// Framework whose allocator failed; `None` for the driver, and in recordings of older versions
    /// of memwatch that do not distinguish frameworks.
    #[serde(default)]
    pub framework: Option<Framework>,
    /// The process's own number of the device, if a framework reported it.
    pub device: Option<i32>,
    /// GPU; `None` for host memory, and if it is unknown.
    #[serde(serialize_with = "json::apart")]
    pub uuid: Option<GpuUuid>,
    /// Driver function; `None` if a framework's allocator failed.
    pub symbol: Option<Name>,
    /// Requested bytes.
    pub wanted_bytes: u64,
    /// Attribution of the request; `None` if PyTorch is not traced.
    #[serde(rename = "attributed_to")]
    pub whose: Option<WhoseView>,
    /// State of PyTorch's allocator; `None` if it is unknown.
    pub cache: Option<CacheView>,
    /// Number of further failures of the process within a second.
    pub more: u64,
    /// Time of the exit, if the process exited shortly after its last failure: `CLOCK_BOOTTIME`, in
    /// nanoseconds. `None` if it survived the failure, or if that is not known yet.
    #[serde(default, serialize_with = "json::date")]
    pub ended_ns: Option<u64>,
    /// Whether the program handled the failure: it allocated on, or lived longer than a dying
    /// process does.
    #[serde(default)]
    pub is_survived: bool,
    /// Time at which a process that had survived the failure exited: `CLOCK_BOOTTIME`, in
    /// nanoseconds. `None` while it runs.
    #[serde(default, serialize_with = "json::date")]
    pub exited_ns: Option<u64>,
    /// The last requests that the kernel driver refused in these failures, oldest first; empty if
    /// libcuda did not ask the kernel driver, or if its requests are not traced.
    #[serde(default)]
    pub refused: Vec<RefusedView>,
    /// The process's live objects by name: the last readings before the failure, and the first one
    /// after it, oldest first.
    #[serde(default, serialize_with = "json::apart")]
    pub names: Vec<HeldNames>,
    /// State of the machine at that moment.
    #[serde(serialize_with = "json::apart")]
    pub snapshot: Box<Snapshot>,
}

/// Reserved and unused memory of a caching allocator, in the pool for the requested size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheView {
    /// Bytes reserved from the driver.
    pub reserved_bytes: u64,
    /// Bytes allocated by the program.
    pub allocated_bytes: u64,
    /// Bytes that `torch.cuda.empty_cache()` releases: unused segments and unused pages of
    /// expandable segments, except in private pools in use.
    pub unused_segment_bytes: u64,
    /// Free bytes in private pools of CUDA graphs and `MemPool`s, which no other request can use.
    #[serde(default)]
    pub stranded_bytes: u64,
    /// Free bytes beside blocks in use outside of private pools, which cannot be released.
    pub split_bytes: u64,
    /// Size of the largest free block outside of private pools.
    pub largest_free_bytes: u64,
    /// Whether the segments are expandable.
    pub is_expandable: bool,
}

/// A request that the kernel driver refused without a reported failure: a library retried or
/// continued without the memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurvivedView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// The refused request.
    #[serde(serialize_with = "json::apart")]
    pub refused: RefusedView,
    /// Result of the driver function that made the request, as a `CUresult`; `None` if it was not
    /// observed.
    pub status: Option<i32>,
}
