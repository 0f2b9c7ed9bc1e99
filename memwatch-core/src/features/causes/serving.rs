//! Causes in the KV cache of an inference server.

use super::{Cause, CauseEvidence, CauseKind};
use crate::input::kv_cache::KvCache;

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
