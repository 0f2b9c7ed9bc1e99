//! Causes of a failure that lie in other processes: what they keep of memory that is nobody's any more.

use super::moment::of;
use super::{Cause, CauseKind, Evidence};
use crate::features::oom::view::OomView;
use crate::snapshot::{GpuView, LeftBehindView, ProcessView};

/// What NVML charges on a GPU to a process that has ended.
fn charged<'v>(process: &'v ProcessView, gpu: &GpuView) -> Option<(u64, &'v ProcessView, &'v LeftBehindView)> {
    let left = process.left_behind.as_deref()?;
    let bytes = left.gpus.iter().filter(|on| on.uuid == gpu.uuid).map(|on| on.used_bytes).sum();
    (bytes > 0).then_some((bytes, process, left))
}

/// The same of all of them together.
pub(super) fn left_bytes(failure: &OomView, gpu: &GpuView) -> u64 {
    let all = failure.snapshot.processes.iter().filter_map(|process| charged(process, gpu));
    all.map(|(bytes, ..)| bytes).fold(0, u64::saturating_add)
}

/// The memory of processes that have ended and whose open files the ones that they forked still have.
pub(super) fn left_behind(evidence: &Evidence<'_>) -> Vec<Cause> {
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

/// Memory that its owner has given up or left behind, and that the GPU keeps for a process that has opened it.
pub(super) fn opened(evidence: &Evidence<'_>) -> Vec<Cause> {
    let cause = |failure: &OomView| {
        let alive = failure.snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
        let kept = |process: &ProcessView| {
            process.imports.iter().map(|import| import.orphaned_bytes).fold(0, u64::saturating_add)
        };
        let all: Vec<(u64, &ProcessView)> = alive.map(|process| (kept(process), process)).collect();
        // Two that have opened the same memory keep it once.
        let (bytes, process) = all.into_iter().max_by_key(|(bytes, _)| *bytes)?;
        (bytes >= failure.wanted_bytes.max(1)).then(|| Cause {
            count: Some(u64::from(process.tgid.0)),
            subject: Some(process.command.clone()),
            ..of(CauseKind::IpcKept, failure, bytes)
        })
    };
    evidence.failure.and_then(cause).into_iter().collect()
}
