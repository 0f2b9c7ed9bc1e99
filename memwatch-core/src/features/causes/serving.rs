//! Causes in the KV cache of an inference server.

use super::{Cause, CauseEvidence, CauseKind};
use crate::input::kv_cache::{KvCache, KvCacheFill, KvCachePeak};

/// Finds a full pool: requests wait, and almost all blocks are in use. Prefixes that no request uses
/// are free blocks, since the engine gives them up for a request.
pub(super) fn kv_cache_full(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let cause = |pool: &KvCache| Cause {
        count: Some(pool.fill.waiting),
        subject: Some(pool.engine.title().to_owned()),
        kv_cache: Some(pool.fill),
        ..Cause::of(CauseKind::KvCacheFull, pool.used_bytes().unwrap_or(0))
    };
    evidence.kv_cache.filter(|pool| pool.fill.is_full()).map(cause).into_iter().collect()
}

/// Minimum time of readings, in nanoseconds, for advice to reduce a pool.
const LONG_NS: u64 = 3_600_000_000_000;
/// Factor between the blocks to keep and the blocks that were in use at most.
const RESERVE: u64 = 2;
/// Minimum part of a pool to keep, as a divisor: a server must have room for its longest request,
/// which may not have come yet.
const LEAST: u64 = 10;

/// Finds a pool of which at least a third is more than twice what its requests needed in an hour or
/// longer. A server without requests says nothing about its need.
pub(super) fn kv_cache_too_large(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let cause = |pool: &KvCache, peak: KvCachePeak, period_ns: u64| {
        let blocks = pool.fill.blocks;
        let kept = peak.used_blocks.saturating_mul(RESERVE).max(blocks / LEAST);
        let spare = blocks.saturating_sub(kept);
        let is_large = spare.saturating_mul(3) >= blocks && peak.running > 0 && period_ns >= LONG_NS;
        let fill = KvCacheFill {
            used_blocks: peak.used_blocks,
            free_blocks: blocks.saturating_sub(peak.used_blocks),
            running: peak.running,
            ..pool.fill
        };
        is_large.then(|| Cause {
            count: Some(kept),
            subject: Some(pool.engine.title().to_owned()),
            kv_cache: Some(fill),
            period_ns: Some(period_ns),
            ..Cause::of(CauseKind::KvCacheTooLarge, pool.block_bytes.map_or(0, |bytes| bytes.saturating_mul(spare)))
        })
    };
    let found = evidence.kv_cache.zip(evidence.kv_cache_peak);
    found.and_then(|(pool, (peak, period_ns))| cause(pool, peak, period_ns)).into_iter().collect()
}
