//! Causes of a failure in other processes: memory that they keep although its owner has exited or
//! freed it.

use super::moment::of;
use super::{Cause, CauseEvidence, CauseKind};
use crate::features::oom::view::OomView;
use crate::snapshot::{GpuView, LeftBehindView, ProcessView};

/// Returns the bytes that NVML charges on a GPU to an exited process.
fn charged<'v>(process: &'v ProcessView, gpu: &GpuView) -> Option<(u64, &'v ProcessView, &'v LeftBehindView)> {
    let left = process.left_behind.as_deref()?;
    let bytes = left.gpus.iter().filter(|on| on.uuid == gpu.uuid).map(|on| on.used_bytes).sum();
    (bytes > 0).then_some((bytes, process, left))
}

/// Returns the bytes that NVML charges on a GPU to all exited processes.
pub(super) fn left_bytes(failure: &OomView, gpu: &GpuView) -> u64 {
    let all = failure.snapshot.processes.iter().filter_map(|process| charged(process, gpu));
    all.map(|(bytes, ..)| bytes).fold(0, u64::saturating_add)
}

/// Finds memory of exited processes kept by forked children that still have the files open.
pub(super) fn left_behind(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let cause = |failure: &OomView| {
        let gpu = failure.gpu()?;
        let bytes = left_bytes(failure, gpu);
        let all = failure.snapshot.processes.iter().filter_map(|process| charged(process, gpu));
        let (_, process, left) = all.max_by_key(|(bytes, ..)| *bytes)?;
        (bytes >= failure.wanted_bytes).then(|| Cause {
            count: left.forked.first().map(|tgid| u64::from(tgid.0)),
            subject: Some(format!("PID {} {}", process.tgid.0, process.command)),
            ..of(CauseKind::ForkedKeep, failure, bytes)
        })
    };
    evidence.failure.and_then(cause).into_iter().collect()
}

/// Finds memory that its owner has freed or left behind, and that another process keeps open.
pub(super) fn opened(evidence: &CauseEvidence<'_>) -> Vec<Cause> {
    let cause = |failure: &OomView| {
        let alive = failure.snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
        let kept = |process: &ProcessView| {
            process.imports.iter().map(|import| import.orphaned_bytes).fold(0, u64::saturating_add)
        };
        let all: Vec<(u64, &ProcessView)> = alive.map(|process| (kept(process), process)).collect();
        // Two processes that have opened the same memory keep it only once.
        let (bytes, process) = all.into_iter().max_by_key(|(bytes, _)| *bytes)?;
        (bytes >= failure.wanted_bytes.max(1)).then(|| Cause {
            count: Some(u64::from(process.tgid.0)),
            subject: Some(process.command.clone()),
            ..of(CauseKind::IpcKept, failure, bytes)
        })
    };
    evidence.failure.and_then(cause).into_iter().collect()
}
