//! How much room there was when an allocation failed, by what is kept of that moment.

use super::OUT_OF_MEMORY;
use super::view::OomView;
use crate::snapshot::{GpuView, ProcessView};
use crate::words::Framework;

/// A call of the driver that an allocator's failure follows lies no longer before it, nanoseconds.
const SHORTLY_NS: u64 = 1_000_000_000;
/// PyTorch asks the driver for multiples of this (`kRoundLarge` in c10/cuda/CUDACachingAllocator.cpp).
const SEGMENT_BYTES: u64 = 2 << 20;

impl OomView {
    /// The process whose allocation it was.
    pub fn process(&self) -> Option<&ProcessView> {
        self.snapshot.processes.iter().rfind(|process| process.tgid == self.tgid)
    }

    /// The GPU on which it failed; where that is not known, the machine's only one.
    pub fn gpu(&self) -> Option<&GpuView> {
        let gpus = &self.snapshot.gpus;
        match &self.uuid {
            Some(uuid) => gpus.iter().find(|gpu| gpu.uuid == *uuid),
            None => gpus.first().filter(|_| gpus.len() == 1),
        }
    }

    /// What was free of the GPU, at most, by NVML's last reading and by the calls that were traced since; in bytes.
    pub fn free_bytes(&self) -> Option<u64> {
        let gpu = self.gpu()?;
        let alive = || self.snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
        let held = alive().map(|process| held_bytes(process, gpu)).fold(0, u64::saturating_add);
        let on = alive().flat_map(|process| &process.gpus).filter(|on| on.uuid.as_ref() == Some(&gpu.uuid));
        // A process may have taken much more since that reading, so it is compared with what the same reading says of it.
        let read = on.map(|on| on.used_bytes.unwrap_or(on.confirmed_bytes())).fold(0, u64::saturating_add);
        let used = gpu.used_bytes?;
        let used = used.max(held.saturating_add(used.saturating_sub(read)));
        Some(gpu.total_bytes?.saturating_sub(used))
    }

    /// Whether the driver was asked for memory, and did not have it.
    pub fn was_refused(&self) -> bool {
        let is_recent = |time_ns: u64| self.time_ns.saturating_sub(time_ns) < SHORTLY_NS;
        let mut calls = self.process().into_iter().flat_map(|process| &process.failures);
        !self.refused.is_empty() || calls.any(|call| call.status == OUT_OF_MEMORY && is_recent(call.time_ns))
    }

    /// The largest request that would have been granted in its place, at most, in bytes: from a free block, or by the driver. `None` where
    /// that is not known, and where it comes to as much as was refused.
    pub fn largest_fitting_bytes(&self) -> Option<u64> {
        let cache = self.cache.filter(|_| self.framework == Some(Framework::PyTorch))?;
        // Where PyTorch did not ask, it may not take more.
        let of_driver = if self.was_refused() { self.free_bytes()? / SEGMENT_BYTES * SEGMENT_BYTES } else { 0 };
        Some(cache.largest_free_bytes.max(of_driver)).filter(|largest| (1..self.wanted_bytes).contains(largest))
    }
}

/// What a process has of a GPU, in bytes: what it has allocated by now, and what NVML's last reading had of it besides.
pub fn held_bytes(process: &ProcessView, gpu: &GpuView) -> u64 {
    let on = process.gpus.iter().find(|on| on.uuid.as_ref() == Some(&gpu.uuid));
    on.map_or(0, |on| on.live_bytes.saturating_add_signed(on.unattributed_bytes.unwrap_or(0)))
}
