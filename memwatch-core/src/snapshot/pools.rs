//! Pools of a program with RAPIDS' memory manager or CuPy: their memory, and the part that the
//! program uses.

use serde::{Deserialize, Serialize};

use crate::decode::PoolKind;
use crate::words::{Framework, GpuUuid, Name};

/// All known pools of a process. Their memory is part of the driver's and is not added to other
/// totals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolsView {
    /// Frameworks whose functions are probed.
    pub frameworks: Vec<Framework>,
    /// Pools in device memory; empty if none was created or used since the attach.
    pub pools: Vec<PoolView>,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// Framework of the pool.
    pub framework: Framework,
    /// Kind of pool.
    pub kind: PoolKind,
    /// The process's own number of the device; `None` if the pool's memory is unknown.
    pub device: Option<i32>,
    /// GPU; `None` if it is unknown.
    pub uuid: Option<GpuUuid>,
    /// Source of the device: `segment` (a segment contains the addresses), `name` (the pool names
    /// it, for memory from before the session) or `unknown`.
    pub device_by: Name,
    /// Bytes in use by the program, from the pool's own count or from its blocks if all are known;
    /// else `None`.
    pub bytes_in_use: Option<u64>,
    /// Peak of the bytes in use since the attach; `None` if there may be blocks from before it.
    pub peak_bytes_in_use: Option<u64>,
    /// Number of blocks allocated; `None` if there may be blocks from before the attach.
    pub num_allocs: Option<u64>,
    /// Bytes that the pool holds, from the driver or another pool: its own count, or else the
    /// memory that contains its known blocks. `None` if neither is known.
    pub pool_bytes: Option<u64>,
    /// Size of a block, if all blocks have one size and this build exposes it.
    pub block_bytes: Option<u64>,
    /// Number of blocks known individually.
    pub known_blocks: u64,
    /// Bytes of these blocks.
    pub known_bytes: u64,
    /// Bytes of these blocks that another allocator subdivides: PyTorch's segments, arenas, other
    /// pools. Sums by call site count them there.
    pub divided_bytes: u64,
    /// Whether all blocks are known, no event is missing, and no contradiction was found.
    pub exact: bool,
    /// Whether there may be unknown blocks from before the attach.
    pub older_unknown: bool,
    /// Number of contradictions between the pool's numbers and events, or between events.
    pub out_of_step: u64,
}
