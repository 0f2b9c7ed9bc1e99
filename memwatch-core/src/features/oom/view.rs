//! An allocation that failed for want of memory, and who held what at that moment.

use serde::{Deserialize, Serialize};

use crate::snapshot::{RefusedView, Snapshot, WhoseView};
use crate::words::{Framework, GpuUuid, Name, Tgid, json};

/// One failure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OomView {
    /// When: `CLOCK_BOOTTIME`, nanoseconds.
    #[serde(serialize_with = "json::date")]
    pub time_ns: u64,
    /// Whose allocation it was.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// `tensor`, where a framework's allocator gave up, or `driver`.
    pub level: Name,
    /// Whose allocator gave up; `None` for the driver's, and in recordings of memwatch before it distinguished them.
    #[serde(default)]
    pub framework: Option<Framework>,
    /// The process's own number of the device, where a framework reported it.
    pub device: Option<i32>,
    /// The GPU; `None` for host memory, and where it is not known.
    #[serde(serialize_with = "json::apart")]
    pub uuid: Option<GpuUuid>,
    /// The driver's function; `None` where a framework gave up.
    pub symbol: Option<Name>,
    /// What was wanted, in bytes.
    pub wanted_bytes: u64,
    /// Whose it would have been; `None` where PyTorch is not watched.
    pub whose: Option<WhoseView>,
    /// What PyTorch's allocator kept; `None` where that is not known.
    pub cache: Option<CacheView>,
    /// How many more allocations of the process failed within a second after it.
    pub more: u64,
    /// When the process ended, where that was shortly after its last failure: `CLOCK_BOOTTIME`, nanoseconds. `None` where it survived the failure, or
    /// where that is not known yet.
    #[serde(default, serialize_with = "json::date")]
    pub ended_ns: Option<u64>,
    /// The process went on for longer than a dying one takes: its program handled the failure.
    #[serde(default)]
    pub is_survived: bool,
    /// The last requests that the kernel driver refused behind these, oldest first; empty where libcuda did not ask it, or its requests are not watched.
    #[serde(default)]
    pub refused: Vec<RefusedView>,
    /// Everything that was known at that moment.
    #[serde(serialize_with = "json::apart")]
    pub snapshot: Box<Snapshot>,
}

/// What a caching allocator had of the driver and did not use, where it keeps blocks of the wanted size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheView {
    /// What it had of the driver.
    pub reserved_bytes: u64,
    /// What of that the program had.
    pub allocated_bytes: u64,
    /// Segments of which nothing was in use, and such pages of the ones that grow, but for private pools in use: what `torch.cuda.empty_cache()` gives back.
    pub unused_segment_bytes: u64,
    /// Free in private pools of CUDA graphs and `MemPool`s, which nothing else gets.
    #[serde(default)]
    pub stranded_bytes: u64,
    /// Free beside blocks that were in use and in no private pool, so that it cannot go back.
    pub split_bytes: u64,
    /// The largest free block in no private pool.
    pub largest_free_bytes: u64,
    /// Whether its segments can grow.
    pub is_expandable: bool,
}

/// Memory that the kernel driver refused, where no failure is reported for it: a library tried again or went on without it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurvivedView {
    /// The process.
    #[serde(serialize_with = "json::tgid")]
    pub tgid: Tgid,
    /// What was refused.
    #[serde(serialize_with = "json::apart")]
    pub refused: RefusedView,
    /// How the driver's function that had asked for it ended, as a `CUresult`; `None` where that was not seen.
    pub status: Option<i32>,
}
