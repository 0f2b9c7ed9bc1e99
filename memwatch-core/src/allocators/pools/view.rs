//! Views of pools: their memory, and the part that the program uses.

use serde::{Deserialize, Serialize};

use super::{MemoryPool, MemoryPools};
use crate::allocators::bfc::Home;
use crate::decode::PoolKind;
use crate::words::{Framework, GpuUuid, Name, Ordinal};

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

/// Returns the pools of a process, if a framework with pools is probed; `uuid` returns the GPU of a
/// device.
pub(crate) fn pools(pools: &MemoryPools, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Option<PoolsView> {
    let shown = pools.pools().values().filter(|pool| pool.home() != Home::Host);
    let is_any = !pools.watched().is_empty() || !pools.pools().is_empty();
    is_any.then(|| PoolsView {
        frameworks: pools.watched().iter().copied().collect(),
        pools: shown.map(|pool| view(pool, pools.size_bytes(pool), &uuid)).collect(),
    })
}

fn view(pool: &MemoryPool, pool_bytes: Option<u64>, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> PoolView {
    let ordinal = pool.home().ordinal();
    let device_by = match pool.home() {
        Home::Device(_) => "segment",
        Home::Named(_) => "name",
        Home::Unknown | Home::Host => "unknown",
    };
    PoolView {
        framework: pool.kind().framework(),
        kind: pool.kind(),
        device: ordinal.map(|ordinal| ordinal.0),
        uuid: ordinal.and_then(uuid),
        device_by: device_by.into(),
        bytes_in_use: pool.bytes_in_use(),
        peak_bytes_in_use: pool.peak_bytes(),
        num_allocs: pool.granted(),
        pool_bytes,
        block_bytes: pool.block_size_bytes(),
        known_blocks: pool.blocks() as u64,
        known_bytes: pool.known_bytes(),
        divided_bytes: pool.divided_bytes(),
        exact: pool.is_exact(),
        older_unknown: pool.has_older(),
        out_of_step: pool.out_of_step(),
    }
}
