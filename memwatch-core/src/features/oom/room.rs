//! Headroom at the time of a failed allocation, from the state kept with the failure.

use super::view::OomView;
use crate::input::held_names::HeldNames;
use crate::snapshot::{GpuView, ProcessView};
use crate::words::{Framework, OUT_OF_MEMORY};

/// Maximum time from a driver call to the allocator failure that it causes, in nanoseconds.
const SHORTLY_NS: u64 = 1_000_000_000;
/// PyTorch requests multiples of this from the driver (`kRoundLarge` in
/// c10/cuda/CUDACachingAllocator.cpp).
const SEGMENT_BYTES: u64 = 2 << 20;

impl OomView {
    /// Returns the process whose allocation failed.
    pub fn process(&self) -> Option<&ProcessView> {
        self.snapshot.processes.iter().rfind(|process| process.tgid == self.tgid)
    }

    /// Returns the GPU of the failure; the machine's only GPU if the failure names none.
    pub fn gpu(&self) -> Option<&GpuView> {
        let gpus = &self.snapshot.gpus;
        match &self.uuid {
            Some(uuid) => gpus.iter().find(|gpu| gpu.uuid == *uuid),
            None => gpus.first().filter(|_| gpus.len() == 1),
        }
    }

    /// Returns an upper bound of the GPU's free bytes, from NVML's last reading and the calls
    /// traced since.
    pub fn free_bytes(&self) -> Option<u64> {
        let gpu = self.gpu()?;
        let alive = || self.snapshot.processes.iter().filter(|process| process.ended_ns.is_none());
        let held = alive().map(|process| held_bytes(process, gpu)).fold(0, u64::saturating_add);
        let on = alive().flat_map(|process| &process.gpus).filter(|on| on.uuid.as_ref() == Some(&gpu.uuid));
        // A process may have allocated much since that reading, so its bytes are compared with
        // those in the same reading.
        let read = on.map(|on| on.used_bytes.unwrap_or(on.confirmed_bytes())).fold(0, u64::saturating_add);
        let used = gpu.used_bytes?;
        let used = used.max(held.saturating_add(used.saturating_sub(read)));
        Some(gpu.total_bytes?.saturating_sub(used))
    }

    /// Returns the readings of the live objects up to the one that shows best what the process held: a
    /// program that survives a failure may have freed much of it before the reading after it, and one
    /// that ends may have no names any more.
    pub fn names_then(&self) -> &[HeldNames] {
        let bytes = |reading: &HeldNames| if reading.without_names.is_none() { reading.bytes() } else { 0 };
        let most = self.names.iter().map(bytes).max().unwrap_or(0);
        let last = self.names.iter().rposition(|reading| bytes(reading) >= most - most / 4);
        last.map_or(&[], |last| &self.names[..=last])
    }

    /// Returns the readings of the live objects before the failure.
    pub fn names_before(&self) -> &[HeldNames] {
        let count = self.names.iter().take_while(|reading| reading.time_ns < self.time_ns).count();
        &self.names[..count]
    }

    /// Returns whether the driver refused a request for memory.
    pub fn was_refused(&self) -> bool {
        let is_recent = |time_ns: u64| self.time_ns.saturating_sub(time_ns) < SHORTLY_NS;
        let mut calls = self.process().into_iter().flat_map(|process| &process.failures);
        !self.refused.is_empty() || calls.any(|call| call.status == OUT_OF_MEMORY && is_recent(call.time_ns))
    }

    /// Returns an upper bound in bytes of the largest request that would have been granted instead:
    /// from a free block, or by the driver. `None` if it is unknown, and if it is as large as the
    /// refused request.
    pub fn largest_fitting_bytes(&self) -> Option<u64> {
        let cache = self.cache.filter(|_| self.framework == Some(Framework::PyTorch))?;
        // If PyTorch did not ask the driver, it may not be allowed to use more.
        let of_driver = if self.was_refused() { self.free_bytes()? / SEGMENT_BYTES * SEGMENT_BYTES } else { 0 };
        Some(cache.largest_free_bytes.max(of_driver)).filter(|largest| (1..self.wanted_bytes).contains(largest))
    }
}

/// Returns the bytes of a process on a GPU: its live allocations, and the unattributed bytes of
/// NVML's last reading.
pub fn held_bytes(process: &ProcessView, gpu: &GpuView) -> u64 {
    let on = process.gpus.iter().find(|on| on.uuid.as_ref() == Some(&gpu.uuid));
    on.map_or(0, |on| on.live_bytes.saturating_add_signed(on.unattributed_bytes.unwrap_or(0)))
}
