//! Detects an allocator that fails without asking the driver although the GPU has enough memory:
//! the process has a memory limit.
//!
//! PyTorch compares a request with `allowed_memory_maximum` before it calls the driver
//! (`alloc_block` in c10/cuda/CUDACachingAllocator.cpp). No other check prevents the call.

use super::moment::of;
use super::{Cause, CauseEvidence, CauseKind};
use crate::features::oom::room::held_bytes;
use crate::features::oom::view::OomView;
use crate::words::Framework;

/// Finds a limit set by `torch.cuda.set_per_process_memory_fraction`.
pub(super) fn own_limit(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let cause = |failure: &OomView| {
        let process = failure.process().filter(|process| process.exact)?;
        let free = failure.free_bytes().filter(|free| *free >= failure.wanted_bytes)?;
        if failure.framework != Some(Framework::PyTorch) || failure.was_refused() {
            return None;
        }
        let reserved = failure.cache.map(|cache| cache.reserved_bytes);
        let bytes = reserved.or_else(|| failure.gpu().map(|gpu| held_bytes(process, gpu)))?;
        Some(Cause { count: Some(free), ..of(CauseKind::OwnLimit, failure, bytes) })
    };
    evidence.failure.and_then(cause).into_iter().collect()
}
