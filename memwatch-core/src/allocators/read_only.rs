//! Follows allocators without tracing their events, by reading their statistics at intervals.
//! Blocks are attributed to call sites only by sampling windows.

use std::collections::BTreeMap;

use super::sampling::Sampling;
use super::{ReportedTotals, TensorLedger};
use crate::input::allocator_state::AllocatorNumbers;
use crate::words::Ordinal;

impl TensorLedger {
    /// Stops tracing. A known block keeps its attribution while readings find it at its address.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.forget_course();
        self.allocators.stop();
        for (ordinal, reported) in self.allocators.reported() {
            self.follow_read(ordinal, reported);
        }
    }

    /// Resumes continuous tracing.
    pub fn resume(&mut self, time_ns: u64) {
        self.sampling = None;
        (self.is_stopped, self.traced_since_ns) = (false, time_ns);
        self.allocators.resume();
    }

    /// Opens a sampling window, in which all events are traced.
    pub fn open_window(&mut self, time_ns: u64) {
        let lost = self.lost_events();
        let sampling = self.sampling.get_or_insert_default();
        sampling.open(time_ns, lost);
        for (ordinal, allocated_bytes) in self.allocators.pytorch.counted_bytes() {
            sampling.count_from(ordinal, allocated_bytes);
        }
        self.allocators.resume();
    }

    /// Closes the sampling window. What it observed is kept.
    pub fn close_window(&mut self, time_ns: u64) {
        let lost = self.lost_events();
        if let Some(sampling) = &mut self.sampling {
            sampling.close(time_ns, lost);
        }
        self.forget_course();
        self.allocators.stop();
    }

    /// Returns whether there were times without tracing.
    pub fn has_gaps(&self) -> bool {
        self.traced_since_ns > 0 || self.sampling.is_some() || self.is_stopped
    }

    /// Returns whether the end of every step was seen: events are traced continuously, or ranges
    /// are traced at every level.
    pub fn sees_steps(&self) -> bool {
        !self.has_gaps() || self.ranges_between > 0
    }

    /// Returns whether a sampling window is open.
    pub fn is_in_window(&self) -> bool {
        self.sampling.as_ref().is_some_and(|sampling| sampling.opened_ns().is_some())
    }

    /// Returns the sampling windows; `None` if none has been counted.
    pub fn sampling(&self) -> Option<&Sampling> {
        self.sampling.as_deref().filter(|sampling| sampling.windows() > 0)
    }

    /// Learns statistics read from the allocators while events are not traced.
    pub fn learn_numbers(&mut self, numbers: &AllocatorNumbers) {
        for device in &numbers.devices {
            let before = self.allocators.reported().get(&device.ordinal).copied();
            if !self.allocators.pytorch.learn_numbers(device, numbers.time_ns) {
                continue;
            }
            let Some(now) = self.allocators.reported().get(&device.ordinal).copied() else { continue };
            self.log.observe(device.ordinal, &now);
            self.follow_read(device.ordinal, now);
            let before_bytes = before.map_or(now.allocated_bytes, |before| before.allocated_bytes);
            self.high_waters.entry(device.ordinal).or_default().observe(before_bytes, now.allocated_bytes);
        }
    }

    /// Learns the blocks of a device, size in bytes by address, read while events are not traced;
    /// see [`super::attribution::CodeAttribution::stand`].
    pub fn learn_standing(&mut self, ordinal: Ordinal, blocks: &BTreeMap<u64, u64>, is_whole: bool) {
        let Some(now) = self.allocators.reported().get(&ordinal).copied() else { return };
        let beside = self.allocators.blocks_beside(ordinal);
        self.attribution.stand(ordinal, (blocks, is_whole), &beside);
        self.attribution.count_allocated(ordinal, now.allocated_bytes);
        self.name_older();
    }

    pub(super) fn follow_read(&mut self, ordinal: Ordinal, now: ReportedTotals) {
        self.attribution.count_allocated(ordinal, now.allocated_bytes);
    }

    /// Drops state that waits for the end of something: the end will not be seen.
    fn forget_course(&mut self) {
        self.marks.lose();
        self.durations.lose();
        self.threads.forget();
        self.moving = None;
    }
}
