//! Caching allocators of which no event is traced: their own numbers are read now and then, and no line has any of them, but where windows of tracing
//! have shown which.

use std::collections::BTreeMap;

use super::framework::FrameworkAllocator;
use super::sampling::Sampling;
use super::{Reported, TensorLedger};
use crate::input::books::Numbers;
use crate::words::Ordinal;

impl<A: FrameworkAllocator> TensorLedger<A> {
    /// No event is traced from now on. A block that is known stays whose it is for as long as it is seen to stand at its place.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.forget_course();
        self.allocators.stop();
        for (ordinal, reported) in self.allocators.reported() {
            self.follow_read(ordinal, reported);
        }
    }

    /// Events are traced again, all the time.
    pub fn resume(&mut self, time_ns: u64) {
        self.sampling = None;
        (self.is_stopped, self.traced_since_ns) = (false, time_ns);
        self.allocators.resume();
    }

    /// All events are traced for a while.
    pub fn open_window(&mut self, time_ns: u64) {
        let lost = self.lost_events();
        let sampling = self.sampling.get_or_insert_default();
        sampling.open(time_ns, lost);
        for (ordinal, allocated_bytes) in self.allocators.counted_bytes() {
            sampling.count_from(ordinal, allocated_bytes);
        }
        self.allocators.resume();
    }

    /// No event is traced again. What the window has shown stays.
    pub fn close_window(&mut self, time_ns: u64) {
        let lost = self.lost_events();
        if let Some(sampling) = &mut self.sampling {
            sampling.close(time_ns, lost);
        }
        self.forget_course();
        self.allocators.stop();
    }

    /// Whether events of some time were not traced.
    pub fn has_gaps(&self) -> bool {
        self.traced_since_ns > 0 || self.sampling.is_some() || self.is_stopped
    }

    /// Whether every step was seen to end: all the time, or ranges are followed at every level.
    pub fn sees_steps(&self) -> bool {
        !self.has_gaps() || self.ranges_between > 0
    }

    /// Whether a window is open.
    pub fn is_in_window(&self) -> bool {
        self.sampling.as_ref().is_some_and(|sampling| sampling.opened_ns().is_some())
    }

    /// The windows in which it is traced; `None` where there is none.
    pub fn sampling(&self) -> Option<&Sampling> {
        self.sampling.as_deref().filter(|sampling| sampling.windows() > 0)
    }

    /// What the allocators have counted by now, while no event is traced.
    pub fn learn_numbers(&mut self, numbers: &Numbers) {
        for device in &numbers.devices {
            let before = self.allocators.reported().get(&device.ordinal).copied();
            if !self.allocators.learn_numbers(device, numbers.time_ns) {
                continue;
            }
            let Some(now) = self.allocators.reported().get(&device.ordinal).copied() else { continue };
            self.log.observe(device.ordinal, &now);
            self.follow_read(device.ordinal, now);
            let before_bytes = before.map_or(now.allocated_bytes, |before| before.allocated_bytes);
            self.high_waters.entry(device.ordinal).or_default().observe(before_bytes, now.allocated_bytes);
        }
    }

    /// While no event is traced, a device has these blocks, by address with their sizes in bytes; see [`super::places::Places::stand`].
    pub fn learn_standing(&mut self, ordinal: Ordinal, blocks: &BTreeMap<u64, u64>, is_whole: bool) {
        let Some(now) = self.allocators.reported().get(&ordinal).copied() else { return };
        let beside = self.allocators.blocks_beside(ordinal);
        self.places.stand(ordinal, (blocks, is_whole), &beside);
        self.places.count_allocated(ordinal, now.allocated_bytes);
        self.name_older();
    }

    pub(super) fn follow_read(&mut self, ordinal: Ordinal, now: Reported) {
        self.places.count_allocated(ordinal, now.allocated_bytes);
    }

    /// What began will not be seen to end.
    fn forget_course(&mut self) {
        self.marks.lose();
        self.durations.lose();
        self.threads.forget();
        self.moving = None;
    }
}
