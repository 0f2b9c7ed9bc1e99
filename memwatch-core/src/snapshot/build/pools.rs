//! Builds the views of the pools of RAPIDS and CuPy.

use crate::allocators::bfc::Home;
use crate::allocators::pools::{MemoryPool, MemoryPools};
use crate::snapshot::{PoolView, PoolsView};
use crate::words::{GpuUuid, Ordinal};

/// Returns the pools of a process, if a framework with pools is probed; `uuid` returns the GPU of a
/// device.
pub(super) fn pools(pools: &MemoryPools, uuid: impl Fn(Ordinal) -> Option<GpuUuid>) -> Option<PoolsView> {
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
