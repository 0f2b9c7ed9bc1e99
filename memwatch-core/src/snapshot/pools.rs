//! The pools of a program with RAPIDS' memory manager or CuPy: what each has, and what of it the program.

use serde::{Deserialize, Serialize};

use crate::decode::PoolKind;
use crate::words::{Framework, GpuUuid, Name};

/// All pools of a process that are known. What they have is the driver's memory, and added to nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolsView {
    /// Whose functions are probed.
    pub frameworks: Vec<Framework>,
    /// The ones in device memory; none where none was made or used since the attach.
    pub pools: Vec<PoolView>,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// Whose it is.
    pub framework: Framework,
    /// Which sort of pool it is.
    pub kind: PoolKind,
    /// The process's own number of the device; `None` where it is not known in which memory it is.
    pub device: Option<i32>,
    /// The GPU; `None` where it is not known.
    pub uuid: Option<GpuUuid>,
    /// How the device is known: `segment` (it holds the addresses), `name` (the pool says it, of memory from before the watch) or `unknown`.
    pub device_by: Name,
    /// What the program has of it: by the pool's own count, or where all its blocks are known; else `None`.
    pub bytes_in_use: Option<u64>,
    /// The most of that since the attach; `None` where there may be blocks from before it. So with the next one.
    pub peak_bytes_in_use: Option<u64>,
    /// How many blocks it has granted.
    pub num_allocs: Option<u64>,
    /// What it has of the driver, or of another pool: by its own count, or else what its known blocks lie in. `None` where neither is known.
    pub pool_bytes: Option<u64>,
    /// How large each of its blocks is, where they are of one size and this build shows it.
    pub block_bytes: Option<u64>,
    /// How many blocks are known one by one.
    pub known_blocks: u64,
    /// What they have together.
    pub known_bytes: u64,
    /// What of that another allocator divides: PyTorch's segments, arenas, other pools. Sums by line have it there, and not here.
    pub divided_bytes: u64,
    /// All its blocks are known, none of its events is missing, and nothing contradicted another.
    pub exact: bool,
    /// There may be blocks from before the attach that are not known one by one.
    pub older_unknown: bool,
    /// How often its numbers contradicted an event, or one event another.
    pub out_of_step: u64,
}
